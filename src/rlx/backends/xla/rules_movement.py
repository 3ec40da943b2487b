"""Rules for ops that move elements or make positions, and those that read and write at positions found at run time."""

from __future__ import annotations

from rlx.backends.xla.rules_pointwise import cast, narrow
from rlx.backends.xla.stablehlo import Emitter, rule
from rlx.backends.xla.text import Block, Kind, Value, ints
from rlx.ir.dtype import DType
from rlx.ir.shape import normalize_axes, normalize_axis
from rlx.ops.shape.creation import DimValue, Iota
from rlx.ops.shape.dynamic_slices import DynamicSlice, DynamicUpdateSlice
from rlx.ops.shape.indexing import GatherNd, IndexMode, ScatterKind, ScatterNd
from rlx.ops.shape.movement import Concat, Expand, Pad, Reshape, Reverse, Slice, Transpose

Kinds = tuple[Kind, ...]


@rule(Reshape)
def _reshape(e: Emitter, op: Reshape, operands: list[Value], kinds: Kinds) -> Value:
    return e.block.reshape(operands[0], kinds[0].dims)


@rule(Transpose)
def _transpose(e: Emitter, op: Transpose, operands: list[Value], kinds: Kinds) -> Value:
    (x,) = operands
    return e.block.transpose(x, [p % x.kind.rank for p in op.perm])


@rule(Expand)
def _expand(e: Emitter, op: Expand, operands: list[Value], kinds: Kinds) -> Value:
    return e.block.broadcast(operands[0], kinds[0].dims)


@rule(Slice)
def _slice(e: Emitter, op: Slice, operands: list[Value], kinds: Kinds) -> Value:
    return e.block.slice(operands[0], [int(s) for s in op.starts], [int(n) for n in op.limits], op.strides)


@rule(Concat)
def _concat(e: Emitter, op: Concat, operands: list[Value], kinds: Kinds) -> Value:
    return e.block.concat(operands, normalize_axis(op.axis, kinds[0].rank, "concat"))


@rule(Pad)
def _pad(e: Emitter, op: Pad, operands: list[Value], kinds: Kinds) -> Value:
    low, high = ([int(n) for n in amounts] for amounts in (op.low, op.high))
    attributes = (
        f"edge_padding_low = {ints(low)}, edge_padding_high = {ints(high)}, interior_padding = {ints(op.interior)}"
    )
    return e.block.op("pad", operands, kinds[0], attributes)


@rule(Reverse)
def _reverse(e: Emitter, op: Reverse, operands: list[Value], kinds: Kinds) -> Value:
    axes = normalize_axes(op.axes, kinds[0].rank, "reverse")
    return e.block.op("reverse", operands, kinds[0], f"dimensions = {ints(axes)}")


@rule(Iota)
def _iota(e: Emitter, op: Iota, operands: list[Value], kinds: Kinds) -> Value:
    (kind,) = kinds
    if not kind.rank:
        return e.block.constant(0, kind.dtype)
    # Positions are exact integers before they are rounded.
    plain = kind.dtype.is_int and not kind.dtype.is_storage
    wide = e.block.iota(kind if plain else kind.with_dtype(DType.I64), op.axis % kind.rank)
    return cast(e.block, wide, kind.dtype)


@rule(DimValue)
def _dim_value(e: Emitter, op: DimValue, operands: list[Value], kinds: Kinds) -> Value:
    return e.block.constant(int(op.size), kinds[0].dtype)


def whole(block: Block, ids: Value) -> Value:
    """Ids as integers that can hold any size: floats lose what is behind the point, and NaN is 0."""
    if ids.dtype.is_float:
        return cast(block, ids, DType.I64)
    return block.convert(ids, DType.I64 if ids.dtype.size_bytes >= 4 and ids.dtype is not DType.I32 else DType.I32)


def from_front(block: Block, ids: Value, size: int) -> Value:
    """Ids with those below 0 counted from the end."""
    return block.select(block.compare("LT", ids, 0), block.binary("add", ids, size), ids)


class _Places:
    """Positions of a gather or scatter: coordinates from the front, clipped or not, and which of them are valid."""

    def __init__(self, block: Block, x: Value, indices: Value, axes: tuple[int, ...], drops: bool) -> None:
        last = indices.kind.rank - 1
        columns, valid = [], None
        ids = whole(block, indices)
        for j, axis in enumerate(axes):
            size = x.dims[axis]
            column = block.narrow(ids, last, j, 1)
            fits = block.binary("and", block.compare("GE", column, -size), block.compare("LT", column, size))
            valid = fits if valid is None else block.binary("and", valid, fits)
            column = from_front(block, column, size)
            # What is at the size itself is outside for XLA, which writes nothing there.
            columns.append(column if drops else _clipped(block, column, size))
        assert valid is not None
        self.valid = block.reshape(valid, indices.dims[:-1])
        if drops:
            columns = [block.select(valid, c, block.full(x.dims[a], c.kind)) for c, a in zip(columns, axes)]
        self.indices = block.concat(columns, last)


