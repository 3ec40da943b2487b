"""Index maps: which element of a value is meant at a point of a loop nest, and how views change that.

A loop nest has axes with sizes. An `AxisMap` is a position along one axis of a value, `offset + sum(index[k]*stride)`
over the axes k of the nest; an `IndexMap` has one for every axis of the value. `through` goes from a view to what it
views, so that a chain of views ends in a `Layout` of the memory below it and nothing has to be copied:

>>> maps = spread((2, 3), (2, 3))
>>> layout((2, 3), maps, 2)
Layout(offset=0, strides=(3, 1))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from rlx.errors import TraceError
from rlx.ir.dims import floordiv
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.shape import Dims, Size, normalize_axes, normalize_axis
from rlx.ops.lowered.complex_pairs import AsComplex, AsReals
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import StopGradient
from rlx.ops.reduction.reductions import Reduce
from rlx.ops.shape.movement import Expand, Narrow, Reshape, Reverse, Slice, Transpose

# Tuples and not unions, which are built anew wherever they are written.
_VIEWS = (Reshape, Transpose, Expand, Narrow, Slice, Reverse, StopGradient, AsReals, AsComplex)
_IN_ORDER = (Reshape, StopGradient, Cast, Reduce, AsReals, AsComplex)


class AxisMap(NamedTuple):
    """`offset + sum(index[axis] * stride for axis, stride in terms)`; terms are sorted by axis."""

    offset: Size = 0
    terms: tuple[tuple[int, Size], ...] = ()

    def scaled(self, by: Size) -> AxisMap:
        return AxisMap(self.offset * by, tuple((k, s * by) for k, s in self.terms))

    def moved(self, by: Size) -> AxisMap:
        return self._replace(offset=self.offset + by)

    def plus(self, other: AxisMap) -> AxisMap:
        strides = dict(self.terms)
        for k, s in other.terms:
            strides[k] = strides.get(k, 0) + s
        return AxisMap(self.offset + other.offset, tuple(sorted((k, s) for k, s in strides.items() if s != 0)))


ORIGIN = AxisMap()
IndexMap = tuple[AxisMap, ...]


class Layout(NamedTuple):
    """Where the elements of a buffer are that a loop nest reads: `offset`, and a stride for every axis of the nest."""

    offset: Size
    strides: tuple[Size, ...]


class Unmappable(Exception):
    """There is no index map here. `split` is an axis of the nest and an inner size: with that axis split there may be
    one. `view` is the node at which the way down ended, if it was a view."""

    def __init__(self, split: tuple[int, Size] | None = None, view: NodeId | None = None) -> None:
        super().__init__(split, view)
        self.split, self.view = split, view


def exact_quotient(a: Size, b: Size) -> Size | None:
    """a / b if b divides a, whatever the symbols stand for."""
    # Sizes of 0 divide nothing and are divided by nothing, or any two empty shapes would be alike.
    if a == 0 or (isinstance(b, int) and b <= 0):
        return None
    quotient = floordiv(a, b)
    return quotient if quotient * b == a else None


def at_most(a: Size, b: Size) -> bool:
    """Whether a <= b for every binding."""
    difference = b - a
    if isinstance(difference, int):
        return difference >= 0
    try:
        return difference >= 0
    except TraceError:
        return False


@lru_cache(maxsize=4096)
def refine(a: Dims, b: Dims) -> tuple[tuple[Size, int, int], ...] | None:
    """The coarsest axes of which both `a` and `b` are joinings, as (size, axis of a, axis of b); None if there are
    none.

    >>> refine((6, 4), (2, 12))
    ((2, 0, 0), (3, 0, 1), (4, 1, 1))
    """
    pieces: list[tuple[Size, int, int]] = []
    i, j = len(a) - 1, len(b) - 1
    left, right = a[i] if a else 1, b[j] if b else 1
    while i >= 0 and j >= 0:
        if left == right:
            pieces.append((left, i, j))
            i, j = i - 1, j - 1
            left, right = a[i] if i >= 0 else 1, b[j] if j >= 0 else 1
        elif (rest := exact_quotient(left, right)) is not None:
            pieces.append((right, i, j))
            j -= 1
            left, right = rest, b[j] if j >= 0 else 1
        elif (rest := exact_quotient(right, left)) is not None:
            pieces.append((left, i, j))
            i -= 1
            left, right = a[i] if i >= 0 else 1, rest
        else:
            return None
    return tuple(reversed(pieces)) if i < 0 and j < 0 else None


def without_ones(dims: Dims) -> Dims:
    """The sizes that are not known to be 1."""
    return tuple(d for d in dims if d != 1)


@lru_cache(maxsize=4096)
def spread(dims: Dims, sizes: Dims, axes: tuple[int, ...] | None = None) -> IndexMap | None:
    """The map of a value whose elements the nest visits in their order: each of its axes is one axis of the nest, or
    several that follow each other. `axes` are the numbers of the nest's axes, by default 0, 1, ..

    >>> spread((6, 1, 4), (2, 3, 4))
    (AxisMap(offset=0, terms=((0, 3), (1, 1))), AxisMap(offset=0, terms=()), AxisMap(offset=0, terms=((2, 1),)))
    """
    pieces = refine(without_ones(dims), sizes)
    if pieces is None or len(pieces) != len(sizes):
        return None
    numbers = range(len(sizes)) if axes is None else axes
    members: dict[int, list[int]] = {}
    for _, i, j in pieces:
        members.setdefault(i, []).append(j)
    maps, position = [], 0
    for d in dims:
        if d == 1:
            maps.append(ORIGIN)
            continue
        terms: list[tuple[int, Size]] = []
        step: Size = 1
        for j in reversed(members[position]):
            terms.append((numbers[j], step))
            step = step * sizes[j]
        maps.append(AxisMap(0, tuple(sorted(terms))))
        position += 1
    return tuple(maps)


def broadcast(maps: IndexMap, dims: Dims) -> IndexMap:
    """The map of an operand of type `dims` that broadcasts to a value with these maps."""
    aligned = maps[len(maps) - len(dims) :]
    return tuple(ORIGIN if d == 1 else m for d, m in zip(dims, aligned))


def flat(dims: Dims, maps: IndexMap) -> AxisMap:
    """The row-major position of an element."""
    total, step = ORIGIN, 1  # type: tuple[AxisMap, Size]
    for d, m in zip(reversed(dims), reversed(maps)):
        total = total.plus(m.scaled(step))
        step = step * d
    return total


def layout(dims: Dims, maps: IndexMap, count: int) -> Layout:
    """How a contiguous buffer of these dims is read by a nest with `count` axes."""
    place = flat(dims, maps)
    strides: list[Size] = [0] * count
    for k, s in place.terms:
        strides[k] = s
    return Layout(place.offset, tuple(strides))


def is_view(graph: Graph, node: Node) -> bool:
    """Whether a node's elements are elements of its operand, found by an index map."""
    op = node.op
    if isinstance(op, _VIEWS):
        return True
    if isinstance(op, Cast):
        return graph.shape(node.inputs[0]).dtype is op.to
    if isinstance(op, Reduce):
        # What is joined is one element, or nothing is joined at all; the mean of one element is that element, too.
        dims = graph.shape(node.inputs[0]).dims
        return all(dims[a] == 1 for a in normalize_axes(op.axes, len(dims), op.mnemonic))
    return False


