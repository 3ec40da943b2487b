"""`x[key]` and `x.at[key].set(v)` with the whole of NumPy's indexing.

A key is read once into a `_Plan`: a slice of every axis, an order of axes, and the ids of advanced indexing. Reading
slices, reverses, reshapes and gathers; writing goes the same way back. Sizes may be symbolic. Python numbers and arrays
in a key are checked at once; ids that are tensors follow `IndexMode`.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import OpError, OutOfRange, ShapeError
from rlx.ir.dims import Dim, ceildiv, dim_max, dim_min, require_equal
from rlx.ir.dtype import DType
from rlx.ir.shape import Dims, Shape, Size, broadcast_dims
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import common_dtype, convert, dims_of, dtype_of, recording, same_graph
from rlx.ops.pointwise.arithmetic import add, lt, maximum, minimum, mul, where
from rlx.ops.pointwise.unary import neg
from rlx.ops.reduction.reductions import reduce_max
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.creation import full, ones, ones_like, zeros_like
from rlx.ops.shape.dynamic_slices import dynamic_update_slice
from rlx.ops.shape.indexing import GatherNd, IndexMode, ScatterKind, ScatterNd
from rlx.ops.shape.movement import broadcast_to, expand_dims, moveaxis, pad, reshaped, reverse, slice_, stack
from rlx.ops.shape.selection import as_ids, default_fill, nonzero, read_mode, require_known_ids

__all__ = ["AtIndexer", "index"]

# Never a valid id: what a mask with a size bound holds after its last element.
_NO_ID = 2**31 - 1


class _AxisSlice(NamedTuple):
    """start, start + step, .. below limit; read from the end when `backward`. `kept` is False for a single number."""

    start: Size
    limit: Size
    step: int = 1
    backward: bool = False
    kept: bool = True

    @property
    def length(self) -> Size:
        return ceildiv(self.limit - self.start, self.step)


class _Plan(NamedTuple):
    """What a key means for operands of certain dims."""

    slices: list[_AxisSlice]
    # Dims after slicing, without axes of single numbers and with new axes of size 1.
    view_dims: Dims
    # Advanced indices: axes of the view, and the ids for each.
    id_axes: list[int]
    ids: list[Any]
    # Dims that the ids broadcast to, and the axis of the result at which they stand.
    id_dims: Dims
    id_position: int
    has_tensor_mask: bool

    @property
    def result_dims(self) -> Dims:
        rest = [d for i, d in enumerate(self.view_dims) if i not in self.id_axes]
        return (*rest[: self.id_position], *self.id_dims, *rest[self.id_position :])


def _is_number(entry: Any) -> bool:
    return isinstance(entry, int | Dim)


def _is_mask(entry: Any) -> bool:
    return hasattr(entry, "dtype") and dtype_of(entry) is DType.BOOL


def _entries(key: Any, rank: int) -> list[Any]:
    """The key as a list that covers every axis: arrays from lists, the ellipsis written out."""
    parts = list(key) if isinstance(key, tuple) else [key]
    parts = [_known(p) for p in parts]
    dots = [i for i, p in enumerate(parts) if p is ...]
    if len(dots) > 1:
        raise OpError(f"an index can hold one ellipsis (...), got {len(dots)}")
    used = sum(_axes_used(p) for p in parts if p is not ...)
    if used > rank:
        raise OpError(f"too many indices: {used} axes are indexed, but the tensor has rank {rank}")
    missing = [slice(None)] * (rank - used)
    if not dots:
        return parts + missing
    return parts[: dots[0]] + missing + parts[dots[0] + 1 :]


def _known(entry: Any) -> Any:
    """Sequences and other arrays as NumPy arrays, integers of rank 0 as Python numbers."""
    if entry is None or entry is ... or isinstance(entry, slice | Tensor | Dim):
        return entry
    array = np.asarray(entry)
    if array.dtype.kind in "OSU":
        raise OpError(f"indices must be integers, bools, slices, None or ..., got {entry!r}")
    return int(array) if array.ndim == 0 and array.dtype.kind in "iu" else array


def _axes_used(entry: Any) -> int:
    if entry is None:
        return 0
    if isinstance(entry, slice) or _is_number(entry):
        return 1
    if _is_mask(entry):
        return len(dims_of(entry))
    if not dtype_of(entry).is_int and 0 not in dims_of(entry):
        raise OpError(f"indices must be integers, bools, slices, None or ..., got {dtype_of(entry)} values")
    return 1


def _place(bound: Any, size: Size, highest: Size, lowest: int) -> Size:
    """A bound of a slice as a position: negative ones count from the end, all are limited to lowest..highest."""
    if isinstance(bound, Dim):
        return dim_min(bound, highest)
    number = operator.index(bound)
    return dim_max(size + number, lowest) if number < 0 else dim_min(number, highest)


def _sliced(key: slice, size: Size) -> _AxisSlice:
    if any(isinstance(b, Tensor) for b in (key.start, key.stop, key.step)):
        raise OpError(
            "the bounds of a slice decide the size of the result, so they must be numbers; "
            "use dynamic_slice for a window of fixed size at a computed start"
        )
    step = 1 if key.step is None else operator.index(key.step)
    if step == 0:
        raise OpError("the step of a slice cannot be 0")
    if step > 0:
        start = 0 if key.start is None else _place(key.start, size, size, 0)
        if key.stop is None:
            return _AxisSlice(start, size, step)
        stop = _place(key.stop, size, size, 0)
        limit = stop if key.start is None else dim_max(start, stop)
        if limit not in (start, stop) and (isinstance(key.start, Dim) or operator.index(key.start) >= 0):
            # A start beyond the end leaves nothing, with or without being moved to the end; this way the length is a
            # simple one, where slices of slices would double it each time.
            limit = start + dim_max(stop - key.start, 0)
        return _AxisSlice(start, limit, step)
    first = size - 1 if key.start is None else _place(key.start, size, size - 1, -1)
    before_last: Size = -1 if key.stop is None else _place(key.stop, size, size - 1, -1)
    count = dim_max(ceildiv(first - before_last, -step), 0)
    lowest = dim_min(first + step * (count - 1), first + 1)
    return _AxisSlice(lowest, first + 1, -step, backward=True)


def _numbered(number: Any, size: Size, axis: int) -> _AxisSlice:
    if not isinstance(number, Dim):
        number = operator.index(number)
        if isinstance(size, int) and not -size <= number < size:
            raise OutOfRange(f"index {number} is out of range for axis {axis} of size {size}")
        number = size + number if number < 0 else number
    return _AxisSlice(number, number + 1, kept=False)


def _follows_mode(number: Any, size: Size, mode: IndexMode) -> bool:
    """Whether a number is an id like others, because it may lie outside and the mode says what happens then."""
    return (
        mode is not IndexMode.Checked
        and isinstance(number, int)
        and not (isinstance(size, int) and -size <= number < size)
    )


def _mask_ids(mask: Any, dims: Dims, size: int | None) -> list[Any]:
    """The ids of the true elements of a mask over axes of the given dims, one array per axis."""
    have = dims_of(mask)
    if not all(require_equal(a, b, "index") for a, b in zip(have, dims)):
        raise OpError(f"a mask of dims {have} does not fit the indexed dims {dims}")
    if not isinstance(mask, Tensor):
        return list(nonzero(mask))
    if size is None:
        raise OpError(
            "a mask that is computed gives a result whose size depends on values; use where(mask, x, other), or "
            "index(x, mask, size=n) with an upper bound"
        )
    return list(nonzero(mask, size, fill_value=_NO_ID))


def _planned(dims: Dims, key: Any, size: int | None, mode: IndexMode) -> _Plan:
    slices: list[_AxisSlice] = []
    view_dims: list[Size] = []
    id_axes: list[int] = []
    ids: list[Any] = []
    # Places in the key of numbers and ids, which NumPy counts as one group, and where the group would stand.
    places: list[int] = []
    position = 0
    entries = _entries(key, len(dims))
    for place, entry in enumerate(entries):
        axis = len(slices)
        if entry is None:
            view_dims.append(1)
        elif isinstance(entry, slice):
            slices.append(_sliced(entry, dims[axis]))
            view_dims.append(slices[-1].length)
        elif _is_number(entry) and not _follows_mode(entry, dims[axis], mode):
            slices.append(_numbered(entry, dims[axis], axis))
            position = position if places else len(view_dims)
            places.append(place)
        else:
            position = position if places else len(view_dims)
            places.append(place)
            new_ids, indexed = _advanced(np.asarray(entry) if _is_number(entry) else entry, dims[axis:], size)
            id_axes.extend(range(len(view_dims), len(view_dims) + len(new_ids)))
            ids.extend(new_ids)
            slices.extend(_AxisSlice(0, d) for d in indexed)
            view_dims.extend(indexed if indexed else [1])
    together = not places or places[-1] - places[0] == len(places) - 1
    id_dims: Dims = ()
    for array in ids:
        id_dims = broadcast_dims(id_dims, dims_of(array), "index")
    has_tensor_mask = any(isinstance(e, Tensor) and e.dtype is DType.BOOL for e in entries)
    return _Plan(slices, tuple(view_dims), id_axes, ids, id_dims, position if together else 0, has_tensor_mask)


def _advanced(entry: Any, dims: Dims, size: int | None) -> tuple[list[Any], Dims]:
    """The ids of one advanced entry, and the dims of the axes it indexes (none for True and False)."""
    if not _is_mask(entry):
        return [as_ids(entry)], dims[:1]
    rank = len(dims_of(entry))
    if rank == 0:
        # True and False index a new axis of size 1, taking it or nothing.
        if isinstance(entry, Tensor):
            raise OpError("a computed bool scalar cannot be an index; use where")
        return [np.zeros(int(bool(entry)), np.int32)], ()
    return _mask_ids(entry, dims[:rank], size), dims[:rank]


def _view(x: Any, plan: _Plan) -> Any:
    """The basic part of the index: slices, reversals, dropped and new axes."""
    dims = dims_of(x)
    if any((s.start, s.limit, s.step) != (0, d, 1) for s, d in zip(plan.slices, dims)):
        starts, limits = [s.start for s in plan.slices], [s.limit for s in plan.slices]
        x = slice_(x, starts, limits, [s.step for s in plan.slices])
    backward = [i for i, s in enumerate(plan.slices) if s.backward]
    return reshaped(reverse(x, backward) if backward else x, plan.view_dims)


def _put_back(x: Any, view: Any, plan: _Plan) -> Any:
    """`x` with the part that `_view` reads replaced."""
    dims = dims_of(x)
    part = reshaped(view, tuple(s.length for s in plan.slices))
    backward = [i for i, s in enumerate(plan.slices) if s.backward]
    if backward:
        part = reverse(part, backward)
    if all((s.start, s.limit, s.step) == (0, d, 1) for s, d in zip(plan.slices, dims)):
        return part
    if 0 in dims_of(part):
        return x
    starts = [s.start for s in plan.slices]
    if all(s.step == 1 and isinstance(s.start, int) for s in plan.slices):
        return dynamic_update_slice(x, part, starts)
    holes = [s.step - 1 for s in plan.slices]
    rest = [d - s.start - s.length - hole * dim_max(s.length - 1, 0) for d, s, hole in zip(dims, plan.slices, holes)]
    written = pad(ones(dims_of(part), DType.BOOL), False, starts, rest, holes)
    return where(written, pad(part, 0, starts, rest, holes), x)


def _coordinates(plan: _Plan) -> Any:
    """The ids as one operand whose last axis holds the coordinates."""
    return stack([broadcast_to(i, plan.id_dims) for i in plan.ids], axis=-1)


def index(
    x: Any,
    key: Any,
    *,
    mode: IndexMode | str | None = None,
    fill_value: Any = None,
    size: int | None = None,
) -> Any:
    """x[key], as in NumPy: numbers, slices, None, ..., integer arrays, masks, and mixtures of them.

    A computed mask needs `size`, an upper bound on its true elements; what follows them reads as 0. Modes are those of
    `IndexMode`; "fill" reads `fill_value` where an id is out of range, by default NaN or the end of the integers.

    >>> print(index(np.arange(6).reshape(2, 3), (slice(None), [2, 0])))
    [[2 0]
     [5 3]]
    """
    mode = read_mode(mode, fill_value)
    if mode is not IndexMode.Fill:
        fill_value = None
    elif fill_value is None:
        fill_value = default_fill(dtype_of(x))
    with recording(x):
        plan = _planned(dims_of(x), key, size, mode)
    if plan.has_tensor_mask:
        mode = IndexMode.Fill
    view = _view(x, plan)
    if not plan.ids:
        return view
    if mode is IndexMode.Checked:
        _require_known_ids(x, plan)
    if len(plan.ids) == 1 and fill_value is None:
        found, start = gather(view, plan.ids[0], plan.id_axes[0], mode), plan.id_axes[0]
    else:
        found, start = _gathered(view, plan, mode, fill_value), 0
    count = len(plan.id_dims)
    return moveaxis(found, range(start, start + count), range(plan.id_position, plan.id_position + count))


def _require_known_ids(x: Any, plan: _Plan) -> None:
    for axis, ids in zip(plan.id_axes, plan.ids):
        require_known_ids(x, ids, plan.view_dims[axis], "index")


def _gathered(view: Any, plan: _Plan, mode: IndexMode, fill_value: Any) -> Any:
    coordinates = _coordinates(plan)
    found = GatherNd(tuple(plan.id_axes), mode=mode)(view, coordinates)
    if fill_value is None:
        return found
    with same_graph(view, coordinates):
        yes = ones([plan.view_dims[a] for a in plan.id_axes], DType.BOOL)
        valid = GatherNd(tuple(range(len(plan.ids))), mode=IndexMode.Fill)(yes, coordinates)
    rest = len(plan.view_dims) - len(plan.ids)
    return where(expand_dims(valid, range(-rest, 0)), found, convert(fill_value, dtype_of(view)))


def _write_mode(mode: IndexMode | str | None) -> IndexMode:
    chosen = IndexMode.Checked if mode is None else IndexMode(mode)
    return IndexMode.Drop if chosen is IndexMode.Fill else chosen


_COMBINE: dict[ScatterKind, Callable[[Any, Any], Any]] = {
    ScatterKind.Add: add,
    ScatterKind.Mul: mul,
    ScatterKind.Max: maximum,
    ScatterKind.Min: minimum,
}


class AtIndexer:
    """`x.at[key]` names a part of a tensor; its methods return a changed copy of the whole tensor.

    >>> print(AtIndexer(np.zeros(4))[1:3].set(5.0))
    [0. 5. 5. 0.]
    """

    def __init__(self, x: Any) -> None:
        self.x = x

    def __getitem__(self, key: Any) -> _Place:
        return _Place(self.x, key)


def _fitted(value: Any, part: Dims, kind: ScatterKind) -> Any:
    """What is written, with the dims of the part of x that it is written to."""
    try:
        return broadcast_to(value, part)
    except (OpError, ShapeError):
        name = {ScatterKind.Set: "set"}.get(kind, str(kind.value))
        what = f"{Shape(dims_of(value), dtype_of(value))} does not fit"
        raise ShapeError(f"x.at[...].{name}: {what} into the selected part, whose shape is {part}") from None


class _Place:
    """A part of a tensor. Values broadcast to the part and take the tensor's dtype.

    Ids outside of the tensor follow `mode`, see `IndexMode`: without one they are errors where they are known, and
    computed ones are clipped when reading and dropped when writing. "drop" and "fill" are two words for one thing: such
    ids read `fill_value` and write nothing. `indices_are_sorted` and `unique_indices` are promises that nothing here
    needs; they are accepted, so that programs written for JAX run.
    """

    def __init__(self, x: Any, key: Any) -> None:
        self.x, self.key = x, key

    def get(
        self,
        *,
        mode: IndexMode | str | None = None,
        fill_value: Any = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Any:
        """The part itself."""
        return index(self.x, self.key, mode=mode, fill_value=fill_value)

    def set(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with `value` there; of several values for one element the last stays."""
        return self._changed(ScatterKind.Set, value, mode, promises)

    def add(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with `value` added there, repeated ids adding repeatedly."""
        return self._changed(ScatterKind.Add, value, mode, promises)

    def subtract(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with `value` subtracted there, repeated ids repeatedly."""
        if not dtype_of(value).is_inexact:
            value = convert(value, dtype_of(self.x))
        return self._changed(ScatterKind.Add, neg(value), mode, promises)

    def multiply(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with what is there multiplied by `value`, repeated ids multiplying repeatedly."""
        return self._changed(ScatterKind.Mul, value, mode, promises)

    mul = multiply

    def divide(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with what is there divided by `value`, repeated ids repeatedly; integers become floats."""
        return self.x / self._ones().multiply(value, mode=mode, **promises)

    def power(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with what is there raised to `value`, repeated ids repeatedly."""
        return self.x ** self._ones().multiply(value, mode=mode, **promises)

    def max(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with the larger of `value` and what is there."""
        return self._changed(ScatterKind.Max, value, mode, promises)

    def min(self, value: Any, *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with the smaller of `value` and what is there."""
        return self._changed(ScatterKind.Min, value, mode, promises)

    def apply(self, function: Callable[[Any], Any], *, mode: IndexMode | str | None = None, **promises: bool) -> Any:
        """The tensor with `function` of what is there, for repeated ids repeatedly."""
        with same_graph(self.x, *self._keys()):
            mask = self._computed_mask()
            if mask is not None:
                rest = len(dims_of(self.x)) - mask.ndim
                return where(expand_dims(mask, range(-rest, 0)), function(self.x), self.x)
            # What is not written is read as it would be written: clipped ids, else some valid ones.
            read = IndexMode.Checked if _write_mode(mode) is IndexMode.Checked else IndexMode.Clip
            part, unique = self.get(mode=read), promises.get("unique_indices", False)
            most = 1 if unique else self._most_repetitions(_write_mode(mode))
            applied = function(part) if most == 1 else self._applied_repeatedly(function, part, mode, most)
            return self.set(applied, mode=mode, **promises)

    def _applied_repeatedly(self, function: Callable[[Any], Any], part: Any, mode: Any, most: int | None) -> Any:
        """`function` of the part, of each element as often as its id is there: `most` times at most."""
        counts = _Place(zeros_like(self.x, DType.I32), self.key)
        counts = _Place(counts.add(1, mode=mode), self.key).get(mode=IndexMode.Clip)

        def again(state: tuple[Any, Any]) -> tuple[Any, Any]:
            done, values = state
            return done + 1, where(lt(done, counts), convert(function(values), dtype_of(values)), values)

        first = (full((), 0, DType.I32), part)
        # Loops over functions are traced, which is a later layer; whoever applies a function has it.
        loop = importlib.import_module("rlx.trace.control").while_loop
        return loop(lambda state: lt(state[0], reduce_max(counts)), again, first, most)[1]

    def _most_repetitions(self, mode: IndexMode) -> int | None:
        """How often one id occurs: the number, where the ids are known, else their number; None if that is open."""
        with recording(self.x):
            plan = _planned(dims_of(self.x), self.key, None, mode)
        number = math.prod(plan.id_dims)
        if not isinstance(number, int) or number <= 1:
            return max(number, 1) if isinstance(number, int) else None
        sizes = [d for d in (plan.view_dims[a] for a in plan.id_axes) if isinstance(d, int)]
        if any(isinstance(i, Tensor) for i in plan.ids) or len(sizes) < len(plan.ids):
            return number
        ids = [np.where(i < 0, i + d, i) for i, d in zip(plan.ids, sizes)]
        if mode is IndexMode.Clip:
            ids = [np.clip(i, 0, d - 1) for i, d in zip(ids, sizes)]
        rows = np.stack(np.broadcast_arrays(*ids), -1).reshape(number, -1)
        return int(np.unique(rows, axis=0, return_counts=True)[1].max())

    def _keys(self) -> tuple[Any, ...]:
        return self.key if isinstance(self.key, tuple) else (self.key,)

    def _computed_mask(self) -> Tensor | None:
        """The key, if it is nothing but a mask that the program computes."""
        (key, *others) = self._keys() or (None,)
        return key if not others and isinstance(key, Tensor) and key.dtype is DType.BOOL else None

    def _ones(self) -> _Place:
        return _Place(ones_like(self.x), self.key)

    def _changed(self, kind: ScatterKind, value: Any, mode: IndexMode | str | None, promises: dict[str, bool]) -> Any:
        unknown = promises.keys() - {"indices_are_sorted", "unique_indices"}
        if unknown:
            raise OpError(f"x.at[...].{kind}: it takes mode, indices_are_sorted and unique_indices, not {min(unknown)}")
        with same_graph(self.x, *self._keys(), value):
            common = common_dtype(self.x, value)
            if kind is not ScatterKind.Set and dtype_of(self.x).is_int and common.is_inexact:
                # Integers are changed by the numbers as they are, and only the results lose their fractions.
                wide = _Place(convert(self.x, common), self.key)._changed(kind, value, mode, promises)
                return convert(wide, dtype_of(self.x))
            value = convert(value, dtype_of(self.x))
            mask = self._computed_mask()
            if mask is not None:
                return self._changed_where(kind, value, mask)
            return self._scattered(kind, value, _write_mode(mode))

    def _scattered(self, kind: ScatterKind, value: Any, mode: IndexMode) -> Any:
        with recording(self.x):
            plan = _planned(dims_of(self.x), self.key, None, mode)
        value = _fitted(value, plan.result_dims, kind)
        if not plan.ids:
            new = value if kind is ScatterKind.Set else _COMBINE[kind](_view(self.x, plan), value)
            return _put_back(self.x, new, plan)
        if mode is IndexMode.Checked:
            _require_known_ids(self.x, plan)
        count = len(plan.id_dims)
        updates = moveaxis(value, range(plan.id_position, plan.id_position + count), range(count))
        scatter = ScatterNd(kind, tuple(plan.id_axes), mode=mode)
        return _put_back(self.x, scatter(_view(self.x, plan), _coordinates(plan), updates), plan)

    def _changed_where(self, kind: ScatterKind, value: Any, mask: Tensor) -> Any:
        """A computed mask: possible when the value does not depend on how many elements it has."""
        rest = len(dims_of(self.x)) - mask.ndim
        if len(dims_of(value)) > rest:
            raise OpError("a computed mask needs one value for all of its elements; use where(mask, values, x)")
        new = value if kind is ScatterKind.Set else _COMBINE[kind](self.x, value)
        return where(expand_dims(mask, range(-rest, 0)), new, self.x)
