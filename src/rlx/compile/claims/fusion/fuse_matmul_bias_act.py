"""matmul + bias (+ activation) -> one op."""

from __future__ import annotations

from functools import partial

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import is_plain_matmul, why_not_absorbed
from rlx.compile.claims.fusion.rule_pass import RulePass
from rlx.ir.graph import Node
from rlx.ir.rewrite.rules import Match, Rule, RuleSet, rewrites
from rlx.ir.tensor import Tensor
from rlx.ops.fused.layers import FusedMatMulBiasAct
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.shape.movement import broadcast_to

# What kernels of the fused op apply to a tile before it is stored; other functions cost more than the store.
EPILOGUE_ACTIVATIONS = frozenset(
    {
        ActivationKind.Gelu,
        ActivationKind.GeluApprox,
        ActivationKind.Silu,
        ActivationKind.Relu,
        ActivationKind.Sigmoid,
        ActivationKind.Tanh,
    }
)


@rewrites(Binary, exact=False)
def fold_bias(m: Match) -> Tensor | None:
    """matmul(x, w) + b -> fused_matmul_bias_act(x, w, b), where b is [N] or one element"""
    for side in (0, 1):
        product, bias = m.producer(side), m.producer(1 - side)
        is_product = isinstance(product.op, MatMul) and product.shape.dtype.is_float
        if not is_product or _is_residual(bias, product):
            continue
        if m.op.kind is not BinaryOp.Add:
            subtracted = m.op.kind is BinaryOp.Sub and side == 0 and bias.shape.rank == 1
            return m.miss(MissReason.NonAddBiasConsumer, m.op.mnemonic) if subtracted else None
        reason = _why_not_folded(m, product, bias)
        if reason is not None:
            return m.miss(*reason)
        x, w = (m.value(i) for i in product.inputs)
        fused: Tensor = FusedMatMulBiasAct()(x, w, broadcast_to(m.operands[1 - side], product.shape.dims[-1:]))
        return fused
    return None


def _is_residual(bias: Node, product: Node) -> bool:
    """A sum of two tensors of one shape has no bias in it, unless both are vectors."""
    return bias.shape.rank > 1 and bias.shape.dims == product.shape.dims


def _why_not_folded(m: Match, product: Node, bias: Node) -> tuple[MissReason, str] | None:
    if bias.shape.rank > 1:
        return MissReason.BiasRankTooHigh, f"rank {bias.shape.rank}"
    if m.node.shape.dims != product.shape.dims:
        return MissReason.BiasShape, f"{bias.shape} for a product {product.shape}"
    if not is_plain_matmul(m.graph, product):
        return MissReason.UnsupportedTypes, repr(product.op)
    return why_not_absorbed(m, product)


def _fold_activation(allowed: frozenset[ActivationKind], m: Match) -> Tensor | None:
    product = m.producer(0)
    if not isinstance(product.op, FusedMatMulBiasAct) or product.op.activation is not None:
        return None
    if m.op.kind not in allowed:
        return m.miss(MissReason.UnsupportedEpilogueActivation, m.op.kind)
    reason = why_not_absorbed(m, product)
    if reason is not None:
        return m.miss(*reason)
    fused: Tensor = FusedMatMulBiasAct(m.op.kind)(*(m.value(i) for i in product.inputs))
    return fused


class FuseMatMulBiasAct(RulePass):
    """`matmul(x, w) + b` becomes `fused_matmul_bias_act`, then an activation on it joins.

    The product must have no other reader and be no output, and so must the sum for an activation to join;
    `activations` are those that may.
    """

    name = "fuse_matmul_bias_act"
    pattern = "matmul_bias_act"

    def __init__(self, activations: frozenset[ActivationKind] = EPILOGUE_ACTIVATIONS) -> None:
        self.activations = activations

    @property
    def rules(self) -> RuleSet:
        fold_activation = Rule("fold_activation", (Activation,), partial(_fold_activation, self.activations), False)
        return RuleSet(self.name, [fold_bias, fold_activation])
