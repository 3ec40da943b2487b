"""`rlx.lax`: the ops under the names and with the arguments of `jax.lax`.

    from rlx import lax

    lax.dynamic_slice(x, (i, 0), (1, 4))
    lax.select(x > 0, x, -x)

Everything here is a name for a function found elsewhere in rlx; operands promote as everywhere in rlx, where JAX's
would refuse to mix types. docs/numpy_coverage.md lists what `jax.lax` has and this has not, and why.
"""

from __future__ import annotations

import builtins
import enum
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from rlx import ops
from rlx.autodiff import stop_gradient as stop_gradient
from rlx.autodiff.custom_root import custom_root as custom_root
from rlx.errors import OpError
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.shape import Size, normalize_axis
from rlx.lax import linalg as linalg
from rlx.lax.convolutions import ConvDimensionNumbers as ConvDimensionNumbers
from rlx.lax.convolutions import Precision as Precision
from rlx.lax.convolutions import PrecisionLike as PrecisionLike
from rlx.lax.convolutions import conv as conv
from rlx.lax.convolutions import conv_dimension_numbers as conv_dimension_numbers
from rlx.lax.convolutions import conv_general_dilated as conv_general_dilated
from rlx.lax.convolutions import conv_general_dilated_patches as conv_general_dilated_patches
from rlx.lax.convolutions import conv_transpose as conv_transpose
from rlx.lax.convolutions import conv_with_general_padding as conv_with_general_padding
from rlx.lax.convolutions import precision_word
from rlx.lax.named_arguments import broadcast_in_dim as broadcast_in_dim
from rlx.lax.named_arguments import dynamic_index_in_dim as dynamic_index_in_dim
from rlx.lax.named_arguments import dynamic_slice as dynamic_slice
from rlx.lax.named_arguments import dynamic_slice_in_dim as dynamic_slice_in_dim
from rlx.lax.named_arguments import dynamic_update_index_in_dim as dynamic_update_index_in_dim
from rlx.lax.named_arguments import dynamic_update_slice as dynamic_update_slice
from rlx.lax.named_arguments import dynamic_update_slice_in_dim as dynamic_update_slice_in_dim
from rlx.lax.named_arguments import expand_dims as expand_dims
from rlx.lax.named_arguments import full_like as full_like
from rlx.lax.named_arguments import map as map
from rlx.lax.named_arguments import squeeze as squeeze
from rlx.lax.named_arguments import top_k as top_k
from rlx.lax.named_arguments import transpose as transpose
from rlx.lax.rounding import reduce_precision as reduce_precision
from rlx.lax.solving import custom_linear_solve as custom_linear_solve
from rlx.lax.special import bessel_i0e as bessel_i0e
from rlx.lax.special import bessel_i1e as bessel_i1e
from rlx.lax.special import betainc as betainc
from rlx.lax.special import igamma as igamma
from rlx.lax.special import igamma_grad_a as igamma_grad_a
from rlx.lax.special import igammac as igammac
from rlx.lax.special import polygamma as polygamma
from rlx.lax.special import zeta as zeta
from rlx.lax.windows import padtype_to_pads as padtype_to_pads
from rlx.lax.windows import reduce_window as reduce_window
from rlx.numpy.manipulation import broadcast_shapes as broadcast_shapes
from rlx.ops import acos as acos
from rlx.ops import acosh as acosh
from rlx.ops import add as add
from rlx.ops import all_gather as all_gather
from rlx.ops import all_to_all as all_to_all
from rlx.ops import asin as asin
from rlx.ops import asinh as asinh
from rlx.ops import atan as atan
from rlx.ops import atan2 as atan2
from rlx.ops import atanh as atanh
from rlx.ops import axis_index as axis_index
from rlx.ops import cbrt as cbrt
from rlx.ops import ceil as ceil
from rlx.ops import clz as clz
from rlx.ops import cos as cos
from rlx.ops import cosh as cosh
from rlx.ops import digamma as digamma
from rlx.ops import div as div
from rlx.ops import eq as eq
from rlx.ops import erf as erf
from rlx.ops import erf_inv as erf_inv
from rlx.ops import erfc as erfc
from rlx.ops import exp as exp
from rlx.ops import exp2 as exp2
from rlx.ops import expm1 as expm1
from rlx.ops import floor as floor
from rlx.ops import ge as ge
from rlx.ops import gt as gt
from rlx.ops import imag as imag
from rlx.ops import le as le
from rlx.ops import lgamma as lgamma
from rlx.ops import log as log
from rlx.ops import log1p as log1p
from rlx.ops import lt as lt
from rlx.ops import mul as mul
from rlx.ops import ne as ne
from rlx.ops import neg as neg
from rlx.ops import nextafter as nextafter
from rlx.ops import pmax as pmax
from rlx.ops import pmean as pmean
from rlx.ops import pmin as pmin
from rlx.ops import ppermute as ppermute
from rlx.ops import psum as psum
from rlx.ops import real as real
from rlx.ops import reduce_max as reduce_max
from rlx.ops import reduce_min as reduce_min
from rlx.ops import reduce_prod as reduce_prod
from rlx.ops import reduce_sum as reduce_sum
from rlx.ops import rem as rem
from rlx.ops import rsqrt as rsqrt
from rlx.ops import shift_left as shift_left
from rlx.ops import shift_right_logical as shift_right_logical
from rlx.ops import sign as sign
from rlx.ops import sin as sin
from rlx.ops import sinh as sinh
from rlx.ops import sqrt as sqrt
from rlx.ops import square as square
from rlx.ops import sub as sub
from rlx.ops import tan as tan
from rlx.ops import tanh as tanh
from rlx.ops import tile as tile
from rlx.ops.define.operands import convert, dims_of, dtype_of
from rlx.ops.parallel.collectives import axis_size as axis_size
from rlx.trace.control import cond as cond
from rlx.trace.control import fori_loop as fori_loop
from rlx.trace.control import scan as scan
from rlx.trace.control import switch as switch
from rlx.trace.control import while_loop as while_loop
from rlx.trace.pytree import tree_flatten, tree_leaves, tree_map
from rlx.trace.shardings import with_sharding_constraint as with_sharding_constraint

