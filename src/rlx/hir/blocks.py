"""The simple blocks: one layer of a model each. `rlx.hir.composite` has those that are made of several layers.

The functions that lower them are the functional constructors of `rlx.ops`, so a block adds no meaning of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlx import ops
from rlx.hir.block import Block
from rlx.ir.module import FusionPolicy, MissingBias
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ops.attn.operands import AttentionLayout, MaskKind
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind
from rlx.quant.schemes import QuantScheme

__all__ = [
    "DepthwiseConv1dCausal",
    "HirAttention",
    "HirDequantMatMul",
    "HirGated",
    "HirGatedDeltaNet",
    "HirLayerNorm",
    "HirRmsNorm",
    "HirRoPE",
    "Linear",
    "LinearFused",
    "ResidualRmsNorm",
    "SharedLinearPair",
    "SwiGLU",
]


@op("hir.linear")
class Linear(Block):
    """y = act(x·w [+ b]). With a bias, `Direct` is one fused op; everything else is a chain.

    With `transposed`, w is [out, in] as files of models have it, and y = act(x·wᵀ [+ b]).
    """

    activation: ActivationKind | None = None
    has_bias: bool = False
    transposed: bool = False

    @property
    def summary(self) -> str:
        act = [self.activation.name] if self.activation is not None else []
        return "+".join(["linear", *(["bias"] if self.has_bias else []), *act])

    def infer(self, x: Shape, w: Shape, b: Shape | None = None) -> Shape | tuple[Shape, ...]:
        if self.has_bias != (b is not None):
            raise self.fail(f"has_bias={self.has_bias} does not fit {2 if b is None else 3} operands")
        return self.lowered_type(x, w, b)

    def lower(self, policy: FusionPolicy, x: Any, w: Any, b: Any = None) -> Any:
        if self.has_bias and b is None:
            raise MissingBias(self.mnemonic)
        if self.transposed:
            w = ops.transpose(w, (1, 0))
        if b is not None and policy.is_direct():
            return ops.fused_matmul_bias_act(x, w, b, self.activation)
        y = ops.matmul(x, w)
        if b is not None:
            y = ops.add(y, b)
        return y if self.activation is None else ops.activation(self.activation, y)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(2, 3), spec(3, 4))
        yield sample(cls("silu"), spec(2, 3), spec(3, 4))
        yield sample(cls("gelu", has_bias=True), spec("B", 2, 3), spec(3, 4), spec(4), B=2)
        yield sample(cls(has_bias=True), spec(0, 3), spec(3, 4), spec(4))
        yield sample(cls(has_bias=True, transposed=True), spec("B", 3), spec(4, 3), spec(4), B=2)


@op("hir.linear_fused")
class LinearFused(Block):
    """y = act(x·w + b), one fused op under both policies."""

    activation: ActivationKind | None = None

    @property
    def summary(self) -> str:
        return "linear_fused" if self.activation is None else f"linear_fused+{self.activation.name}"

    def infer(self, x: Shape, w: Shape, b: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, w, b)

    def lower(self, policy: FusionPolicy, x: Any, w: Any, b: Any) -> Any:
        return ops.fused_matmul_bias_act(x, w, b, self.activation)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(2, 3), spec(3, 4), spec(4))
        yield sample(cls("relu"), spec("B", 3), spec(3, 4), spec(4), B=2)


@op("hir.shared_linear_pair")
class SharedLinearPair(Block):
    """x·w0 for slot 0, x·w1 for slot 1; a pair of these reads x once."""

    slot: int

    def check(self) -> None:
        if self.slot not in (0, 1):
            raise self.fail(f"slot must be 0 or 1, got {self.slot}")

    @property
    def label(self) -> str:
        return f"shared_linear_pair[{self.slot}]"

    def infer(self, x: Shape, w0: Shape, w1: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, w0, w1)

    def lower(self, policy: FusionPolicy, x: Any, w0: Any, w1: Any) -> Any:
        return ops.matmul(x, w1 if self.slot else w0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for slot in (0, 1):
            yield sample(cls(slot), spec("B", 3), spec(3, 4), spec(3, 2), B=2)


@op("hir.swiglu")
class SwiGLU(Block):
    """y = (x·up ⊙ silu(x·gate))·down. `Direct` multiplies by both weights at once, joined along their columns."""

    @property
    def label(self) -> str:
        return "swiglu_ffn"

    def infer(self, x: Shape, up_w: Shape, gate_w: Shape, down_w: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, up_w, gate_w, down_w)

    def lower(self, policy: FusionPolicy, x: Any, up_w: Any, gate_w: Any, down_w: Any) -> Any:
        if policy.is_direct():
            both = ops.matmul(x, ops.concat([up_w, gate_w], 1))
            return ops.matmul(ops.fused_swiglu(both), down_w)
        up, gate = ops.matmul(x, up_w), ops.matmul(x, gate_w)
        return ops.matmul(ops.mul(up, ops.silu(gate)), down_w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(2, 3), spec(3, 4), spec(3, 4), spec(4, 3))
        yield sample(cls(), spec("B", 2, 3), spec(3, 5), spec(3, 5), spec(5, 2), B=2)


@op("hir.gated")
class HirGated(Block):
    """y = act(gate) ⊙ up: what stands between the products of a gated feed-forward part; SwiGLU with silu."""

    activation: ActivationKind

    @property
    def summary(self) -> str:
        return f"gated {self.activation.name}"

    def infer(self, gate: Shape, up: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(gate, up)

    def lower(self, policy: FusionPolicy, gate: Any, up: Any) -> Any:
        return ops.mul(ops.activation(self.activation, gate), up)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("silu"), spec(2, 3), spec(2, 3))
        yield sample(cls("gelu"), spec("B", 2, 3), spec("B", 2, 3), B=2)


@op("hir.residual_rms_norm")
class ResidualRmsNorm(Block):
    """RMS normalisation of x + residual over the last axis; one fused op when `Direct`.

    With `with_sum` the sum is a second result: it is what the next residual reads.
    """

    eps: float = 1e-6
    with_sum: bool = False

    def infer(self, x: Shape, residual: Shape, gamma: Shape, beta: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, residual, gamma, beta)

    def lower(self, policy: FusionPolicy, x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
        if policy.is_direct():
            return ops.fused_residual_rms_norm(x, residual, None, gamma, beta, self.eps, self.with_sum)
        total = ops.add(x, residual)
        normal = ops.rms_norm(total, gamma, beta, eps=self.eps)
        return (normal, total) if self.with_sum else normal

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(3, 4), spec(4), spec(4))
        yield sample(cls(1e-3, True), spec("B", 2, 4), spec("B", 2, 4), spec(4), spec(4), B=2)


@op("hir.depthwise_conv1d_causal")
class DepthwiseConv1dCausal(Block):
    """y[b,s,c] = Σ_k w[c,0,0,k]·z[b,s+k,c], where z is x [B,S,C] with left_pad [B,K-1,C] before it.

    `left_pad` is zero at the start of a sequence, and the last K-1 steps so far when decoding.
    """

    kernel_size: int

    def check(self) -> None:
        if self.kernel_size < 1:
            raise self.fail(f"kernel_size must be positive, got {self.kernel_size}")

    def infer(self, x: Shape, w: Shape, left_pad: Shape) -> Shape | tuple[Shape, ...]:
        channels = x.dims[-1] if x.rank == 3 else None
        if not isinstance(channels, int) or w.dims != (channels, 1, 1, self.kernel_size):
            raise self.fail(f"needs x [B,S,C] with a fixed C and w [C,1,1,{self.kernel_size}], got {x} and {w}")
        if left_pad.rank != 3 or left_pad.dims[1] != self.kernel_size - 1:
            raise self.fail(f"left_pad must be [B,{self.kernel_size - 1},C], got {left_pad}")
        return self.lowered_type(x, w, left_pad)

    def lower(self, policy: FusionPolicy, x: Any, w: Any, left_pad: Any) -> Any:
        batch, seq, channels = x.shape
        rows = ops.transpose(ops.concat([left_pad, x], 1), (0, 2, 1))
        image = ops.reshape(rows, (batch, channels, 1, seq + self.kernel_size - 1))
        kernel = (1, self.kernel_size)
        filtered = ops.Conv(kernel, (1, 1), (0, 0), (1, 1), channels)(image, w)
        return ops.transpose(ops.reshape(filtered, (batch, channels, seq)), (0, 2, 1))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(3), spec(2, 4, 2), spec(2, 1, 1, 3), spec(2, 2, 2))
        yield sample(cls(1), spec(1, 3, 2), spec(2, 1, 1, 1), spec(1, 0, 2))
        yield sample(cls(2), spec("B", "S", 3), spec(3, 1, 1, 2), spec("B", 1, 3), B=2, S=3)


class _OneOp(Block):
    """A block that is one MIR op under both policies."""

    @property
    def mir(self) -> Op:
        raise NotImplementedError

    def lower(self, policy: FusionPolicy, *operands: Any) -> Any:
        return self.mir(*operands)


@op("hir.attention")
class HirAttention(_OneOp):
    """Attention over q, k, v as `rlx.ops.Attention` defines it, with a mask operand for the kinds custom and bias, and
    operands for fill levels, positions and scales where the attributes say that there are some."""

    num_heads: int
    head_dim: int
    mask_kind: MaskKind = MaskKind.NoMask
    window: int = 0
    num_kv_heads: int | None = None
    layout: AttentionLayout = AttentionLayout.Bsm
    score_scale: float | None = None
    softcap: float | None = None
    has_kv_len: bool = False
    has_positions: bool = False
    has_scales: bool = False

    @property
    def mir(self) -> Op:
        return ops.Attention(**self.attributes)

    def check(self) -> None:
        _ = self.mir

    def infer(self, q: Shape, k: Shape, v: Shape, *extras: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(q, k, v, *extras)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        heads = spec("B", "S", 8)
        yield sample(cls(2, 4, "causal"), heads, heads, heads, B=2, S=3)
        yield sample(cls(4, 2, "sliding_window", 1, 2), spec(1, 3, 8), spec(1, 3, 4), spec(1, 3, 4))
        mask = spec(1, 3, values=[[1.0, 1.0, 0.0]])
        yield sample(cls(2, 4, "custom", softcap=3.0), spec(1, 3, 8), spec(1, 3, 8), spec(1, 3, 8), mask)
        cache, filled = spec("B", 1, 5, 4), spec("B", dtype="i32", values=[3, 5])
        places = spec("B", 2, dtype="i32", values=[[1, 2], [3, 4]])
        cached = cls(2, 4, "causal", 0, 1, "bhsd", has_kv_len=True, has_positions=True)
        yield sample(cached, spec("B", 2, 2, 4), cache, cache, filled, places, B=2)


@op("hir.dequant_matmul")
class HirDequantMatMul(_OneOp):
    """x·W with W stored as `scheme` says; see `rlx.ops.DequantMatMul` for the operands of each."""

    scheme: QuantScheme
    n: int | None = None

    @property
    def label(self) -> str:
        return f"dequant_matmul({self.scheme})"

    @property
    def mir(self) -> Op:
        return ops.DequantMatMul(self.scheme, self.n)

    def infer(
        self, x: Shape, w_q: Shape, scale: Shape | None = None, zp: Shape | None = None
    ) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, w_q, scale, zp)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        codes, scales = spec(4, 3, dtype="i8", low=-128, high=127), spec(2, 3, dtype="f32")
        yield sample(cls("int8/2"), spec("B", 4), codes, scales, dtypes=("f32",), B=2)
        blocks = spec(34, dtype="u8", values=[0, 60, *range(32)])
        yield sample(cls("gguf_q8_0"), spec(2, 32), blocks, dtypes=("f32",))


@op("hir.gated_delta_net")
class HirGatedDeltaNet(_OneOp):
    """Linear attention by the gated delta rule, from zero or (`carry_state`) from a given state.

    With `return_state` the final state is a second result.
    """

    state_size: int
    carry_state: bool = False
    return_state: bool = False

    @property
    def label(self) -> str:
        return "gated_delta_net_carry" if self.carry_state else "gated_delta_net"

    @property
    def mir(self) -> Op:
        return ops.GatedDeltaNet(**self.attributes)

    def infer(
        self, q: Shape, k: Shape, v: Shape, g: Shape, beta: Shape, state: Shape | None = None
    ) -> Shape | tuple[Shape, ...]:
        if self.carry_state != (state is not None):
            raise self.fail(f"carry_state={self.carry_state} does not fit {5 if state is None else 6} operands")
        return self.lowered_type(q, k, v, g, beta, state)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        heads, gates = spec(2, 3, 2, 4, low=-1, high=1), spec(2, 3, 2, low=-1, high=0)
        yield sample(cls(4), heads, heads, heads, gates, spec(2, 3, 2, low=0, high=1))
        state = spec(2, 2, 4, 4, low=-1, high=1)
        yield sample(cls(4, True, True), heads, heads, heads, gates, spec(2, 3, 2, low=0, high=1), state)


@op("hir.rope")
class HirRoPE(_OneOp):
    """Rotary positions over the first `n_rot` elements of every head of x, as `rlx.ops.Rope` defines them; with
    `has_positions` an operand says where each token stands."""

    head_dim: int
    n_rot: int
    style: RopeStyle = RopeStyle.NeoX
    layout: AttentionLayout = AttentionLayout.Bsm
    has_positions: bool = False

    @property
    def mir(self) -> Op:
        return ops.Rope(**self.attributes)

    def check(self) -> None:
        _ = self.mir

    def infer(self, x: Shape, cos: Shape, sin: Shape, positions: Shape | None = None) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, cos, sin, positions)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(4, 4), spec(2, 3, 8), spec(5, 2), spec(5, 2))
        yield sample(cls(4, 2), spec("B", 3, 8), spec(3, 2), spec(3, 2), B=2)
        places = spec("B", 2, dtype="i32", values=[[4, 0], [2, 3]])
        yield sample(cls(4, 4, "gptj", "bshd", True), spec("B", 2, 2, 4), spec(5, 2), spec(5, 2), places, B=2)


@op("hir.layer_norm")
class HirLayerNorm(_OneOp):
    """(x - mean)/√(variance + eps)·gamma + beta over the last axis."""

    eps: float = 1e-5

    @property
    def mir(self) -> Op:
        return ops.LayerNorm(-1, self.eps)

    def infer(self, x: Shape, gamma: Shape, beta: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, gamma, beta)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(4), spec(4))
        yield sample(cls(1e-2), spec("B", 2, 4), spec(4), spec(4), B=2)


@op("hir.rms_norm")
class HirRmsNorm(_OneOp):
    """x/√(mean(x²) + eps)·gamma + beta over the last axis."""

    eps: float = 1e-6

    @property
    def mir(self) -> Op:
        return ops.RmsNorm(-1, self.eps)

    def infer(self, x: Shape, gamma: Shape, beta: Shape) -> Shape | tuple[Shape, ...]:
        return self.lowered_type(x, gamma, beta)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(4), spec(4))
        yield sample(cls(1e-2), spec("B", 2, 4), spec(4), spec(4), B=2)
