"""Random numbers: the op `RandomBits`, and distributions as functions of a key and its bits.

A key is u32[2]. It never changes: the same key gives the same numbers, on every machine and engine. New keys come from
`split` and `fold_in`. Keys may have leading axes; the result then has them too, one independent draw per key.

The bits are those of Philox4x32-10 (see `rlx.ir.rng`), exactly. What is drawn from them, w and w' being consecutive
words and W = w' << 32 | w:

    uniform      f32 (w >> 8)·2^-24,  bf16 (w >> 24)·2^-8,  f16 (w >> 21)·2^-11,  f64 (W >> 11)·2^-53
    open unit    f32 ((w >> 9) + ½)·2^-23,  f64 ((W >> 12) + ½)·2^-52; never 0 nor 1
    normal       sqrt(-2 ln u)·cos(2π v), u open from the first draw of an element, v uniform from the second
    gumbel       -ln(-ln u)
    exponential  -ln u
    randint      minval + W mod (maxval - minval)

f16 and bf16 values other than uniform ones are computed in f32. This module is the implementation of `rlx.random`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import Dim, ceildiv, dim_min, product, require_at_most
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import NoRule, Op, op
from rlx.ir.rng import philox4x32
from rlx.ir.shape import Dims, Shape, Size, broadcast_dims, normalize_axis
from rlx.ops.define.operands import convert, dims_of, dtype_of, promote_inexact, recording, same_graph
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.pointwise.arithmetic import (
    and_,
    clamp,
    ge,
    gt,
    lt,
    maximum,
    minimum,
    nextafter,
    or_,
    rem,
    shift_left,
    where,
    xor,
)
from rlx.ops.pointwise.arithmetic import shift_right_logical as shift_right
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import cos, erf, erf_inv, log, neg, sqrt, stop_gradient
from rlx.ops.reduction.reductions import argmax
from rlx.ops.reduction.sort import argsort
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.creation import dim_value, iota
from rlx.ops.shape.movement import expand_dims, narrow, reshape, reshaped, squeeze, stack
from rlx.ops.shape.selection import take_along_axis

__all__ = ["RandomBits", "dropout", "random_bits"]

Array = np.ndarray[Any, np.dtype[Any]]
Dimensions = Sequence[int | str | Dim]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF

# Numbers, new keys and folded keys come from different streams, so that they never share a block.
_DRAW, _SPLIT, _FOLD = range(3)


@op("random_bits")
class RandomBits(Op):
    """u32 words of Philox4x32-10 under key u32[.., 2]: `dims` words per key, after the key's leading axes.

    Element i (in row-major order of `dims`) is word i % 4 of block block0 + i // 4 of the stream: the counter is
    (block's low 32 bits, its high 32 bits, stream, 0). The optional operand block0: u64[..] is 0 where absent; it
    broadcasts against the leading axes of the key. A batch of keys gives every example its own words; under one key
    all examples see the same words.
    """

    precision_class = "data_movement"

    jvp = vjp = NoRule("integer result; distributions are differentiable in their parameters")

    dims: Dims
    stream: int = 0

    def check(self) -> None:
        if not 0 <= self.stream <= _MASK:
            raise self.fail(f"stream must be a 32-bit number, got {self.stream}")

    def infer(self, key: Shape, block0: Shape | None = None) -> Shape:
        if key.dtype is not DType.U32 or key.rank < 1 or key.dims[-1] != 2:
            raise self.fail(f"needs a key u32[2], got {key}; make one with rlx.random.key(seed)")
        batch = key.dims[:-1]
        if block0 is not None:
            if block0.dtype is not DType.U64:
                raise self.fail(f"needs block numbers of type u64, got {block0}")
            batch = broadcast_dims(batch, block0.dims, self.mnemonic)
        return Shape((*batch, *self.dims), DType.U32)

    def eval(self, key: Array, block0: Array | None = None) -> Array:
        dims = Shape(self.dims).static_dims
        count = math.prod(dims)
        blocks_per_key = np.arange(-(-count // 4), dtype=np.uint64)
        blocks = blocks_per_key if block0 is None else blocks_per_key + block0[..., None]
        counter = (blocks & np.uint64(_MASK), blocks >> np.uint64(32), self.stream, 0)
        words = np.stack(philox4x32(counter, (key[..., 0, None], key[..., 1, None])), axis=-1)
        batch = words.shape[:-2]
        return words.reshape((*batch, 4 * len(blocks_per_key)))[..., :count].reshape((*batch, *dims))

    def decompose(self, key: Any, block0: Any = None) -> Any:
        count = product(self.dims)
        index = iota((ceildiv(count, 4),), DType.U64)
        block = index if block0 is None else index + expand_dims(block0, -1)
        k0, k1 = (cast(narrow(key, -1, i, 1), DType.U64) for i in range(2))
        words = _philox(and_(block, _MASK), shift_right(block, 32), self.stream, k0, k1)
        flat = stack([cast(w, DType.U32) for w in words], axis=-1)
        batch = flat.shape[:-2]
        flat = narrow(reshape(flat, (*batch, 4 * index.shape[0])), -1, 0, count)
        return reshape(flat, (*batch, *self.dims))

    def batch(self, size: Size, operands: Any, batched: Any) -> Any:
        key, *block0 = operands
        if not block0:
            return self(key)
        # The leading axes of the two broadcast, so both need the same number of them behind the batch axis.
        lengths = key.ndim - 1 - batched[0], block0[0].ndim - batched[1]
        missing = [max(lengths) - n if b else 0 for n, b in zip(lengths, batched)]
        return self(*(reshaped(x, (*x.shape[:1], *(1,) * n, *x.shape[1:])) for x, n in zip(operands, missing)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        key = spec(2, dtype="u32", values=[42, 7])
        yield sample(cls(()), key, dtypes=("u32",))
        yield sample(cls((5,)), key, dtypes=("u32",))
        yield sample(cls((2, 3), 1), key, dtypes=("u32",))
        yield sample(cls((0, 3)), key, dtypes=("u32",))
        keys = spec(3, 2, dtype="u32", low=0, high=1000)
        yield sample(cls((5,)), keys, dtypes=("u32",))
        yield sample(cls((5,)), spec(0, 2, dtype="u32"), dtypes=("u32",))
        yield sample(cls((6,)), key, spec(dtype="u64", values=2**32 - 1), dtypes=("u32",))
        yield sample(cls((2,), 2), keys, spec(3, dtype="u64", low=0, high=99), dtypes=("u32",))
        yield sample(cls(("B", 3)), key, dtypes=("u32",), B=3)
        yield sample(cls((3,)), spec("B", 2, dtype="u32"), dtypes=("u32",), B=3)


def _philox(c0: Any, c1: Any, stream: int, k0: Any, k1: Any) -> tuple[Any, ...]:
    """`rlx.ir.rng.philox4x32` on tensors: 32-bit words in u64, so that products and sums do not wrap."""
    # The stream enters through the first round only, where c2 = stream and c3 = 0 are constants.
    p1 = stream * _MULTIPLIERS[1]
    p0 = c0 * _MULTIPLIERS[0]
    c0, c1 = xor(xor(c1, p1 >> 32), k0), p1 & _MASK
    c2, c3 = xor(shift_right(p0, 32), k1), and_(p0, _MASK)
    for _ in range(_ROUNDS - 1):
        k0, k1 = and_(k0 + _KEY_STEPS[0], _MASK), and_(k1 + _KEY_STEPS[1], _MASK)
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            xor(xor(shift_right(p1, 32), c1), k0),
            and_(p1, _MASK),
            xor(xor(shift_right(p0, 32), c3), k1),
            and_(p0, _MASK),
        )
    return c0, c1, c2, c3


def random_bits(key: Any, shape: Dimensions = ()) -> Any:
    """Uniform u32 words; see `RandomBits`.

    >>> [f"{w:08x}" for w in random_bits(np.array([42, 0], np.uint32), (2,))]
    ['9ceaf053', '77f5493b']
    """
    return RandomBits(_dims(shape))(_key(key))


def key(seed: Any) -> Any:
    """The key of a seed: its low and high 32 bits. A Python integer is taken modulo 2^64; arrays have one seed each.

    >>> key(2**32 + 5).tolist()
    [5, 1]
    """
    if isinstance(seed, int):
        return np.array([seed & _MASK, seed >> 32 & _MASK], np.uint32)
    if not dtype_of(seed).is_int:
        raise OpError(f"key: needs an integer seed, got {dtype_of(seed)}")
    wide = cast(convert(seed, DType.I64), DType.U64)
    halves = [and_(wide, _MASK), shift_right(wide, 32)]
    return stack([cast(half, DType.U32) for half in halves], axis=-1)


def split(key: Any, num: int | Dimensions = 2) -> Any:
    """`num` new keys, [num, 2]; `num` may be a shape. The old key must not be used again."""
    return RandomBits((*_dims(num), 2), _SPLIT)(_key(key))


def fold_in(key: Any, data: Any) -> Any:
    """A new key from a key and an integer, such as the number of a step or layer; `data` may be a tensor."""
    if not dtype_of(data).is_int:
        raise OpError(f"fold_in: needs an integer, got {dtype_of(data)}")
    block = np.asarray(data & 0xFFFFFFFFFFFFFFFF, np.uint64) if isinstance(data, int) else convert(data, DType.U64)
    return RandomBits((2,), _FOLD)(_key(key), block)


def bits(key: Any, shape: Dimensions = (), dtype: DTypeLike = DType.U32) -> Any:
    """Uniform unsigned integers: u32 (one word each), u64 (two), u8 and u16 (the top bits of a word)."""
    wanted = DType.of(dtype)
    if wanted is DType.U64:
        return _raw(key, shape, 1, DType.F64)[0]
    if wanted not in (DType.U8, DType.U16, DType.U32):
        raise OpError(f"bits: dtype must be u8, u16, u32 or u64, got {wanted}")
    return convert(shift_right(random_bits(key, shape), 32 - 8 * wanted.size_bytes), wanted)


def _key(key: Any) -> Any:
    if isinstance(key, int | float):
        raise OpError(f"rlx.random: {key!r} is not a key; make one with rlx.random.key({key!r})")
    return key


def _dims(shape: Any) -> tuple[Any, ...]:
    return (shape,) if isinstance(shape, int | str | Dim) else tuple(shape)


def _float(function: str, dtype: DTypeLike) -> tuple[DType, DType]:
    """The wanted float type, and the type in which values are computed."""
    wanted = DType.of(dtype)
    if not wanted.is_float or wanted.is_storage:
        raise OpError(f"{function}: dtype must be f16, bf16, f32 or f64, got {wanted}")
    return wanted, wanted.accumulator


def _raw(key: Any, shape: Dimensions, draws: int, dtype: DType) -> list[Any]:
    """`draws` random integers per element: words for f32 and smaller, pairs of words as u64 for f64."""
    dims, width = _dims(shape), draws * (2 if dtype is DType.F64 else 1)
    if width == 1:
        return [random_bits(key, dims)]
    block = random_bits(key, (*dims, width))
    words = [squeeze(narrow(block, -1, i, 1), -1) for i in range(width)]
    if dtype is not DType.F64:
        return words
    wide = [cast(w, DType.U64) for w in words]
    return [or_(shift_left(high, 32), low) for low, high in zip(wide[0::2], wide[1::2])]


# How many bits of a word make a uniform value that the type holds exactly.
_PRECISION = {DType.BF16: 8, DType.F16: 11, DType.F32: 24, DType.F64: 53}


def _unit(raw: Any, dtype: DType) -> Any:
    """Uniform in [0, 1), a multiple of 2^-precision."""
    width, precision = (64 if dtype is DType.F64 else 32), _PRECISION[dtype]
    wide = dtype.accumulator
    return convert(cast(shift_right(raw, width - precision), wide) * wide.numpy.type(2.0**-precision), dtype)


def _open_unit(raw: Any, dtype: DType) -> Any:
    """Uniform in (0, 1), for f32 and f64: the middles of 2^(precision-1) equal intervals."""
    width, precision = (64 if dtype is DType.F64 else 32), _PRECISION[dtype] - 1
    whole = cast(shift_right(raw, width - precision), dtype)
    return (whole + dtype.numpy.type(0.5)) * dtype.numpy.type(2.0**-precision)


def uniform(key: Any, shape: Dimensions = (), dtype: DTypeLike = float, minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Uniform in [minval, maxval)."""
    wanted, _ = _float("uniform", dtype)
    unit = _unit(_raw(key, shape, 1, wanted)[0], wanted)
    if _is_number(minval, 0) and _is_number(maxval, 1):
        return unit
    low, high = convert(minval, wanted), convert(maxval, wanted)
    # The sum may round up to maxval; to derivatives that limit is a constant.
    below = nextafter(stop_gradient(high), stop_gradient(low))
    return maximum(low, minimum(low + unit * (high - low), below))


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, int | float) and value == number


