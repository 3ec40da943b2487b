"""Collectives: ops whose value depends on the other participants along a named axis.

Participants run the same program on their own operands; `axis_size` of them share an axis called `axis_name`. What a
collective means is said by `reference_collective`: given the operands of all participants stacked along a new leading
axis, it returns their results, stacked. `collective_over_leading_axis` says the same with ops, for a program in which
one value holds all participants.

Evaluated alone, a collective sees `axis_size` participants that all hold this operand,
and gives the result of participant 0.

Functions (`psum(x, "batch")`, ...) read the size of the axis from the surrounding `named_axis`, and are errors outside
of it.

All participants differentiate the same program: tangents are exchanged like values, and a gradient is the derivative
of the sum of what all participants return, so cotangents travel back the way the values came (`psum` sums them,
`all_gather` becomes `reduce_scatter`). Batching over the axis itself replaces a collective by ops along the batch axis;
over any other axis it stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import Dim, require_at_most, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, attribute_type, op, op_family
from rlx.ir.shape import Shape, Size, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ir.words import Words
from rlx.ops.define.operands import convert, dtype_of, promote_inexact, require_dtype, require_inexact, require_numeric
from rlx.ops.define.rules import batched_axis, current_mapped_axis, put_batch_first
from rlx.ops.define.samples import COMPLEX, FLOATS, INTS, Sample, sample, spec
from rlx.ops.parallel.named_axes import axis_size, named_axis
from rlx.ops.pointwise.arithmetic import eq, where
from rlx.ops.reduction.reductions import reduce, reduce_sum
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.creation import iota
from rlx.ops.shape.movement import broadcast_to, expand_dims, moveaxis, reshape, swapaxes

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "AxisIndex",
    "CollectiveKind",
    "PPermute",
    "ReduceScatter",
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "collective_over_leading_axis",
    "named_axis",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "reduce_scatter",
    "reference_collective",
]

Array = np.ndarray[Any, np.dtype[Any]]

# So many can be imitated by one process: time and memory grow with them.
MOST_IMITATED = 2**20


class Collective(Op):
    """What all collectives share."""

    primitive = True

    axis_name: str
    axis_size: Size = 1

    def check(self) -> None:
        if isinstance(self.axis_size, int) and self.axis_size < 1:
            raise self.fail(f"axis {self.axis_name!r} must have at least one participant, got {self.axis_size}")

    def require_participants(self) -> None:
        """What `check` demands of a number of participants that is known now, for one that a binding gives."""
        require_at_most(1, self.axis_size, self.mnemonic)

    @property
    def participants(self) -> int:
        if isinstance(self.axis_size, Dim):
            raise self.fail(f"the size of axis {self.axis_name!r} is {self.axis_size}; bind it first")
        return self.axis_size

    def stacked(self, *operands: Any) -> Array:
        """The results of all participants from the operands of all participants, both along axis 0."""
        raise NotImplementedError

    def eval(self, *operands: Array) -> Array:
        if self.participants > MOST_IMITATED:
            raise self.fail(
                f"axis {self.axis_name!r} has {self.participants} participants; one process imitates at most "
                f"{MOST_IMITATED}. Run it over fewer, or map over the axis with vmap"
            )
        same = [np.broadcast_to(x, (self.participants, *x.shape)) for x in operands]
        return np.asarray(self.stacked(*same)[0])

    def over_leading_axis(self, *operands: Any) -> Any:
        """`stacked` with ops."""
        raise NotImplementedError

    def beside(self, x: Tensor) -> Any:
        """The collective for a batch of operands that has nothing to do with the participants, along axis 0 of x."""
        return self(x)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        if current_mapped_axis() != self.axis_name:
            return self.beside(*operands)
        return collective_over_leading_axis(self, *(put_batch_first(x, b, size) for x, b in zip(operands, batched)))


def reference_collective(op: Collective, operands: Array | None = None) -> Array:
    """What each participant receives: `operands` holds one operand per participant along axis 0, so does the result.

    >>> reference_collective(AllReduce("i", 3, "psum"), np.array([1, 2, 3])).tolist()
    [6, 6, 6]
    """
    if operands is not None and len(operands) != op.axis_size:
        raise op.fail(f"axis {op.axis_name!r} has {op.axis_size} participants, got operands of {len(operands)}")
    return op.stacked(*(() if operands is None else (operands,)))


def collective_over_leading_axis(op: Collective, operands: Any = None) -> Any:
    """`reference_collective` as a program: tensors in, a tensor out, the participants along axis 0 of both."""
    if operands is not None and not require_equal(operands.shape[0], op.axis_size, op.mnemonic):
        raise op.fail(f"axis {op.axis_name!r} has {op.axis_size} participants, got operands of {operands.shape[0]}")
    return op.over_leading_axis(*(() if operands is None else (operands,)))


@attribute_type
class CollectiveKind(Words):
    """How the operands of all participants are combined."""

    Sum = "psum"
    Mean = "pmean"
    Max = "pmax"
    Min = "pmin"


def _summed(operands: Array) -> Array:
    """The sum over the participants: floats in f64 and rounded once, integers wrapping in their own type."""
    dtype = DType.of(operands.dtype)
    wide = np.complex128 if dtype.is_complex else np.float64 if dtype.is_float else operands.dtype
    return np.sum(operands, axis=0, dtype=wide)


def _to_all(value: Array, operands: Array) -> Array:
    """One result that every participant receives."""
    return np.broadcast_to(value.astype(operands.dtype), (len(operands), *value.shape))


def _to_all_tensors(value: Any, count: Size) -> Any:
    return broadcast_to(expand_dims(value, 0), (count, *value.shape))


@op_family(CollectiveKind)
class AllReduce(Collective):
    """Every participant receives the sum, mean, maximum or minimum of all operands, elementwise."""

    precision_class = "reduction"

    kind: CollectiveKind

    def infer(self, x: Shape) -> Shape:
        self.require_participants()
        if self.kind is CollectiveKind.Mean:
            require_inexact(self, x)
        elif self.kind is CollectiveKind.Sum:
            require_numeric(self, x)
        else:
            require_dtype(self, not x.dtype.is_complex and not x.dtype.is_storage, "ordered", x)
        return x

    def stacked(self, operands: Array) -> Array:
        with np.errstate(all="ignore"):
            if self.kind is CollectiveKind.Sum:
                return _to_all(_summed(operands), operands)
            if self.kind is CollectiveKind.Mean:
                return _to_all(_summed(operands) / len(operands), operands)
            extreme = np.max if self.kind is CollectiveKind.Max else np.min
            return _to_all(extreme(operands, axis=0), operands)

    def over_leading_axis(self, operands: Any) -> Any:
        names = {CollectiveKind.Sum: "sum", CollectiveKind.Mean: "mean", CollectiveKind.Max: "max"}
        return _to_all_tensors(reduce(operands, names.get(self.kind, "min"), (0,)), operands.shape[0])

    @property
    def _is_linear(self) -> bool:
        return self.kind in (CollectiveKind.Sum, CollectiveKind.Mean)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: Tensor) -> Any:
        if self._is_linear:
            return self(*tangents)
        share, total = self._share(primals[0], y), AllReduce(self.axis_name, self.axis_size, CollectiveKind.Sum)
        return total(tangents[0] * share)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        if self._is_linear:
            return self(ct)
        return AllReduce(self.axis_name, self.axis_size, CollectiveKind.Sum)(ct) * self._share(x, y)

    def _share(self, x: Tensor, y: Tensor) -> Any:
        """Which part of an extreme value is this participant's: 1, 0, or 1/n for n participants that share it."""
        mine = convert(eq(x, y), x.dtype)
        return mine / AllReduce(self.axis_name, self.axis_size, CollectiveKind.Sum)(mine)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in CollectiveKind:
            dtypes = FLOATS if kind is CollectiveKind.Mean else (*FLOATS, *INTS)
            yield sample(cls("i", kind=kind), spec(2, 3), dtypes=dtypes)
            yield sample(cls("i", 4, kind), spec(2, 3), dtypes=dtypes)
        yield sample(cls("i", 2, "psum"), spec(3), dtypes=COMPLEX)
        yield sample(cls("i", 2, "pmax"), spec("B", 0), B=3)


