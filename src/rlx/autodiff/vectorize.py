"""`rlx.vmap`: a Python function over a new axis of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from rlx.autodiff.batching import batch_graph
from rlx.autodiff.calls import Arguments, Called, Function, transformed
from rlx.autodiff.graphs import move_axis
from rlx.errors import AutodiffError, TreeError
from rlx.ir.dims import as_dim, require_equal
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape, Size, normalize_axis
from rlx.ir.tensor import Tensor, lift
from rlx.ops.define.rules import mapped_axis, put_batch_first
from rlx.ops.parallel.named_axes import named_axis
from rlx.trace.arguments import function_name
from rlx.trace.pytree import broadcast_prefix, tree_leaves
from rlx.trace.tracing import Spec


def vmap(
    fn: Function,
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: int | str | None = None,
    axis_name: str | None = None,
) -> Function:
    """`fn` over one more axis, without a loop.

    `in_axes` says for every argument, or for parts of it as a tree, which axis is mapped; None is not mapped.
    `out_axes` says where the axis goes in the results. Inside, collectives such as `rlx.psum(x, axis_name)` act
    across the axis.
    """

    name = function_name(fn)

    def axes_of(args: Sequence[Any], kwargs: dict[str, Any]) -> list[int | None]:
        return [*_argument_axes(name, in_axes, args), *(0 for _ in tree_leaves(kwargs))]

    def build(graph: Graph, arguments: Arguments) -> Any:
        axes: list[int | None] = arguments.of_traced(axes_of(*arguments.unflatten()))
        leaves = [lift(x, graph) for x in arguments.leaves]
        size = _size(name, leaves, axes, axis_size)
        specs = [_without_axis(name, t, a) for t, a in zip(leaves, axes)]
        with named_axis(axis_name, size) if axis_name is not None else nullcontext():
            called = Called(fn, arguments, graph, specs)
        operands = called.leaves
        batched = []
        for i, axis in enumerate(axes):
            if axis is not None:
                operands[called.input_id(i)] = move_axis(leaves[i], axis, 0)
                batched.append(called.input_id(i))
        with mapped_axis(axis_name):
            outputs, flags = batch_graph(called.graph, operands, batched, size, axis_name)
        tree = called.traced.out_tree
        positions = _broadcast_prefix(out_axes, tree.unflatten(range(len(outputs))), f"vmap({name}): out_axes")
        results = [_placed(name, o, flag, a, size) for o, flag, a in zip(outputs, flags, positions, strict=True)]
        return tree.unflatten(results)

    def select(args: Sequence[Any], kwargs: dict[str, Any]) -> list[bool]:
        return [axis is not None for axis in axes_of(args, kwargs)]

    return transformed(fn, build, "vmap", select)


def _argument_axes(name: str, in_axes: Any, args: Sequence[Any]) -> list[int | None]:
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise AutodiffError(f"vmap({name}): in_axes has {len(in_axes)} entries for {len(args)} positional arguments")
    return _broadcast_prefix(in_axes, tuple(args), f"vmap({name}): in_axes")


def _is_axis(value: Any) -> bool:
    return value is None or isinstance(value, int)


def _broadcast_prefix(prefix: Any, tree: Any, what: str) -> list[int | None]:
    """One entry of `prefix` per leaf of `tree`; an int or None stands for everything below it."""
    if not all(_is_axis(a) for a in tree_leaves(prefix, _is_axis)):
        raise AutodiffError(f"{what} must be ints, None, or trees of them, got {prefix!r}")
    try:
        return broadcast_prefix(prefix, tree, _is_axis)
    except TreeError as error:
        raise AutodiffError(f"{what} {prefix!r} does not fit the values: {error}") from None


def _size(name: str, leaves: Sequence[Tensor], axes: Sequence[int | None], declared: int | str | None) -> Size:
    sizes = [
        (t, a, t.type.dims[normalize_axis(a, t.type.rank, f"vmap({name})")])
        for t, a in zip(leaves, axes)
        if a is not None
    ]
    if declared is not None:
        size: Size = as_dim(declared)
    elif sizes:
        size = sizes[0][2]
    else:
        raise AutodiffError(f"vmap({name}): nothing is mapped; give an axis in in_axes, or axis_size")
    for tensor, axis, found in sizes:
        if not require_equal(size, found, "vmap"):
            raise AutodiffError(f"vmap({name}): axis {axis} of {tensor.type} has size {found}, others have {size}")
    return size


def _without_axis(name: str, tensor: Tensor, axis: int | None) -> Spec:
    shape: Shape = tensor.type
    if axis is None:
        return Spec(shape.dims, shape.dtype, tensor.weak)
    position = normalize_axis(axis, shape.rank, f"vmap({name})")
    return Spec((*shape.dims[:position], *shape.dims[position + 1 :]), shape.dtype)


def _placed(name: str, output: Tensor, batched: bool, axis: int | None, size: Size) -> Tensor:
    if axis is None:
        if batched:
            raise AutodiffError(f"vmap({name}): out_axes is None for a result that depends on the mapped axis")
        return output
    position = normalize_axis(axis, output.ndim + (not batched), f"vmap({name}): out_axes")
    return move_axis(put_batch_first(output, batched, size), 0, position)
