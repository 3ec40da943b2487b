"""Complex arithmetic as arithmetic of real and imaginary parts, for generators whose kernels know real numbers only.

A complex value is `make_complex(re, im)`; who needs its parts takes them from there, so that nothing complex is ever
stored between two ops that are both written this way. Ops that are linear act on each part alone; products are four
real ones; functions follow from those of the parts, c64 in f64 (on machines that have it), so that squares neither
overflow nor cancel.

What has no form here (factorisations, products along an axis) stays one call on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Project
from rlx.ir.op import Op
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.shape import broadcast_dims, normalize_axis
from rlx.ops.linalg.contraction import MatMul, matmul
from rlx.ops.lowered.complex_pairs import AsComplex, AsReals
from rlx.ops.nn.convolution import Im2Col
from rlx.ops.pointwise.arithmetic import (
    Binary,
    BinaryOp,
    Compare,
    Where,
    add,
    and_,
    atan2,
    copysign,
    eq,
    ge,
    gt,
    hypot,
    lt,
    maximum,
    minimum,
    or_,
    sub,
    where,
)
from rlx.ops.pointwise.bits import Predicate
from rlx.ops.pointwise.complex_numbers import Conjugate, Imag, MakeComplex, Real
from rlx.ops.pointwise.conversion import Cast, cast
from rlx.ops.pointwise.unary import (
    Activation,
    StopGradient,
    abs_,
    cos,
    cosh,
    exp,
    log,
    log1p,
    neg,
    sin,
    sinh,
    sqrt,
    tanh,
)
from rlx.ops.reduction.cumulative import Cumsum, CumsumBackward, Cumulative, CumulativeOp
from rlx.ops.reduction.reductions import Reduce, ReduceOp, reduce_sum
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.shape.axis_indexing import Gather, GatherBackward, ScatterAdd
from rlx.ops.shape.creation import zeros_like
from rlx.ops.shape.dynamic_slices import DynamicSlice, DynamicUpdateSlice
from rlx.ops.shape.indexing import GatherNd, ScatterKind, ScatterNd
from rlx.ops.shape.movement import (
    Concat,
    Expand,
    Narrow,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    concat,
    expand,
    narrow,
    reshape,
    swapaxes,
)

# Whatever the op says of itself: a Fourier transform is linear, but of real numbers it makes complex ones.
_LINEAR = (
    *(Reshape, Transpose, Expand, Slice, Narrow, Concat, Pad, Reverse, StopGradient, Where),
    *(Gather, GatherNd, GatherBackward, ScatterAdd, DynamicSlice, DynamicUpdateSlice, Cumsum, CumsumBackward, Im2Col),
)

Form = Callable[..., Any]
Pair = tuple[Any, Any]


def complex_form(op: Op, operands: Sequence[Any], has_f64: bool = True) -> Form | None:
    """How an op on complex numbers is written with their parts; None if it stays as it is."""
    if isinstance(op, Project):
        return None
    if isinstance(op, Real | Imag | Conjugate | MakeComplex):
        return _part_form(op, operands)
    has_complex = any(x.dtype.is_complex for x in operands)
    if isinstance(op, Cast):
        return _cast_form(op, operands[0]) if has_complex or op.to.is_complex else None
    if not has_complex:
        return None
    if isinstance(op, Binary):
        return _on_pairs(_BINARY[op.kind], has_f64) if op.kind in _BINARY else None
    if isinstance(op, Activation):
        return _on_pairs(_FUNCTIONS[op.mnemonic], has_f64) if op.mnemonic in _FUNCTIONS else None
    if isinstance(op, Compare | Predicate):
        return _comparison(op)
    if isinstance(op, Gather) and not isinstance(operands[0].node.op, MakeComplex):
        axis, rank = normalize_axis(op.axis, operands[0].ndim, op.mnemonic), operands[0].ndim
        if axis < rank - 1:
            # Rows of pairs, as they lie.
            return lambda z, ids: AsComplex()(op.replace(axis=axis)(pairs(z), ids))
    if _is_linear(op):
        return _by_parts(op)
    return _products(op) if op.multilinear_in == (0, 1) and all(x.dtype.is_complex for x in operands[:2]) else None


def _part_form(op: Op, operands: Sequence[Any]) -> Form | None:
    """Parts of what was put together from parts are these."""
    first = operands[0]
    if isinstance(op, MakeComplex):
        dims = broadcast_dims(first.shape, operands[1].shape, op.mnemonic)
        if first.shape == operands[1].shape:
            return None
        return lambda re, im: op(*(expand(x, dims) if x.shape != dims else x for x in (re, im)))
    if isinstance(op, Conjugate):
        return lambda z: _joined((parts(z)[0], neg(parts(z)[1])))
    return lambda z: parts(z)[isinstance(op, Imag)]


def parts(z: Any) -> Pair:
    """The real and the imaginary part of a complex value, as they were before they were put together, if they were."""
    op = z.node.op
    if isinstance(op, MakeComplex):
        re, im = (z.graph.tensor(i) for i in z.node.inputs)
        return re, im
    if isinstance(op, Constant):
        value = op.value.array
        return z.graph.constant(value.real.copy()), z.graph.constant(value.imag.copy())
    both = pairs(z)
    re, im = (reshape(narrow(both, -1, i, 1), z.shape) for i in (0, 1))
    return re, im


def pairs(z: Any) -> Any:
    """A complex value with its parts along one axis more, as it lies in memory."""
    op = z.node.op
    if isinstance(op, AsComplex):
        return z.graph.tensor(z.node.inputs[0])
    return _side_by_side(parts(z)) if isinstance(op, MakeComplex | Constant) else AsReals()(z)


def _side_by_side(pair: Pair) -> Any:
    return concat([reshape(x, (*x.shape, 1)) for x in pair], -1)


def stored_pairs(graph: Graph) -> Graph:
    """The graph with complex values stored as what they are in memory, real and imaginary parts side by side: one loop
    computes and stores both."""
    if not any(isinstance(n.op, MakeComplex) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if not isinstance(node.op, MakeComplex):
            return None
        re, im = operands
        found: Replacement = AsComplex()(_side_by_side((re, im)))
        return found

    return rebuild(graph, visit, "stored_pairs").graph


def _joined(pair: Pair) -> Any:
    return MakeComplex()(*pair)


def _cast_form(op: Cast, x: Any) -> Form | None:
    if not x.dtype.is_complex:
        return lambda x: _joined((cast(x, op.to.real), zeros_like(cast(x, op.to.real))))
    if op.to.is_complex:
        return lambda z: _joined(tuple(cast(p, op.to.real) for p in parts(z)))
    return lambda z: op(parts(z)[0])


def _on_pairs(function: Callable[..., Pair], has_f64: bool) -> Form:
    """A function of complex numbers as one of pairs; with f64 nothing overflows on the way to a c64."""

    def build(*operands: Any) -> Any:
        narrow = operands[0].dtype.real
        pairs = [parts(x) for x in operands]
        if has_f64 and function not in _EXACT:
            pairs = [(cast(re, DType.F64), cast(im, DType.F64)) for re, im in pairs]
        return _joined(tuple(cast(p, narrow) for p in function(*pairs)))

    return build


def _comparison(op: Op) -> Form | None:
    """Equal in both parts; not a number, or not finite, in one of them."""
    join = {"eq": and_, "ne": or_, "isnan": or_, "isinf": or_, "isfinite": and_}.get(op.mnemonic)
    if join is None:
        return None

    def build(*operands: Any) -> Any:
        re, im = zip(*map(parts, operands), strict=True)
        return join(op(*re), op(*im))

    return build


def _is_linear(op: Op) -> bool:
    """Whether an op may be applied to real parts and to imaginary parts, one after the other."""
    return (
        isinstance(op, _LINEAR)
        or (isinstance(op, Reduce | ReduceWindow) and op.kind in (ReduceOp.Sum, ReduceOp.Mean))
        or (isinstance(op, Cumulative) and op.kind is CumulativeOp.Sum)
        or (isinstance(op, ScatterNd) and op.kind in (ScatterKind.Set, ScatterKind.Add))
    )


def _by_parts(op: Op) -> Form:
    def build(*operands: Any) -> Any:
        pairs = [parts(x) if x.dtype.is_complex else (x, x) for x in operands]
        return _joined((op(*(re for re, _ in pairs)), op(*(im for _, im in pairs))))

    return build


def _products(op: Op) -> Form | None:
    """(a + ib)(c + id) = ac - bd + i(ad + bc), for any op that is linear in each of its first two operands."""
    if op.attributes.get("out_dtype") is not None:
        return None
    if isinstance(op, MatMul):
        return _matrix_product

    def build(x: Any, y: Any, *others: Any) -> Any:
        (a, b), (c, d) = parts(x), parts(y)
        re = op(a, c, *others) - op(b, d, *others)
        return _joined((re, op(a, d, *others) + op(b, c, *others)))

    return build


def _matrix_product(x: Any, y: Any) -> Any:
    """One product of real numbers, in which the larger operand is read as it lies.

    Of many rows it is that of pairs a, b with columns of which c, -d and d, c stand below each other. Of few rows the
    parts of these stand below each other, and what pairs c, d make of them is put together behind. With one column it
    is a sum of each row.
    """
    (*lead, m, k), n = x.shape, y.shape[-1]
    c, d = parts(y)
    if n == 1:
        products = _multiply(parts(x), (swapaxes(c, -1, -2), swapaxes(d, -1, -2)))
        return _joined(tuple(reduce_sum(p, (-1,), keepdims=True) for p in products))
    if not (isinstance(m, int) and isinstance(n, int) and m < n):
        rows = [reshape(p, (*y.shape[:-2], k, 1, n, 2)) for p in (pairs(y), _side_by_side((neg(d), c)))]
        columns = reshape(concat(rows, -3), (*y.shape[:-2], 2 * k, 2 * n))
        found = matmul(reshape(pairs(x), (*lead, m, 2 * k)), columns)
        return AsComplex()(reshape(found, (*found.shape[:-1], n, 2)))
    found = matmul(concat(parts(x), -2), reshape(pairs(y), (*y.shape[:-1], 2 * n)))
    found = reshape(found, (*found.shape[:-2], 2, m, n, 2))
    (ac, ad), (bc, bd) = (
        [reshape(narrow(narrow(found, -4, i, 1), -1, j, 1), (*found.shape[:-4], m, n)) for j in (0, 1)] for i in (0, 1)
    )
    return _joined((ac - bd, ad + bc))


def _add(x: Pair, y: Pair) -> Pair:
    return add(x[0], y[0]), add(x[1], y[1])


def _subtract(x: Pair, y: Pair) -> Pair:
    return sub(x[0], y[0]), sub(x[1], y[1])


def _multiply(x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    return a * c - b * d, a * d + b * c


def _divide(x: Pair, y: Pair) -> Pair:
    """Smith's way: the smaller part of the divisor over the larger one, so that no square is formed."""
    (a, b), (c, d) = x, y
    swapped = lt(abs_(c), abs_(d))
    large, small = where(swapped, d, c), where(swapped, c, d)
    ratio = where(eq(large, 0.0), 0.0, small / where(eq(large, 0.0), 1.0, large))
    divisor = large + small * ratio
    re = where(swapped, a * ratio + b, a + b * ratio) / divisor
    im = where(swapped, b * ratio - a, b - a * ratio) / divisor
    return re, im


