"""Weights in GGUF blocks as f32: their fields read with ops, so that bytes stay on the device as they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ops.define.operands import same_graph
from rlx.ops.define.rules import zeros_of
from rlx.ops.pointwise.arithmetic import and_, maximum, or_, shift_left, shift_right, where
from rlx.ops.pointwise.bits import bitcast, viewed
from rlx.ops.pointwise.conversion import cast
from rlx.ops.quant.quantized_weights import DequantMoEWeights
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.movement import concat, expand_dims, narrow, reshape, swapaxes
from rlx.quant.decode import FP4_VALUES, IQ4_VALUES

Form = Callable[..., Any]
Decoder = Callable[[Any], Any]


def _take(blocks: Any, start: int, stop: int) -> Any:
    return narrow(blocks, -1, start, stop - start)


def _half(blocks: Any, at: int) -> Any:
    """The half at a byte of every block, as f32[blocks, 1]."""
    return cast(viewed(_take(blocks, at, at + 2), DType.F16), DType.F32)


def _signed(blocks: Any, start: int, stop: int) -> Any:
    return cast(bitcast(_take(blocks, start, stop), DType.I8), DType.F32)


def _float(codes: Any) -> Any:
    return cast(codes, DType.F32)


def _low(codes: Any) -> Any:
    return and_(codes, np.uint8(15))


def _high(codes: Any) -> Any:
    return shift_right(codes, np.uint8(4))


def _nibbles(codes: Any) -> Any:
    """Low nibbles of the last axis, then its high nibbles."""
    return concat([_low(codes), _high(codes)], -1)


def _up(codes: Any, places: int) -> Any:
    return shift_left(codes, np.uint8(places))


def _bits(words: Any) -> Any:
    """The bits of every byte, least significant first, on a new last axis."""
    return and_(shift_right(expand_dims(words, -1), np.arange(8, dtype=np.uint8)), np.uint8(1))


def _flat_bits(words: Any) -> Any:
    return reshape(_bits(words), (words.shape[0], 8 * words.shape[1]))


def _bit_rows(words: Any) -> Any:
    """Bit r of byte c at [r, c]."""
    return swapaxes(_bits(words), -1, -2)


def _pairs(codes: Any) -> Any:
    """The four bit pairs of every byte on a new axis before the last."""
    shifts = np.array([[0], [2], [4], [6]], np.uint8)
    return and_(shift_right(expand_dims(codes, -2), shifts), np.uint8(3))


def _count(blocks: Any) -> int:
    return int(blocks.shape[0])


def _looked_up(table: Any, codes: Any) -> Any:
    with same_graph(codes):
        return gather(np.asarray(table, np.float32), codes, 0, "clip")


def _q4_0(b: Any) -> Any:
    return _half(b, 0) * (_float(_nibbles(_take(b, 2, 18))) - 8.0)


def _q4_1(b: Any) -> Any:
    return _half(b, 0) * _float(_nibbles(_take(b, 4, 20))) + _half(b, 2)


def _q5_0(b: Any) -> Any:
    codes = or_(_nibbles(_take(b, 6, 22)), _up(_flat_bits(_take(b, 2, 6)), 4))
    return _half(b, 0) * (_float(codes) - 16.0)


def _q5_1(b: Any) -> Any:
    codes = or_(_nibbles(_take(b, 8, 24)), _up(_flat_bits(_take(b, 4, 8)), 4))
    return _half(b, 0) * _float(codes) + _half(b, 2)


def _six_bit_pairs(packed: Any) -> tuple[Any, Any]:
    """Scales and minimums of Q4_K and Q5_K; see `rlx.quant.decode.six_bit_pairs`."""
    low, high, rest = (_take(packed, at, at + 4) for at in (0, 4, 8))
    tops = [_up(shift_right(part, np.uint8(6)), 4) for part in (low, high)]
    scales = concat([and_(low, np.uint8(63)), or_(_low(rest), tops[0])], -1)
    minimums = concat([and_(high, np.uint8(63)), or_(_high(rest), tops[1])], -1)
    return scales, minimums


def _scaled_rows(b: Any, codes: Any) -> Any:
    scales, minimums = _six_bit_pairs(_take(b, 4, 16))
    step = expand_dims(_half(b, 0) * _float(scales), -1)
    offset = expand_dims(_half(b, 2) * _float(minimums), -1)
    return reshape(step * _float(codes) - offset, (_count(b), 256))


def _paired_rows(b: Any, start: int) -> Any:
    codes = _nibbles(reshape(_take(b, start, start + 128), (_count(b), 4, 32)))
    return reshape(codes, (_count(b), 8, 32))


def _q4_k(b: Any) -> Any:
    return _scaled_rows(b, _paired_rows(b, 16))


def _q5_k(b: Any) -> Any:
    return _scaled_rows(b, or_(_paired_rows(b, 48), _up(_bit_rows(_take(b, 16, 48)), 4)))


def _low_pairs(b: Any, start: int, dims: tuple[int, ...]) -> Any:
    return reshape(_pairs(reshape(_take(b, start, start + 64), (_count(b), 2, 32))), (_count(b), *dims))


def _q2_k(b: Any) -> Any:
    pairs = _take(b, 0, 16)
    step = expand_dims(_half(b, 80) * _float(_low(pairs)), -1)
    offset = expand_dims(_half(b, 82) * _float(_high(pairs)), -1)
    return reshape(step * _float(_low_pairs(b, 16, (16, 16))) - offset, (_count(b), 256))


def _q3_k(b: Any) -> Any:
    tops = reshape(_pairs(_take(b, 104, 108)), (_count(b), 16))
    scales = or_(_nibbles(_take(b, 96, 104)), _up(tops, 4))
    step = expand_dims(_half(b, 108) * (_float(scales) - 32.0), -1)
    codes = or_(_low_pairs(b, 32, (8, 32)), _up(_bit_rows(_take(b, 0, 32)), 2))
    return reshape(step * reshape(_float(codes) - 4.0, (_count(b), 16, 16)), (_count(b), 256))


def _q6_k(b: Any) -> Any:
    low = reshape(_nibbles(reshape(_take(b, 0, 128), (_count(b), 2, 64))), (_count(b), 2, 4, 32))
    high = _pairs(reshape(_take(b, 128, 192), (_count(b), 2, 32)))
    codes = reshape(_float(or_(low, _up(high, 4))) - 32.0, (_count(b), 16, 16))
    step = expand_dims(_half(b, 208) * _signed(b, 192, 208), -1)
    return reshape(step * codes, (_count(b), 256))


def _iq4_xs(b: Any) -> Any:
    tops = reshape(swapaxes(_pairs(_take(b, 2, 4)), -1, -2), (_count(b), 8))
    lows = reshape(_nibbles(expand_dims(_take(b, 4, 8), -1)), (_count(b), 8))
    step = expand_dims(_half(b, 0) * (_float(or_(lows, _up(tops, 4))) - 32.0), -1)
    codes = _nibbles(reshape(_take(b, 8, 136), (_count(b), 8, 16)))
    return reshape(step * _looked_up(IQ4_VALUES, codes), (_count(b), 256))


def _mxfp4(b: Any) -> Any:
    # Half the step for twice the values, since the largest step is no f32; the two smallest are subnormal.
    code = cast(_take(b, 0, 1), DType.U32)
    bits = where(code < 2, shift_left(code + 1, np.uint32(21)), shift_left(maximum(code, 1) - 1, np.uint32(23)))
    return bitcast(bits, DType.F32) * _looked_up(2.0 * FP4_VALUES, _nibbles(_take(b, 1, 17)))


def _nvfp4(b: Any) -> Any:
    codes = _take(b, 0, 4)
    mantissa, exponent = _float(and_(codes, np.uint8(7))), and_(shift_right(codes, np.uint8(3)), np.uint8(15))
    normal = (1.0 + mantissa / 8.0) * _looked_up(2.0 ** (np.arange(16) - 7.0), exponent)
    step = where(exponent == 0, mantissa * 2.0**-9, normal)
    step = expand_dims(where(codes == 0x7F, 0.0, step), -1)
    values = _looked_up(FP4_VALUES, _nibbles(reshape(_take(b, 4, 36), (_count(b), 4, 8))))
    return reshape(step * values, (_count(b), 64))


def _q1_0(b: Any) -> Any:
    return where(_flat_bits(_take(b, 2, 18)) == 1, _half(b, 0), -_half(b, 0))


def _q2_0(b: Any) -> Any:
    codes = reshape(swapaxes(_pairs(_take(b, 2, 18)), -1, -2), (_count(b), 64))
    return _half(b, 0) * (_float(codes) - 1.0)


DECODERS: dict[str, Decoder] = {
    "gguf_q4_0": _q4_0,
    "gguf_q4_1": _q4_1,
    "gguf_q5_0": _q5_0,
    "gguf_q5_1": _q5_1,
    "gguf_q8_0": lambda b: _half(b, 0) * _signed(b, 2, 34),
    "gguf_q8_1": lambda b: _half(b, 0) * _signed(b, 4, 36),
    "gguf_q8k": lambda b: viewed(_take(b, 0, 4), DType.F32) * _signed(b, 4, 260),
    "gguf_q2k": _q2_k,
    "gguf_q3k": _q3_k,
    "gguf_q4k": _q4_k,
    "gguf_q5k": _q5_k,
    "gguf_q6k": _q6_k,
    "gguf_iq4_nl": lambda b: _half(b, 0) * _looked_up(IQ4_VALUES, _nibbles(_take(b, 2, 18))),
    "gguf_iq4_xs": _iq4_xs,
    "gguf_mxfp4": _mxfp4,
    "gguf_nvfp4": _nvfp4,
    "gguf_q1_0": _q1_0,
    "gguf_q2_0": _q2_0,
    "gguf_tq2_0": lambda b: _half(b, 64) * (_float(_low_pairs(b, 0, (256,))) - 1.0),
}


def _moe_weights(op: Op, *operands: Any) -> Form | None:
    assert isinstance(op, DequantMoEWeights)
    decode = DECODERS.get(op.scheme.kind.value)
    if decode is None:
        return None

    def build(packed: Any) -> Any:
        if not op.experts * op.k * op.n:
            return zeros_of(op.infer(packed.type), packed)
        block = op.scheme.gguf_block_size
        assert block is not None
        count = op.experts * op.n * op.k // block
        flat = reshape(packed, (count, int(packed.type.element_count) // count))
        rows = reshape(decode(flat), (op.experts, op.n, op.k))
        return swapaxes(rows, -1, -2)

    return build


QUANT_FORMS: dict[type[Op], Callable[..., Form | None]] = {DequantMoEWeights: _moe_weights}