# Other names of the same functions.
abs = ops.abs_
bitwise_and, bitwise_or, bitwise_xor, bitwise_not = ops.and_, ops.or_, ops.xor, ops.not_
complex = ops.complex_
conj = ops.conjugate
is_finite = ops.isfinite
logistic = ops.sigmoid
max, min, pow = ops.maximum, ops.minimum, ops.pow_
population_count = ops.popcount
psum_scatter = ops.reduce_scatter
reciprocal = ops.recip
reduce_and, reduce_or = ops.reduce_all, ops.reduce_any
shift_right_arithmetic = ops.shift_right


class FftType(enum.StrEnum):
    """Which Fourier transform `fft` is; the words themselves are accepted too."""

    FFT = "FFT"
    IFFT = "IFFT"
    RFFT = "RFFT"
    IRFFT = "IRFFT"


class RoundingMethod(enum.IntEnum):
    """Where a number halfway between two integers is rounded to."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: Any, rounding_method: RoundingMethod | int = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """The nearest integer; from halfway the one further from zero, where `rlx.numpy.round` takes the even one."""
    nearest = ops.round_(x)
    if rounding_method == RoundingMethod.TO_NEAREST_EVEN:
        return nearest
    # Differences of a number and an integer near it are exact, and gradients pass through `nearest` alone.
    is_halfway = ops.eq(ops.abs_(ops.sub(stop_gradient(x), stop_gradient(nearest))), 0.5)
    away = ops.add(ops.trunc(stop_gradient(x)), ops.sign(stop_gradient(x)))
    return ops.where(is_halfway, ops.add(nearest, ops.sub(away, stop_gradient(nearest))), nearest)


def pshuffle(x: Any, axis_name: str, perm: Sequence[int]) -> Any:
    """ppermute by a list of sources: place i gets what perm[i] has."""
    return ops.ppermute(x, axis_name, [(source, place) for place, source in enumerate(perm)])


def pswapaxes(x: Any, axis_name: str, axis: int) -> Any:
    """all_to_all that exchanges an axis with the named one, which has its size."""
    return ops.all_to_all(x, axis_name, axis, axis, tiled=False)


def clamp(min: Any, x: Any, max: Any) -> Any:
    """x limited to [min, max]; mind the order of the arguments."""
    return ops.clamp(x, min, max)


def integer_pow(x: Any, y: int) -> Any:
    """x to a whole power."""
    return ops.pow_(x, convert(y, dtype_of(x)))


def convert_element_type(operand: Any, new_dtype: DTypeLike) -> Any:
    """operand as another dtype."""
    return ops.cast(operand, new_dtype)


def bitcast_convert_type(operand: Any, new_dtype: DTypeLike) -> Any:
    """The same bits as another dtype."""
    return ops.bitcast(operand, new_dtype)


def mulhi(x: Any, y: Any) -> Any:
    """The upper half of the product of integers."""
    dtype = dtype_of(x)
    if dtype is dtype_of(y) and dtype in (DType.I32, DType.U32, DType.I16, DType.U16, DType.I8, DType.U8):
        wide = DType.I64 if dtype.is_signed else DType.U64
        shift = ops.shift_right if dtype.is_signed else ops.shift_right_logical
        return convert(shift(ops.mul(convert(x, wide), convert(y, wide)), 8 * dtype.numpy.itemsize), dtype)
    raise OpError(f"mulhi: two integers of one type of at most 32 bits are needed, got {dtype} and {dtype_of(y)}")


def optimization_barrier(operand: Any) -> Any:
    """operand: programs keep their meaning whatever is moved, so that there is nothing to hold back."""
    return operand


def dtype(x: Any) -> Any:
    """The dtype of x, as NumPy's."""
    return dtype_of(x).numpy


