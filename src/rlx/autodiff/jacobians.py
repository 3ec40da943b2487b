"""Jacobians: the derivative applied to every unit vector at once, by `vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.autodiff.calls import Function, transformed
from rlx.autodiff.functions import Argnums, _numbers, linearize, vjp
from rlx.autodiff.vectorize import vmap
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph
from rlx.ir.tensor import Tensor
from rlx.trace.pytree import tree_flatten


def reverse_jacobian(fn: Function, argnums: Argnums, has_aux: bool) -> Function:
    """See `rlx.jacrev`."""

    def build(graph: Graph, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        chosen, partial = _selected(fn, argnums, args, kwargs)
        value, pull, *aux = vjp(partial, *(args[n] for n in chosen), has_aux=has_aux)
        outputs, out_tree = tree_flatten(value)
        rows = vmap(pull)(out_tree.unflatten(_basis(outputs, "jacrev")))
        flat = [_split(leaf, outputs, leading=True) for leaf in tree_flatten(rows)[0]]
        jacobian = out_tree.unflatten(
            [_per_argument(args, chosen, argnums, [pieces[i] for pieces in flat]) for i in range(len(outputs))]
        )
        return (jacobian, aux[0]) if has_aux else jacobian

    return transformed(fn, build, "jacrev")


def forward_jacobian(fn: Function, argnums: Argnums, has_aux: bool) -> Function:
    """See `rlx.jacfwd`."""

    def build(graph: Graph, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        chosen, partial = _selected(fn, argnums, args, kwargs)
        primals = tuple(args[n] for n in chosen)
        value, push = linearize(lambda *xs: partial(*xs)[0] if has_aux else partial(*xs), *primals)
        inputs, in_tree = tree_flatten(primals)
        columns = vmap(push, in_axes=0, out_axes=-1)(*in_tree.unflatten(_basis(inputs, "jacfwd")))
        _, out_tree = tree_flatten(value)
        flat = [_split(leaf, inputs, leading=False) for leaf in tree_flatten(columns)[0]]
        jacobian = out_tree.unflatten([_per_argument(args, chosen, argnums, pieces) for pieces in flat])
        # What the traced function saw as aux belongs to the inner program, so it is computed again in this one.
        return (jacobian, partial(*primals)[1]) if has_aux else jacobian

    return transformed(fn, build, "jacfwd")


def _selected(
    fn: Function, argnums: Argnums, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[int], Function]:
    chosen = _numbers(argnums, len(args), "jacobian")

    def partial(*xs: Any) -> Any:
        whole = list(args)
        for n, x in zip(chosen, xs):
            whole[n] = x
        return fn(*whole, **kwargs)

    partial.__name__ = getattr(fn, "__name__", type(fn).__name__)
    return chosen, partial


def _count(value: Any, what: str) -> int:
    size = value.size
    if not isinstance(size, int | np.integer):
        raise AutodiffError(f"{what}: the size {size} is symbolic; a Jacobian needs fixed sizes (graph.bind)")
    return int(size)


def _basis(values: Sequence[Any], what: str) -> list[Any]:
    """For each value a stack of all unit vectors of the whole tree, restricted to that value."""
    counts = [_count(v, what) for v in values]
    total = sum(counts)
    start, basis = 0, []
    for value, count in zip(values, counts):
        unit = np.zeros((total, count), value.dtype.numpy if isinstance(value, Tensor) else value.dtype)
        unit[start + np.arange(count), np.arange(count)] = 1
        basis.append(unit.reshape((total, *value.shape)))
        start += count
    return basis


def _split(stacked: Any, values: Sequence[Any], leading: bool) -> list[Any]:
    """Cut the axis of unit vectors into one block per value, and give each block the shape of its value."""
    from rlx.ops.movement import narrow, reshape

    axis, start, blocks = 0 if leading else stacked.ndim - 1, 0, []
    for value in values:
        count = _count(value, "jacobian")
        block = narrow(stacked, axis, start, count)
        rest = stacked.shape[1:] if leading else stacked.shape[:-1]
        blocks.append(reshape(block, (*value.shape, *rest) if leading else (*rest, *value.shape)))
        start += count
    return blocks


def _per_argument(args: Sequence[Any], chosen: Sequence[int], argnums: Argnums, blocks: list[Any]) -> Any:
    rest = iter(blocks)
    trees = []
    for n in chosen:
        _, tree = tree_flatten(args[n])
        trees.append(tree.unflatten([next(rest) for _ in range(tree.num_leaves)]))
    return trees[0] if isinstance(argnums, int) else tuple(trees)
