"""Sums of products: `MatMul`, `DotGeneral`, and the functions built on them; `einsum_notation` has `einsum`.

Products of f16, bf16 and f32 are summed in at least f32 and rounded once; integers wrap in the result type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.errors import ShapeError
from rlx.ir.dims import product, require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape, Size, matmul_shape, normalize_axes, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import (
    convert,
    dims_of,
    dtype_of,
    promote_operands,
    require_float,
    require_numeric,
    require_rank,
    require_same_dtype,
)
from rlx.ops.define.rules import batch_elementwise, put_batch_first, unbroadcast
from rlx.ops.define.samples import COMPLEX, FLOATS, Sample, sample, spec
from rlx.ops.pointwise.arithmetic import mul, ne
from rlx.ops.pointwise.complex_numbers import conjugate
from rlx.ops.shape.movement import expand_dims, flatten, moveaxis, reshaped, squeeze, swapaxes, transposed

__all__ = [
    "DotGeneral",
    "GroupedMatMul",
    "LoraMatMul",
    "MatMul",
    "dot",
    "dot_general",
    "grouped_matmul",
    "inner",
    "lora_matmul",
    "matmul",
    "outer",
    "tensordot",
    "vecdot",
]

Array = np.ndarray[Any, np.dtype[Any]]

PRECISIONS = ("default", "high", "highest")


class _Contraction(Op):
    """What matmul and dot_general share: the type of the result and how it is summed."""

    multilinear_in = (0, 1)

    precision: str = "default"
    out_dtype: DType | None = None

    def check(self) -> None:
        if self.precision not in PRECISIONS:
            raise self.fail(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.out_dtype is not None and (self.out_dtype.is_storage or self.out_dtype is DType.BOOL):
            raise self.fail(f"out_dtype must be a numeric type, got {self.out_dtype}")

    def _result_dtype(self, a: Shape, b: Shape) -> DType:
        dtype = require_same_dtype(self, a, b)
        require_numeric(self, a, b)
        wanted = self.out_dtype or dtype
        if (wanted.is_complex, wanted.is_float) != (dtype.is_complex, dtype.is_float):
            raise self.fail(f"out_dtype={wanted} is not of the kind (integer, float, complex) of the operands, {dtype}")
        return wanted

    def _summed(self, a: Array, b: Array, contract: Any) -> Array:
        out = self.out_dtype or DType.of(a.dtype)
        wide = np.complex128 if out.is_complex else np.float64 if out.is_float else out.numpy
        with np.errstate(all="ignore"):
            return np.asarray(contract(a.astype(wide), b.astype(wide))).astype(out.numpy)


@op("matmul")
class MatMul(_Contraction):
    """y[.., i, j] = sum over k of a[.., i, k] * b[.., k, j]; leading axes broadcast.

    `precision` is how exactly f32 products are formed: "default" lets a device use its fast way (never below what its
    documentation states), "high" and "highest" ask for more; on CPU all three are exact products. `out_dtype` is the
    type of the sum and the result, by default that of the operands.
    """

    is_blas = True
    primitive = True
    is_heavy = True

    def infer(self, a: Shape, b: Shape) -> Shape:
        return matmul_shape(a, b).with_dtype(self._result_dtype(a, b))

    def eval(self, a: Array, b: Array) -> Array:
        return self._summed(a, b, np.matmul)

    def vjp(self, ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Any:
        options: dict[str, Any] = {"precision": self.precision, "out_dtype": None if ct.dtype is a.dtype else a.dtype}
        lead = tuple(range(ct.ndim - 2))
        # One matrix that meets many gets the sum over all of them in a single product.
        if a.ndim == 2 and lead:
            a_ct = dot_general(ct, conjugated(b), (*lead, -1), (*lead, -1), **options)
        else:
            a_ct = matmul(ct, adjoint(b), **options)
        if b.ndim == 2 and lead:
            b_ct = dot_general(conjugated(a), ct, (*lead, -2), (*lead, -2), **options)
        else:
            b_ct = matmul(adjoint(a), ct, **options)
        return unbroadcast(a_ct, a.type), unbroadcast(b_ct, b.type)

    def batch(self, size: Size, operands: tuple[Tensor, Tensor], batched: tuple[bool, bool]) -> Any:
        return batch_elementwise(self, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(4, 5), dtypes=(*FLOATS, "i8", "u8", "i32", "i64"))
        yield sample(cls(), spec(3, 4), spec(2, 4, 5), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 3, 4), spec(2, 4, 5))
        yield sample(cls(), spec(2, 1, 3, 4), spec(5, 4, 2))
        yield sample(cls(), spec(2, 3, 4), spec(4, 5))
        yield sample(cls(), spec(1, 1), spec(1, 1))
        yield sample(cls(), spec(3, 0), spec(0, 2))
        yield sample(cls(), spec(0, 3), spec(3, 2))
        yield sample(cls("highest"), spec(2, 3), spec(3, 2))
        yield sample(cls(out_dtype="i32"), spec(3, 4, low=-100, high=100), spec(4, 5), dtypes=("i8", "u8"))
        yield sample(cls(out_dtype="f32"), spec(3, 4), spec(4, 5), dtypes=("f16", "bf16"))
        yield sample(cls(), spec("B", "S", 4), spec(4, 5), B=2, S=3)
        yield sample(cls(), spec("B", 2, "S"), spec("B", "S", 2), B=2, S=3)


@op("dot_general")
class DotGeneral(_Contraction):
    """The sum of products over pairs of contracted axes, for every index of the paired batch axes.

    The result has the batch axes, then the other axes of lhs, then those of rhs. `precision` and `out_dtype` are those
    of `MatMul`.
    """

    is_blas = True
    is_heavy = True

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    # Again, to come last.
    precision: str = "default"
    out_dtype: DType | None = None

    def check(self) -> None:
        super().check()
        if len(self.lhs_contracting) != len(self.rhs_contracting) or len(self.lhs_batch) != len(self.rhs_batch):
            raise self.fail(
                f"contracted and batch axes come in pairs, got {self.lhs_contracting} with {self.rhs_contracting} "
                f"and {self.lhs_batch} with {self.rhs_batch}"
            )

    def _axes(self, lhs_rank: int, rhs_rank: int) -> tuple[_Axes, _Axes]:
        return (
            _Axes(self.lhs_batch, self.lhs_contracting, lhs_rank),
            _Axes(self.rhs_batch, self.rhs_contracting, rhs_rank),
        )

    def infer(self, lhs: Shape, rhs: Shape) -> Shape:
        dtype = self._result_dtype(lhs, rhs)
        left, right = self._axes(lhs.rank, rhs.rank)
        for i, j in zip((*left.batch, *left.contract), (*right.batch, *right.contract)):
            if not require_equal(lhs.dims[i], rhs.dims[j], "dot_general"):
                raise self.fail(f"axis {i} of {lhs} and axis {j} of {rhs} are paired but differ in size")
        batch = [_joined(lhs.dims[i], rhs.dims[j]) for i, j in zip(left.batch, right.batch)]
        return Shape((*batch, *(lhs.dims[i] for i in left.free), *(rhs.dims[j] for j in right.free)), dtype)

    def eval(self, lhs: Array, rhs: Array) -> Array:
        left, right = self._axes(lhs.ndim, rhs.ndim)
        # Equal numbers are summed or paired: lhs axes are 0.., rhs axes follow unless they have a partner.
        lhs_labels = list(range(lhs.ndim))
        rhs_labels = [lhs.ndim + j for j in range(rhs.ndim)]
        for i, j in zip((*left.batch, *left.contract), (*right.batch, *right.contract)):
            rhs_labels[j] = i
        result = [*left.batch, *left.free, *(rhs_labels[j] for j in right.free)]
        return self._summed(lhs, rhs, lambda a, b: np.einsum(a, lhs_labels, b, rhs_labels, result))

    def decompose(self, lhs: Tensor, rhs: Tensor) -> Any:
        left, right = self._axes(lhs.ndim, rhs.ndim)
        lhs_batch, lhs_free = ([lhs.shape[i] for i in group] for group in (left.batch, left.free))
        rhs_batch, rhs_free = ([rhs.shape[j] for j in group] for group in (right.batch, right.free))
        a = _matrices(lhs, left.batch, left.free, left.contract)
        b = _matrices(rhs, right.batch, right.contract, right.free)
        batch = [_joined(m, n) for m, n in zip(lhs_batch, rhs_batch)]
        return reshaped(MatMul(self.precision, self.out_dtype)(a, b), (*batch, *lhs_free, *rhs_free))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls((1,), (0,)), spec(3, 4), spec(4, 5), dtypes=(*FLOATS, "i8", "i32"))
        yield sample(cls((1,), (1,)), spec(3, 4), spec(5, 4), dtypes=COMPLEX)
        yield sample(cls((-1,), (-1,)), spec(3, 4), spec(5, 4))
        yield sample(cls((0, 2), (2, 1)), spec(3, 2, 4), spec(5, 4, 3))
        yield sample(cls((3,), (1,), (0, 2), (3, 0)), spec(2, 3, 5, 4), spec(5, 4, 6, 2))
        yield sample(cls((0,), (0,)), spec(3), spec(3))
        yield sample(cls((), ()), spec(3), spec(2, 2))
        yield sample(cls((), (), (0,), (1,)), spec(3), spec(2, 3))
        yield sample(cls((1,), (0,)), spec(3, 0), spec(0, 2))
        yield sample(cls((1,), (0,), out_dtype="i32"), spec(2, 3), spec(3, 2), dtypes=("i8",))
        yield sample(cls((2,), (0,), precision="high"), spec("B", "S", 4), spec(4, 5), B=2, S=3)
        yield sample(cls((3,), (3,), (0, 2), (0, 2)), spec("B", "S", 2, 4), spec("B", "T", 2, 4), B=2, S=3, T=2)


class _Axes:
    """One operand's axes by role, counted from the front."""

    def __init__(self, batch: Sequence[int], contract: Sequence[int], rank: int) -> None:
        self.batch = tuple(normalize_axis(a, rank, "dot_general") for a in batch)
        self.contract = tuple(normalize_axis(a, rank, "dot_general") for a in contract)
        normalize_axes((*self.batch, *self.contract), rank, "dot_general")
        self.free = tuple(a for a in range(rank) if a not in self.batch and a not in self.contract)