def _reciprocal(x: Pair) -> Pair:
    one = zeros_like(x[0]) + 1.0
    return _divide((one, zeros_like(x[0])), x)


def _exponential(x: Pair) -> Pair:
    a, b = x
    size = exp(a)
    # Of a real number it is real, also where e^a is infinite.
    return where(eq(b, 0.0), size, size * cos(b)), where(eq(b, 0.0), b, size * sin(b))


def _logarithm(x: Pair) -> Pair:
    """log|z| = log m + ½ log(1 + (n/m)²) with the larger part m and the smaller one n."""
    a, b = (abs_(p) for p in x)
    large, small = maximum(a, b), minimum(a, b)
    # Beside 0 and infinity the smaller part does not count; NaN goes on in the larger one.
    is_usual = and_(gt(large, 0.0), lt(large, math.inf))
    ratio = where(is_usual, small / where(is_usual, large, 1.0), 0.0)
    size = log(large) + log1p(ratio * ratio) * 0.5
    return size, atan2(x[1], x[0])


def _sine(x: Pair) -> Pair:
    a, b = x
    return sin(a) * cosh(b), cos(a) * sinh(b)


def _cosine(x: Pair) -> Pair:
    a, b = x
    return cos(a) * cosh(b), neg(sin(a) * sinh(b))


