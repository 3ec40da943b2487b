"""Rules for reductions, positions of extremes, windows and order."""

from __future__ import annotations

from rlx.backends.xla.rules_pointwise import in_accumulator
from rlx.backends.xla.stablehlo import Emitter, rule
from rlx.backends.xla.text import Block, Kind, Value, int_table, ints
from rlx.ir.dtype import DType
from rlx.ir.shape import normalize_axes, normalize_axis
from rlx.ops.reduction.reductions import ArgReduce, ArgReduceOp, Reduce, ReduceOp, identity_of
from rlx.ops.reduction.sort import Sort
from rlx.ops.reduction.window_reductions import ReduceWindow

Kinds = tuple[Kind, ...]

_JOIN = {
    ReduceOp.Sum: "add",
    ReduceOp.Prod: "multiply",
    ReduceOp.Max: "maximum",
    ReduceOp.Min: "minimum",
    ReduceOp.Any: "or",
    ReduceOp.All: "and",
}


@rule(Reduce)
def _reduce(e: Emitter, op: Reduce, operands: list[Value], kinds: Kinds) -> Value:
    block, (x,) = e.block, operands
    axes = normalize_axes(op.axes, x.kind.rank, op.mnemonic)
    if not axes:
        return x
    identity = identity_of(op.kind, x.dtype)
    joined = in_accumulator(block, [x], lambda x: block.reduce(x, axes, _JOIN[op.kind], identity))
    return block.reshape(joined, kinds[0].dims)


@rule(ArgReduce)
def _arg_reduce(e: Emitter, op: ArgReduce, operands: list[Value], kinds: Kinds) -> Value:
    """The first position that holds the extreme; where that is NaN, the first NaN."""
    block, (x,) = e.block, operands
    axis = normalize_axis(op.axis, x.kind.rank, op.mnemonic)
    if x.dtype is DType.BOOL:
        x = block.convert(x, DType.U8)
    elif x.dtype.is_float and x.dtype.size_bytes < 4:
        x = block.convert(x, DType.F32)
    kind = ReduceOp.Max if op.kind is ArgReduceOp.ArgMax else ReduceOp.Min
    extreme = block.reduce(x, [axis], _JOIN[kind], identity_of(kind, x.dtype))
    spread = block.broadcast(extreme, x.dims, [i for i in range(x.kind.rank) if i != axis])
    found = block.compare("EQ", x, spread)
    if x.dtype.is_float:
        found = block.binary("or", found, block.compare("NE", x, x))
    positions = block.iota(x.kind.with_dtype(DType.I32), axis)
    beyond = block.full(x.dims[axis], positions.kind)
    first = block.reduce(block.select(found, positions, beyond), [axis], "minimum", x.dims[axis])
    return block.reshape(first, kinds[0].dims)


@rule(ReduceWindow)
def _reduce_window(e: Emitter, op: ReduceWindow, operands: list[Value], kinds: Kinds) -> Value:
    block, (x,), (kind,) = e.block, operands, kinds
    if not kind.rank:
        return x
    if not kind.size:
        return block.full(0, kind)
    identity = identity_of(op.kind, x.dtype)
    attributes = (
        f"window_dimensions = {ints(op.window)}, window_strides = {ints(op.stride)}, "
        f"window_dilations = {ints(op.dilation)}, padding = {int_table(list(zip(op.low, op.high)), 2)}"
    )

    def joined(x: Value) -> Value:
        inside = Block(block)
        scalar = Kind((), x.dtype)
        a, b = inside.argument(scalar), inside.argument(scalar)
        inside.returns([inside.op(_JOIN[op.kind], [a, b], scalar)])
        start = block.constant(identity, x.dtype)
        return block.op("reduce_window", [x, start], kind.with_dtype(x.dtype), attributes, [inside])

    return in_accumulator(block, [x], joined)


@rule(Sort)
def _sort(e: Emitter, op: Sort, operands: list[Value], kinds: Kinds) -> list[Value]:
    block = e.block
    axis = normalize_axis(op.axis, kinds[0].rank, op.mnemonic)
    inside = Block(block)
    pairs = [(inside.argument(Kind((), v.dtype)), inside.argument(Kind((), v.dtype))) for v in operands]
    inside.returns([_comes_before(inside, pairs[: op.num_keys], op.descending)])
    attributes = f"dimension = {axis} : i64, is_stable = true"
    return block.ops("sort", operands, [v.kind for v in operands], attributes, [inside])


def _comes_before(block: Block, keys: list[tuple[Value, Value]], descending: bool) -> Value:
    """Whether the first of two elements stands before the second: the last key first, so that earlier ones decide."""
    result: Value | None = None
    for a, b in reversed(keys):
        before = _is_less(block, a, b, descending)
        if result is None:
            result = before
            continue
        behind = _is_less(block, b, a, descending)
        tied = block.binary("and", result, block.unary("not", behind))
        result = block.binary("or", before, tied)
    assert result is not None
    return result


def _is_less(block: Block, a: Value, b: Value, descending: bool) -> Value:
    if a.dtype is DType.BOOL:
        a, b = block.convert(a, DType.U8), block.convert(b, DType.U8)
    less = block.compare("GT" if descending else "LT", a, b)
    if not a.dtype.is_float:
        return less
    # NaN comes last.
    number_first = block.binary("and", block.compare("EQ", a, a), block.compare("NE", b, b))
    return block.binary("or", less, number_first)
