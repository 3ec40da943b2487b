"""Products of 8-bit integers as dot products of bytes, four at a time.

    matmul(a, b) -> i32             ->  int8_matmul(codes(a), int8_lines(b))        a of i8 or u8, b[k, n] of i8
    (cast(a, i32) - zero) @ b       ->  the same, less zero times the sums of b's columns

Activations of quantised models are written in the second form, with one zero point for all or for each row. Everything
is exact in whole numbers that wrap, so all forms say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant
from rlx.ir.op import Op
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.int8_products import WORD, ZERO, Int8Lines, Int8MatMul
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.conversion import Cast, cast
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.movement import pad

Form = Callable[..., Any]
PanelWidth = Callable[[DType, int], int]

# Smaller products cost less than laying out a matrix for them.
LEAST_ROWS, LEAST_COLUMNS, LEAST_DEPTH = 4, 16, 16


class _Codes(NamedTuple):
    """An operand as bytes, a tensor or the array of a constant, and what is to be subtracted from each of them."""

    bytes: Any
    zero: Any = None

    def tensor(self, beside: Any) -> Any:
        """The bytes in the program that another tensor is in."""
        return beside.graph.constant(self.bytes) if isinstance(self.bytes, np.ndarray) else self.bytes

    @property
    def dtype(self) -> DType:
        return DType.of(self.bytes.dtype)


def code_products(graph: Graph, panel_width: PanelWidth) -> Graph:
    """The graph with such products in this form. Before weights are laid out: those become panels in `prepare`, and
    stay bytes."""
    if not any(isinstance(n.op, MatMul) and n.shape.dtype is DType.I32 for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        form = code_product(node.op, panel_width, *operands) if isinstance(node.op, MatMul) else None
        return None if form is None else form(*operands)

    return remove_dead_nodes(rebuild(graph, visit, "code_products").graph).graph


def code_product(op: Op, panel_width: PanelWidth, a: Any, b: Any) -> Form | None:
    """The form of a product of 8-bit integers; None if it is another product, or a small one."""
    assert isinstance(op, MatMul)
    if op.precision != "default" or (op.out_dtype or a.dtype) is not DType.I32:
        return None
    left, right = _codes(a), _codes(b)
    if left is None or right is None or right.dtype is not DType.I8 or right.zero is not None:
        return None
    if b.ndim != 2 or a.ndim < 2 or not all(isinstance(size, int) for size in b.shape):
        return None
    depth, columns = b.shape
    rows = a.shape[-2]
    if columns < LEAST_COLUMNS or depth < LEAST_DEPTH or (isinstance(rows, int) and rows < LEAST_ROWS):
        return None
    return lambda a, b: _product(left.tensor(a), left.zero, right.tensor(b), panel_width(DType.I32, columns))


def _codes(x: Any) -> _Codes | None:
    """The bytes that an operand is made of, perhaps less a number for each row."""
    op = x.node.op
    if x.dtype in (DType.I8, DType.U8):
        return _Codes(x)
    if x.dtype is not DType.I32:
        return None
    sources = [x.graph.tensor(i) for i in x.node.inputs]
    if isinstance(op, Constant):
        # A cast of a constant is one itself.
        array, limits = op.value.array, np.iinfo(np.int8)
        fits = array.size > 0 and limits.min <= array.min() and array.max() <= limits.max
        return _Codes(array.astype(np.int8)) if fits else None
    if isinstance(op, Cast):
        return _codes(sources[0]) if sources[0].dtype in (DType.I8, DType.U8) else None
    if not isinstance(op, Binary) or op.kind is not BinaryOp.Sub:
        return None
    first, zero = sources
    found = _codes(first)
    is_for_rows = zero.ndim == 0 or zero.shape[-1] == 1
    if found is None or found.zero is not None or not is_for_rows or first.shape != x.shape:
        return None
    return _Codes(found.bytes, zero)


def _product(codes: Any, taken: Any, b: Any, width: int) -> Any:
    missing = -b.shape[0] % WORD
    if codes.dtype is DType.I8:
        codes = cast(cast(codes, DType.I32) + ZERO, DType.U8)
        offset = None
    else:
        # A product takes ZERO from each code.
        offset = ZERO
    columns = reduce_sum(cast(b, DType.I32), 0) if offset is not None or taken is not None else None
    if missing:
        none = (0,) * (codes.ndim - 1)
        codes = pad(codes, codes.dtype.numpy.type(0), (*none, 0), (*none, missing))
        b = pad(b, b.dtype.numpy.type(0), (0, 0), (missing, 0))
    total = Int8MatMul(b.shape[1])(codes, Int8Lines(width)(b))
    if columns is None:
        return total
    # One factor for each row and one for each column.
    factor = offset if taken is None else (offset or 0) - taken
    return total + columns * factor
