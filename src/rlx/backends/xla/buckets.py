"""Sizes that may be rounded up: programs whose rows have nothing to do with each other serve more rows than there are.

    free_symbols(graph)        # the symbols along whose axis no element meets another
    bucket(100)                # 128

XLA compiles for sizes. Where a batch has another size at every run, rows of zeros up to the next power of two make one
program do for many; what it computes for them is cut off. That is right for a symbol only if every op treats its axis
row by row, which is found out op by op on the decomposed program: what is not known to do so counts as not doing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlx.backends.op_lowering import has_checks
from rlx.errors import RlxError
from rlx.ir.dims import Dim, product
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Project
from rlx.ir.op import Op
from rlx.ir.rewrite.rebuild import decompose_all
from rlx.ir.shape import Shape, normalize_axes, normalize_axis
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.pointwise.arithmetic import Binary, Compare, Where
from rlx.ops.pointwise.complex_numbers import Imag, MakeComplex, Real
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.pointwise.unary import Activation
from rlx.ops.reduction.cumulative import Cumulative
from rlx.ops.reduction.reductions import ArgReduce, Reduce
from rlx.ops.reduction.sort import Sort
from rlx.ops.shape.creation import Iota
from rlx.ops.shape.indexing import GatherNd
from rlx.ops.shape.movement import Concat, Expand, Reshape, Reverse, Slice, Transpose

# The axis of a symbol in an operand, or None where it has none.
Axis = int | None
# Whether an op treats an axis row by row: its attributes, operand types, the axis in each operand, and in the result.
Test = Callable[[Any, Sequence[Shape], Sequence[Axis], int], bool]


def bucket(size: int) -> int:
    """The next power of two."""
    return 1 << max(size - 1, 0).bit_length() if size else 0


def free_symbols(graph: Graph) -> frozenset[str]:
    """The symbols whose axes may be longer than they are, if what is behind is cut off from the results."""
    symbols = graph.dynamic_symbols()
    if not symbols or graph.aliases or has_checks(graph) or any(node.op.effect for node in graph.nodes):
        return frozenset()
    try:
        parts = decompose_all(graph)
    except RlxError:
        return frozenset()
    return frozenset(s for s in symbols if all(_is_free(parts, node, s) for node in parts.nodes))


def _is_free(graph: Graph, node: Node, symbol: str) -> bool:
    try:
        after = {_axis(shape, symbol) for shape in node.shapes}
        types = [s for i in node.inputs for s in graph.nodes[i].shapes]
        before = [_axis(shape, symbol) for shape in types]
    except LookupError:
        return False
    if len(after) != 1:
        return False
    (axis,) = after
    if node.is_leaf or isinstance(node.op, Project):
        return True
    if axis is None:
        # What has lost the axis joins its rows; what mentions the symbol all the same depends on how many there are.
        return all(a is None for a in before) and symbol not in node.op.dynamic_symbols()
    test = _TESTS.get(type(node.op))
    return test is not None and test(node.op, types, before, axis)


def _axis(shape: Shape, symbol: str) -> Axis:
    """The axis whose size is the symbol; LookupError where it is part of another size, or of several."""
    found = [i for i, d in enumerate(shape.dims) if isinstance(d, Dim) and symbol in d.symbols]
    if not found:
        return None
    if len(found) > 1 or str(shape.dims[found[0]]) != symbol:
        raise LookupError
    return found[0]


def _aligned(op: Op, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    """The axis counts from the end alike in all operands that have it; the result has the rank of the largest."""
    rank = max(t.rank for t in types)
    return all(a is None or a - t.rank == axis - rank for a, t in zip(before, types))


def _expanded(op: Expand, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    (a,) = before
    return a is None or a - types[0].rank == axis - len(op.target_shape)


def _transposed(op: Transpose, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    return op.perm[axis] % types[0].rank == before[0]


def _reshaped(op: Reshape, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    """What stands in front of the axis has as many elements as before."""
    (a,) = before
    return a is not None and product(types[0].dims[:a]) == product(op.new_shape[:axis])


def _outside(op: Any, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    """The op works along other axes."""
    rank = types[0].rank
    along = normalize_axes(op.axes if hasattr(op, "axes") else (op.axis,), rank, op.mnemonic)
    return before[0] is not None and before[0] not in along and len({*before}) == 1


def _joined(op: Concat, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    return normalize_axis(op.axis, types[0].rank, "concat") != axis and {*before} == {axis}


def _sliced(op: Slice, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    (a,) = before
    return a == axis and (op.starts[axis], op.limits[axis], op.strides[axis]) == (0, types[0].dims[axis], 1)


def _multiplied(op: MatMul, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    """Rows of a, columns of b, or an axis of matrices that both have, or that one of them has."""
    (a, b), ranks = before, [t.rank for t in types]
    from_end = [None if x is None else x - rank for x, rank in zip((a, b), ranks)]
    if a is not None and b is not None:
        return from_end[0] == from_end[1] and (from_end[0] or 0) < -2
    return from_end[0] != -1 and from_end[1] != -2


def _gathered(op: GatherNd, types: Sequence[Shape], before: Sequence[Axis], axis: int) -> bool:
    """More ids read from a table that stays, or matrices with ids of their own."""
    x, ids = before
    if x is None:
        return ids is not None and op.batch_dims <= ids < types[1].rank - 1
    return x == ids and x < op.batch_dims


_TESTS: dict[type[Op], Test] = {
    **dict.fromkeys((Binary, Compare, Where, Activation, Cast, Real, Imag, MakeComplex), _aligned),
    **dict.fromkeys((Reduce, ArgReduce, Cumulative, Sort, Reverse), _outside),
    Expand: _expanded,
    Transpose: _transposed,
    Reshape: _reshaped,
    Concat: _joined,
    Slice: _sliced,
    MatMul: _multiplied,
    GatherNd: _gathered,
    Iota: lambda op, types, before, axis: True,
}
