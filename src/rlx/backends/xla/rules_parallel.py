"""Rules for ops that speak of many devices: constraints, programs on parts, and the collectives inside of these.

Groups of a collective are positions in the mesh, which are the numbers of the partitions of a program.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.op_lowering import has_checks
from rlx.backends.xla.shardy import attribute, inner_attribute
from rlx.backends.xla.stablehlo import CODE, Emitter, rule
from rlx.backends.xla.text import Block, Kind, Value, int_table
from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.ir.shape import normalize_axis
from rlx.ops.parallel.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AxisIndex,
    Collective,
    CollectiveKind,
    PPermute,
    ReduceScatter,
)
from rlx.ops.parallel.shard_map import ShardMap
from rlx.ops.parallel.sharding_constraint import ShardingConstraint
from rlx.sharding import Mesh, NamedSharding

Kinds = tuple[Kind, ...]

_JOINS = {
    CollectiveKind.Sum: "add",
    CollectiveKind.Mean: "add",
    CollectiveKind.Max: "maximum",
    CollectiveKind.Min: "minimum",
}


@rule(ShardingConstraint)
def _sharding_constraint(e: Emitter, op: ShardingConstraint, operands: list[Value], kinds: Kinds) -> Value:
    (x,) = operands
    if e.mesh is None:
        return x
    return e.block.op("sdy.sharding_constraint", [x], x.kind, f"sharding = {attribute(op.sharding, x.kind.rank)}")


@rule(ShardMap)
def _shard_map(e: Emitter, op: ShardMap, operands: list[Value], kinds: Kinds) -> list[Value]:
    """The body on parts, as a region in which all axes of the mesh are taken."""
    if e.mesh is None:
        raise InternalError("xla: shard_map in a program for one device")
    mesh = op.mesh
    inside = Emitter(Block(e.block), e.failures, parts_of=mesh)
    parts = [inside.block.argument(Kind.of(node.shape)) for node in op.body.inputs]
    results = inside.body(op.body, parts)
    outs, types = list(op.out_shardings), list(kinds)
    checked = has_checks(op.body)
    if checked:
        # One participant's failure is everybody's.
        results.append(_all_reduce(inside, inside.current_code(), "maximum", mesh, mesh.axis_names))
        outs.append(NamedSharding(mesh))
        types.append(CODE)
    inside.block.returns(results, "sdy.return")
    axes = ", ".join(f'"{name}"' for name in mesh.axis_names)
    attributes = (
        f"in_shardings = {_per_value(op.in_shardings, [v.kind for v in operands])}, "
        f"out_shardings = {_per_value(outs, types)}, manual_axes = #sdy<manual_axes{{{axes}}}>"
    )
    made = e.block.ops("sdy.manual_computation", operands, types, attributes, [inside.block])
    if checked:
        before, code = e.current_code(), made.pop()
        e.code = e.block.select(e.block.compare("EQ", before, 0), code, before)
    return made


def _per_value(shardings: Sequence[NamedSharding], kinds: Sequence[Kind]) -> str:
    each = ", ".join(inner_attribute(s, kind.rank) for s, kind in zip(shardings, kinds))
    return f"#sdy.sharding_per_value<[{each}]>"


def _groups(e: Emitter, op: Collective) -> str:
    return _groups_of(_mesh(e), [op.axis_name])


def _mesh(e: Emitter) -> Mesh:
    assert e.parts_of is not None
    return e.parts_of


def _groups_of(mesh: Mesh, axes: Sequence[str]) -> str:
    groups = mesh.groups(axes)
    return f"replica_groups = {int_table(groups, len(groups[0]))}"


def _all_reduce(e: Emitter, x: Value, join: str, mesh: Mesh, axes: Sequence[str]) -> Value:
    attributes = f"{_groups_of(mesh, axes)}, {e.channel()}, use_global_device_ids"
    return e.block.op("all_reduce", [x], x.kind, attributes, [_joined_by(e, join, x.dtype)])


def _joined_by(e: Emitter, join: str, dtype: DType) -> Block:
    inside = Block(e.block)
    scalar = Kind((), dtype)
    a, b = inside.argument(scalar), inside.argument(scalar)
    inside.returns([inside.op(join, [a, b], scalar)])
    return inside


def _widened(e: Emitter, x: Value) -> Value:
    """Sums of narrow floats are rounded once."""
    return e.block.convert(x, DType.F32) if x.dtype in (DType.F16, DType.BF16) else x


@rule(AllReduce)
def _reduced(e: Emitter, op: AllReduce, operands: list[Value], kinds: Kinds) -> Value:
    x = _widened(e, operands[0])
    y = _all_reduce(e, x, _JOINS[op.kind], _mesh(e), [op.axis_name])
    if op.kind is CollectiveKind.Mean:
        y = e.block.binary("divide", y, op.participants)
    return e.block.convert(y, kinds[0].dtype)


@rule(AllGather)
def _gathered(e: Emitter, op: AllGather, operands: list[Value], kinds: Kinds) -> Value:
    (x,) = operands
    axis = normalize_axis(op.axis, kinds[0].rank, op.mnemonic)
    if not op.tiled:
        x = e.block.reshape(x, (*x.dims[:axis], 1, *x.dims[axis:]))
    attributes = f"all_gather_dim = {axis} : i64, {_groups(e, op)}, {e.channel()}, use_global_device_ids"
    return e.block.op("all_gather", [x], kinds[0], attributes)


@rule(ReduceScatter)
def _scattered(e: Emitter, op: ReduceScatter, operands: list[Value], kinds: Kinds) -> Value:
    x = _widened(e, operands[0])
    axis = normalize_axis(op.axis, x.kind.rank, op.mnemonic)
    dims = [d // op.participants if i == axis else d for i, d in enumerate(x.dims)]
    attributes = f"scatter_dimension = {axis} : i64, {_groups(e, op)}, {e.channel()}, use_global_device_ids"
    y = e.block.op("reduce_scatter", [x], x.kind.with_dims(dims), attributes, [_joined_by(e, "add", x.dtype)])
    return e.block.convert(e.block.reshape(y, kinds[0].dims), kinds[0].dtype)


@rule(AllToAll)
def _exchanged(e: Emitter, op: AllToAll, operands: list[Value], kinds: Kinds) -> Value:
    (x,) = operands
    split = normalize_axis(op.split_axis, x.kind.rank, op.mnemonic)
    concat = normalize_axis(op.concat_axis, x.kind.rank, op.mnemonic)
    # Parts of one element come back along the axis that they came from, and move from there.
    joined = concat if op.tiled else split
    attributes = (
        f"split_dimension = {split} : i64, concat_dimension = {joined} : i64, "
        f"split_count = {op.participants} : i64, {_groups(e, op)}, {e.channel()}"
    )
    y = e.block.op("all_to_all", [x], kinds[0] if op.tiled else x.kind, attributes)
    if op.tiled:
        return y
    order = [i for i in range(x.kind.rank) if i != split]
    return e.block.transpose(y, [*order[:concat], split, *order[concat:]])


@rule(PPermute)
def _permuted(e: Emitter, op: PPermute, operands: list[Value], kinds: Kinds) -> Value:
    (x,) = operands
    if not op.perm:
        return e.block.full(0, x.kind)
    pairs = [(group[a], group[b]) for group in _mesh(e).groups([op.axis_name]) for a, b in op.perm]
    return e.block.op("collective_permute", [x], x.kind, f"source_target_pairs = {int_table(pairs, 2)}, {e.channel()}")


@rule(AxisIndex)
def _number(e: Emitter, op: AxisIndex, operands: list[Value], kinds: Kinds) -> Value:
    mesh, block = _mesh(e), e.block
    place = mesh.axis_names.index(op.axis_name)
    behind = mesh.axis_size(mesh.axis_names[place + 1 :])
    position = block.op("partition_id", [], Kind((), DType.U32))
    number = block.binary("remainder", block.binary("divide", position, behind), op.participants)
    return block.convert(number, DType.I32)