def keeps_order(node: Node) -> bool:
    """Whether a view has all elements of its operand in the same order: a reshape, or an op that does nothing here."""
    return isinstance(node.op, _IN_ORDER)


def through(graph: Graph, view: Node, maps: IndexMap, sizes: Sequence[Size]) -> IndexMap:
    """The map of a view's operand, given that of the view, in a nest with axes of these sizes."""
    dims = graph.shape(view.inputs[0]).dims
    match view.op:
        case Transpose(perm=perm):
            return tuple(maps[perm.index(axis)] for axis in range(len(dims)))
        case Expand():
            return broadcast(maps, dims)
        case Narrow(axis=axis, start=start):
            axis = normalize_axis(axis, len(dims), "narrow")
            return tuple(m.moved(start) if i == axis else m for i, m in enumerate(maps))
        case Slice(starts=starts, strides=strides):
            return tuple(m.scaled(step).moved(start) for m, start, step in zip(maps, starts, strides))
        case Reverse(axes=axes):
            turned = normalize_axes(axes, len(dims), "reverse")
            return tuple(m.scaled(-1).moved(d - 1) if i in turned else m for i, (m, d) in enumerate(zip(maps, dims)))
    return reshape_map(dims, view.shape.dims, maps, sizes)


def reshape_map(old: Dims, new: Dims, maps: IndexMap, sizes: Sequence[Size]) -> IndexMap:
    """The map of a value with dims `old`, given that of the same elements with dims `new`."""
    if old == new:
        return maps
    if any(d == 0 for d in old):
        return tuple(ORIGIN for _ in old)
    found = {axis: ORIGIN for axis, d in enumerate(old) if d == 1}
    for old_axes, new_axes in _blocks(old, new):
        place = flat(tuple(new[a] for a in new_axes), tuple(maps[a] for a in new_axes))
        for axis in reversed(old_axes[1:]):
            place, found[axis] = _divided(place, old[axis], sizes)
        found[old_axes[0]] = place
    return tuple(found[axis] for axis in range(len(old)))


