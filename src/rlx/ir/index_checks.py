"""Ids that come straight from the caller are validated, not clipped in silence.

An op says by `index_operands` which operands hold ids and how large the axes are that they select from. Where such an
operand is an input, executors check what the caller gives for it; ids that the program computes follow the definition
of the op.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import OutOfRange
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Input
from rlx.ir.op import Op, no_ids
from rlx.ir.shape import Dims, Shape

Array = np.ndarray[Any, np.dtype[Any]]


# Ids that Python compares faster than NumPy.
_FEW = 32


class IdCheck(NamedTuple):
    """The input `key` holds ids for `op`, which select from axes of the given (perhaps symbolic) sizes."""

    op: Op
    key: str
    sizes: Dims


def id_checks(graph: Graph) -> list[IdCheck]:
    """What an executor of `graph` has to check before every run."""
    found: list[IdCheck] = []
    for node in graph.nodes:
        if type(node.op).index_operands is no_ids:
            continue
        sources = [graph.nodes[i] for i in node.inputs]
        for position, sizes in node.op.index_operands(*(source.shape for source in sources)).items():
            found.extend(IdCheck(node.op, key, each) for key, each in _given_ids(graph, sources[position], sizes))
    # Layers share their positions and lengths, and what is the same is checked once.
    return list(dict.fromkeys(found))


def _given_ids(graph: Graph, node: Node, sizes: Dims) -> Iterator[tuple[str, Dims]]:
    """The inputs whose elements are the ids that `node` holds, as they are, with the sizes of the axes for each."""
    if isinstance(node.op, Input):
        yield node.op.key, sizes
    elif len(sizes) == 1 and node.op.keeps_elements:
        yield from _given_ids(graph, graph.nodes[node.inputs[0]], sizes)
    elif node.op.name == "concat" and len(node.inputs) == len(sizes):
        # Coordinates put together from one operand for each axis.
        for size, part in zip(sizes, (graph.nodes[i] for i in node.inputs)):
            if part.shape.rank and part.shape.dims[-1] == 1:
                yield from _given_ids(graph, part, (size,))


def check_ids(op: Op, ids: Array, sizes: Dims, name: str = "ids") -> None:
    """Refuse ids outside of their axis; `sizes` is an entry of `op.index_operands`, with symbols bound."""
    if ids.size <= _FEW and _are_valid(ids, sizes):
        return
    columns = [ids] if len(sizes) == 1 else [ids[..., j] for j in range(len(sizes))]
    for column, size in zip(columns, Shape(sizes).static_dims):
        numbers = column if column.dtype.kind in "iu" else np.trunc(column.astype(np.float64))
        # The ends say it in one pass each; NaN is an end of whatever holds it, and no comparison with it holds.
        if not numbers.size or (numbers.min() >= -size and numbers.max() < size):
            continue
        valid = (numbers >= -size) & (numbers < size)
        if not valid.all():
            allowed = f"valid ids are {-size}..{size - 1}" if size else "no id is valid"
            found = f"{name} holds {column[~valid].flat[0]}, but the indexed axis has size {size}: {allowed}"
            raise OutOfRange(f"{op.mnemonic}: {found}")


def _are_valid(ids: Array, sizes: Dims) -> bool:
    """Whether ids of one axis are valid, by Python: for a few of them, as a decoder has at each step, in a tenth of the
    time. False says nothing."""
    size = sizes[0]
    if len(sizes) > 1 or not isinstance(size, int) or ids.dtype.kind not in "iu":
        return False
    numbers = ids.ravel().tolist()
    return not numbers or (-size <= min(numbers) and max(numbers) < size)