def _clipped(block: Block, ids: Value, size: int) -> Value:
    return block.binary("minimum", block.binary("maximum", ids, 0), max(size - 1, 0))


@rule(GatherNd)
def _gather(e: Emitter, op: GatherNd, operands: list[Value], kinds: Kinds) -> Value:
    block, (x, indices), (kind,) = e.block, operands, kinds
    if not x.kind.size or not kind.size:
        return block.full(0, kind)
    places = _Places(block, x, indices, op.axes, drops=False)
    batch = op.batch_dims
    rest = [a for a in range(batch, x.kind.rank) if a not in op.axes]
    sizes = [x.dims[a] if a in rest else 1 for a in range(x.kind.rank)]
    attributes = (
        "dimension_numbers = #stablehlo.gather<"
        f"offset_dims = {list(range(kind.rank - len(rest), kind.rank))}, "
        f"collapsed_slice_dims = {sorted(op.axes)}, operand_batching_dims = {list(range(batch))}, "
        f"start_indices_batching_dims = {list(range(batch))}, start_index_map = {list(op.axes)}, "
        f"index_vector_dim = {indices.kind.rank - 1}>, indices_are_sorted = false, slice_sizes = {ints(sizes)}"
    )
    found = block.op("gather", [x, places.indices], kind, attributes)
    if op.mode is not IndexMode.Fill:
        return found
    kept = block.broadcast(places.valid, kind.dims, range(places.valid.kind.rank))
    return block.select(kept, found, block.full(0, kind))


_MEET = {
    ScatterKind.Add: "add",
    ScatterKind.Mul: "multiply",
    ScatterKind.Max: "maximum",
    ScatterKind.Min: "minimum",
}


@rule(ScatterNd)
def _scatter(e: Emitter, op: ScatterNd, operands: list[Value], kinds: Kinds) -> Value:
    block, (x, indices, updates), (kind,) = e.block, operands, kinds
    if not kind.size or not updates.kind.size:
        return x
    places = _Places(block, x, indices, op.axes, drops=op.mode is not IndexMode.Clip)
    # Sums of short floats are rounded once, and bools have no order for XLA.
    is_short = op.kind is not ScatterKind.Set and (narrow(x.dtype) or x.dtype is DType.BOOL)
    wide = (DType.F32 if x.dtype.is_float else DType.U8) if is_short else x.dtype
    batch, rank = op.batch_dims, updates.kind.rank
    rest = x.kind.rank - batch - len(op.axes)
    attributes = (
        "scatter_dimension_numbers = #stablehlo.scatter<"
        f"update_window_dims = {list(range(rank - rest, rank))}, inserted_window_dims = {sorted(op.axes)}, "
        f"input_batching_dims = {list(range(batch))}, scatter_indices_batching_dims = {list(range(batch))}, "
        f"scatter_dims_to_operand_dims = {list(op.axes)}, index_vector_dim = {indices.kind.rank - 1}>, "
        "indices_are_sorted = false, unique_indices = false"
    )
    inside = Block(block)
    scalar = Kind((), wide)
    before, update = inside.argument(scalar), inside.argument(scalar)
    inside.returns([update if op.kind is ScatterKind.Set else inside.op(_MEET[op.kind], [before, update], scalar)])
    given = [block.convert(x, wide), places.indices, block.convert(updates, wide)]
    result = block.op("scatter", given, x.kind.with_dtype(wide), attributes, [inside])
    return cast(block, result, x.dtype)


def _starts(block: Block, x: Value, starts: list[Value]) -> list[Value]:
    """Where a window begins, in one integer type; XLA moves it inside by itself."""
    made = [from_front(block, whole(block, s), d) for s, d in zip(starts, x.dims)]
    wide = DType.I64 if any(s.dtype is DType.I64 for s in made) else DType.I32
    return [block.convert(s, wide) for s in made]


@rule(DynamicSlice)
def _dynamic_slice(e: Emitter, op: DynamicSlice, operands: list[Value], kinds: Kinds) -> Value:
    x, *starts = operands
    if not starts:
        return x
    return e.block.op(
        "dynamic_slice", [x, *_starts(e.block, x, starts)], kinds[0], f"slice_sizes = {ints(kinds[0].dims)}"
    )


@rule(DynamicUpdateSlice)
def _dynamic_update_slice(e: Emitter, op: DynamicUpdateSlice, operands: list[Value], kinds: Kinds) -> Value:
    x, update, *starts = operands
    if not starts:
        return update
    return e.block.op("dynamic_update_slice", [x, update, *_starts(e.block, x, starts)], kinds[0])
