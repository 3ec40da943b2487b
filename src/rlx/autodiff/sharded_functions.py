"""`rlx.shard_map`: a Python function on the parts that each device of a mesh has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from rlx.autodiff.calls import Arguments, Called, Function, transformed
from rlx.errors import ShardingError, TreeError
from rlx.ir.graph import Graph
from rlx.ir.tensor import lift
from rlx.ops.control.body_transforms import as_tuple
from rlx.ops.parallel.named_axes import named_axis
from rlx.ops.parallel.shard_map import ShardMap
from rlx.sharding import Mesh, NamedSharding, PartitionSpec
from rlx.trace.arguments import function_name
from rlx.trace.pytree import broadcast_prefix, tree_leaves
from rlx.trace.tracing import Spec


def shard_map(fn: Function, mesh: Mesh, in_specs: Any, out_specs: Any) -> Function:
    """`fn` on every device of a mesh, each with its parts of the arguments.

    `in_specs` has a `PartitionSpec` for every argument, or for parts of it as a tree, or one for all; `out_specs` says
    how the results of all devices are joined. Inside, the axes of the mesh are bound: `rlx.psum(x, "x")`,
    `rlx.all_gather`, `rlx.axis_index` and the others act across them. An axis of the mesh that a result's spec does not
    name must have made no difference to it.

    In programs of XLA (under `jit(device="xla")`, or where arguments are divided) each device runs its own part; other
    backends compute all parts one beside the other, with the same results.
    """
    name = function_name(fn)
    what = f"shard_map({name})"
    if not isinstance(mesh, Mesh):
        raise ShardingError(f"{what}: a Mesh is needed, got {mesh!r}")

    def build(graph: Graph, arguments: Arguments) -> Any:
        args, kwargs = arguments.unflatten()
        shardings = _shardings(mesh, in_specs, args, f"{what}: in_specs")
        shardings += _shardings(mesh, PartitionSpec(), kwargs, what)
        leaves = [lift(x, graph) for x in arguments.leaves]
        shardings = arguments.of_traced(shardings)
        specs = []
        for x, sharding, key in zip(leaves, shardings, arguments.names, strict=True):
            sharding.require_divides(x.type.dims, f"{what}: {key!r}")
            counts = sharding.counts(x.type.rank)
            specs.append(Spec(tuple(d // n if n > 1 else d for d, n in zip(x.type.dims, counts)), x.dtype, x.weak))
        with ExitStack() as bound:
            for axis, size in mesh.shape.items():
                bound.enter_context(named_axis(axis, size))
            called = Called(fn, arguments, graph, specs)
        captured = [NamedSharding(mesh) for _ in called.traced.captures]
        tree = called.traced.out_tree
        results = tree.unflatten(range(tree.num_leaves))
        outs = _shardings(mesh, out_specs, results, f"{what}: out_specs")
        op = ShardMap(called.graph, (*shardings, *captured), tuple(outs))
        return tree.unflatten(as_tuple(op(*leaves, *called.traced.captures)))

    def select(args: Sequence[Any], kwargs: dict[str, Any]) -> list[bool]:
        return [*(True for _ in tree_leaves(args)), *(False for _ in tree_leaves(kwargs))]

    return transformed(fn, build, "shard_map", select)


def _shardings(mesh: Mesh, specs: Any, tree: Any, what: str) -> list[NamedSharding]:
    if isinstance(specs, list):
        specs = tuple(specs)
    for spec in tree_leaves(specs, _is_spec):
        if not _is_spec(spec):
            raise ShardingError(f"{what}: a PartitionSpec is needed, got {spec!r}; write P('x', None)")
    try:
        return [NamedSharding(mesh, spec) for spec in broadcast_prefix(specs, tree, _is_spec)]
    except TreeError as error:
        raise ShardingError(f"{what} do not fit the values: {error}") from None


def _is_spec(value: Any) -> bool:
    return isinstance(value, PartitionSpec)
