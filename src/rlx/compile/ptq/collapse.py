"""Post-training quantisation, last step: integer products where operands and result are quantised anyway.

    quantize(relu(matmul(dequantize(x), dequantize(w)) + bias))  ->  max(q_matmul(x, w, bias'), zero point)

with mult = scale_x·scale_w/scale_out and bias' = round(bias / (scale_x·scale_w)) in i32. Where the two disagree, by
rounding, it is by one step of the result.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.dtype import DType
from rlx.ir.graph import Node
from rlx.ir.rewrite.rules import Match, RuleSet, rewrites
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert
from rlx.ops.define.rounding import round_half_away
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, maximum
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.quant.quantized import Dequantize, QConv2d, QMatMul, Quantize
from rlx.ops.shape.movement import Expand, reshaped

_CODES = (DType.I8, DType.U8)


class _Chain(NamedTuple):
    """A product, the bias added to it, and whether negative results are cut off."""

    product: Node
    bias: Node | None
    has_relu: bool


@rewrites(Quantize, exact=False)
def collapse_quantized_product(m: Match) -> Tensor | None:
    """quantize(product of dequantised codes, with bias and relu) -> product of codes"""
    chain = _chain_before(m)
    if chain is None:
        return None
    x, w = m.input_of(chain.product, 0), m.input_of(chain.product, 1)
    if not (isinstance(x.op, Dequantize) and isinstance(w.op, Dequantize)):
        return m.miss(MissReason.NotQuantized, f"the operands are {x.op.mnemonic} and {w.op.mnemonic}")
    if not all(len(op.scales) == len(op.zero_points) == 1 for op in (m.op, x.op, w.op)):
        return m.miss(MissReason.PerChannel, "an integer product has one factor for all channels")
    if m.op.dtype not in _CODES or any(m.input_of(n, 0).shape.dtype not in _CODES for n in (x, w)):
        return m.miss(MissReason.CodeType, "an integer product takes and gives i8 or u8")
    bias = None if chain.bias is None else _bias_vector(m, chain)
    if chain.bias is not None and bias is None:
        shapes = f"the bias {chain.bias.shape} is not one number per channel of {chain.product.shape}"
        return m.miss(MissReason.BiasShape, shapes)
    step = x.op.scales[0] * w.op.scales[0]
    (x_zp,), (w_zp,), (out_zp,) = x.op.zero_points, w.op.zero_points, m.op.zero_points
    fields = {"x_zp": x_zp, "w_zp": w_zp, "out_zp": out_zp, "mult": step / m.op.scales[0], "dtype": m.op.dtype}
    operands = [m.value(x.inputs[0]), m.value(w.inputs[0])]
    if bias is not None:
        operands.append(cast(round_half_away(convert(bias, DType.F32) * (1.0 / step)), DType.I32))
    codes: Tensor = _integer_product(chain.product, fields)(*operands)
    return maximum(codes, out_zp) if chain.has_relu else codes


def _chain_before(m: Match) -> _Chain | None:
    """The product whose result is quantised here; a part that others read too cannot be absorbed."""
    node, bias, parts = m.producer(0), None, [m.producer(0)]
    has_relu = isinstance(node.op, Activation) and node.op.kind is ActivationKind.Relu
    if has_relu:
        node = m.input_of(node, 0)
        parts.append(node)
    if isinstance(node.op, Binary) and node.op.kind is BinaryOp.Add:
        sides = [m.input_of(node, 0), m.input_of(node, 1)]
        if not isinstance(sides[0].op, MatMul | Conv):
            sides.reverse()
        node, bias = sides
        parts.append(node)
    if not isinstance(node.op, MatMul | Conv):
        return None
    for part in parts:
        if not m.is_only_use(part):
            m.miss(MissReason.MultiConsumer, f"{part.op.mnemonic} is needed as a float too")
            return None
    return _Chain(node, bias, has_relu)


def _integer_product(product: Node, fields: dict[str, object]) -> QMatMul | QConv2d:
    op = product.op
    if isinstance(op, MatMul):
        return QMatMul(**fields)
    assert isinstance(op, Conv)
    window = {f: op.attributes[f] for f in ("kernel_size", "stride", "padding", "dilation", "groups")}
    return QConv2d(**window, **fields)


def _bias_vector(m: Match, chain: _Chain) -> Tensor | None:
    """The bias as one number per output channel, or None when it is something else."""
    bias = chain.bias
    assert bias is not None
    if isinstance(bias.op, Expand):
        bias = m.input_of(bias, 0)
    if not is_channel_bias(bias.shape, chain.product):
        return None
    vector: Tensor = reshaped(m.value(bias.id), (chain.product.shape.dims[_channel_axis(chain.product)],))
    return vector


def is_channel_bias(bias: Shape, product: Node) -> bool:
    """Whether `bias` holds one number per output channel of a MatMul (its last axis) or a Conv (its axis 1)."""
    result, axis = product.shape, _channel_axis(product)
    wanted = tuple(d if i == axis else 1 for i, d in enumerate(result.dims))
    return (*(1,) * (result.rank - bias.rank), *bias.dims) == wanted


def _channel_axis(product: Node) -> int:
    return product.shape.rank - 1 if isinstance(product.op, MatMul) else 1


@rewrites(Quantize, exact=True)
def cancel_requantization(m: Match) -> Tensor | None:
    """quantize(dequantize(q)) with the same scales and zero points -> q"""
    inner = m.producer(0)
    if not isinstance(inner.op, Dequantize) or inner.op.dtype not in (DType.F32, DType.F64):
        return None
    same = (m.op.axis, m.op.scales, m.op.zero_points) == (inner.op.axis, inner.op.scales, inner.op.zero_points)
    codes = m.input_of(inner, 0)
    # Beyond these a scale, or its reciprocal, is denormal and has lost digits.
    regular = all(1e-30 < s < 1e30 for s in m.op.scales)
    return m.value(codes.id) if same and regular and codes.shape == m.node.shape else None


RULES = RuleSet("quant_collapse", [cancel_requantization, collapse_quantized_product])


class CollapseQuantizedProducts(RulePass):
    """Products between Dequantize and Quantize become `QMatMul` and `QConv2d`, bodies included."""

    name = "quant_collapse"
    pattern = "quantized_product"

    @property
    def rules(self) -> RuleSet:
        return RULES