def normal(key: Any, shape: Dimensions = (), dtype: DTypeLike = float) -> Any:
    """Standard normal values; at most 5.8 (f32) or 8.6 (f64) in magnitude."""
    wanted, wide = _float("normal", dtype)
    first, second = _raw(key, shape, 2, wide)
    radius = sqrt(log(_open_unit(first, wide)) * wide.numpy.type(-2.0))
    return convert(radius * cos(_unit(second, wide) * wide.numpy.type(2.0 * math.pi)), wanted)


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Dimensions | None = None, dtype: DTypeLike = float
) -> Any:
    """Standard normal values, given that they lie in [lower, upper]."""
    wanted, wide = _float("truncated_normal", dtype)
    low, high = convert(lower, wide), convert(upper, wide)
    dims = broadcast_dims(dims_of(low), dims_of(high), "truncated_normal") if shape is None else shape
    half, root = wide.numpy.type(math.sqrt(0.5)), wide.numpy.type(math.sqrt(2.0))
    a, b = erf(low * half), erf(high * half)
    u = a + (b - a) * _open_unit(_raw(key, dims, 1, wide)[0], wide)
    return convert(clamp(erf_inv(u) * root, low, high), wanted)


def exponential(key: Any, shape: Dimensions = (), dtype: DTypeLike = float) -> Any:
    """Exponentially distributed values with mean 1."""
    wanted, wide = _float("exponential", dtype)
    return convert(neg(log(_open_unit(_raw(key, shape, 1, wide)[0], wide))), wanted)


