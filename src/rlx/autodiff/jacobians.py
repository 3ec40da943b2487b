"""Jacobians: the derivative applied to every unit vector at once, by `vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.calls import Arguments, Function, transformed
from rlx.autodiff.functions import Argnums, argument_numbers, linearize, select_positions, vjp
from rlx.autodiff.vectorize import vmap
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph
from rlx.ir.tensor import Tensor, lift
from rlx.ops.pointwise.complex_numbers import conjugate
from rlx.ops.shape.movement import narrow, reshape
from rlx.trace.arguments import function_name
from rlx.trace.pytree import tree_flatten, tree_leaves, tree_map, tree_structure


def reverse_jacobian(fn: Function, argnums: Argnums, has_aux: bool, holomorphic: bool) -> Function:
    """See `rlx.jacrev`."""

    def build(graph: Graph, arguments: Arguments) -> Any:
        args, kwargs = arguments.unflatten()
        chosen, partial, primals = _selected("jacrev", fn, argnums, args, kwargs, graph)
        value, pull, *aux = vjp(partial, *primals, has_aux=has_aux)
        outputs, out_tree = tree_flatten(value)
        if holomorphic:
            _require_complex("jacrev", partial, [*tree_leaves(primals), *outputs])
        rows = vmap(pull)(out_tree.unflatten(_basis(outputs, "jacrev")))
        if holomorphic:
            # What is pulled back is the conjugate of the derivative.
            rows = tree_map(conjugate, rows)
        blocks = [_split(leaf, outputs, 0) for leaf in tree_leaves(rows)]
        jacobian = out_tree.unflatten(
            _per_argument(args, chosen, argnums, [pieces[i] for pieces in blocks]) for i in range(len(outputs))
        )
        return (jacobian, *aux) if has_aux else jacobian

    return transformed(fn, build, "jacrev", select_positions(argnums))


def forward_jacobian(fn: Function, argnums: Argnums, has_aux: bool, holomorphic: bool) -> Function:
    """See `rlx.jacfwd`."""

    def build(graph: Graph, arguments: Arguments) -> Any:
        args, kwargs = arguments.unflatten()
        chosen, partial, primals = _selected("jacfwd", fn, argnums, args, kwargs, graph)
        value, push, *aux = linearize(partial, *primals, has_aux=has_aux)
        inputs, in_tree = tree_flatten(primals)
        if holomorphic:
            _require_complex("jacfwd", partial, [*inputs, *tree_leaves(value)])
        columns = vmap(push, out_axes=-1)(*in_tree.unflatten(_basis(inputs, "jacfwd")))
        blocks = [_split(leaf, inputs, -1) for leaf in tree_leaves(columns)]
        jacobian = tree_structure(value).unflatten(_per_argument(args, chosen, argnums, pieces) for pieces in blocks)
        return (jacobian, *aux) if has_aux else jacobian

    return transformed(fn, build, "jacfwd", select_positions(argnums))


def _selected(
    what: str, fn: Function, argnums: Argnums, args: Sequence[Any], kwargs: dict[str, Any], graph: Graph
) -> tuple[list[int], Function, tuple[Any, ...]]:
    """The numbers of the arguments to differentiate by, the function of those alone, and their values."""
    chosen = argument_numbers(argnums, len(args), f"{what}({function_name(fn)})")

    def partial(*xs: Any) -> Any:
        whole = list(args)
        for n, x in zip(chosen, xs):
            whole[n] = x
        return fn(*whole, **kwargs)

    partial.__name__ = function_name(fn)
    primals = tree_map(lambda x: lift(x, graph), tuple(args[n] for n in chosen))
    for x in tree_leaves(primals):
        if not x.dtype.is_inexact:
            raise AutodiffError(
                f"{what}({partial.__name__}): an argument is {x.type}; only float and complex arguments have "
                "derivatives. Convert it with .astype('float32'), or leave it out of argnums"
            )
    return chosen, partial, primals


def _require_complex(what: str, fn: Function, values: Sequence[Tensor]) -> None:
    for x in values:
        if not x.dtype.is_complex:
            raise AutodiffError(
                f"{what}({function_name(fn)}): holomorphic=True needs complex arguments and results, one is {x.type}; "
                "convert it with .astype('complex64')"
            )


def _count(value: Tensor, what: str) -> int:
    size = value.size
    if not isinstance(size, int):
        raise AutodiffError(f"{what}: the size {size} is symbolic; a Jacobian needs fixed sizes (graph.bind)")
    return size


def _basis(values: Sequence[Tensor], what: str) -> list[Any]:
    """For each value a stack of all unit vectors of the whole tree, restricted to that value."""
    counts = [_count(v, what) for v in values]
    total, start, basis = sum(counts), 0, []
    for value, count in zip(values, counts):
        units = np.eye(total, count, -start, dtype=value.dtype.numpy)
        basis.append(units.reshape((total, *value.type.static_dims)))
        start += count
    return basis


def _split(stacked: Tensor, values: Sequence[Tensor], axis: int) -> list[Any]:
    """Cut the axis of unit vectors (the first or the last) into one block per value, with the shape of that value."""
    start, blocks = 0, []
    for value in values:
        count = _count(value, "jacobian")
        block = narrow(stacked, axis, start, count)
        dims = (*value.shape, *stacked.shape[1:]) if axis == 0 else (*stacked.shape[:-1], *value.shape)
        blocks.append(reshape(block, dims))
        start += count
    return blocks


def _per_argument(args: Sequence[Any], chosen: Sequence[int], argnums: Argnums, blocks: Sequence[Any]) -> Any:
    rest = iter(blocks)
    structures = [tree_structure(args[n]) for n in chosen]
    trees = [tree.unflatten([next(rest) for _ in range(tree.num_leaves)]) for tree in structures]
    return trees[0] if isinstance(argnums, int) else tuple(trees)
