"""Rules for sums of products: matrix products, convolutions and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.backends.mlx.device import in_stream, mx
from rlx.backends.mlx.dtypes import mlx_type
from rlx.backends.mlx.rules_movement import padded, windows
from rlx.backends.mlx.rules_pointwise import cast, make_complex, narrow
from rlx.backends.mlx.walk import Call, rule
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.ops.linalg.contraction import DotGeneral, MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.signal.fourier import Fft

# Whole numbers in f32 and f64 are exact up to these.
_EXACT_F32, _EXACT_F64 = 1 << 24, 1 << 53


def _product(a: Any, b: Any, types: Sequence[DType], out: DType) -> Any:
    """a @ b summed in the type of the result, or in f32 where that is shorter."""
    if not a.size or not b.size:
        dims = [*_lead(a, b), a.shape[-2], b.shape[-1]]
        return mx.zeros(dims, mlx_type(out))
    if out.is_int:
        return _whole_product(a, b, types, out)
    wide = DType.F32 if narrow(out) else out
    if narrow(types[0]) and types[0] is types[1] is out:
        # MLX sums these up in f32, and rounds once.
        return mx.matmul(a, b)
    a, b = cast(a, types[0], wide), cast(b, types[1], wide)
    return cast(mx.matmul(a, b), wide, out)


def _lead(a: Any, b: Any) -> list[int]:
    return list(np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2])))


def _whole_product(a: Any, b: Any, types: Sequence[DType], out: DType) -> Any:
    """A product of integers, of which MLX has none: by floats that hold all sums exactly, in parts of 16 bits where
    they need to be."""
    terms = a.shape[-1]
    most = terms * math.prod(1 << (8 * t.size_bytes) for t in types)
    if most <= _EXACT_F32:
        return cast(mx.matmul(a.astype(mx.float32), b.astype(mx.float32)).astype(mx.int64), DType.I64, out)
    with in_stream(of_cpu=True):
        if most <= _EXACT_F64:
            return cast(mx.matmul(a.astype(mx.float64), b.astype(mx.float64)).astype(mx.int64), DType.I64, out)
        return cast(_in_parts(a, b, out), DType.U64, out)


def _in_parts(a: Any, b: Any, out: DType) -> Any:
    """Modulo 2**64, of which results keep the lower bits."""
    count = -(-out.size_bytes // 2)

    def parts(x: Any) -> list[Any]:
        bits = mx.view(x.astype(mx.int64), mx.uint64) if x.dtype != mx.uint64 else x
        shifts = (mx.array(16 * i, mx.uint64) for i in range(count))
        mask = mx.array(0xFFFF, mx.uint64)
        return [mx.bitwise_and(mx.right_shift(bits, s), mask).astype(mx.float64) for s in shifts]

    left, right = parts(a), parts(b)
    total = None
    for i, x in enumerate(left):
        for j, y in enumerate(right[: count - i]):
            term = mx.left_shift(mx.matmul(x, y).astype(mx.uint64), mx.array(16 * (i + j), mx.uint64))
            total = term if total is None else total + term
    return total


@rule(MatMul)
def _matmul(call: Call, a: Any, b: Any) -> Any:
    return _product(a, b, call.dtypes, call.dtype)


@rule(DotGeneral)
def _dot_general(call: Call, a: Any, b: Any) -> Any:
    """Paired axes first, then those of a, then those of b, as a batch of matrix products."""
    op = call.op
    batch = [x % a.ndim for x in op.lhs_batch], [x % b.ndim for x in op.rhs_batch]
    summed = [x % a.ndim for x in op.lhs_contracting], [x % b.ndim for x in op.rhs_contracting]
    free = [[i for i in range(x.ndim) if i not in (*paired, *gone)] for x, paired, gone in zip((a, b), batch, summed)]
    lead = [a.shape[i] for i in batch[0]]
    terms = math.prod(a.shape[i] for i in summed[0])
    rows, columns = (math.prod(x.shape[i] for i in axes) for x, axes in zip((a, b), free))
    left = mx.transpose(a, [*batch[0], *free[0], *summed[0]]) if a.ndim else a
    right = mx.transpose(b, [*batch[1], *summed[1], *free[1]]) if b.ndim else b
    left, right = left.reshape(*lead, rows, terms), right.reshape(*lead, terms, columns)
    return _product(left, right, call.dtypes, call.dtype).reshape(call.dims)


@rule(Conv)
def _conv(call: Call, x: Any, w: Any) -> Any:
    op = call.op
    if not x.size or not w.size or not math.prod(call.dims):
        return call.zeros()
    wide = DType.F32 if narrow(call.dtype) else call.dtype
    x, w = cast(x, call.dtypes[0], wide), cast(w, call.dtypes[1], wide)
    # Those of f64 are no more exact than f32.
    is_own = wide is DType.F32 and 1 <= op.spatial_rank <= 3
    return cast(_own_conv(op, x, w) if is_own else _conv_of_windows(call, x, w, wide), wide, call.dtype)


def _own_conv(op: Conv, x: Any, w: Any) -> Any:
    """MLX's convolution, which has channels last."""
    made = mx.conv_general(
        mx.moveaxis(x, 1, -1),
        mx.moveaxis(w, 1, -1),
        stride=list(op.stride),
        padding=list(op.padding),
        kernel_dilation=list(op.dilation),
        groups=op.groups,
    )
    return mx.moveaxis(made, -1, 1)


def _conv_of_windows(call: Call, x: Any, w: Any, dtype: DType) -> Any:
    """A matrix product of what each window sees and the weights, for each group of channels."""
    op, rank = call.op, call.op.spatial_rank
    count, channels, places = x.shape[0], x.shape[1] // op.groups, call.dims[2:]
    sides = [0, 0, *op.padding]
    x = padded(x, mx.zeros((), x.dtype), sides, sides, [0] * x.ndim)
    seen = windows(x, (1, 1, *op.kernel_size), (1, 1, *op.stride), (1, 1, *op.dilation), (*x.shape[:2], *places))
    seen = seen.reshape(count, op.groups, channels, *places, *op.kernel_size)
    order = [1, 0, *range(3, 3 + rank), 2, *range(3 + rank, 3 + 2 * rank)]
    terms = channels * math.prod(op.kernel_size)
    rows = mx.transpose(seen, order).reshape(op.groups, -1, terms)
    weights = mx.swapaxes(w.reshape(op.groups, -1, terms), 1, 2)
    made = _product(rows, weights, (dtype, dtype), dtype)
    made = mx.transpose(made.reshape(op.groups, count, math.prod(places), -1), (1, 0, 3, 2))
    return made.reshape(call.dims)


def has_fft(types: Sequence[Shape]) -> bool:
    return types[0].dtype is not DType.F64


@rule(Fft)
def _fft(call: Call, x: Any) -> Any:
    if not x.size:
        return x
    if call.dtype.is_complex:
        return _transformed(call, x)
    n = call.dims[-1] // 2
    x = cast(x, call.dtype, DType.F32)
    z = _transformed(call, make_complex(x[..., :n], x[..., n:]))
    return cast(mx.concatenate([mx.real(z), mx.imag(z)], axis=-1), DType.F32, call.dtype)


def _transformed(call: Call, z: Any) -> Any:
    op, n = call.op, z.shape[-1]
    result = (mx.fft.ifft if op.inverse else mx.fft.fft)(z)
    # The inverse of MLX divides by the length.
    scale = op.norm.output_scale(n, op.inverse) * (n if op.inverse else 1)
    return result if math.isclose(scale, 1.0, abs_tol=0.0) else result * mx.array(scale, mx.float32)