def gumbel(key: Any, shape: Dimensions = (), dtype: DTypeLike = float) -> Any:
    """Values of the standard Gumbel distribution: the argmax of logits plus them is a draw from softmax(logits)."""
    wanted, wide = _float("gumbel", dtype)
    return convert(neg(log(neg(log(_open_unit(_raw(key, shape, 1, wide)[0], wide))))), wanted)


def bernoulli(key: Any, p: Any = 0.5, shape: Dimensions | None = None) -> Any:
    """True with probability p; the shape is that of p unless it is given."""
    (p,) = promote_inexact(p)
    wide = DType.F64 if dtype_of(p) is DType.F64 else DType.F32
    dims = dims_of(p) if shape is None else shape
    return lt(_unit(_raw(key, dims, 1, wide)[0], wide), convert(p, wide))


def categorical(key: Any, logits: Any, axis: int = -1, shape: Dimensions | None = None) -> Any:
    """i32 ids drawn from softmax(logits) along `axis`.

    `shape` may put further axes in front of those of the logits without `axis`: that many independent draws.
    """
    (logits,) = promote_inexact(logits)
    dims = dims_of(logits)
    axis = normalize_axis(axis, len(dims), "categorical")
    batch = (*dims[:axis], *dims[axis + 1 :])
    wanted = batch if shape is None else Shape(_dims(shape)).dims
    extra = len(wanted) - len(batch)
    if extra < 0 or wanted[extra:] != batch:
        raise ShapeError(
            f"categorical: shape {wanted} must end with {batch}, the shape of the logits without axis {axis}"
        )
    wide = dtype_of(logits).accumulator
    with same_graph(logits):
        noise = gumbel(key, (*wanted[:extra], *dims), wide)
        return argmax(noise + convert(logits, wide), extra + axis)


