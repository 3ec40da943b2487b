"""Rules of ops on quantised numbers: QuantizeLinear and its like, and integer products."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlx.numpy as rnp
from rlx import nn
from rlx.formats.onnx.structure import element_type
from rlx.ir.dtype import DType, integer_limits
from rlx.onnx.elementwise import converted
from rlx.onnx.layers import convolution, per_channel
from rlx.onnx.values import MICROSOFT, Array, Call, dtype_of, rank_of, rule


def along(parameter: Any, x: Any, axis: int, block: int = 0) -> Any:
    """A scale or zero point, one for all, one for each entry of `axis` or for each block of them, beside x."""
    if parameter is None or rank_of(parameter) == 0 or parameter.shape == (1,):
        return None if parameter is None else rnp.reshape(parameter, ())
    if block:
        return _narrowed(rnp.repeat(parameter, block, axis=axis), x, axis)
    shape = [1] * rank_of(x)
    shape[axis] = -1
    return rnp.reshape(parameter, shape)


def _narrowed(wide: Any, x: Any, axis: int) -> Any:
    """The last block may be a part of one."""
    return wide if wide.shape[axis] == x.shape[axis] else rnp.split(wide, [x.shape[axis]], axis=axis)[0]


def quantized(x: Any, scale: Any, zero: Any, to: DType) -> Any:
    """round(x / scale) + zero, ties to even, limited to what `to` holds."""
    codes = x / scale
    if not to.is_int:
        return converted(codes, to)
    codes = rnp.round(codes)
    if zero is not None:
        codes = codes + rnp.astype(zero, dtype_of(codes))
    limits = integer_limits(to)
    kind = dtype_of(codes).numpy
    limited = rnp.minimum(rnp.maximum(codes, np.asarray(limits.min, kind)), np.asarray(limits.max, kind))
    return rnp.astype(rnp.astype(limited, DType.I32), to)


def dequantized(x: Any, scale: Any, zero: Any) -> Any:
    to = dtype_of(scale)
    if zero is None:
        return rnp.astype(x, to) * scale
    if dtype_of(x).is_int:
        # The difference of codes needs more bits than they have.
        return rnp.astype(centred(x, zero), to) * scale
    return (rnp.astype(x, to) - rnp.astype(zero, to)) * scale


def centred(x: Any, zero: Any) -> Any:
    wide = rnp.astype(x, DType.I32)
    return wide if zero is None else wide - rnp.astype(zero, DType.I32)


@rule("QuantizeLinear")
@rule("QuantizeLinear", domain=MICROSOFT)
def _quantize(call: Call) -> Any:
    x = call[0]
    to = DType.U8
    if call.has(2):
        to = dtype_of(call.value(2))
    elif given := call.attribute("output_dtype", 0):
        to = element_type(given, f"{call.path}: node {call.node}")
    axis, block = _axis(call, x), int(call.attribute("block_size", 0))
    return quantized(x, along(call[1], x, axis, block), along(call.optional(2), x, axis, block), to)


@rule("DequantizeLinear")
@rule("DequantizeLinear", domain=MICROSOFT)
def _dequantize(call: Call) -> Any:
    x = call[0]
    axis, block = _axis(call, x), int(call.attribute("block_size", 0))
    return dequantized(x, along(call[1], x, axis, block), along(_zero_point(call, 2), x, axis, block))


def _zero_point(call: Call, index: int) -> Any:
    """The zero points of an operand; None where all are known to be 0."""
    known = call.value(index) if call.has(index) else None
    return None if isinstance(known, np.ndarray) and not known.any() else call.optional(index)


def _axis(call: Call, x: Any) -> int:
    rank = rank_of(x)
    axis = int(call.attribute("axis", 1))
    # It may be out of range where one scale serves all.
    return axis % rank if rank and -rank <= axis < rank else 0


@rule("DynamicQuantizeLinear")
def _quantize_by_range(call: Call) -> Any:
    x = call[0]
    low, high = rnp.minimum(rnp.min(x), np.float32(0)), rnp.maximum(rnp.max(x), np.float32(0))
    scale = (high - low) / np.float32(255)
    scale = rnp.where(rnp.equal(scale, np.float32(0)), np.float32(1), scale)
    zero = rnp.clip(rnp.round(-low / scale), 0.0, 255.0)
    zero = rnp.astype(rnp.astype(zero, DType.I32), DType.U8)
    return quantized(x, scale, zero, DType.U8), scale, zero


def _of_rows(zero: Any, rank: int) -> Any:
    """A zero point for each row of a matrix on the left."""
    return zero if zero is None or rank_of(zero) != 1 or zero.shape == (1,) or rank < 2 else rnp.expand_dims(zero, -1)


def _plain(zero: Any) -> Any:
    return rnp.reshape(zero, ()) if zero is not None and zero.shape == (1,) else zero


def integer_product(a: Any, b: Any, a_zero: Any, b_zero: Any) -> Any:
    return rnp.matmul(centred(a, _of_rows(_plain(a_zero), rank_of(a))), centred(b, _plain(b_zero)))


@rule("MatMulInteger")
def _matmul_integer(call: Call) -> Any:
    return integer_product(call[0], call[1], call.optional(2), call.optional(3))


@rule("QLinearMatMul")
def _quantized_matmul(call: Call) -> Any:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (call[i] for i in range(8))
    total = integer_product(a, b, a_zero, b_zero)
    factor = _plain(_of_rows(a_scale, rank_of(a))) * _plain(b_scale)
    return quantized(rnp.astype(total, DType.F32) * factor, _plain(scale), _plain(zero), dtype_of(zero))


@rule("ConvInteger")
def _conv_integer(call: Call) -> Any:
    return _integer_convolution(call, call[0], call[1], call.optional(2), call.optional(3))


def _integer_convolution(call: Call, x: Any, weight: Any, x_zero: Any, weight_zero: Any) -> Any:
    rows = weight_zero
    if rows is not None and rows.shape not in ((), (1,)):
        rows = rnp.reshape(rows, (-1, *(1,) * (rank_of(weight) - 1)))
    return convolution(call, centred(x, _plain(x_zero)), centred(weight, _plain(rows)))


@rule("QLinearConv")
def _quantized_conv(call: Call) -> Any:
    x, x_scale, x_zero, weight, weight_scale = (call[i] for i in range(5))
    weight_zero, scale, zero = _zero_point(call, 5), call[6], call[7]
    total = _integer_convolution(call, x, weight, x_zero, weight_zero)
    if call.has(8):
        total = total + per_channel(call[8], rank_of(x))
    factor = _plain(x_scale) * (_plain(weight_scale))
    if rank_of(factor):
        factor = per_channel(factor, rank_of(x))
    return quantized(rnp.astype(total, DType.F32) * factor, _plain(scale), _plain(zero), dtype_of(zero))


# What the runtime of Microsoft adds.


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def _quantized_binary(call: Call) -> Any:
    a, b = (dequantized(call[i], _plain(call[i + 1]), _plain(call.optional(i + 2))) for i in (0, 3))
    joined = a + b if call.node.op == "QLinearAdd" else a * b
    return quantized(joined, _plain(call[6]), _plain(call.optional(7)), dtype_of(call[0]))


@rule("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=MICROSOFT)
def _quantized_unary(call: Call) -> Any:
    x = dequantized(call[0], _plain(call[1]), _plain(call.optional(2)))
    if call.node.op == "QLinearSigmoid":
        y = nn.sigmoid(x)
    elif call.node.op == "QLinearSoftmax":
        if int(call.attribute("opset", 13)) < 13:
            call.unsupported("a softmax over several axes")
        y = nn.softmax(x, axis=call.axis(rank_of(x)))
    else:
        y = nn.leaky_relu(x, call.attribute("alpha", 0.01))
    return quantized(y, _plain(call[3]), _plain(call.optional(4)), dtype_of(call[0]))


@rule("QGemm", domain=MICROSOFT)
def _quantized_gemm(call: Call) -> Any:
    """Codes of a product with a bias of codes; a float where no scale for the result is given."""
    a, a_scale, a_zero, b, b_scale, b_zero = (call[i] for i in range(6))
    a, b = (rnp.transpose(x) if call.attribute(name, 0) else x for x, name in ((a, "transA"), (b, "transB")))
    total = integer_product(a, b, a_zero, b_zero)
    if call.has(6):
        total = total + call[6]
    y = rnp.astype(total, DType.F32) * (_plain(a_scale) * _plain(b_scale) * np.float32(call.attribute("alpha", 1.0)))
    return quantized(y, _plain(call[7]), _plain(call.optional(8)), dtype_of(call[0])) if call.has(7) else y


@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
def _quantized_pool(call: Call) -> Any:
    if call.attribute("channels_last", 0):
        call.unsupported("channels_last")
    x = dequantized(call[0], _plain(call[1]), _plain(call.optional(2)))
    mean = rnp.mean(x, axis=tuple(range(2, rank_of(x))), keepdims=True)
    return quantized(mean, _plain(call[3]), _plain(call.optional(4)), dtype_of(call[0]))


@rule("QLinearConcat", domain=MICROSOFT)
def _quantized_concat(call: Call) -> Any:
    parts = [
        dequantized(call[i], _plain(call[i + 1]), _plain(call.optional(i + 2))) for i in range(2, len(call.inputs), 3)
    ]
    joined = rnp.concatenate(parts, axis=call.axis(rank_of(parts[0]), 1))
    return quantized(joined, _plain(call[0]), _plain(call.optional(1)), dtype_of(call[2]))


@rule("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_product(call: Call) -> Any:
    a_codes, a_scale, a_zero = _quantize_by_range(call)
    total = integer_product(a_codes, call[1], a_zero, call.optional(3))
    y = rnp.astype(total, DType.F32) * (a_scale * _plain(call[2]))
    return y + call[4] if call.has(4) else y


@rule("MatMulIntegerToFloat", domain=MICROSOFT)
def _product_to_float(call: Call) -> Any:
    total = integer_product(call[0], call[1], call.optional(4), call.optional(5))
    factor = _plain(_of_rows(call[2], rank_of(call[0]))) * _plain(call[3])
    y = rnp.astype(total, DType.F32) * factor
    return y + call[6] if call.has(6) else y


@rule("MatMulNBits", domain=MICROSOFT)
def _product_of_few_bits(call: Call) -> Any:
    """x · W, where W [N, K] has its rows in blocks of `block_size` codes of 4 or 8 bits, each block with a scale."""
    x, bits = call[0], int(call.attribute("bits", 4))
    columns, inner, block = (int(call.attribute(name)) for name in ("N", "K", "block_size"))
    if bits not in (4, 8) or (call.has(4) and call.value(4).shape != (0,)):
        call.unsupported(f"{bits} bits" if bits not in (4, 8) else "an order of groups (g_idx)")
    blocks = -(-inner // block)
    # Codes are read now: they are the weights as they lie in the file.
    codes = _unpacked(call.known(1), bits).reshape(columns, blocks, block)
    scales = rnp.reshape(call[2], (columns, blocks, 1))
    zero: Any = 1 << (bits - 1)
    if call.has(3):
        given = call.known(3)
        if given.dtype == np.uint8:
            rows = given.reshape(columns, -1)
            zero = _unpacked(rows, bits).reshape(columns, -1)[:, :blocks, None].astype(np.int32)
        else:
            zero = rnp.reshape(call[3], (columns, blocks, 1))
    kind = dtype_of(call[2])
    if isinstance(zero, int) or (isinstance(zero, np.ndarray) and zero.dtype == np.int32):
        centre = rnp.astype((codes.astype(np.int32) - zero).astype(np.int16), kind)
    else:
        centre = rnp.astype(codes, kind) - zero
    weight = rnp.reshape(centre * scales, (columns, blocks * block))[:, :inner]
    y = rnp.matmul(x, rnp.transpose(weight))
    return y + call[5] if call.has(5) else y


def _unpacked(packed: Array, bits: int) -> Array:
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