@op("all_gather")
class AllGather(Collective):
    """Every participant receives all operands, along a new axis `axis`, or joined along an existing one with
    `tiled`."""

    precision_class = "data_movement"

    linear_in = (0,)

    axis: int = 0
    tiled: bool = False

    def infer(self, x: Shape) -> Shape:
        self.require_participants()
        if self.tiled:
            axis = normalize_axis(self.axis, x.rank, self.mnemonic)
            return x.with_dim(axis, x.dims[axis] * self.axis_size)
        axis = normalize_axis(self.axis, x.rank + 1, self.mnemonic)
        return x.with_dims((*x.dims[:axis], self.axis_size, *x.dims[axis:]))

    def stacked(self, operands: Array) -> Array:
        join = np.concatenate if self.tiled else np.stack
        joined = join(list(operands), axis=self.axis)
        return _to_all(joined, operands)

    def over_leading_axis(self, operands: Any) -> Any:
        rank = operands.ndim - 1
        axis = normalize_axis(self.axis, rank if self.tiled else rank + 1, self.mnemonic)
        gathered = moveaxis(operands, 0, axis)
        if self.tiled:
            dims = operands.shape[1:]
            gathered = reshape(gathered, (*dims[:axis], dims[axis] * self.axis_size, *dims[axis + 1 :]))
        return _to_all_tensors(gathered, self.axis_size)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return ReduceScatter(self.axis_name, self.axis_size, self.axis, self.tiled)(ct)

    def beside(self, x: Tensor) -> Any:
        new = not self.tiled
        return self.replace(axis=normalize_axis(self.axis, x.ndim - 1 + new, self.mnemonic) + 1)(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for n in (1, 3):
            yield sample(cls("i", n), spec(2, 4), dtypes=(*FLOATS, "i32", "bool"))
            yield sample(cls("i", n, -1), spec(2, 4))
            yield sample(cls("i", n, 1, True), spec(2, 4))
        yield sample(cls("i", "N", 0, True), spec("B", 2), N=2, B=3)
        yield sample(cls("i", 2), spec())


@op("reduce_scatter")
class ReduceScatter(Collective):
    """Participant i receives part i of the sum of all operands.

    Parts lie along `axis`, whose size is the number of participants and which goes away; with `tiled` it is a
    multiple of that number and parts are pieces of it.
    """

    precision_class = "reduction"

    linear_in = (0,)

    axis: int = 0
    tiled: bool = False

    def infer(self, x: Shape) -> Shape:
        self.require_participants()
        require_numeric(self, x)
        return _scattered_shape(self, x, self.axis, self.tiled)

    def stacked(self, operands: Array) -> Array:
        with np.errstate(all="ignore"):
            total = _summed(operands).astype(operands.dtype)
        axis = normalize_axis(self.axis, total.ndim, self.mnemonic)
        if not self.tiled:
            return np.moveaxis(total, axis, 0)
        return np.stack(np.split(total, len(operands), axis=axis))

    def over_leading_axis(self, operands: Any) -> Any:
        total = reduce_sum(operands, (0,))
        axis = normalize_axis(self.axis, total.ndim, self.mnemonic)
        return moveaxis(_in_pieces(total, axis, self.axis_size) if self.tiled else total, axis, 0)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return AllGather(self.axis_name, self.axis_size, self.axis, self.tiled)(ct)

    def beside(self, x: Tensor) -> Any:
        return self.replace(axis=batched_axis(self.axis, x))(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("i"), spec(1, 4), dtypes=(*FLOATS, *INTS))
        yield sample(cls("i", 3), spec(3, 4), dtypes=(*FLOATS, *INTS))
        yield sample(cls("i", 2, -1, True), spec(3, 4))
        yield sample(cls("i", 2, 0, True), spec("2*B", 2), B=3)


@op("all_to_all")
class AllToAll(Collective):
    """Participant i receives part i of every operand.

    Parts lie along `split_axis`, whose size is the number of participants; it goes away, and the received parts lie
    along a new axis `concat_axis`. With `tiled` both axes stay: one is cut into pieces, along the other they are
    joined.
    """

    precision_class = "data_movement"

    linear_in = (0,)

    split_axis: int = 0
    concat_axis: int = 0
    tiled: bool = False

    def infer(self, x: Shape) -> Shape:
        self.require_participants()
        scattered = _scattered_shape(self, x, self.split_axis, self.tiled)
        concat = normalize_axis(self.concat_axis, x.rank, self.mnemonic)
        if self.tiled:
            return scattered.with_dim(concat, scattered.dims[concat] * self.axis_size)
        return x.with_dims((*scattered.dims[:concat], self.axis_size, *scattered.dims[concat:]))

    def stacked(self, operands: Array) -> Array:
        split = normalize_axis(self.split_axis, operands.ndim - 1, self.mnemonic) + 1
        parts = np.split(operands, len(operands), axis=split)
        if self.tiled:
            return np.stack([np.concatenate(part, axis=self.concat_axis) for part in parts])
        return np.stack([np.stack(list(part.squeeze(split)), axis=self.concat_axis) for part in parts])

    def over_leading_axis(self, operands: Any) -> Any:
        rank = operands.ndim - 1
        split = normalize_axis(self.split_axis, rank, self.mnemonic)
        concat = normalize_axis(self.concat_axis, rank, self.mnemonic)
        if not self.tiled:
            return moveaxis(swapaxes(moveaxis(operands, split + 1, 1), 0, 1), 1, concat + 1)
        # [sender, .., receiver, piece, ..] -> [receiver, .., sender, joined, ..]
        pieces = moveaxis(_in_pieces(operands, split + 1, self.axis_size), split + 1, 0)
        moved = moveaxis(pieces, 1, concat + 1)
        dims = moved.shape
        return reshape(moved, (*dims[: concat + 1], dims[concat + 1] * dims[concat + 2], *dims[concat + 3 :]))

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return self.replace(split_axis=self.concat_axis, concat_axis=self.split_axis)(ct)

    def beside(self, x: Tensor) -> Any:
        split, concat = batched_axis(self.split_axis, x), batched_axis(self.concat_axis, x)
        return self.replace(split_axis=split, concat_axis=concat)(x)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("i"), spec(1, 4), dtypes=(*FLOATS, "i32", "bool"))
        yield sample(cls("i", 3, 0, 1), spec(3, 4))
        yield sample(cls("i", 2, 1, 0, True), spec(3, 4))
        yield sample(cls("i", 2, -1, -1, True), spec(3, 4))
        yield sample(cls("i", 2, 1, 0, True), spec("B", 4), B=3)


