"""Products of 8-bit integers as dot products of bytes, four at a time.

    matmul(a, b) -> i32             ->  int8_matmul(codes(a), int8_lines(b))        a of i8 or u8, b[k, n] of i8
    (cast(a, i32) - zero) @ b       ->  the same, less zero times the sums of b's columns

Activations of quantised models are written in the second form, with one zero point for all or for each row. Everything
is exact in whole numbers that wrap, so all forms say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.lowered.int8_products import WORD, ZERO, Int8Lines, Int8MatMul
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.conversion import Cast, cast
from rlx.ops.reduction.reductions import reduce_sum
from rlx.ops.shape.movement import pad

Form = Callable[..., Any]

# Smaller products cost less than laying out a matrix for them.
LEAST_ROWS, LEAST_COLUMNS, LEAST_DEPTH = 4, 16, 16


class _Codes(NamedTuple):
    """An operand as bytes, and what is to be subtracted from each of them."""

    bytes: Any
    zero: Any = None


def code_product(op: Op, panel_width: Callable[[DType, int], int], a: Any, b: Any) -> Form | None:
    """The form of a product of 8-bit integers; None if it is another product, or a small one."""
    assert isinstance(op, MatMul)
    if op.precision != "default" or (op.out_dtype or a.dtype) is not DType.I32:
        return None
    left, right = _codes(a), _codes(b)
    if left is None or right is None or right.bytes.dtype is not DType.I8 or right.zero is not None:
        return None
    if b.ndim != 2 or a.ndim < 2 or not all(isinstance(size, int) for size in b.shape):
        return None
    depth, columns = b.shape
    rows = a.shape[-2]
    if columns < LEAST_COLUMNS or depth < LEAST_DEPTH or (isinstance(rows, int) and rows < LEAST_ROWS):
        return None
    return lambda a, b: _product(left, right.bytes, panel_width(DType.I32, columns))


def _codes(x: Any) -> _Codes | None:
    """The bytes that an operand is made of, perhaps less a number for each row."""
    op = x.node.op
    if x.dtype in (DType.I8, DType.U8):
        return _Codes(x)
    if x.dtype is not DType.I32:
        return None
    sources = [x.graph.tensor(i) for i in x.node.inputs]
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


def _product(left: _Codes, b: Any, width: int) -> Any:
    codes, taken = left.bytes, left.zero
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