def _hyperbolic_tangent(x: Pair) -> Pair:
    """(sinh 2a + i sin 2b) / (cosh 2a + cos 2b); far from 0 it is the sign of a."""
    a, b = x
    far = gt(abs_(a), 40.0)
    near = where(far, 0.0, a) * 2.0
    divisor = cosh(near) + cos(b * 2.0)
    return where(far, tanh(a), sinh(near) / divisor), where(far, copysign(zeros_like(b), b), sin(b * 2.0) / divisor)


def _square_root(x: Pair) -> Pair:
    """With t = sqrt((|a| + |z|) / 2) one part is t, the other b / 2t: neither is a difference of like numbers."""
    a, b = x
    t = sqrt((abs_(a) + hypot(a, b)) * 0.5)
    other = where(eq(t, 0.0), 0.0, abs_(b) / where(eq(t, 0.0), 1.0, t) * 0.5)
    # An infinite b makes both parts infinite, whatever a is.
    t, other = (where(eq(abs_(b), math.inf), math.inf, part) for part in (t, other))
    is_right = ge(a, 0.0)
    return where(is_right, t, other), copysign(where(is_right, other, t), b)


_BINARY: dict[BinaryOp, Callable[..., Pair]] = {
    BinaryOp.Add: _add,
    BinaryOp.Sub: _subtract,
    BinaryOp.Mul: _multiply,
    BinaryOp.Div: _divide,
}
_FUNCTIONS: dict[str, Callable[..., Pair]] = {
    "neg": lambda x: (neg(x[0]), neg(x[1])),
    "square": lambda x: _multiply(x, x),
    "recip": _reciprocal,
    "exp": _exponential,
    "log": _logarithm,
    "sin": _sine,
    "cos": _cosine,
    "tanh": _hyperbolic_tangent,
    "sqrt": _square_root,
}
# Of c64 these lose nothing in f32.
_EXACT = {_add, _subtract, _multiply, _FUNCTIONS["neg"], _FUNCTIONS["square"]}