def randint(key: Any, shape: Dimensions, minval: Any, maxval: Any, dtype: DTypeLike = DType.I32) -> Any:
    """Integers in [minval, maxval), all but 2^-32 equally likely; minval where the range is empty."""
    wanted = DType.of(dtype)
    if not wanted.is_int or wanted.is_storage:
        raise OpError(f"randint: dtype must be an integer type, got {wanted}")
    raw = _raw(key, shape, 1, DType.F64)[0]
    low, high = convert(minval, DType.I64), convert(maxval, DType.I64)
    span = cast(where(gt(high, low), high - low, 1), DType.U64)
    return convert(low + cast(rem(raw, span), DType.I64), wanted)


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """`x` in random order along `axis`, or a random order of range(x) for an integer x.

    With `independent`, every line along the axis has its own order.
    """
    # 64-bit sort keys: ties, which would favour the old order, do not happen.
    if isinstance(x, int | Dim):
        return argsort(bits(key, (x,), DType.U64))
    dims = dims_of(x)
    axis = normalize_axis(axis, len(dims), "permutation")
    with same_graph(x):
        if independent:
            return take_along_axis(x, argsort(bits(key, dims, DType.U64), axis), axis)
        return gather(x, argsort(bits(key, (dims[axis],), DType.U64)), axis)