@op("ppermute")
class PPermute(Collective):
    """Operands move between participants: for each pair (source, destination) of `perm`. Who receives nothing has
    zeros."""

    precision_class = "data_movement"

    linear_in = (0,)

    perm: tuple[tuple[int, ...], ...] = ()

    def check(self) -> None:
        super().check()
        sources, destinations = [p[0] for p in self.perm], [p[-1] for p in self.perm]
        if any(len(p) != 2 for p in self.perm):
            raise self.fail(f"perm needs pairs (source, destination), got {self.perm}")
        if len(set(sources)) != len(sources) or len(set(destinations)) != len(destinations):
            raise self.fail(f"perm names a source or a destination twice: {self.perm}")
        if not all(0 <= i < self.participants for i in (*sources, *destinations)):
            raise self.fail(f"perm {self.perm} names participants outside of 0..{self.participants - 1}")

    def infer(self, x: Shape) -> Shape:
        self.require_participants()
        return x

    def stacked(self, operands: Array) -> Array:
        result = np.zeros_like(operands)
        for source, destination in self.perm:
            result[destination] = operands[source]
        return result

    def over_leading_axis(self, operands: Any) -> Any:
        source_of = {destination: source for source, destination in self.perm}
        sources = np.array([source_of.get(i, 0) for i in range(self.participants)], np.int32)
        receives = np.array([i in source_of for i in range(self.participants)])
        moved = gather(operands, sources)
        return where(receives.reshape(-1, *(1,) * (operands.ndim - 1)), moved, convert(0, dtype_of(operands)))

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return self.replace(perm=tuple((destination, source) for source, destination in self.perm))(ct)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("i"), spec(2, 3), dtypes=(*FLOATS, "i32", "bool"))
        yield sample(cls("i", 3, ((0, 1), (1, 2), (2, 0))), spec(2, 3))
        yield sample(cls("i", 3, ((0, 1),)), spec("B"), B=2)