def _blocks(old: Dims, new: Dims) -> list[tuple[list[int], list[int]]]:
    """Runs of axes with equal products, the shortest there are; axes of size 1 belong to none."""
    left = [i for i, d in enumerate(old) if d != 1]
    right = [i for i, d in enumerate(new) if d != 1]
    pieces = refine(tuple(old[i] for i in left), tuple(new[i] for i in right))
    if pieces is None:
        # Sizes that cannot be told apart: one block, in which positions are taken apart axis by axis.
        return [(left, right)] if left else []
    blocks: list[tuple[list[int], list[int]]] = []
    for _, i, j in pieces:
        a, b = left[i], right[j]
        if blocks and (a in blocks[-1][0] or b in blocks[-1][1]):
            blocks[-1] = (sorted({*blocks[-1][0], a}), sorted({*blocks[-1][1], b}))
        else:
            blocks.append(([a], [b]))
    return blocks


def _divided(place: AxisMap, size: Size, sizes: Sequence[Size]) -> tuple[AxisMap, AxisMap]:
    """Quotient and remainder of a position by the size of an axis, each a map again."""
    quotient: list[tuple[int, Size]] = []
    rest: list[tuple[int, Size]] = []
    for k, stride in place.terms:
        times = exact_quotient(stride, size)
        if times is None:
            rest.append((k, stride))
        else:
            quotient.append((k, times))
    above, below = _divided_offset(place.offset, size)
    reach = below
    for k, stride in rest:
        reach = reach + stride * (sizes[k] - 1)
    if not (at_most(0, below) and at_most(reach, size - 1) and all(at_most(1, s) for _, s in rest)):
        raise Unmappable(_useful_split(rest, size, sizes))
    return AxisMap(above, tuple(quotient)), AxisMap(below, tuple(rest))


def _divided_offset(offset: Size, size: Size) -> tuple[Size, Size]:
    if isinstance(offset, int) and isinstance(size, int):
        return divmod(offset, size)
    times = exact_quotient(offset, size)
    return (0, offset) if times is None else (times, 0)


def _useful_split(terms: Sequence[tuple[int, Size]], size: Size, sizes: Sequence[Size]) -> tuple[int, Size] | None:
    """An axis of the nest that runs over several axes of the value, and the size of its inner part."""
    for k, stride in terms:
        inner = exact_quotient(size, stride)
        if inner is not None and inner not in (1, sizes[k]) and exact_quotient(sizes[k], inner) is not None:
            return k, inner
    return None
