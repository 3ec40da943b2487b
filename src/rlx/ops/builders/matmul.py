"""Builder methods for products, solves and the feed-forward parts made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ops.builders.base import Builder, DeclaredShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor
    from rlx.ops.pointwise.unary import ActivationKind


class MatmulBuilders(Builder):
    """Products with one weight, several weights, or an inverse."""

    __slots__ = ()

    def matmul(self, lhs: TensorLike, rhs: TensorLike, shape: DeclaredShape = None) -> Tensor:
        """[.., M, K] x [.., K, N]."""
        return self._build(ops.matmul, lhs, rhs, shape=shape)

    def mm(self, lhs: TensorLike, rhs: TensorLike) -> Tensor:
        return self._build(ops.matmul, lhs, rhs)

    def dot_general(
        self,
        lhs: TensorLike,
        rhs: TensorLike,
        lhs_contracting: Sequence[int],
        rhs_contracting: Sequence[int],
        lhs_batch: Sequence[int] = (),
        rhs_batch: Sequence[int] = (),
        shape: DeclaredShape = None,
    ) -> Tensor:
        """The product over any axes; the result is [batch.., free of lhs.., free of rhs..]."""
        axes = (lhs_contracting, rhs_contracting, lhs_batch, rhs_batch)
        return self._build(ops.dot_general, lhs, rhs, *axes, shape=shape)

    def dense_solve(self, a: TensorLike, b: TensorLike, shape: DeclaredShape = None) -> Tensor:
        """x with a·x = b, for a [N, N] and b [N] or [N, K]."""
        return self._build(ops.dense_solve, a, b, shape=shape)

    def batched_dense_solve(self, a: TensorLike, b: TensorLike, shape: DeclaredShape = None) -> Tensor:
        """One solve per batch entry, a [B, N, N] and b [B, N] or [B, N, K]."""
        return self._build(ops.batched_dense_solve, a, b, shape=shape)

    def lora_matmul(
        self, x: TensorLike, w: TensorLike, a: TensorLike, b: TensorLike, scale: float, shape: DeclaredShape = None
    ) -> Tensor:
        """x·w + scale·(x·a)·b."""
        return self._build(ops.lora_matmul, x, w, a, b, scale, shape=shape)

    def grouped_matmul(self, x: TensorLike, w: TensorLike, idx: TensorLike, shape: DeclaredShape = None) -> Tensor:
        """Row i of the result is x[i]·w[idx[i]]."""
        return self._build(ops.grouped_matmul, x, w, idx, shape=shape)

    def fused_matmul_bias_act(
        self,
        x: TensorLike,
        w: TensorLike,
        b: TensorLike,
        act: ActivationKind | str | None = None,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """act(x·w + b) as one op."""
        return self._build(ops.fused_matmul_bias_act, x, w, b, act, shape=shape)

    linear_fused = fused_matmul_bias_act

    def linear_bias(self, x: TensorLike, w: TensorLike, b: TensorLike = None) -> Tensor:
        """x·w, plus b when it is given."""
        product = self.mm(x, w)
        return product if b is None else self._build(ops.add, product, b)

    def linear_bias_act(
        self, x: TensorLike, w: TensorLike, b: TensorLike = None, act: ActivationKind | str | None = None
    ) -> Tensor:
        """act(x·w + b) as separate ops, which fusion may join."""
        linear = self.linear_bias(x, w, b)
        return linear if act is None else self._build(ops.activation, act, linear)

    def shared_matmul_pair(self, x: TensorLike, w1: TensorLike, w2: TensorLike) -> tuple[Tensor, Tensor]:
        """x·w1 and x·w2."""
        return self.mm(x, w1), self.mm(x, w2)

    def swiglu_ffn(self, x: TensorLike, up: TensorLike, gate: TensorLike, down: TensorLike) -> Tensor:
        """(x·up ⊙ silu(x·gate))·down."""
        up_rows, gate_rows = self.shared_matmul_pair(x, up, gate)
        return self.mm(self._build(ops.mul, up_rows, self._build(ops.silu, gate_rows)), down)

    def fused_swiglu_ffn(
        self, x: TensorLike, up: TensorLike, gate: TensorLike, down: TensorLike, shape: DeclaredShape = None
    ) -> Tensor:
        """The same with one product for both weights, joined along their columns."""
        both = self.mm(x, self._build(ops.concat, (up, gate), 1))
        return self._build(ops.matmul, self._build(ops.fused_swiglu, both), down, shape=shape)