@op("axis_index")
class AxisIndex(Collective):
    """The number of this participant along the axis, i32."""

    precision_class = "data_movement"

    jvp = vjp = NoRule("integer result")

    def infer(self) -> Shape:
        self.require_participants()
        return Shape((), DType.I32)

    def stacked(self, operands: Array | None = None) -> Array:
        return np.arange(self.participants, dtype=np.int32)

    def over_leading_axis(self, operands: Any = None) -> Any:
        return iota((self.axis_size,), DType.I32)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("i"), dtypes=("i32",))
        yield sample(cls("i", 4), dtypes=("i32",))


def _scattered_shape(op: Collective, x: Shape, axis: int, tiled: bool) -> Shape:
    """x with `axis` cut into one part per participant."""
    axis = normalize_axis(axis, x.rank, op.mnemonic)
    size, count = x.dims[axis], op.axis_size
    if tiled:
        if not require_equal(size % count, 0, op.mnemonic):
            raise op.fail(f"axis {axis} of {x} does not divide into {count} parts, one per participant")
        return x.with_dim(axis, size // count)
    if not require_equal(size, count, op.mnemonic):
        raise op.fail(f"axis {axis} of {x} must have the size {count}, one part per participant (or use tiled=True)")
    return x.with_dims(d for i, d in enumerate(x.dims) if i != axis)


def _in_pieces(x: Any, axis: int, count: Size) -> Any:
    """`axis` as two axes: which piece, and where in it."""
    dims = x.shape
    return reshape(x, (*dims[:axis], count, dims[axis] // count, *dims[axis + 1 :]))


def _over(kind: CollectiveKind, x: Any, axis_name: str | Sequence[str]) -> Any:
    for name in [axis_name] if isinstance(axis_name, str) else axis_name:
        x = AllReduce(name, axis_size(name), kind)(x)
    return x


def psum(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The sum of x over all participants of the axis (or of several axes)."""
    return _over(CollectiveKind.Sum, x, axis_name)


def pmean(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The mean of x over all participants of the axis."""
    (x,) = promote_inexact(x)
    return _over(CollectiveKind.Mean, x, axis_name)


def pmax(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The elementwise maximum of x over all participants of the axis."""
    return _over(CollectiveKind.Max, x, axis_name)


def pmin(x: Any, axis_name: str | Sequence[str]) -> Any:
    """The elementwise minimum of x over all participants of the axis."""
    return _over(CollectiveKind.Min, x, axis_name)


def all_gather(x: Any, axis_name: str, axis: int = 0, tiled: bool = False) -> Any:
    """The operands of all participants, along a new axis or (tiled) joined along an existing one."""
    return AllGather(axis_name, axis_size(axis_name), axis, tiled)(x)


def reduce_scatter(x: Any, axis_name: str, scatter_dimension: int = 0, tiled: bool = False) -> Any:
    """The own part of the sum over all participants; see `ReduceScatter`."""
    return ReduceScatter(axis_name, axis_size(axis_name), scatter_dimension, tiled)(x)


psum_scatter = reduce_scatter


def all_to_all(x: Any, axis_name: str, split_axis: int, concat_axis: int, tiled: bool = False) -> Any:
    """Part i of x goes to participant i; see `AllToAll`."""
    return AllToAll(axis_name, axis_size(axis_name), split_axis, concat_axis, tiled)(x)


def ppermute(x: Any, axis_name: str, perm: Sequence[tuple[int, int]]) -> Any:
    """x sent from source to destination for each pair of `perm`; see `PPermute`."""
    return PPermute(axis_name, axis_size(axis_name), tuple(perm))(x)


def axis_index(axis_name: str) -> Any:
    """The number of this participant along the axis."""
    return AxisIndex(axis_name, axis_size(axis_name))()
