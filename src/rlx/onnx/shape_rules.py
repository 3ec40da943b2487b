"""Rules of ops that make, move, cut and join arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import ops
from rlx.formats.onnx.structure import element_type
from rlx.ir.dims import Dim, ceildiv, dim_max, dims_equal, product
from rlx.ir.dtype import DType
from rlx.ir.shape import broadcast_dims
from rlx.onnx.elementwise import converted
from rlx.onnx.values import Call, Size, dtype_of, rank_of, rule, sizes

# What a slice says when it means "to the end".
_FAR = 2**31 - 1
# Longer ranges are made by the program.
_MOST_LISTED = 1 << 16


@rule("Shape")
def _shape(call: Call) -> Any:
    shape = call.value(0).shape
    return sizes(list(shape)[slice(call.attribute("start", 0), call.attribute("end"))])


@rule("Size")
def _size(call: Call) -> Any:
    return sizes(product(call.value(0).shape))


@rule("Reshape")
def _reshape(call: Call) -> Any:
    x, wanted = call[0], call.numbers(1, "shape")
    if wanted is None:
        call.fail("it has no shape")
    keeps_zero = call.attribute("allowzero", 0)
    if not keeps_zero and any(_is(n, 0) and i >= rank_of(x) for i, n in enumerate(wanted)):
        call.fail(f"a size of 0 stands for one of the input, which has only {rank_of(x)} axes")
    dims = [x.shape[i] if not keeps_zero and _is(n, 0) else n for i, n in enumerate(wanted)]
    return rnp.reshape(x, tuple(dims))


def _is(size: Size, number: int) -> bool:
    return isinstance(size, int) and size == number


@rule("Flatten")
def _flatten(call: Call) -> Any:
    x = call[0]
    axis = int(call.attribute("axis", 1))
    axis += rank_of(x) if axis < 0 else 0
    return rnp.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@rule("Squeeze")
def _squeeze(call: Call) -> Any:
    x = call[0]
    axes = call.axes(1, rank_of(x))
    if axes is None:
        axes = tuple(i for i, n in enumerate(x.shape) if _is(n, 1))
    return rnp.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in axes))


@rule("Unsqueeze")
def _unsqueeze(call: Call) -> Any:
    x, given = call[0], call.numbers(1, "axes") or []
    rank = rank_of(x) + len(given)
    axes, rest = {call.in_rank(int(a), rank) for a in given}, iter(x.shape)
    return rnp.reshape(x, tuple(1 if i in axes else next(rest) for i in range(rank)))


@rule("Transpose")
def _transpose(call: Call) -> Any:
    return rnp.transpose(call[0], call.attribute("perm"))


@rule("Concat")
def _concat(call: Call) -> Any:
    parts = call.all()
    return rnp.concatenate(parts, axis=call.axis(rank_of(parts[0]), 1))


@rule("Split")
def _split(call: Call) -> Any:
    x = call[0]
    axis, parts = call.axis(rank_of(x), 0), call.numbers(1, "split")
    if parts is None:
        count = int(call.attribute("num_outputs", len(call.node.outputs)))
        step = ceildiv(x.shape[axis], count)
        parts = [step] * (count - 1) + [x.shape[axis] - step * (count - 1)]
    return split_at(x, parts, axis)


def split_at(x: Any, parts: list[Size], axis: int) -> tuple[Any, ...]:
    found, start = [], 0
    for size in parts:
        found.append(ops.narrow(x, axis, start, size))
        start = start + size  # type: ignore[assignment]
    return tuple(found)


@rule("Slice")
def _slice(call: Call) -> Any:
    x = call[0]
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    if starts is None or ends is None:
        call.fail("starts and ends are missing")
    axes = call.axes(3, rank_of(x)) or tuple(range(len(starts)))
    steps = call.numbers(4) or [1] * len(starts)
    index = [slice(None)] * rank_of(x)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(_bound(start), _bound(end), int(step))
    return x[tuple(index)]


def _bound(value: Size) -> Size | None:
    """Ends that are farther away than any size."""
    if isinstance(value, Dim):
        return value
    return None if abs(value) >= _FAR else int(value)


@rule("Gather")
def _gather(call: Call) -> Any:
    x, index = call[0], call.value(1)
    axis = call.axis(rank_of(x), 0)
    if isinstance(index, np.ndarray) and not index.ndim:
        # One entry at a known place is a part of x, and nothing need be looked up.
        return x[(slice(None),) * axis + (int(index),)]
    return rnp.take(x, call[1], axis=axis)


@rule("GatherElements")
def _gather_elements(call: Call) -> Any:
    x, index, axis = call[0], call[1], call.axis(rank_of(call[0]), 0)
    # The other axes may be shorter in the index.
    for other, (size, wanted) in enumerate(zip(x.shape, index.shape)):
        if other != axis and dims_equal(size, wanted) is not True:
            x = ops.narrow(x, other, 0, wanted)
    return rnp.take_along_axis(x, index, axis)


@rule("GatherND")
def _gather_points(call: Call) -> Any:
    x, index, batch = call[0], call[1], int(call.attribute("batch_dims", 0))
    width = index.shape[-1]
    if not isinstance(width, int):
        call.unsupported("a point with an open number of coordinates")
    return ops.gather_nd(x, index, batch_dims=batch)


_REDUCTION_KINDS = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _scatter_kind(call: Call) -> str:
    name = call.attribute("reduction", "none")
    if name not in _REDUCTION_KINDS:
        call.unsupported(f"the reduction {name!r}")
    return _REDUCTION_KINDS[name]


@rule("ScatterND")
def _scatter_points(call: Call) -> Any:
    return ops.scatter_nd(call[0], call[1], call[2], _scatter_kind(call))


@rule("Scatter", "ScatterElements")
def _scatter_elements(call: Call) -> Any:
    x, index, updates = call[0], call[1], call[2]
    axis = call.axis(rank_of(x), 0)
    places = [ops.iota(index.shape, DType.I64, other) for other in range(rank_of(x))]
    places[axis] = rnp.astype(index, DType.I64)
    return ops.scatter_nd(x, rnp.stack(places, axis=-1), updates, _scatter_kind(call))


@rule("Expand")
def _expand(call: Call) -> Any:
    x = call[0]
    return rnp.broadcast_to(x, broadcast_dims(tuple(x.shape), tuple(call.known(1).tolist()), "Expand"))


@rule("Tile")
def _tile(call: Call) -> Any:
    x, counts = call[0], call.known(1).tolist()
    if all(isinstance(n, int) for n in counts):
        return rnp.tile(x, tuple(counts))
    spread = [m for n in x.shape for m in (1, n)]
    wide = rnp.broadcast_to(rnp.reshape(x, spread), tuple(m for pair in zip(counts, x.shape) for m in pair))
    return rnp.reshape(wide, tuple(n * count for n, count in zip(x.shape, counts)))


@rule("Pad")
def _pad(call: Call) -> Any:
    x = call[0]
    amounts = call.numbers(1, "pads") or call.attribute("paddings")
    if amounts is None:
        call.fail("it has no pads")
    mode = call.attribute("mode", "constant")
    value = call.number(2) if call.opset >= 11 else call.attribute("value", 0.0)
    axes = call.axes(3, rank_of(x), "") or tuple(range(rank_of(x)))
    widths: list[tuple[Size, Size]] = [(0, 0)] * rank_of(x)
    for i, axis in enumerate(axes):
        widths[axis] = amounts[i], amounts[i + len(axes)]
    if any(isinstance(n, int) and n < 0 for pair in widths for n in pair):
        # Negative amounts cut.
        for axis, (low, high) in enumerate(widths):
            x = x[(slice(None),) * axis + (slice(max(0, -low), x.shape[axis] - max(0, -high)),)]
        widths = [(max(0, low), max(0, high)) for low, high in widths]
    if mode == "constant":
        return rnp.pad(x, widths, constant_values=np.asarray(value or 0, dtype_of(x).numpy))
    return rnp.pad(x, widths, mode=mode)


@rule("CenterCropPad")
def _center(call: Call) -> Any:
    x, wanted = call[0], call.known(1).tolist()
    axes = call.axes(9, rank_of(x)) or tuple(range(rank_of(x)))
    for axis, size in zip(axes, wanted):
        have = x.shape[axis]
        if isinstance(have, Dim) or isinstance(size, Dim):
            call.unsupported("an open size")
        before = abs(have - size) // 2
        if have >= size:
            x = ops.narrow(x, axis, before, size)
        else:
            widths = [(0, 0)] * rank_of(x)
            widths[axis] = before, size - have - before
            x = rnp.pad(x, widths)
    return x


@rule("Constant")
def _constant(call: Call) -> Any:
    for name, dtype in (("value_float", "f4"), ("value_floats", "f4"), ("value_int", "i8"), ("value_ints", "i8")):
        if (given := call.attribute(name)) is not None:
            return np.asarray(given, dtype)
    given = call.attribute("value")
    if not isinstance(given, np.ndarray):
        call.unsupported("a constant of this kind (sparse, or text)")
    return given


@rule("ConstantOfShape")
def _filled(call: Call) -> Any:
    value = call.attribute("value", np.zeros(1, np.float32))
    return rnp.full(tuple(call.known(0).reshape(-1).tolist()), value.reshape(())[()], dtype_of(value))


@rule("Range")
def _range(call: Call) -> Any:
    start, limit, step = (call.number(i) for i in range(3))
    dtype = dtype_of(call.value(0))
    if isinstance(step, Dim):
        call.unsupported("an open step")
    if any(isinstance(n, Dim) for n in (start, limit)):
        # So many places, moved.
        count = dim_max(0, ceildiv(limit - start, step)) if step > 0 else dim_max(0, ceildiv(start - limit, -step))
        places = rnp.astype(rnp.arange(count), dtype) * np.asarray(step, dtype.numpy)
        return places if _is(start, 0) else places + _as_number(start, dtype)
    count = max(0, int(np.ceil((limit - start) / step)))
    if count > _MOST_LISTED:
        return rnp.arange(start, limit, step, dtype=dtype)
    return (np.asarray(start) + np.arange(count) * np.asarray(step)).astype(dtype.numpy)


def _as_number(value: Size, dtype: DType) -> Any:
    return rnp.dim_value(value, dtype) if isinstance(value, Dim) else np.asarray(value, dtype.numpy)


@rule("OneHot")
def _one_hot(call: Call) -> Any:
    ids, depth, values = call[0], call.number(1), call[2]
    axis = call.axis(rank_of(ids) + 1)
    count = depth if isinstance(depth, Dim) else int(depth)
    ids = rnp.astype(ids, DType.I64)
    ids = rnp.where(rnp.less(ids, 0), ids + _as_number(count, DType.I64), ids)
    is_on = nn_one_hot(ids, count, axis)
    return rnp.where(is_on, values[1], values[0])


def nn_one_hot(ids: Any, depth: Size, axis: int) -> Any:
    return ops.one_hot(ids, depth, DType.BOOL, axis)


@rule("EyeLike")
def _eye(call: Call) -> Any:
    x, k = call.value(0), int(call.attribute("k", 0))
    given = call.attribute("dtype")
    dtype = dtype_of(x) if given is None else element_type(given, f"{call.path}: node {call.node}")
    rows, columns = (ops.iota(tuple(x.shape), DType.I32, axis) for axis in (0, 1))
    return converted(rnp.equal(rows + k, columns), dtype)


@rule("Trilu")
def _triangle(call: Call) -> Any:
    x, k = call[0], int(call.number(1, 0))
    return (rnp.triu if call.attribute("upper", 1) else rnp.tril)(x, k)


@rule("DepthToSpace")
def _depth_to_space(call: Call) -> Any:
    x, n = call[0], int(call.attribute("blocksize", 1))
    batch, depth, height, width = x.shape
    rest = depth // (n * n)
    if call.attribute("mode", "DCR") == "DCR":
        parts = rnp.transpose(rnp.reshape(x, (batch, n, n, rest, height, width)), (0, 3, 4, 1, 5, 2))
    else:
        parts = rnp.transpose(rnp.reshape(x, (batch, rest, n, n, height, width)), (0, 1, 4, 2, 5, 3))
    return rnp.reshape(parts, (batch, rest, height * n, width * n))


@rule("SpaceToDepth")
def _space_to_depth(call: Call) -> Any:
    x, n = call[0], int(call.attribute("blocksize", 1))
    batch, depth, height, width = x.shape
    parts = rnp.reshape(x, (batch, depth, height // n, n, width // n, n))
    order = (0, 3, 5, 1, 2, 4) if call.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return rnp.reshape(rnp.transpose(parts, order), (batch, depth * n * n, height // n, width // n))


@rule("ReverseSequence")
def _reverse_sequence(call: Call) -> Any:
    x, lengths = call[0], rnp.astype(call[1], DType.I64)
    time, batch = int(call.attribute("time_axis", 0)), int(call.attribute("batch_axis", 1))
    shape = [1] * rank_of(x)
    shape[batch] = x.shape[batch]
    ends = rnp.reshape(lengths, tuple(shape))
    places = ops.iota(tuple(x.shape), DType.I64, time)
    return rnp.take_along_axis(x, rnp.where(rnp.less(places, ends), ends - 1 - places, places), time)


@rule("TopK")
def _top(call: Call) -> Any:
    x, k = call[0], call.number(1, call.attribute("k"))
    axis, largest = call.axis(rank_of(x)), call.attribute("largest", 1)
    seen = x if largest else _turned(x)
    if isinstance(k, Dim) and dims_equal(k, x.shape[axis]) is not True:
        order = rnp.argsort(seen, axis=axis, descending=True, stable=True)
        places = ops.narrow(order, axis, 0, k)
        return rnp.take_along_axis(x, places, axis), rnp.astype(places, DType.I64)
    if isinstance(k, Dim):
        places = rnp.argsort(seen, axis=axis, descending=True, stable=True)
    else:
        places = ops.top_k(seen, int(k), axis)[1]
    return rnp.take_along_axis(x, places, axis), rnp.astype(places, DType.I64)


def _turned(x: Any) -> Any:
    """x in the opposite order."""
    kind = dtype_of(x)
    return rnp.bitwise_not(x) if kind.is_int else rnp.negative(x)


@rule("BitCast")
def _bit_cast(call: Call) -> Any:
    return ops.bitcast(call[0], element_type(int(call.attribute("to")), f"{call.path}: node {call.node}"))


@rule("TensorScatter")
def _write_rows(call: Call) -> Any:
    """A cache with new entries at the places of each batch."""
    cache, update = call[0], call[1]
    axis = call.axis(rank_of(cache), -2)
    places = ops.iota(tuple(update.shape), DType.I64, axis)
    if call.has(2):
        starts = rnp.astype(call[2], DType.I64)
        places = places + rnp.reshape(starts, (-1, *(1,) * (rank_of(cache) - 1)))
    if call.attribute("mode", "linear") == "circular":
        places = rnp.mod(places, _as_number(cache.shape[axis], DType.I64))
    points = [ops.iota(tuple(update.shape), DType.I64, other) for other in range(rank_of(cache))]
    points[axis] = places
    return ops.scatter_nd(cache, rnp.stack(points, axis=-1), update, "set")


# Sequences and optionals.


@rule("Optional", "OptionalGetElement")
def _optional(call: Call) -> Any:
    if not call.has(0):
        call.unsupported("an optional that is empty")
    return [call.value(0)]


@rule("OptionalHasElement")
def _has_element(call: Call) -> Any:
    return np.asarray(call.has(0))


@rule("SequenceConstruct")
def _sequence(call: Call) -> Any:
    return [call.inputs]


@rule("SequenceEmpty")
def _empty_sequence(call: Call) -> Any:
    return [[]]


@rule("SequenceAt")
def _sequence_at(call: Call) -> Any:
    return call.value(0)[int(call.number(1))]


@rule("SequenceInsert")
def _sequence_insert(call: Call) -> Any:
    found = list(call.value(0))
    found.insert(len(found) if not call.has(2) else int(call.number(2)), call.value(1))
    return [found]


@rule("SequenceErase")
def _sequence_erase(call: Call) -> Any:
    found = list(call.value(0))
    del found[-1 if not call.has(1) else int(call.number(1))]
    return [found]


@rule("SequenceLength")
def _sequence_length(call: Call) -> Any:
    return np.asarray(len(call.value(0)), np.int64)


@rule("ConcatFromSequence")
def _join_sequence(call: Call) -> Any:
    parts = [call.lift("", part) for part in call.value(0)]
    join = rnp.stack if call.attribute("new_axis", 0) else rnp.concatenate
    return join(parts, axis=int(call.attribute("axis", 0)))


@rule("SplitToSequence")
def _split_to_sequence(call: Call) -> Any:
    x = call[0]
    axis = call.axis(rank_of(x), 0)
    length = x.shape[axis]
    if isinstance(length, Dim):
        call.unsupported("a sequence of an open length")
    given = call.known(1) if call.has(1) else None
    if given is None or given.ndim == 0:
        step = 1 if given is None else int(given)
        parts = [min(step, length - start) for start in range(0, length, step)]
    else:
        parts = given.tolist()
    found = list(split_at(x, parts, axis))
    if given is None and not call.attribute("keepdims", 1):
        found = [rnp.squeeze(part, axis) for part in found]
    return [found]
