"""Rules of ops that work element by element, and of reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import nn, ops
from rlx.formats.onnx.structure import element_type
from rlx.ir.dtype import DType, float_limits
from rlx.onnx.values import MICROSOFT, Call, Rule, dtype_of, rank_of, rule

UNARY: dict[str, Callable[[Any], Any]] = {
    "Abs": rnp.abs,
    "Acos": rnp.acos,
    "Acosh": rnp.acosh,
    "Asin": rnp.asin,
    "Asinh": rnp.asinh,
    "Atan": rnp.atan,
    "Atanh": rnp.atanh,
    "BitwiseNot": rnp.bitwise_not,
    "Ceil": rnp.ceil,
    "Cos": rnp.cos,
    "Cosh": rnp.cosh,
    "Erf": ops.erf,
    "Exp": rnp.exp,
    "Floor": rnp.floor,
    "IsNaN": rnp.isnan,
    "Log": rnp.log,
    "Neg": rnp.negative,
    "Not": rnp.logical_not,
    "Reciprocal": rnp.reciprocal,
    "Relu": nn.relu,
    "Round": rnp.round,
    "Sigmoid": nn.sigmoid,
    "Sign": rnp.sign,
    "Sin": rnp.sin,
    "Sinh": rnp.sinh,
    "Softplus": nn.softplus,
    "Softsign": nn.soft_sign,
    "Sqrt": rnp.sqrt,
    "Tan": rnp.tan,
    "Tanh": rnp.tanh,
    "HardSwish": nn.hard_silu,
    "Mish": nn.mish,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": rnp.add,
    "Sub": rnp.subtract,
    "Mul": rnp.multiply,
    "And": rnp.logical_and,
    "Or": rnp.logical_or,
    "Xor": rnp.logical_xor,
    "Equal": rnp.equal,
    "Greater": rnp.greater,
    "GreaterOrEqual": rnp.greater_equal,
    "Less": rnp.less,
    "LessOrEqual": rnp.less_equal,
    "BitwiseAnd": rnp.bitwise_and,
    "BitwiseOr": rnp.bitwise_or,
    "BitwiseXor": rnp.bitwise_xor,
}


def _register() -> None:
    def of_one(function: Callable[[Any], Any]) -> Rule:
        return lambda call: function(call[0])

    def of_two(function: Callable[[Any, Any], Any]) -> Rule:
        return lambda call: function(call[0], aligned(call, 1))

    for name, unary in UNARY.items():
        rule(name)(of_one(unary))
    for name, binary in BINARY.items():
        rule(name)(of_two(binary))


def aligned(call: Call, index: int) -> Any:
    """An operand that is broadcast. Before opset 7, `axis` could say which axis of the first it begins at."""
    value = call[index]
    if call.opset < 7 and call.attribute("broadcast", 0) and "axis" in call.node.attributes:
        trailing = rank_of(call[0]) - call.axis(rank_of(call[0])) - rank_of(value)
        return rnp.reshape(value, (*value.shape, *(1,) * trailing))
    return value


_register()


@rule("Div")
def _div(call: Call) -> Any:
    a, b = call[0], aligned(call, 1)
    if not dtype_of(a).is_int:
        return rnp.divide(a, b)
    # Whole numbers are rounded toward zero.
    quotient = rnp.floor_divide(a, b)
    if not dtype_of(a).is_signed:
        return quotient
    is_rounded_down = rnp.logical_and(rnp.not_equal(quotient * b, a), rnp.not_equal(rnp.less(a, 0), rnp.less(b, 0)))
    return rnp.where(is_rounded_down, quotient + np.asarray(1, dtype_of(a).numpy), quotient)


@rule("Mod")
def _mod(call: Call) -> Any:
    return (rnp.fmod if call.attribute("fmod", 0) else rnp.mod)(call[0], call[1])


@rule("Pow")
def _pow(call: Call) -> Any:
    base, exponent = call[0], aligned(call, 1)
    kind = dtype_of(base)
    if isinstance(exponent, np.ndarray) and exponent.size == 1 and float(exponent.reshape(())) in (2.0, 3.0):
        square = base * base
        result = square if exponent.reshape(()) == 2 else square * base
        return result if rank_of(exponent) <= rank_of(base) else rnp.reshape(result, (*exponent.shape,))
    if kind.is_int and dtype_of(exponent).is_float:
        return rnp.astype(rnp.power(rnp.astype(base, dtype_of(exponent)), exponent), kind)
    return rnp.power(base, rnp.astype(exponent, kind))


@rule("Max", "Min", "Sum", "Mean")
def _of_many(call: Call) -> Any:
    join = {"Max": rnp.maximum, "Min": rnp.minimum}.get(call.node.op, rnp.add)
    operands = call.all()
    result = reduce(join, operands)
    return result / np.asarray(len(operands), dtype_of(result).numpy) if call.node.op == "Mean" else result


@rule("BitShift")
def _shift(call: Call) -> Any:
    left = call.attribute("direction") == "LEFT"
    return (rnp.left_shift if left else rnp.right_shift)(call[0], call[1])


@rule("Where")
def _where(call: Call) -> Any:
    return rnp.where(call[0], call[1], call[2])


@rule("Clip")
def _clip(call: Call) -> Any:
    x = call[0]
    low = call.optional(1) if call.opset >= 11 else call.attribute("min")
    high = call.optional(2) if call.opset >= 11 else call.attribute("max")
    if low is not None:
        x = rnp.maximum(x, rnp.astype(low, dtype_of(x)))
    return x if high is None else rnp.minimum(x, rnp.astype(high, dtype_of(x)))


@rule("IsInf")
def _is_inf(call: Call) -> Any:
    positive, negative = call.attribute("detect_positive", 1), call.attribute("detect_negative", 1)
    found = rnp.isinf(call[0])
    if positive and negative:
        return found
    sign = rnp.greater(call[0], 0) if positive else rnp.less(call[0], 0)
    return rnp.logical_and(found, sign) if positive or negative else rnp.zeros_like(found)


@rule("Cast")
def _cast(call: Call) -> Any:
    dtype = element_type(int(call.attribute("to", 0)), f"{call.path}: node {call.node}")
    return converted(call[0], dtype, bool(call.attribute("saturate", 1)))


@rule("CastLike")
def _cast_like(call: Call) -> Any:
    return converted(call[0], dtype_of(call.value(1)), bool(call.attribute("saturate", 1)))


def converted(x: Any, dtype: DType, saturate: bool = True) -> Any:
    """x in another type, by the rules of Cast."""
    if dtype is DType.BOOL:
        return rnp.not_equal(x, np.zeros((), dtype_of(x).numpy))
    if dtype in (DType.I4, DType.U4) and dtype_of(x) not in (DType.I4, DType.U4):
        # The lowest four bits.
        low = rnp.bitwise_and(rnp.astype(x, DType.I32), np.int32(15))
        return rnp.astype(low if dtype is DType.U4 else rnp.bitwise_xor(low, np.int32(8)) - np.int32(8), dtype)
    if dtype in (DType.F8E4M3, DType.F8E5M2) and saturate and dtype_of(x).is_float:
        most = np.asarray(float_limits(dtype).max, dtype_of(x).numpy)
        x = rnp.where(rnp.isnan(x), x, rnp.minimum(rnp.maximum(x, -most), most))
    return rnp.astype(x, dtype)


@rule("Identity", "Dropout")
def _identity(call: Call) -> Any:
    value = call.value(0)
    if call.node.op == "Dropout" and call.has(2) and call.number(2):
        call.unsupported("training mode")
    if isinstance(value, list):
        return [value]
    if call.wants(1):
        return value, rnp.ones(call[0].shape, DType.BOOL if call.opset >= 10 else dtype_of(value))
    return value


# Activations with constants.


@rule("LeakyRelu")
def _leaky_relu(call: Call) -> Any:
    return nn.leaky_relu(call[0], call.attribute("alpha", 0.01))


@rule("PRelu")
def _prelu(call: Call) -> Any:
    x, slope = call[0], call[1]
    if call.opset < 7 and rank_of(slope) == 1 and rank_of(x) > 1:
        slope = rnp.reshape(slope, (-1, *(1,) * (rank_of(x) - 2)))
    return rnp.where(rnp.less(x, 0), x * slope, x)


@rule("Elu")
def _elu(call: Call) -> Any:
    return nn.elu(call[0], call.attribute("alpha", 1.0))


@rule("Celu")
def _celu(call: Call) -> Any:
    return nn.celu(call[0], call.attribute("alpha", 1.0))


@rule("Selu")
def _selu(call: Call) -> Any:
    alpha = call.attribute("alpha", 1.67326319217681884765625)
    return call.attribute("gamma", 1.05070102214813232421875) * nn.elu(call[0], alpha)


@rule("Gelu")
def _gelu(call: Call) -> Any:
    return nn.gelu(call[0], call.attribute("approximate", "none") == "tanh")


@rule("Swish")
def _swish(call: Call) -> Any:
    return call[0] * nn.sigmoid(call.attribute("alpha", 1.0) * call[0])


@rule("SwiGLU")
def _gated(call: Call) -> Any:
    return call[0] * nn.sigmoid(call.attribute("alpha", 1.0) * call[0]) * call[1]


@rule("QuickGelu", domain=MICROSOFT)
def _quick_gelu(call: Call) -> Any:
    return call[0] * nn.sigmoid(call.attribute("alpha", 1.702) * call[0])


@rule("Gelu", domain=MICROSOFT)
def _own_gelu(call: Call) -> Any:
    return nn.gelu(call[0])


@rule("BiasGelu", domain=MICROSOFT)
def _bias_gelu(call: Call) -> Any:
    return nn.gelu(call[0] + call[1])


@rule("FastGelu", domain=MICROSOFT)
def _fast_gelu(call: Call) -> Any:
    return nn.gelu(call[0] + call[1] if call.has(1) else call[0], approximate=True)


@rule("HardSigmoid")
def _hard_sigmoid(call: Call) -> Any:
    return rnp.clip(call.attribute("alpha", 0.2) * call[0] + call.attribute("beta", 0.5), 0.0, 1.0)


@rule("ThresholdedRelu")
def _thresholded(call: Call) -> Any:
    x = call[0]
    return rnp.where(rnp.greater(x, call.attribute("alpha", 1.0)), x, rnp.zeros_like(x))


@rule("Shrink")
def _shrink(call: Call) -> Any:
    x, bias, limit = call[0], call.attribute("bias", 0.0), call.attribute("lambd", 0.5)
    above = rnp.where(rnp.greater(x, limit), x - bias, rnp.zeros_like(x))
    return rnp.where(rnp.less(x, -limit), x + bias, above)


@rule("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: Call) -> Any:
    x, name = call[0], call.node.op
    function = {"Softmax": nn.softmax, "LogSoftmax": nn.log_softmax}.get(name, _hardmax)
    if call.opset >= 13:
        return function(x, axis=call.axis(rank_of(x)))
    # All axes from this one on were one.
    axis = call.axis(rank_of(x), 1)
    flat = rnp.reshape(x, (*x.shape[:axis], -1))
    return rnp.reshape(function(flat, axis=-1), x.shape)


def _hardmax(x: Any, axis: int) -> Any:
    return nn.one_hot(rnp.argmax(x, axis=axis), x.shape[axis], dtype=dtype_of(x), axis=axis)


# Reductions.


def _log_sum_exp(x: Any, axis: Any, keepdims: bool) -> Any:
    return nn.logsumexp(x, axis=axis, keepdims=keepdims)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceSum": lambda x, **k: rnp.sum(x, dtype=dtype_of(x), **k),
    "ReduceMean": rnp.mean,
    "ReduceMax": rnp.max,
    "ReduceMin": rnp.min,
    "ReduceProd": lambda x, **k: rnp.prod(x, dtype=dtype_of(x), **k),
    "ReduceL1": lambda x, **k: rnp.sum(rnp.abs(x), dtype=dtype_of(x), **k),
    "ReduceL2": lambda x, **k: rnp.sqrt(rnp.sum(x * x, **k)),
    "ReduceLogSum": lambda x, **k: rnp.log(rnp.sum(x, **k)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, **k: rnp.sum(x * x, dtype=dtype_of(x), **k),
}


@rule(*_REDUCTIONS)
def _reduction(call: Call) -> Any:
    x = call[0]
    axes, keep = call.axes(1, rank_of(x)), bool(call.attribute("keepdims", 1))
    if not axes:
        if call.attribute("noop_with_empty_axes", 0):
            return x
        axes = tuple(range(rank_of(x)))
    is_bool = dtype_of(x) is DType.BOOL
    if call.node.op in ("ReduceMax", "ReduceMin") and any(isinstance(x.shape[a], int) and not x.shape[a] for a in axes):
        # Of nothing: what any number wins against.
        shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keep or a not in axes]
        return rnp.full(shape, _loser(dtype_of(x), call.node.op == "ReduceMax"), dtype_of(x))
    result = _REDUCTIONS[call.node.op](rnp.astype(x, DType.U8) if is_bool else x, axis=axes, keepdims=keep)
    return converted(result, dtype_of(x))


def _loser(dtype: DType, of_max: bool) -> Any:
    if dtype is DType.BOOL:
        return not of_max
    if dtype.is_float:
        return -np.inf if of_max else np.inf
    limits = np.iinfo(dtype.numpy)
    return limits.min if of_max else limits.max


@rule("ArgMax", "ArgMin")
def _arg_extreme(call: Call) -> Any:
    x, find = call[0], rnp.argmax if call.node.op == "ArgMax" else rnp.argmin
    axis, keep = call.axis(rank_of(x), 0), bool(call.attribute("keepdims", 1))
    if not call.attribute("select_last_index", 0):
        return rnp.astype(find(x, axis=axis, keepdims=keep), DType.I64)
    last = x.shape[axis] - 1
    found = rnp.astype(find(rnp.flip(x, axis), axis=axis, keepdims=keep), DType.I64)
    return rnp.astype(rnp.dim_value(last), DType.I64) - found


@rule("CumSum", "CumProd")
def _running_sum(call: Call) -> Any:
    x = call[0]
    axis = call.in_rank(int(call.number(1)), rank_of(x))
    backward = call.attribute("reverse", 0)
    seen = rnp.flip(x, axis) if backward else x
    is_sum = call.node.op == "CumSum"
    if call.attribute("exclusive", 0):
        first = (rnp.zeros_like if is_sum else rnp.ones_like)(ops.narrow(seen, axis, 0, 1))
        seen = rnp.concatenate([first, ops.narrow(seen, axis, 0, x.shape[axis] - 1)], axis=axis)
    total = (rnp.cumsum if is_sum else rnp.cumprod)(seen, axis=axis, dtype=dtype_of(x))
    return rnp.flip(total, axis) if backward else total
