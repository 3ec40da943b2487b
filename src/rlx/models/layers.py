"""The layers that decoders and encoders are built of: HIR blocks, on weights as their file stores them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.errors import FormatError
from rlx.hir import functions as blocks
from rlx.ir.dtype import DType
from rlx.ir.module import FusionPolicy, HirModule
from rlx.ir.provenance import written_as
from rlx.models.adapters import Adapter, LoraPair, row_squares
from rlx.models.weights import Weight, WeightFile, plain_weight
from rlx.ops.define.operands import convert
from rlx.ops.random.randomness import dropout, fold_in

if TYPE_CHECKING:
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import Tensor
    from rlx.models.config import NormKind

# Below every square of a norm that means something.
_TINY = 1e-30


class Layers:
    """Appends layers to a module. Params are called as in the file; those that were used are in `weights`, and with
    them what `adapters` add. Where there is a `dropout_key`, adapters drop inputs as they say."""

    def __init__(self, graph: HirModule, file: WeightFile, adapters: Sequence[Adapter] = ()) -> None:
        self.graph, self.file, self.adapters = graph, file, tuple(adapters)
        self.dropout_key: Tensor | None = None
        self.weights: dict[str, Weight] = {}
        self._params: dict[str, Tensor] = {}
        self._filled_vectors: dict[tuple[int, float], Tensor] = {}
        self._dropouts = 0

    def param(self, name: str, dims: tuple[int, ...]) -> tuple[Tensor, Weight]:
        """The param called `name` and how it is stored."""
        if name not in self._params:
            weight = self.weights[name] = self.file.get(name, dims)
            self._params[name] = self.graph.param(name, weight.packed_dims, weight.dtype)
        return self._params[name], self.weights[name]

    def vector(self, name: str, size: int) -> Any:
        """A bias or a norm's factor, as f32."""
        param, weight = self.param(name, (size,))
        if weight.scheme is not None:
            kind = weight.scheme.ggml_name
            raise FormatError(f"{self.file.what}: norms and biases are floats; the tensor {name!r} is {kind}")
        return convert(param, DType.F32)

    def table(self, name: str, dims: tuple[int, ...]) -> Any:
        """A float tensor as f32."""
        param, weight = self.param(name, dims)
        if weight.scheme is not None:
            return ops.dequant_gather(param, ops.iota((dims[0],), DType.I32, 0), scheme=weight.scheme, k=dims[1])
        return convert(param, DType.F32)

    def linear(self, x: Any, role: str, layer: int | None, outputs: int) -> Any:
        """x·Wᵀ + b, the bias being added where the file has one."""
        (y,) = self.linears(x, (role,), layer, (outputs,))
        return y

    def linears(self, x: Any, roles: Sequence[str], layer: int | None, widths: Sequence[int]) -> list[Any]:
        """Several of them on one x. What adapters make of it first is one product for all: a few columns each would
        fill no vector."""
        with written_as("linear"):
            lows = [self._lows(x, adapter, number, roles, layer) for number, adapter in enumerate(self.adapters)]
            return [self._linear(x, role, layer, width, lows) for role, width in zip(roles, widths, strict=True)]

    def _linear(self, x: Any, role: str, layer: int | None, outputs: int, lows: Sequence[Mapping[str, Any]]) -> Any:
        name = self.file.name(role, layer)
        y = self._product(x, f"{name}.weight", outputs)
        for change in self._changes(y, role, layer, lows):
            y = ops.add(y, change)
        if self.file.has(role, layer, "bias"):
            y = ops.add(y, self.vector(f"{name}.bias", outputs))
        return y

    def _product(self, x: Any, name: str, outputs: int) -> Any:
        """x·Wᵀ for a weight [out, in]."""
        param, weight = self.param(name, (outputs, x.shape[-1]))
        if weight.scheme is not None:
            return blocks.dequant_linear(x, param, weight.scheme, outputs)
        return blocks.linear(x, convert(param, DType.F32), transposed=True)

    def _lows(self, x: Any, adapter: Adapter, number: int, roles: Sequence[str], layer: int | None) -> dict[str, Any]:
        """x·Aᵀ for every role that the adapter of that number changes."""
        pairs = {} if layer is None else {r: adapter.pairs[r, layer] for r in roles if (r, layer) in adapter.pairs}
        a = {role: self._parts(pair, number, role, layer)["lora_A"] for role, pair in pairs.items()}
        if len(a) < 2 or self._drops(adapter):
            return {
                role: ops.matmul(self._dropped(x, adapter), ops.transpose(part, (1, 0))) for role, part in a.items()
            }
        low = ops.matmul(x, ops.transpose(ops.concat(list(a.values()), 0), (1, 0)))
        return dict(zip(a, split_last(low, tuple(pair.rank for pair in pairs.values()))))

    def _parts(self, pair: LoraPair, number: int, role: str, layer: int | None) -> dict[str, Any]:
        """The params of a pair of the adapter of that number."""
        name, end = self.file.name(role, layer), f".{number}" if number else ""
        return {part: self._own(f"{name}.{part}{end}", plain_weight(array)) for part, array in pair.arrays().items()}

    def _changes(self, y: Any, role: str, layer: int | None, lows: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        """What each adapter adds to y = x·Wᵀ."""
        for number, (adapter, low) in enumerate(zip(self.adapters, lows, strict=True)):
            pair = None if layer is None else adapter.pairs.get((role, layer))
            if pair is None:
                continue
            name, parts = self.file.name(role, layer), self._parts(pair, number, role, layer)
            a, b = parts["lora_A"], parts["lora_B"]
            change = ops.mul(ops.matmul(low[role], ops.transpose(b, (1, 0))), pair.scale)
            if pair.magnitude is None:
                yield change
                continue
            factor = ops.div(parts["lora_magnitude_vector"], self._row_norms(name, a, b, pair.scale))
            yield ops.add(ops.mul(ops.sub(factor, 1.0), y), ops.mul(factor, change))

    def _drops(self, adapter: Adapter) -> bool:
        return self.dropout_key is not None and adapter.dropout > 0

    def _dropped(self, x: Any, adapter: Adapter) -> Any:
        if self.dropout_key is None or not self._drops(adapter):
            return x
        self._dropouts += 1
        return dropout(x, adapter.dropout, fold_in(self.dropout_key, self._dropouts))

    def _row_norms(self, name: str, a: Any, b: Any, scale: float) -> Any:
        """‖W + s·B·A‖ of every row, a constant in the eyes of differentiation. Written out, so that W takes part in a
        product with A alone, and stays packed: ‖W‖² + 2s·Σ(B∘W·Aᵀ) + s²·Σ(B·(A·Aᵀ)∘B)."""
        outputs, weight = b.shape[0], self.weights[f"{name}.weight"]
        squares = self._own(f"{name}.row_squares", Weight((outputs,), DType.F32, None, lambda: row_squares(weight)))
        seen = ops.transpose(self._product(a, f"{name}.weight", outputs), (1, 0))
        cross = ops.reduce_sum(ops.mul(b, seen), (1,))
        gram = ops.matmul(a, ops.transpose(a, (1, 0)))
        own = ops.reduce_sum(ops.mul(ops.matmul(b, gram), b), (1,))
        total = ops.add(squares, ops.add(ops.mul(cross, 2.0 * scale), ops.mul(own, scale * scale)))
        return ops.stop_gradient(ops.sqrt(ops.maximum(total, _TINY)))

    def _own(self, name: str, weight: Weight) -> Any:
        """A param that does not come from the file."""
        if name not in self._params:
            self.weights[name] = weight
            self._params[name] = self.graph.param(name, weight.dims, weight.dtype)
        return self._params[name]

    def expert_product(self, x: Any, role: str, layer: int, experts: int, outputs: int, ids: Any) -> Any:
        """Row i of x [M, K] times the matrix of expert ids[i], plus its bias where the file has one."""
        name = self.file.name(role, layer)
        param, weight = self.param(f"{name}.weight", (experts, outputs, x.shape[-1]))
        if weight.scheme is not None:
            y = ops.dequant_grouped_matmul(x, param, ids, scheme=weight.scheme, n=outputs)
        else:
            y = ops.grouped_matmul(x, ops.transpose(convert(param, DType.F32), (0, 2, 1)), ids)
        if self.file.has(role, layer, "bias"):
            y = ops.add(y, self._rows(f"{name}.bias", ids, experts, outputs))
        return y

    def embedding(self, ids: Any, role: str, rows: int, width: int) -> Any:
        """Row ids[i..] of a table, as f32."""
        with written_as("embedding"):
            return self._rows(f"{self.file.name(role)}.weight", ids, rows, width)

    def _rows(self, name: str, ids: Any, rows: int, width: int) -> Any:
        """Row ids[i..] of the tensor called `name`, as f32."""
        param, weight = self.param(name, (rows, width))
        if weight.scheme is not None:
            return ops.dequant_gather(param, ids, scheme=weight.scheme, k=width)
        return convert(ops.gather(param, ids), DType.F32)

    def norm(
        self, x: Any, role: str, layer: int | None, kind: NormKind, eps: float, affine: bool = True, heads: int = 0
    ) -> Any:
        """Normalisation over the last axis; only norms that are `affine` have weights, and with `heads`, the axis
        before it, each has its own."""
        size, normalized = x.shape[-1], blocks.rms_norm if kind == "rms" else blocks.layer_norm
        name = self.file.name(role, layer) if affine else ""
        if not affine or heads:
            y = normalized(x, self._filled(size, 1.0), self._filled(size, 0.0), eps)
            return ops.mul(y, self.table(f"{name}.weight", (heads, size))) if affine else y
        gamma = self.vector(f"{name}.weight", size)
        beta = self.vector(f"{name}.bias", size) if self.file.has(role, layer, "bias") else self._filled(size, 0.0)
        return normalized(x, gamma, beta, eps)

    def lowered(self) -> Graph:
        """The program of the module: its blocks as chains of ops, which compilers fuse as they see fit."""
        return self.graph.with_fusion_policy(FusionPolicy.Fusable).lower_to_mir().as_graph()

    def _filled(self, size: int, value: float) -> Any:
        """What norms without weights are given in their place; one for all of them."""
        if (size, value) not in self._filled_vectors:
            self._filled_vectors[size, value] = self.graph.constant(np.full(size, value, np.float32))
        return self._filled_vectors[size, value]


def append_to_cache(cache: Any, new: Any, places: Any) -> Any:
    """`cache` [B, H, C, ..] with `new` [B, S, H, ..] at places[b, s, 0] of its third axis.

    Rows may stand at different places, no two of a sequence at one but those of padding, which nobody reads. Places
    beyond the capacity C are dropped.
    """
    with written_as("cache write"):
        given = convert(new, cache.dtype)
        return ops.scatter_nd(cache, places, given, axes=(2,), batch_dims=1, mode="drop", unique=True)


def quantized_rows(x: Any) -> tuple[Any, Any]:
    """x [.., D] as i8 codes and one f32 scale per row, so that x ≈ code·scale: scale = max|x|/127."""
    scale = ops.div(ops.reduce_max(ops.abs_(x), (-1,)), 127.0)
    divisor = ops.expand_dims(ops.where(ops.gt(scale, 0.0), scale, 1.0), -1)
    return ops.cast(ops.round_(ops.div(x, divisor)), DType.I8), scale


def split_last(x: Any, sizes: tuple[int, ...]) -> list[Any]:
    """The parts of the last axis, one after the other."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [ops.narrow(x, -1, start, size) for start, size in zip(starts, sizes)]