def _matrices(x: Tensor, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    """x as [batch.., rows, columns], where rows and columns stand for several axes each.

    Axes that are neighbours are joined before any are moved: then what is left is a turned matrix, which a product
    reads as it lies, and not a copy of x in another order.
    """
    groups = [*((axis,) for axis in batch), tuple(rows), tuple(columns)]
    sizes = tuple(product([x.shape[axis] for axis in group]) for group in groups)
    if not all(group == tuple(range(group[0], group[0] + len(group))) for group in groups if group):
        return reshaped(transposed(x, (*batch, *rows, *columns)), sizes)
    as_they_lie = sorted(range(len(groups)), key=lambda n: groups[n][:1])
    joined = reshaped(x, tuple(sizes[n] for n in as_they_lie))
    return transposed(joined, [as_they_lie.index(n) for n in range(len(groups))])


def _joined(a: Size, b: Size) -> Size:
    """The better known of two sizes that must be equal."""
    return b if isinstance(b, int) else a


@op("lora_matmul")
class LoraMatMul(Op):
    """y = x.w + scale * (x.a).b, a weight [k, n] with a low-rank correction a [k, r], b [r, n]; x is [.., k]."""

    is_blas = True
    is_heavy = True
    opens_for_autodiff = True

    scale: float

    def infer(self, x: Shape, w: Shape, a: Shape, b: Shape) -> Shape:
        require_same_dtype(self, x, w, a, b)
        require_float(self, x)
        for weight in (w, a, b):
            require_rank(self, weight, 2)
        plain, corrected = matmul_shape(x, w, self.name), matmul_shape(matmul_shape(x, a, self.name), b, self.name)
        if not require_equal(plain.dims[-1], corrected.dims[-1], self.name):
            raise self.fail(f"w {w} and b {b} differ in their last size")
        return plain

    def eval(self, x: Array, w: Array, a: Array, b: Array) -> Array:
        wide = [m.astype(np.float64) for m in (x, w, a, b)]
        with np.errstate(all="ignore"):
            return np.asarray(wide[0] @ wide[1] + self.scale * (wide[0] @ wide[2] @ wide[3])).astype(x.dtype)

    def decompose(self, x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Any:
        wide = x.dtype.accumulator
        low_rank = matmul(matmul(x, a, out_dtype=wide), convert(b, wide))
        return convert(matmul(x, w, out_dtype=wide) + self.scale * low_rank, x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(0.5), spec(3, 4), spec(4, 5), spec(4, 2), spec(2, 5))
        yield sample(cls(2.0), spec(2, 3, 4), spec(4, 5), spec(4, 1), spec(1, 5))
        yield sample(cls(1.0), spec("B", 4), spec(4, 3), spec(4, "R"), spec("R", 3), B=2, R=2)


@op("grouped_matmul")
class GroupedMatMul(Op):
    """y[i] = x[i].w[idx[i]]: every row of x [M, K] meets its own matrix of w [E, K, N]; y is [M, N].

    Ids outside of 0..E-1 that the program computed are clipped (negative ones count from the end).
    """

    is_blas = True
    is_heavy = True

    multilinear_in = (0, 1)

    def infer(self, x: Shape, w: Shape, idx: Shape) -> Shape:
        from rlx.ops.shape.indexing import require_ids

        require_same_dtype(self, x, w)
        require_numeric(self, x)
        require_ids(self, idx)
        require_rank(self, x, 2)
        require_rank(self, w, 3)
        require_rank(self, idx, 1)
        if not (require_equal(x.dims[1], w.dims[1], self.name) and require_equal(x.dims[0], idx.dims[0], self.name)):
            raise self.fail(f"needs x [M,K], w [E,K,N], idx [M], got {x}, {w}, {idx}")
        return x.with_dims((x.dims[0], w.dims[2]))

    def index_operands(self, x: Shape, w: Shape, idx: Shape) -> dict[int, Dims]:
        return {2: (w.dims[0],)}

    def eval(self, x: Array, w: Array, idx: Array) -> Array:
        from rlx.ops.shape.indexing import clipped_ids

        wide = x.dtype if x.dtype.kind in "iu" else np.complex128 if x.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            chosen = w.astype(wide)[clipped_ids(idx, len(w))]
            return np.einsum("mk,mkn->mn", x.astype(wide), chosen).astype(x.dtype)

    def decompose(self, x: Tensor, w: Tensor, idx: Tensor) -> Any:
        from rlx.ops.shape.axis_indexing import gather

        return squeeze(matmul(expand_dims(x, 1), gather(w, idx)), 1)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor, w: Tensor, idx: Tensor) -> Any:
        from rlx.ops.shape.axis_indexing import Gather

        outer_products = mul(expand_dims(conjugated(x), 2), expand_dims(ct, 1))
        w_ct, _ = Gather(0).vjp(outer_products, None, w, idx)
        return GroupedMatMul()(ct, adjoint(w), idx), w_ct, None

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        from rlx.ops.shape.axis_indexing import Gather

        x, w, idx = operands
        if batched[1]:
            own = Gather(0).batch(size, (w, idx), (True, batched[2]))
            return squeeze(matmul(expand_dims(x, -2), own), -2)
        # With shared matrices the examples are just more rows.
        x, idx = put_batch_first(x, batched[0], size), put_batch_first(idx, batched[2], size)
        rows, width = x.shape[1:]
        many = GroupedMatMul()(reshaped(x, (size * rows, width)), w, reshaped(idx, (size * rows,)))
        return reshaped(many, (size, rows, w.shape[2]))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = spec(5, dtype="i32", low=0, high=2)
        yield sample(cls(), spec(5, 4), spec(3, 4, 2), ids, dtypes=(*FLOATS, "i32"))
        yield sample(cls(), spec(5, 2), spec(3, 2, 2), ids, dtypes=COMPLEX)
        yield sample(cls(), spec(4, 2), spec(3, 2, 2), spec(4, dtype="f32", values=[0, 2.9, -1.5, -2.5]))
        yield sample(cls(), spec(0, 2), spec(3, 2, 2), spec(0, dtype="i64"))
        yield sample(cls(), spec("M", 2), spec("E", 2, 3), spec("M", dtype="i32", low=0, high=1), M=3, E=2)


def matmul(a: Any, b: Any, *, precision: str = "default", out_dtype: DTypeLike | None = None) -> Any:
    """The matrix product of NumPy's `@`: a vector on the left is a row, on the right a column, and loses that axis.

    >>> print(matmul(np.array([[1, 2], [3, 4]]), np.array([1, 1])))
    [3 7]
    """
    a, b = promote_operands(a, b)
    if dtype_of(a) is DType.BOOL:
        return _any_pair(matmul(*_counted(a, b)))
    left, right = len(dims_of(a)), len(dims_of(b))
    if left == 0 or right == 0:
        raise ShapeError("matmul: a scalar has no rows or columns; use `*` to scale")
    product_ = MatMul(precision, None if out_dtype is None else DType.of(out_dtype))(
        expand_dims(a, 0) if left == 1 else a, expand_dims(b, 1) if right == 1 else b
    )
    dropped = [axis for axis, rank in ((-2, left), (-1, right)) if rank == 1]
    return squeeze(product_, dropped) if dropped else product_


def dot_general(
    lhs: Any,
    rhs: Any,
    lhs_contracting: Sequence[int],
    rhs_contracting: Sequence[int],
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
    *,
    precision: str = "default",
    out_dtype: DTypeLike | None = None,
) -> Any:
    """The sum of products over paired axes; see `DotGeneral`."""
    axes = (tuple(lhs_contracting), tuple(rhs_contracting), tuple(lhs_batch), tuple(rhs_batch))
    lhs, rhs = promote_operands(lhs, rhs)
    if dtype_of(lhs) is DType.BOOL:
        return _any_pair(DotGeneral(*axes)(*_counted(lhs, rhs)))
    out = None if out_dtype is None else DType.of(out_dtype)
    return DotGeneral(*axes, precision, out)(lhs, rhs)


def _counted(*operands: Any) -> tuple[Any, ...]:
    """Bools as numbers whose sums of products are positive where any product is true."""
    return tuple(convert(x, DType.F32) for x in operands)


def _any_pair(counts: Any) -> Any:
    """The product of bools, as NumPy has it, from the counts of pairs that are both true."""
    return ne(counts, 0)


def tensordot(a: Any, b: Any, axes: int | tuple[int | Sequence[int], int | Sequence[int]] = 2, **options: Any) -> Any:
    """np.tensordot: `axes` last axes of a with first of b, or a pair of axis lists; options as in `dot_general`."""
    if isinstance(axes, int):
        rank = len(dims_of(a))
        if not 0 <= axes <= min(rank, len(dims_of(b))):
            raise ShapeError(f"tensordot: {axes} axes cannot be summed over dims {dims_of(a)} and {dims_of(b)}")
        return dot_general(a, b, range(rank - axes, rank), range(axes), **options)
    left, right = ((x,) if isinstance(x, int) else tuple(x) for x in axes)
    return dot_general(a, b, left, right, **options)


def dot(a: Any, b: Any, **options: Any) -> Any:
    """np.dot: scalars multiply, vectors give the inner product, else the last axis of a meets the second last of b."""
    left, right = len(dims_of(a)), len(dims_of(b))
    if left == 0 or right == 0:
        return mul(a, b)
    if left <= 2 and right <= 2:
        return matmul(a, b, **options)
    return dot_general(a, b, (left - 1,), (max(right - 2, 0),), **options)


def inner(a: Any, b: Any, **options: Any) -> Any:
    """np.inner: the sum of products over the last axis of each; scalars multiply."""
    left, right = len(dims_of(a)), len(dims_of(b))
    if left == 0 or right == 0:
        return dot(a, b)
    return dot_general(a, b, (left - 1,), (right - 1,), **options)


def outer(a: Any, b: Any) -> Any:
    """All products a[i] * b[j] of the flattened operands."""
    return mul(expand_dims(flatten(a), 1), expand_dims(flatten(b), 0))


def vecdot(a: Any, b: Any, axis: int = -1, **options: Any) -> Any:
    """The sum of conj(a) * b along `axis`; the other axes broadcast."""
    a, b = promote_operands(a, b)
    row, column = expand_dims(moveaxis(conjugated(a), axis, -1), -2), expand_dims(moveaxis(b, axis, -1), -1)
    return squeeze(matmul(row, column, **options), (-2, -1))


def conjugated(x: Any) -> Any:
    """`conjugate` that leaves real values alone."""
    return conjugate(x) if dtype_of(x).is_complex else x


def adjoint(a: Any) -> Any:
    """Aᴴ of every matrix in the last two axes."""
    return conjugated(swapaxes(a, -1, -2))


def lora_matmul(x: Any, w: Any, a: Any, b: Any, scale: float) -> Any:
    """x.w + scale * (x.a).b; see `LoraMatMul`."""
    return LoraMatMul(scale)(*promote_operands(x, w, a, b))


def grouped_matmul(x: Any, w: Any, idx: Any) -> Any:
    """x[i].w[idx[i]] for every row i; see `GroupedMatMul`."""
    return GroupedMatMul()(*promote_operands(x, w), idx)
