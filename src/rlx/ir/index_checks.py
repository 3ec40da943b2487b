"""Ids that come straight from the caller are validated, not clipped in silence.

An op says by `index_operands` which operands hold ids and how large the axes are that they select from. Where such an
operand is an input, executors check what the caller gives for it; ids that the program computes follow the definition
of the op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    if _are_valid(ids, sizes):
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


def _are_valid(ids: Any, sizes: Dims) -> bool:
    """Whether ids of one axis are valid, as far as that is seen at once. False says nothing.

    A few, as a decoder has at each step, are compared by Python in a tenth of the time; of many that are not negative
    the largest is enough.
    """
    if len(sizes) > 1 or not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        return False
    size = sizes[0]
    if not isinstance(size, int):
        return False
    if ids.size <= _FEW:
        numbers = ids.ravel().tolist()
        return not numbers or (-size <= min(numbers) and max(numbers) < size)
    # Read as numbers without sign, negative ones are larger than any size.
    numbers = np.asarray(ids).view(_UNSIGNED[ids.dtype.itemsize])
    return bool(np.maximum.reduce(numbers, axis=None) < min(size, 1 << (8 * ids.dtype.itemsize - 1)))


class QuickChecks:
    """Checks of arrays in the order of a program's inputs, which mostly see at once that ids are valid."""

    def __init__(self, places: Sequence[tuple[int, Dims]], count: int) -> None:
        self._places, self._count = places, count

    @staticmethod
    def of(checks: Sequence[IdCheck], keys: Sequence[str]) -> QuickChecks | None:
        """The checks of a program whose inputs have these names; None where sizes are known only in a run."""
        if any(len(c.sizes) > 1 or not isinstance(c.sizes[0], int) for c in checks):
            return None
        return QuickChecks([(keys.index(c.key), c.sizes) for c in checks], len(keys))

    def pass_(self, arrays: Sequence[Any]) -> bool:
        """Whether all ids are valid. False says nothing: then `check_ids` must look."""
        return len(arrays) == self._count and all(_are_valid(arrays[place], sizes) for place, sizes in self._places)

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A short call, which gives None as well where ids are not seen to be valid."""
        if not self._places:
            return call
        return lambda *arrays: call(*arrays) if self.pass_(arrays) else None


_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
