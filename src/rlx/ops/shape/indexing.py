"""Reading and writing at positions that are only known at run time: gather and scatter.

Ids may have any integer or float dtype (floats are truncated toward zero). An id from -n to n-1 is valid for an axis of
size n; negative ids count from the end. What happens to others is the op's `IndexMode`; nothing ever reads or writes
outside of an operand.

An op whose ids must be valid says so by `index_operands`; see `rlx.ir.index_checks` for when they are checked.

`axis_indexing` has the forms for rows along one axis; `selection` builds take, one_hot, nonzero, ... on these ops,
`subscript` x[...] and x.at[...].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.dims import product, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, attribute_type, op
from rlx.ir.shape import Dims, Shape, Size, normalize_axes
from rlx.ir.tensor import Tensor
from rlx.ir.words import Words
from rlx.ops.define.operands import convert, dims_of, dtype_of, require_dtype, require_same_dtype, same_graph
from rlx.ops.define.rules import put_batch_first, zeros_like, zeros_of
from rlx.ops.define.samples import COMPLEX, FLOATS, INTS, Sample, sample, spec
from rlx.ops.linalg.contraction import conjugated
from rlx.ops.pointwise.arithmetic import and_, div, eq, maximum, where
from rlx.ops.pointwise.conversion import convert_array
from rlx.ops.shape.creation import iota, ones_like, zeros
from rlx.ops.shape.movement import moveaxis, reshape, reshaped

__all__ = ["GatherNd", "IndexMode", "ScatterKind", "ScatterNd", "gather_nd", "scatter_nd"]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class IndexMode(Words):
    """What is done with ids outside of -n..n-1.

    Checked: they are errors where they come straight from the caller; computed ones are clipped when reading and
    dropped when writing. Clip: the nearest valid id is used. Fill: 0 is read. Drop: nothing is written.
    """

    Checked = "checked"
    Clip = "clip"
    Fill = "fill"
    Drop = "drop"

    @classmethod
    def other_spellings(cls) -> Mapping[str, str]:
        return {"promise_in_bounds": "checked"}


READ_MODES = (IndexMode.Checked, IndexMode.Clip, IndexMode.Fill)
WRITE_MODES = (IndexMode.Checked, IndexMode.Clip, IndexMode.Drop)
# Computed ids that a checked read clips, and a checked write drops, must meet the same fate in the other direction.
WRITE_WHERE_READ = {
    IndexMode.Checked: IndexMode.Clip,
    IndexMode.Clip: IndexMode.Clip,
    IndexMode.Fill: IndexMode.Drop,
}
READ_WHERE_WRITTEN = {
    IndexMode.Checked: IndexMode.Fill,
    IndexMode.Clip: IndexMode.Clip,
    IndexMode.Drop: IndexMode.Fill,
}


@attribute_type
class ScatterKind(Words):
    """How a scattered value meets the one that is there."""

    Set = "set"
    Add = "add"
    Mul = "mul"
    Max = "max"
    Min = "min"


def require_sums(op: Op, x: Shape) -> None:
    require_dtype(op, x.dtype is not DType.BOOL and not x.dtype.is_storage, "numeric", x)


def require_ids(op: Op, ids: Shape) -> None:
    ok = ids.dtype.is_int or (ids.dtype.is_float and not ids.dtype.is_storage)
    require_dtype(op, ok, "integer (or float) ids as index", ids)


def resolve_ids(ids: Array, size: int) -> tuple[Array, Array]:
    """Positions from 0 to size-1 (clipped, negative ids counted from the end), and which ids were valid."""
    integers = convert_array(ids, DType.I64)
    valid = (integers >= -size) & (integers < size)
    return np.clip(np.where(integers < 0, integers + size, integers), 0, max(size - 1, 0)), valid


def clipped_ids(ids: Array, size: int) -> Array:
    """The positions that ids stand for, the nearest valid one where there is none."""
    return resolve_ids(ids, size)[0]


def require_mode(op: Op, mode: IndexMode, accepted: tuple[IndexMode, ...]) -> None:
    if mode not in accepted:
        raise op.fail(f"mode must be one of {', '.join(accepted)}, got {mode}")


@op("gather_nd")
class GatherNd(Op):
    """y[b.., k.., r..] = x[b.., at `axes`: indices[b.., k.., 0], indices[b.., k.., 1], .., elsewhere: r..].

    The last axis of `indices` holds one coordinate per entry of `axes`. The first `batch_dims` axes b.. of x and of
    `indices` go together; k.. are the other axes of `indices`, r.. the other axes of x in their order.
    """

    primitive = True
    precision_class = "data_movement"
    linear_in = (0,)

    axes: tuple[int, ...]
    batch_dims: int = 0
    mode: IndexMode = IndexMode.Checked

    def check(self) -> None:
        require_mode(self, self.mode, READ_MODES)
        _require_axes(self, self.axes)

    def infer(self, x: Shape, indices: Shape) -> Shape:
        batch, points, rest = _indexed_dims(self, self.axes, self.batch_dims, x, indices)
        return x.with_dims((*batch, *points, *rest))

    def index_operands(self, x: Shape, indices: Shape) -> dict[int, Dims]:
        return {1: tuple(x.dims[a] for a in self.axes)} if self.mode is IndexMode.Checked else {}

    def eval(self, x: Array, indices: Array) -> Array:
        moved = _indexed_first(x, self.axes, self.batch_dims)
        coordinates, valid = _coordinates(indices, moved.shape, self.batch_dims)
        rest = moved.shape[indices.shape[-1] + self.batch_dims :]
        if 0 in moved.shape:
            return np.zeros((*indices.shape[:-1], *rest), x.dtype)
        result = moved[coordinates]
        if self.mode is not IndexMode.Fill:
            return result
        return np.where(valid.reshape((*valid.shape, *(1,) * len(rest))), result, np.zeros((), x.dtype))

    def vjp(self, ct: Tensor, y: Tensor | None, x: Tensor, indices: Tensor) -> Any:
        scatter = ScatterNd(ScatterKind.Add, self.axes, self.batch_dims, WRITE_WHERE_READ[self.mode])
        return scatter(zeros_like(x), indices, ct), None

    def batch(self, size: Size, operands: tuple[Tensor, Tensor], batched: tuple[bool, bool]) -> Any:
        x, indices = operands
        shifted = tuple(a + 1 for a in self.axes)
        if all(batched):
            return GatherNd(shifted, self.batch_dims + 1, self.mode)(x, indices)
        # The axis that only one operand has follows the batch axes: among r.. in x, among k.. in indices.
        if batched[0]:
            result = GatherNd(shifted, self.batch_dims, self.mode)(moveaxis(x, 0, self.batch_dims), indices)
            return moveaxis(result, indices.ndim - 1, 0)
        result = GatherNd(self.axes, self.batch_dims, self.mode)(x, moveaxis(indices, 0, self.batch_dims))
        return moveaxis(result, self.batch_dims, 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        pairs = [[0, 1], [2, -1], [1, 0], [2, 3]]
        yield sample(cls((0, 1)), spec(3, 4, 2), spec(4, 2, dtype="i32", values=pairs), dtypes=(*FLOATS, *INTS, "bool"))
        yield sample(cls((2, 0)), spec(4, 5, 3), spec(2, 2, dtype="i64", low=0, high=2), dtypes=COMPLEX)
        yield sample(cls((1,), 1), spec(3, 4), spec(3, 2, 1, dtype="i32", low=0, high=3))
        yield sample(cls((3,), 2), spec(2, 3, 5, 4), spec(2, 3, 2, 2, 1, dtype="i32", low=0, high=3))
        yield sample(cls((1,), 1), spec(3, 4), spec(3, 1, dtype="i32", low=0, high=3))
        yield sample(cls((0,), mode="fill"), spec(3, 2), spec(3, 1, dtype="i32", values=[[0], [3], [-4]]))
        yield sample(cls((0,), mode="fill"), spec(3), spec(1, dtype="i32", values=[1]))
        yield sample(cls((0,), mode="clip"), spec(3, 2), spec(3, 1, dtype="f32", values=[[0], [3], [-4]]))
        yield sample(cls((0,), mode="clip"), spec(0, 2), spec(2, 1, dtype="i32", low=0, high=1))
        yield sample(cls((1,), 1), spec("B", 4, "S"), spec("B", 2, 1, dtype="i32", low=0, high=3), B=2, S=3)


@op("scatter_nd")
class ScatterNd(Op):
    """x with updates[b.., k.., r..] brought to the places that `GatherNd` reads for the same `indices`.

    The kind says how an update meets the value there. Updates are applied in row-major order, so of several `set` to
    one place the last wins; sums and products of f16, bf16 and f32 are rounded once. With `unique` the caller promises
    that no two updates that matter go to one place, so that they may be applied in any order.
    """

    primitive = True
    precision_class = "data_movement"

    kind: ScatterKind
    axes: tuple[int, ...]
    batch_dims: int = 0
    mode: IndexMode = IndexMode.Checked
    unique: bool = False

    def check(self) -> None:
        require_mode(self, self.mode, WRITE_MODES)
        _require_axes(self, self.axes)

    def infer(self, x: Shape, indices: Shape, updates: Shape) -> Shape:
        dtype = require_same_dtype(self, x, updates)
        if self.kind is not ScatterKind.Set:
            ordered = self.kind in (ScatterKind.Max, ScatterKind.Min)
            ok = not dtype.is_storage and (not dtype.is_complex if ordered else dtype is not DType.BOOL)
            require_dtype(self, ok, "ordered" if ordered else "numeric", x, updates)
        batch, points, rest = _indexed_dims(self, self.axes, self.batch_dims, x, indices)
        wanted = (*batch, *points, *rest)
        if updates.rank != len(wanted) or not all(
            require_equal(a, b, self.mnemonic) for a, b in zip(updates.dims, wanted)
        ):
            raise self.fail(f"updates must be {updates.with_dims(wanted)} for {x} and indices {indices}, got {updates}")
        return x

    def index_operands(self, x: Shape, indices: Shape, updates: Shape) -> dict[int, Dims]:
        return {1: tuple(x.dims[a] for a in self.axes)} if self.mode is IndexMode.Checked else {}

    def eval(self, x: Array, indices: Array, updates: Array) -> Array:
        moved = np.array(_indexed_first(x, self.axes, self.batch_dims))
        coordinates, valid = _coordinates(indices, moved.shape, self.batch_dims)
        if 0 not in moved.shape:
            kept = np.ones_like(valid) if self.mode is IndexMode.Clip else valid
            places = tuple(np.broadcast_to(c, valid.shape)[kept] for c in coordinates)
            moved = scattered(self.kind, moved, places, updates[kept])
        return np.transpose(moved, np.argsort(_indexed_order(self.axes, self.batch_dims, x.ndim)))

    def _gather(self, x: Tensor, indices: Tensor) -> Any:
        """What stands at the places that updates go to; 0 for updates that go nowhere."""
        return GatherNd(self.axes, self.batch_dims, READ_WHERE_WRITTEN[self.mode])(x, indices)

    def _scatter(self, kind: ScatterKind, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
        return ScatterNd(kind, self.axes, self.batch_dims, self.mode)(x, indices, updates)

    def jvp(self, primals: tuple[Tensor, ...], tangents: tuple[Tensor | None, ...], y: Tensor) -> Any:
        x, indices, updates = primals
        dx, du = (zeros_like(p) if t is None else t for p, t in zip((x, updates), (tangents[0], tangents[2])))
        if self.kind in (ScatterKind.Set, ScatterKind.Add):
            return self(dx, indices, du)
        x_share, update_share = self._shares(y, x, indices, updates)
        return self._scatter(ScatterKind.Add, x_share * dx, indices, update_share * du)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
        read = reshaped(self._gather(ct, indices), updates.shape)
        if self.kind is ScatterKind.Add:
            return ct, None, read
        if self.kind is ScatterKind.Set:
            kept = self(ct, indices, zeros_like(updates))
            return kept, None, where(self._survivors(x, indices, updates), read, 0)
        x_share, update_share = self._shares(y, x, indices, updates)
        return conjugated(x_share) * ct, None, conjugated(update_share) * read

    def _survivors(self, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
        """Which updates no later one overwrites: number them, write the numbers, see which are still there."""
        lead = self.batch_dims
        places = (*x.shape[:lead], *(x.shape[a] for a in self.axes))
        points = indices.shape[:-1]
        axes = tuple(range(lead, len(places)))
        with same_graph(x):
            numbers = reshape(iota((product(points),)), points)
            written = ScatterNd(ScatterKind.Set, axes, lead, self.mode)(zeros(places, DType.I32), indices, numbers)
        found = GatherNd(axes, lead, READ_WHERE_WRITTEN[self.mode])(written, indices)
        return reshape(eq(found, numbers), (*points, *(1,) * (updates.ndim - len(points))))

    def _shares(self, y: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> tuple[Any, Any]:
        """Derivatives (of mul, max, min) of what stands at a place by what stood there, and by each update of it."""
        at = reshaped(self._gather(y, indices), updates.shape)
        if self.kind is ScatterKind.Mul:
            return self(ones_like(x), indices, updates), self._cofactors(at, x, indices, updates)
        # The value that was there wins a tie; updates that tie share.
        x_wins = convert(eq(x, y), x.dtype)
        wins = and_(eq(updates, at), eq(self._gather(x_wins, indices), 0))
        sharing = maximum(self._count(x, indices, wins), 1)
        return x_wins, div(convert(wins, x.dtype), convert(sharing, x.dtype))

    def _cofactors(self, at: Tensor, x: Tensor, indices: Tensor, updates: Tensor) -> Any:
        """Of each update, the product of all other factors at its place; `at` is the whole product.

        Exact also where one factor is 0; of second derivatives, those between two updates that are both 0 are lost.
        """
        zero = eq(updates, 0)
        nonzero = where(zero, 1, updates)
        rest = self._gather(self(x, indices, nonzero), indices)
        alone = eq(self._count(x, indices, zero), 1)
        return where(zero, where(alone, rest, 0), div(at, nonzero))

    def _count(self, x: Tensor, indices: Tensor, chosen: Tensor) -> Any:
        """For each update, how many of the chosen ones go to its place."""
        nothing = zeros_of(x.type.with_dtype(DType.I32), x)
        return self._gather(self._scatter(ScatterKind.Add, nothing, indices, convert(chosen, DType.I32)), indices)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        x, updates = (put_batch_first(operands[i], batched[i], size) for i in (0, 2))
        axes = tuple(a + 1 for a in self.axes)
        if batched[1]:
            return self.replace(axes=axes, batch_dims=self.batch_dims + 1)(x, operands[1], updates)
        # With shared indices the new axis is the first of r..
        x, updates = moveaxis(x, 0, self.batch_dims), moveaxis(updates, 0, operands[1].ndim - 1)
        result = ScatterNd(self.kind, axes, self.batch_dims, self.mode)(x, operands[1], updates)
        return moveaxis(result, self.batch_dims, 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ids = spec(4, 1, dtype="i32", values=[[0], [2], [-1], [1]])
        repeated = spec(4, 1, dtype="i32", values=[[0], [2], [0], [-1]])
        for kind in ScatterKind:
            yield sample(cls(kind, (0,)), spec(4, 3), ids, spec(4, 3), dtypes=(*FLOATS, *INTS))
            yield sample(cls(kind, (1,)), spec(2, 3), repeated, spec(4, 2, distinct=True))
            yield sample(cls(kind, (1,), 1, "drop"), spec(2, 3), spec(2, 2, 1, dtype="i64", low=-5, high=5), spec(2, 2))
        yield sample(cls("set", (0, 2)), spec(3, 2, 4), spec(2, 2, dtype="i8", values=[[0, 1], [2, 3]]), spec(2, 2))
        yield sample(cls("set", (0,)), spec(4), ids, spec(4), dtypes=("bool",))
        yield sample(cls("set", (0,)), spec(4), repeated, spec(4), dtypes=COMPLEX)
        yield sample(cls("mul", (0,)), spec(3), repeated, spec(4), dtypes=COMPLEX)
        yield sample(cls("add", (0,), mode="clip"), spec(3), spec(2, 1, dtype="i32", values=[[9], [-9]]), spec(2))
        yield sample(cls("add", (0,)), spec(3), spec(0, 1, dtype="i32"), spec(0))
        yield sample(cls("set", (1,)), spec(2, 3), spec(1, dtype="f32", values=[1.9]), spec(2))
        yield sample(cls("add", (0,)), spec("V", 4), spec("B", 1, dtype="i32", low=0, high=2), spec("B", 4), V=3, B=2)


def _require_axes(op: Op, axes: tuple[int, ...]) -> None:
    if not axes or any(a < 0 for a in axes):
        raise op.fail(f"needs one or more axes, counted from the front, got {axes}")


def _indexed_dims(op: Op, axes: tuple[int, ...], batch_dims: int, x: Shape, indices: Shape) -> tuple[Dims, Dims, Dims]:
    """The dims b.., k.. and r.. of a gather or scatter, after checking that operands and attributes fit."""
    require_ids(op, indices)
    normalize_axes(axes, x.rank, op.mnemonic)
    if any(a < batch_dims for a in axes) or not 0 <= batch_dims < indices.rank:
        raise op.fail(
            f"axes {axes} must follow the {batch_dims} batch axes of {x}, which indices {indices} must have too"
        )
    if not require_equal(indices.dims[-1], len(axes), op.mnemonic):
        raise op.fail(f"the last axis of indices holds one coordinate per axis of {axes}, got {indices}")
    for i in range(batch_dims):
        if not require_equal(x.dims[i], indices.dims[i], op.mnemonic):
            raise op.fail(f"{x} and indices {indices} differ on batch axis {i}")
    rest = tuple(d for a, d in enumerate(x.dims) if a >= batch_dims and a not in axes)
    return x.dims[:batch_dims], indices.dims[batch_dims:-1], rest


def _indexed_order(axes: tuple[int, ...], batch_dims: int, rank: int) -> list[int]:
    return [*range(batch_dims), *axes, *(a for a in range(batch_dims, rank) if a not in axes)]


def _indexed_first(x: Array, axes: tuple[int, ...], batch_dims: int) -> Array:
    return np.transpose(x, _indexed_order(axes, batch_dims, x.ndim))


def _coordinates(indices: Array, dims: tuple[int, ...], batch_dims: int) -> tuple[tuple[Array, ...], Array]:
    """NumPy indices (broadcasting to b.., k..) into an operand with its indexed axes first, and which are valid."""
    points = indices.shape[:-1]
    valid = np.ones(points, bool)
    coordinates = [
        np.arange(n).reshape([n if j == i else 1 for j in range(len(points))]) for i, n in enumerate(dims[:batch_dims])
    ]
    for j in range(indices.shape[-1]):
        positions, inside = resolve_ids(indices[..., j], dims[batch_dims + j])
        coordinates.append(positions)
        valid &= inside
    return tuple(coordinates), valid


_MEET: dict[ScatterKind, np.ufunc] = {
    ScatterKind.Add: np.add,
    ScatterKind.Mul: np.multiply,
    ScatterKind.Max: np.maximum,
    ScatterKind.Min: np.minimum,
}


def scattered(kind: ScatterKind, x: Array, places: tuple[Array, ...], updates: Array) -> Array:
    """x after all updates; `places` has one flat array of positions per leading axis of x."""
    if kind is ScatterKind.Set:
        # NumPy assigns in order: the last of equal places stays.
        x[places] = updates
        return x
    dtype = DType.of(x.dtype)
    wide = np.complex128 if dtype.is_complex else np.float64 if dtype.is_float else x.dtype
    result = x.astype(wide)
    with np.errstate(all="ignore"):
        _MEET[kind].at(result, places, updates.astype(wide))
        return result.astype(x.dtype)


def gather_nd(
    x: Any,
    indices: Any,
    axes: Sequence[int] | None = None,
    batch_dims: int = 0,
    mode: IndexMode | str = IndexMode.Checked,
) -> Any:
    """Parts of `x` at points given by coordinates; by default these belong to the axes after the batch axes."""
    return GatherNd(_coordinate_axes(indices, axes, batch_dims), batch_dims, IndexMode(mode))(x, indices)


def scatter_nd(
    x: Any,
    indices: Any,
    updates: Any,
    kind: ScatterKind | str = ScatterKind.Set,
    axes: Sequence[int] | None = None,
    batch_dims: int = 0,
    mode: IndexMode | str = IndexMode.Checked,
    unique: bool = False,
) -> Any:
    """`x` with `updates` brought to the places that `gather_nd` reads; see `ScatterNd`."""
    places = _coordinate_axes(indices, axes, batch_dims)
    scatter = ScatterNd(ScatterKind(kind), places, batch_dims, IndexMode(mode), unique)
    return scatter(x, indices, convert(updates, dtype_of(x)))


def _coordinate_axes(indices: Any, axes: Sequence[int] | None, batch_dims: int) -> tuple[int, ...]:
    if axes is not None:
        return tuple(axes)
    dims = Shape(dims_of(indices))
    if not dims.rank or not isinstance(dims.dims[-1], int):
        raise OpError(f"indices {dims.dims} need a last axis of fixed size that holds coordinates, or give `axes`")
    return tuple(range(batch_dims, batch_dims + dims.dims[-1]))
