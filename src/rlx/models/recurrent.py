"""Layers that keep a state of fixed size in the place of keys and values: Mamba, Mamba-2 and short convolutions.

Of each sequence they keep, whatever its length,

    conv.0, ...    f32[B, taps-1, features]    the last inputs of a convolution
    ssm.0, ...     f32[B, n, features]         of Mamba, and of Mamba-2 f32[B, heads, n, features of a head]

States are 0 where a sequence begins. A state belongs to the end of its sequence, so it cannot go back, other than keys
and values. Padding leaves states as they are: it adds nothing to them and lets nothing decay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx import ops
from rlx.ir.dtype import DType
from rlx.ir.provenance import written_as
from rlx.models.config import DecoderConfig, SsmConfig
from rlx.models.layers import Layers, split_last
from rlx.ops.define.operands import same_graph

if TYPE_CHECKING:
    from rlx.ir.module import HirModule


class RecurrentLayers:
    """Appends such layers to the program of a decoder; what they keep are its `caches`."""

    def __init__(
        self,
        config: DecoderConfig,
        graph: HirModule,
        layers: Layers,
        positions: Any,
        kv_len: Any,
        caches: dict[str, Any],
    ) -> None:
        """`positions` i32[B,S] and `kv_len` i32[B] are those of the program; without caches, `kv_len` is None."""
        self.config, self.graph, self.layers, self.caches = config, graph, layers, caches
        self.dims = positions.shape
        self.is_new: Any = None
        if kv_len is not None:
            self.is_new = ops.cast(ops.lt(positions, ops.expand_dims(kv_len, -1)), DType.I32)
            self.count = ops.reduce_sum(self.is_new, (1,))

    def mixed(self, x: Any, layer: int) -> Any:
        """What the layer adds, of its normalised input [B,S,D]."""
        ssm = self.config.ssm
        if ssm is None:
            return self._short_convolution(x, layer)
        return self._mamba2(x, layer, ssm) if ssm.heads else self._mamba(x, layer, ssm)

    def _short_convolution(self, x: Any, layer: int) -> Any:
        width = self.config.hidden
        enter, leave, inner = split_last(self.layers.linear(x, "conv_in", layer, 3 * width), (width,) * 3)
        y = self._convolved(ops.mul(enter, inner), "conv", layer, self.config.short_conv)
        return self.layers.linear(ops.mul(leave, y), "conv_out", layer, width)

    def _mamba(self, x: Any, layer: int, ssm: SsmConfig) -> Any:
        n, name = ssm.state, self.layers.file.name
        u, gate = split_last(self.layers.linear(x, "ssm_in", layer, 2 * ssm.inner), (ssm.inner, ssm.inner))
        u = ops.silu(self._convolved(u, "ssm_conv", layer, ssm.taps))
        parts = split_last(self.layers.linear(u, "ssm_x", layer, ssm.rank + 2 * n), (ssm.rank, n, n))
        if ssm.part_norm_eps is not None:
            parts = [self.layers.norm(part, "", layer, "rms", ssm.part_norm_eps, affine=False) for part in parts]
        low, enter, leave = parts
        step = self._steps(self.layers.linear(low, "ssm_dt", layer, ssm.inner), ssm)
        decay = self.layers.table(f"{name('ssm_a', layer)}.weight", (ssm.inner, n))
        held = self._held(f"ssm.{layer}", (n, ssm.inner))
        with written_as("state space"):
            y, after = ops.selective_scan(u, step, decay, enter, leave, n, state=held, return_state=True)
        self._keep(f"ssm.{layer}", after)
        skip = self.layers.vector(f"{name('ssm_d', layer)}.weight", ssm.inner)
        y = ops.mul(ops.add(y, ops.mul(u, skip)), ops.silu(gate))
        return self.layers.linear(y, "ssm_out", layer, self.config.hidden)

    def _mamba2(self, x: Any, layer: int, ssm: SsmConfig) -> Any:
        """The same with one decay for each head: attention that forgets, of queries C, keys B and values Δ·x."""
        n, heads, name, (batch, seq) = ssm.state, ssm.heads, self.layers.file.name, self.dims
        shared, width = ssm.groups * n, ssm.inner // heads
        widths = (ssm.inner, ssm.inner + 2 * shared, heads)
        gate, mixed, step = split_last(self.layers.linear(x, "ssm_in", layer, sum(widths)), widths)
        mixed = ops.silu(self._convolved(mixed, "ssm_conv", layer, ssm.taps))
        u, keys, queries = split_last(mixed, (ssm.inner, shared, shared))
        u = ops.reshape(u, (batch, seq, heads, width))
        keys, queries = (ops.reshape(part, (batch, seq, ssm.groups, n)) for part in (keys, queries))
        step = self._steps(ops.add(step, self.layers.vector(f"{name('ssm_dt', layer)}.bias", heads)), ssm)
        decay = ops.mul(step, self.layers.vector(f"{name('ssm_a', layer)}.weight", heads))
        held = self._held(f"ssm.{layer}", (heads, n, width))
        with written_as("state space"):
            values = ops.mul(u, ops.expand_dims(step, -1))
            y, after = ops.linear_attention(queries, keys, values, decay, state=held, return_state=True)
        self._keep(f"ssm.{layer}", after)
        skip = self.layers.vector(f"{name('ssm_d', layer)}.weight", heads)
        y = ops.add(y, ops.mul(u, ops.expand_dims(skip, -1)))
        y = ops.mul(ops.reshape(y, (batch, seq, ssm.inner)), ops.silu(gate))
        return self.layers.linear(self._normed(y, layer, ssm), "ssm_out", layer, self.config.hidden)

    def _normed(self, y: Any, layer: int, ssm: SsmConfig) -> Any:
        """Each group of heads normalised by itself."""
        grouped = ops.reshape(y, (*self.dims, ssm.groups, ssm.inner // ssm.groups))
        normed = self.layers.norm(grouped, "", layer, "rms", self.config.norm_eps, affine=False)
        factor = self.layers.vector(f"{self.layers.file.name('ssm_norm', layer)}.weight", ssm.inner)
        return ops.mul(ops.reshape(normed, y.shape), factor)

    def _steps(self, x: Any, ssm: SsmConfig) -> Any:
        """How far each token moves a state: above 0, and 0 for padding."""
        step = ops.logaddexp(x, 0.0)
        if ssm.step_limits is not None:
            step = ops.clamp(step, *ssm.step_limits)
        if self.is_new is None:
            return step
        return ops.mul(step, ops.expand_dims(ops.cast(self.is_new, step.dtype), -1))

    def _convolved(self, x: Any, role: str, layer: int, taps: int) -> Any:
        """[B,S,features] of x: each feature of a token with those of the `taps` - 1 tokens before it."""
        (batch, seq), features = self.dims, x.shape[-1]
        name, state = self.layers.file.name(role, layer), f"conv.{layer}"
        before = self._held(state, (taps - 1, features))
        with written_as("convolution"):
            if before is None:
                whole = ops.pad(x, 0.0, low=(0, taps - 1, 0))
            else:
                whole = ops.concat([before, x], 1)
                with same_graph(x):
                    back = ops.iota((batch, taps - 1, 1), DType.I32, 1)
                ends = ops.add(back, ops.reshape(self.count, (batch, 1, 1)))
                self._keep(state, ops.gather_nd(whole, ends, axes=(1,), batch_dims=1))
            weights = ops.transpose(self.layers.table(f"{name}.weight", (features, taps)), (1, 0))
            y = None
            for tap in range(taps):
                term = ops.mul(ops.narrow(whole, 1, tap, seq), ops.reshape(ops.narrow(weights, 0, tap, 1), (features,)))
                y = term if y is None else ops.add(y, term)
            if self.layers.file.has(role, layer, "bias"):
                y = ops.add(y, self.layers.vector(f"{name}.bias", features))
        return y

    def _held(self, name: str, dims: tuple[int, ...]) -> Any:
        """The state f32[B, ..] that goes on; None where texts are read from their beginnings."""
        if self.is_new is None:
            return None
        return self.graph.input(name, ("B", *dims), DType.F32)

    def _keep(self, name: str, after: Any) -> None:
        if self.is_new is not None:
            self.caches[name] = after
