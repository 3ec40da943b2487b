"""Ops on sizes, done while the program is built: what becomes of the shape of an input on its way to a Reshape.

A rule here takes values of which one at least is `Sizes`; it returns None where an expression of sizes cannot say the
result, and the op then runs with the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.errors import TraceError
from rlx.formats.onnx.structure import ELEMENT_TYPES
from rlx.ir.dim_algebra import at_most
from rlx.ir.dims import Dim, dim_max, dim_min, dims_equal, product
from rlx.ir.dtype import DType
from rlx.onnx.values import Array, Call, Sizes, dtype_of, sizes

# An exponent of 2 below which floats hold whole numbers exactly.
_EXACT = 2**24


class _Unsaid(Exception):
    """There is no expression for it."""


def of_sizes(call: Call) -> Any:
    """The result of a node of sizes, or None."""
    rule = _RULES.get(call.node.op) if not call.node.domain else None
    if rule is None or not all(isinstance(v, Sizes | np.ndarray | None) for v in call.inputs):
        return None
    try:
        return rule(call)
    except (_Unsaid, TraceError, TypeError):
        return None


def _objects(value: Any) -> Array:
    if isinstance(value, Sizes):
        return value.numbers
    return np.array([_whole(n) for n in value.reshape(-1).tolist()], object).reshape(value.shape)


def _whole(number: Any) -> Any:
    if isinstance(number, float):
        if not number.is_integer() or abs(number) > _EXACT:
            raise _Unsaid
        return int(number)
    return number


def _binary(join: Callable[[Any, Any], Any]) -> Callable[[Call], Any]:
    joined = np.frompyfunc(join, 2, 1)
    return lambda call: sizes(joined(_objects(call.value(0)), _objects(call.value(1))), dtype_of(call.value(0)))


def _quotient(a: Any, b: Any) -> Any:
    """a / b where it is whole, or where both are sizes and the quotient is rounded down."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return int(a / b) if b else 0
    return a // b


def _div(call: Call) -> Any:
    a, b = _objects(call.value(0)), _objects(call.value(1))
    quotient = np.frompyfunc(_quotient, 2, 1)(a, b)
    if dtype_of(call.value(0)).is_float:
        rest = np.asarray(np.frompyfunc(lambda q, y, x: dims_equal(q * y, x) is True, 3, 1)(quotient, b, a))
        if not all(rest.reshape(-1).tolist()):
            raise _Unsaid
    return sizes(quotient, dtype_of(call.value(0)))


def _mul(call: Call) -> Any:
    a, b = call.value(0), call.value(1)
    if isinstance(a, np.ndarray):
        a, b = b, a
    if isinstance(b, np.ndarray) and dtype_of(b).is_float:
        return sizes(np.frompyfunc(_times, 2, 1)(_objects(a), b.astype(object)), dtype_of(a))
    return _binary(lambda x, y: x * y)(call)


def _times(size: Any, factor: float) -> Any:
    if float(factor).is_integer():
        return size * int(factor)
    inverse = 1 / factor
    if isinstance(size, Dim) and abs(inverse - round(inverse)) < 1e-9:
        quotient = size // round(inverse)
        if dims_equal(quotient * round(inverse), size) is True:
            return quotient
    raise _Unsaid


def _equal(call: Call) -> Any:
    def same(a: Any, b: Any) -> bool:
        found = False if at_most(a + 1, b) or at_most(b + 1, a) else dims_equal(a, b)
        if found is None:
            raise _Unsaid
        return found

    found = np.frompyfunc(same, 2, 1)(_objects(call.value(0)), _objects(call.value(1)))
    return np.asarray(found).astype(bool)


def _compare(join: Callable[[Any, Any], bool]) -> Callable[[Call], Any]:
    # Raises TraceError where only a run can tell.
    joined = np.frompyfunc(join, 2, 1)
    return lambda call: np.asarray(joined(_objects(call.value(0)), _objects(call.value(1)))).astype(bool)


def _where(call: Call) -> Any:
    condition = call.value(0)
    if isinstance(condition, Sizes):
        raise _Unsaid
    return sizes(np.where(condition, _objects(call.value(1)), _objects(call.value(2))), dtype_of(call.value(1)))


def _cast(call: Call) -> Any:
    to = ELEMENT_TYPES.get(int(call.attribute("to", 0)), DType.BOOL)
    if not (to.is_int or to.is_float):
        raise _Unsaid
    return sizes(_objects(call.value(0)), to)


def _same(call: Call) -> Any:
    return call.value(0)


def _gather(call: Call) -> Any:
    x = call.value(0)
    index = call.value(1)
    if isinstance(index, Sizes):
        raise _Unsaid
    return sizes(np.take(x.numbers, index.astype(np.int64), axis=call.axis(x.numbers.ndim, 0)), x.dtype)


