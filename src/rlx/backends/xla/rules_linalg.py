"""Rules for sums of products: matrix products, convolutions and Fourier transforms."""

from __future__ import annotations

import math

import numpy as np

from rlx.backends.xla.rules_pointwise import cast, narrow
from rlx.backends.xla.stablehlo import Emitter, rule
from rlx.backends.xla.text import Block, Kind, Value, bools, int_table, ints
from rlx.ir.dtype import DType
from rlx.ops.linalg.contraction import DotGeneral, MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.signal.fourier import Fft

Kinds = tuple[Kind, ...]

_PRECISION = {"default": "DEFAULT", "high": "HIGH", "highest": "HIGHEST"}


def _precision(name: str) -> str:
    one = f"#stablehlo<precision {_PRECISION[name]}>"
    return f"precision_config = [{one}, {one}]"


def _summing(dtype: DType) -> DType:
    """The type that products are summed in for a result."""
    return DType.F32 if narrow(dtype) else dtype


def _factors(block: Block, values: list[Value], out: DType) -> list[Value]:
    """Operands of a product: integers in the type of the result, in which they wrap; floats as they are, since
    products of f16 and bf16 are exact in f32, or in a wider type that the result asks for."""
    wide = _summing(out)
    return [v if narrow(v.dtype) and wide is DType.F32 else cast(block, v, wide) for v in values]


class _Pairs:
    """Which axes of two operands are paired and which are summed; the others follow in their order."""

    def __init__(self, batch: tuple[list[int], list[int]], summed: tuple[list[int], list[int]]) -> None:
        self.batch, self.summed = batch, summed

    def product(self, block: Block, a: Value, b: Value, out: DType, precision: str) -> Value:
        free_a = [d for i, d in enumerate(a.dims) if i not in (*self.batch[0], *self.summed[0])]
        free_b = [d for i, d in enumerate(b.dims) if i not in (*self.batch[1], *self.summed[1])]
        dims = (*(a.dims[i] for i in self.batch[0]), *free_a, *free_b)
        attributes = (
            f"dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = {self.batch[0]}, "
            f"rhs_batching_dimensions = {self.batch[1]}, lhs_contracting_dimensions = {self.summed[0]}, "
            f"rhs_contracting_dimensions = {self.summed[1]}>, {_precision(precision)}"
        )
        left, right = _factors(block, [a, b], out)
        result = block.op("dot_general", [left, right], Kind(dims, _summing(out)), attributes)
        return block.convert(result, out)


@rule(MatMul)
def _matmul(e: Emitter, op: MatMul, operands: list[Value], kinds: Kinds) -> Value:
    block, (a, b), (kind,) = e.block, operands, kinds
    lead_a, lead_b = a.dims[:-2], b.dims[:-2]
    rank_a, rank_b = a.kind.rank, b.kind.rank
    if not lead_b:
        return _Pairs(([], []), ([rank_a - 1], [0])).product(block, a, b, kind.dtype, op.precision)
    if not lead_a:
        first = _Pairs(([], []), ([1], [rank_b - 2])).product(block, a, b, kind.dtype, op.precision)
        return block.transpose(first, [*range(1, kind.rank - 1), 0, kind.rank - 1])
    lead = np.broadcast_shapes(lead_a, lead_b)
    a, b = (block.broadcast(x, (*lead, *x.dims[-2:])) for x in (a, b))
    axes = list(range(len(lead)))
    return _Pairs((axes, axes), ([len(lead) + 1], [len(lead)])).product(block, a, b, kind.dtype, op.precision)


@rule(DotGeneral)
def _dot_general(e: Emitter, op: DotGeneral, operands: list[Value], kinds: Kinds) -> Value:
    a, b = operands
    ranks = a.kind.rank, b.kind.rank
    batch = [x % ranks[0] for x in op.lhs_batch], [x % ranks[1] for x in op.rhs_batch]
    summed = [x % ranks[0] for x in op.lhs_contracting], [x % ranks[1] for x in op.rhs_contracting]
    return _Pairs(batch, summed).product(e.block, a, b, kinds[0].dtype, op.precision)


@rule(Conv)
def _conv(e: Emitter, op: Conv, operands: list[Value], kinds: Kinds) -> Value:
    block, (x, w), (kind,) = e.block, operands, kinds
    n = op.spatial_rank
    wide = _summing(kind.dtype)
    x, w = cast(block, x, wide), cast(block, w, wide)
    if not x.kind.size or not w.kind.size or not kind.size:
        return block.full(0, kind)
    spatial = ", ".join(map(str, range(n)))
    comma = ", " if n else ""
    attributes = (
        f"dimension_numbers = #stablehlo.conv<[b, f{comma}{spatial}]x[o, i{comma}{spatial}]->[b, f{comma}{spatial}]>, "
        f"window_strides = {ints(op.stride)}, padding = {int_table([(p, p) for p in op.padding], 2)}, "
        f"lhs_dilation = {ints((1,) * n)}, rhs_dilation = {ints(op.dilation)}, "
        f"window_reversal = {bools((False,) * n)}, feature_group_count = {op.groups} : i64, "
        f"batch_group_count = 1 : i64, {_precision(op.precision)}"
    )
    return block.convert(block.op("convolution", [x, w], kind.with_dtype(wide), attributes), kind.dtype)


@rule(Fft)
def _fft(e: Emitter, op: Fft, operands: list[Value], kinds: Kinds) -> Value:
    block, (x,), (kind,) = e.block, operands, kinds
    if not kind.size:
        return x
    if kind.dtype.is_complex:
        return _transformed(block, op, x)
    real = _summing(kind.dtype)
    x = block.convert(x, real)
    n, last = kind.dims[-1] // 2, kind.rank - 1
    parts = [block.narrow(x, last, start, n) for start in (0, n)]
    z = _transformed(block, op, block.op("complex", parts, parts[0].kind.with_dtype(real.complex)))
    after = [block.op(p, [z], parts[0].kind) for p in ("real", "imag")]
    return block.convert(block.concat(after, last), kind.dtype)


def _transformed(block: Block, op: Fft, z: Value) -> Value:
    n = z.dims[-1]
    name = "IFFT" if op.inverse else "FFT"
    attributes = f"fft_type = #stablehlo<fft_type {name}>, fft_length = {ints((n,))}"
    result = block.op("fft", [z], z.kind, attributes)
    # XLA's inverse divides by the length.
    scale = op.norm.output_scale(n, op.inverse) * (n if op.inverse else 1)
    return result if math.isclose(scale, 1.0, abs_tol=0.0) else block.binary("multiply", result, scale)