# Shapes


def reshape(operand: Any, new_sizes: Sequence[Size], dimensions: Sequence[int] | None = None) -> Any:
    """The same elements under other sizes; with `dimensions`, read in that order of axes."""
    return ops.reshape(operand if dimensions is None else ops.transpose(operand, dimensions), new_sizes)


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """Axes from start to stop as one."""
    dims = dims_of(operand)
    stop = len(dims) if stop_dimension is None else stop_dimension
    return ops.reshape(operand, (*dims[:start_dimension], -1, *dims[stop:]))


def broadcast(operand: Any, sizes: Sequence[Size]) -> Any:
    """operand repeated along new axes in front."""
    return ops.broadcast_to(operand, (*sizes, *dims_of(operand)))


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """x with axes of size 1 in front, up to `rank` of them."""
    dims = dims_of(x)
    return ops.reshape(x, (*[1] * (rank - len(dims)), *dims))


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """Pieces of the given sizes along an axis."""
    if builtins.sum(sizes) != dims_of(operand)[axis]:
        raise OpError(f"split: sizes must add up to {dims_of(operand)[axis]}, got {tuple(sizes)}")
    return ops.split(operand, [*itertools.accumulate(sizes)][:-1], axis)


def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """Operands of one shape along a new axis."""
    return ops.stack(operands, axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The entries of an axis."""
    count = dims_of(x)[axis]
    if not isinstance(count, int):
        raise OpError(f"unstack: an axis of known size is needed, got {count}")
    return tuple(index_in_dim(x, i, axis, keepdims=False) for i in range(count))


def empty(shape: Sequence[Size], dtype: DTypeLike) -> Any:
    """Zeros: values that nobody set do not exist."""
    return ops.full(shape, 0, dtype)


def concatenate(operands: Sequence[Any], dimension: int) -> Any:
    """Operands joined along an axis."""
    return ops.concat(operands, dimension)


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """operand with axes read from the end."""
    return ops.reverse(operand, dimensions)


def slice(
    operand: Any, start_indices: Sequence[Size], limit_indices: Sequence[Size], strides: Sequence[int] | None = None
) -> Any:
    """The part from start to limit, with steps."""
    return ops.slice_(operand, start_indices, limit_indices, strides)


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0) -> Any:
    """A slice of one axis, as Python counts."""
    axis = normalize_axis(axis, len(dims_of(operand)), "slice_in_dim")
    return ops.index(operand, (*[builtins.slice(None)] * axis, builtins.slice(start_index, limit_index, stride)))


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """One entry of an axis."""
    axis = normalize_axis(axis, len(dims_of(operand)), "index_in_dim")
    found = ops.index(operand, (*[builtins.slice(None)] * axis, index))
    return ops.expand_dims(found, axis) if keepdims else found


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """operand with a value before, behind and between its elements: (low, high, interior) for each axis."""
    low, high, interior = (list(column) for column in zip(*padding_config)) if padding_config else ([], [], [])
    return ops.pad(operand, padding_value, low, high, interior)


def iota(dtype: DTypeLike, size: Size) -> Any:
    """0, 1, .., size - 1."""
    return ops.iota((size,), dtype)


def broadcasted_iota(dtype: DTypeLike, shape: Sequence[Size], dimension: int) -> Any:
    """Positions along one axis of a shape."""
    return ops.iota(tuple(shape), dtype, dimension)


def full(shape: Sequence[Size], fill_value: Any, dtype: DTypeLike | None = None) -> Any:
    """fill_value everywhere."""
    return ops.full(shape, fill_value, dtype)


# Choosing


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """on_true where pred holds, else on_false."""
    return ops.where(pred, on_true, on_false)


def select_n(which: Any, *cases: Any) -> Any:
    """For each element the case of that number; a bool chooses the second case where it is true."""
    if not cases:
        raise OpError("select_n: at least one case is needed")
    chosen = convert(which, DType.I32)
    result = cases[0]
    for number, case in enumerate(cases[1:], 1):
        result = ops.where(ops.eq(chosen, number), case, result)
    return result


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """operand in ascending order; several operands are ordered by the first `num_keys` of them."""
    if isinstance(operand, tuple | list):
        return ops.sort(*operand, axis=dimension, num_keys=num_keys)
    return ops.sort(operand, axis=dimension)


def sort_key_val(keys: Any, values: Any, dimension: int = -1, is_stable: bool = True) -> Any:
    """(keys in ascending order, values in the order of their keys)."""
    return ops.sort(keys, values, axis=dimension)


def argmax(operand: Any, axis: int, index_dtype: DTypeLike = DType.I32) -> Any:
    """The position of the first largest element along an axis."""
    return convert(ops.argmax(operand, axis), DType.of(index_dtype))


def argmin(operand: Any, axis: int, index_dtype: DTypeLike = DType.I32) -> Any:
    """The position of the first smallest element along an axis."""
    return convert(ops.argmin(operand, axis), DType.of(index_dtype))


def approx_max_k(operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95) -> tuple[Any, Any]:
    """The k largest along an axis and their positions, exactly: every recall is reached."""
    values, places = ops.top_k(ops.moveaxis(operand, reduction_dimension, -1), k)
    return ops.moveaxis(values, -1, reduction_dimension), ops.moveaxis(places, -1, reduction_dimension)


def approx_min_k(operand: Any, k: int, reduction_dimension: int = -1, recall_target: float = 0.95) -> tuple[Any, Any]:
    """The k smallest along an axis and their positions, exactly."""
    values, places = approx_max_k(ops.neg(operand), k, reduction_dimension, recall_target)
    return ops.neg(values), places


# Reductions over axes, running and windowed


def reduce(operands: Any, init_values: Any, computation: Callable[[Any, Any], Any], dimensions: Sequence[int]) -> Any:
    """Operands combined along axes by `computation`, starting with `init_values`; trees of both.

    Halves are combined until one is left, so that any associative function will do, in log2 of the size many steps.
    """
    leaves, tree = tree_flatten(operands)
    axes = sorted(normalize_axis(a, len(dims_of(leaves[0])), "reduce") for a in dimensions)
    count = len(axes)
    rows = [ops.moveaxis(x, axes, range(count)) for x in leaves]
    rows = [ops.reshape(x, (-1, *dims_of(x)[count:])) for x in rows]
    starts = [
        ops.broadcast_to(convert(v, dtype_of(x)), (1, *dims_of(x)[1:])) for v, x in zip(tree_leaves(init_values), rows)
    ]
    rest: Any = None
    while (size := dims_of(rows[0])[0]) != 1:
        if not isinstance(size, int):
            raise OpError(f"reduce: axes of known size are needed, got {size}")
        if size % 2:
            last = tree.unflatten([ops.index(x, builtins.slice(-1, None)) for x in rows])
            rest = last if rest is None else computation(last, rest)
            rows = [ops.index(x, builtins.slice(None, -1)) for x in rows]
        firsts, seconds = ([ops.index(x, builtins.slice(side, None, 2)) for x in rows] for side in (0, 1))
        rows = tree_leaves(computation(tree.unflatten(firsts), tree.unflatten(seconds)))
    found = computation(tree.unflatten(starts), tree.unflatten(rows))
    found = found if rest is None else computation(found, rest)
    return tree_map(lambda x: ops.squeeze(x, 0), found)


def reduce_xor(operand: Any, axes: Sequence[int]) -> Any:
    """The exclusive or along axes."""
    return reduce(operand, 0, ops.xor, axes)


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """Running sums along an axis."""
    return ops.cumsum(operand, axis, reverse=reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """Running products along an axis."""
    return ops.cumprod(operand, axis, reverse=reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The largest element so far along an axis."""
    return ops.cummax(operand, axis, reverse=reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The smallest element so far along an axis."""
    return ops.cummin(operand, axis, reverse=reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """log of the running sums of exp(x) along an axis."""
    return ops.logcumsumexp(operand, axis, reverse=reverse)


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Running results of an associative function along an axis, over trees of arrays."""
    return ops.associative_scan(fn, elems, reverse, axis)


# Products


def dot(lhs: Any, rhs: Any, precision: PrecisionLike = None, preferred_element_type: DTypeLike | None = None) -> Any:
    """Products of vectors and matrices."""
    return ops.dot(lhs, rhs, precision=precision_word(precision), out_dtype=preferred_element_type)


def batch_matmul(lhs: Any, rhs: Any, precision: PrecisionLike = None) -> Any:
    """Products of the matrices in the last two axes."""
    return ops.matmul(lhs, rhs, precision=precision_word(precision))


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]],
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """Sums of products over the contracting axes, one for every index of the batch axes."""
    (left, right), (left_batch, right_batch) = dimension_numbers
    return ops.dot_general(
        *(lhs, rhs, left, right, left_batch, right_batch),
        precision=precision_word(precision),
        out_dtype=preferred_element_type,
    )


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any, preferred_element_type: DTypeLike | None = None) -> Any:
    """Rows of lhs [m, k] times the matrix of their group in rhs [g, k, n]; groups follow each other in lhs."""
    ends = ops.expand_dims(convert(ops.cumsum(group_sizes, 0), DType.I32), 0)
    row = ops.iota((dims_of(lhs)[0], 1), DType.I32, 0)
    group = ops.reduce_sum(convert(ops.ge(row, ends), DType.I32), -1)
    count = dims_of(rhs)[0]
    found = ops.grouped_matmul(lhs, rhs, ops.minimum(group, ops.sub(count, 1)))
    # Rows behind the last group are 0.
    kept = ops.where(ops.expand_dims(ops.lt(group, count), -1), found, 0)
    return kept if preferred_element_type is None else ops.cast(kept, preferred_element_type)


def fft(x: Any, fft_type: str, fft_lengths: Sequence[int]) -> Any:
    """The Fourier transform over the last axes; `fft_type` is "FFT", "IFFT", "RFFT" or "IRFFT"."""
    from rlx.numpy import fft as transforms

    names = {"FFT": "fftn", "IFFT": "ifftn", "RFFT": "rfftn", "IRFFT": "irfftn"}
    chosen = str(getattr(fft_type, "name", fft_type)).upper()
    if chosen not in names:
        raise OpError(f"fft: fft_type is one of {', '.join(names)}, got {fft_type!r}")
    return getattr(transforms, names[chosen])(x, s=tuple(fft_lengths), axes=tuple(range(-len(fft_lengths), 0)))