def choice(key: Any, a: Any, shape: Dimensions = (), replace: bool = True, p: Any = None, axis: int = 0) -> Any:
    """Entries of `a` along `axis` (or integers below an integer a), drawn with probabilities `p`, by default equal."""
    size = a if isinstance(a, int | Dim) else dims_of(a)[normalize_axis(axis, len(dims_of(a)), "choice")]
    dims = Shape(_dims(shape)).dims
    count = product(dims)
    with recording(a, key):
        if not require_at_most(dim_min(count, 1), size, "choice"):
            raise ShapeError("choice: there is nothing to draw from; a has no entries")
        if not replace and not require_at_most(count, size, "choice"):
            raise ShapeError(f"choice: cannot draw {count} different entries out of {size}; use replace=True")
    if p is not None and tuple(dims_of(p)) != (size,):
        raise ShapeError(f"choice: needs one probability per entry, shape ({size},), got {tuple(dims_of(p))}")
    with same_graph(a, p):
        ids = _drawn(key, size, dims, p) if replace else reshape(narrow(_ranking(key, size, p), 0, 0, count), dims)
        return ids if isinstance(a, int | Dim) else gather(a, ids, axis)


def _drawn(key: Any, size: Size, dims: Dims, p: Any) -> Any:
    """Ids drawn with replacement."""
    return randint(key, dims, 0, dim_value(size, DType.I64)) if p is None else categorical(key, log(p), shape=dims)


def _ranking(key: Any, size: Size, p: Any) -> Any:
    """All ids in the order in which they are drawn without replacement."""
    if p is None:
        return permutation(key, size)
    # In the order of perturbed logits: each next id is a draw from what is left.
    (weights,) = promote_inexact(p)
    return argsort(log(weights) + gumbel(key, (size,), dtype_of(weights).accumulator), descending=True)


def dropout(x: Any, rate: Any, key: Any) -> Any:
    """x with every element set to 0 with probability `rate`, the others divided by 1 - rate."""
    (x,) = promote_inexact(x)
    if isinstance(rate, int | float) and not 0.0 <= rate <= 1.0:
        raise OpError(f"dropout: the rate is a probability in [0, 1], got {rate}")
    if _is_number(rate, 0):
        return x
    with same_graph(x):
        kept = ge(_unit(random_bits(key, dims_of(x)), DType.F32), convert(rate, DType.F32))
        # At rate 1 nothing is kept, and the factor does not matter.
        factor = 1.0 if _is_number(rate, 1) else 1.0 / (1.0 - rate)
        return where(kept, x * convert(factor, dtype_of(x)), 0.0)