def _concat(call: Call) -> Any:
    parts = [_objects(v) for v in call.inputs if v is not None]
    return sizes(np.concatenate(parts, axis=call.axis(parts[0].ndim, 0)), dtype_of(call.value(0)))


def _reshaped(shape: Callable[[Call, Array], tuple[int, ...]]) -> Callable[[Call], Any]:
    def rule(call: Call) -> Any:
        x = call.value(0)
        if not isinstance(x, Sizes):
            raise _Unsaid
        return sizes(x.numbers.reshape(shape(call, x.numbers)), x.dtype)

    return rule


def _unsqueezed(call: Call, x: Array) -> tuple[int, ...]:
    given = call.numbers(1, "axes") or []
    rank = x.ndim + len(given)
    axes, rest = {int(a) % rank for a in given}, iter(x.shape)
    return tuple(1 if i in axes else next(rest) for i in range(rank))


def _squeezed(call: Call, x: Array) -> tuple[int, ...]:
    axes = call.axes(1, x.ndim)
    return tuple(n for i, n in enumerate(x.shape) if (i not in axes if axes is not None else n != 1))


def _new_shape(call: Call, x: Array) -> tuple[int, ...]:
    given = call.numbers(1, "shape") or []
    return tuple(x.shape[i] if n == 0 else int(n) for i, n in enumerate(given))


def _slice(call: Call) -> Any:
    x = call.value(0)
    starts, ends = call.numbers(1, "starts"), call.numbers(2, "ends")
    if not isinstance(x, Sizes) or starts is None or ends is None:
        raise _Unsaid
    axes = call.axes(3, x.numbers.ndim) or tuple(range(len(starts)))
    index: list[Any] = [slice(None)] * x.numbers.ndim
    for start, end, axis, step in zip(starts, ends, axes, call.numbers(4) or [1] * len(starts)):
        index[axis] = slice(int(start), int(end), int(step))
    return sizes(x.numbers[tuple(index)], x.dtype)


def _joined(join: Callable[[Any], Any]) -> Callable[[Call], Any]:
    def rule(call: Call) -> Any:
        x = call.value(0)
        if not isinstance(x, Sizes) or x.numbers.ndim != 1 or (call.axes(1, 1) or (0,)) != (0,):
            raise _Unsaid
        total = np.empty((1,) if call.attribute("keepdims", 1) else (), object)
        total[...] = join(x.numbers.tolist())
        return sizes(total, x.dtype)

    return rule


def _expand(call: Call) -> Any:
    x, shape = call.value(0), call.value(1)
    if not isinstance(x, Sizes) or isinstance(shape, Sizes):
        raise _Unsaid
    return sizes(np.broadcast_to(x.numbers, np.broadcast_shapes(x.shape, tuple(shape.tolist()))), x.dtype)


def _split(call: Call) -> Any:
    x, parts = call.value(0), call.numbers(1, "split")
    if not isinstance(x, Sizes) or x.numbers.ndim != 1:
        raise _Unsaid
    parts = parts or [x.shape[0] // len(call.node.outputs)] * len(call.node.outputs)
    return tuple(sizes(part, x.dtype) for part in np.split(x.numbers, np.cumsum(parts)[:-1]))


def _rank(call: Call) -> Any:
    return np.asarray(call.value(0).shape, np.int64)


_RULES: dict[str, Callable[[Call], Any]] = {
    "Add": _binary(lambda a, b: a + b),
    "Sub": _binary(lambda a, b: a - b),
    "Mul": _mul,
    "Div": _div,
    "Mod": _binary(lambda a, b: a % b),
    "Max": _binary(dim_max),
    "Min": _binary(dim_min),
    "Equal": _equal,
    "Less": _compare(lambda a, b: a < b),
    "LessOrEqual": _compare(lambda a, b: a <= b),
    "Greater": _compare(lambda a, b: a > b),
    "GreaterOrEqual": _compare(lambda a, b: a >= b),
    "Where": _where,
    "Cast": _cast,
    "Identity": _same,
    # Sizes are whole numbers.
    "Floor": _same,
    "Ceil": _same,
    "Round": _same,
    "Relu": lambda call: sizes(np.frompyfunc(dim_max, 2, 1)(_objects(call.value(0)), 0), dtype_of(call.value(0))),
    "Gather": _gather,
    "Concat": _concat,
    "Unsqueeze": _reshaped(_unsqueezed),
    "Squeeze": _reshaped(_squeezed),
    "Reshape": _reshaped(_new_shape),
    "Flatten": _reshaped(lambda call, x: (1, x.size)),
    "Slice": _slice,
    "ReduceProd": _joined(product),
    "ReduceSum": _joined(sum),
    "Expand": _expand,
    "Split": _split,
    "Shape": _rank,
}
