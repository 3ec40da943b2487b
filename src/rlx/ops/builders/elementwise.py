"""Builder methods for elementwise ops; the ones with inferred types are the seed's `GraphExt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ops.builders.base import Builder, DeclaredShape

if TYPE_CHECKING:
    from rlx.ir.dtype import DTypeLike
    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor
    from rlx.ops.pointwise.arithmetic import BinaryOp, CmpOp
    from rlx.ops.pointwise.unary import ActivationKind


class ElementwiseBuilders(Builder):
    """Functions of one, two or three operands, element by element; operands broadcast and promote."""

    __slots__ = ()

    def activation(self, act: ActivationKind | str, x: TensorLike, shape: DeclaredShape = None) -> Tensor:
        """Any function of one operand, by kind."""
        return self._build(ops.activation, act, x, shape=shape)

    activation_by_kind = activation

    def binary(self, op: BinaryOp | str, lhs: TensorLike, rhs: TensorLike, shape: DeclaredShape = None) -> Tensor:
        """Any function of two operands, by kind."""
        return self._build(ops.binary, op, lhs, rhs, shape=shape)

    def compare(self, op: CmpOp | str, lhs: TensorLike, rhs: TensorLike, shape: DeclaredShape = None) -> Tensor:
        """A comparison, by kind; the result is bool."""
        return self._build(ops.compare, op, lhs, rhs, shape=shape)

    def cast(self, x: TensorLike, dtype: DTypeLike) -> Tensor:
        return self._build(ops.cast, x, dtype)

    def where(self, condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor:
        """`a` where the condition holds, else `b`."""
        return self._build(ops.where, condition, a, b)

    where_ = where

    def clamp(self, x: TensorLike, low: TensorLike, high: TensorLike) -> Tensor:
        return self._build(ops.clamp, x, low, high)

    def add(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.add, a, b)

    def sub(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.sub, a, b)

    def mul(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.mul, a, b)

    def div(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.div, a, b)

    def maximum(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.maximum, a, b)

    def minimum(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.minimum, a, b)

    def pow(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.pow_, a, b)

    def eq(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.eq, a, b)

    eq_ = eq

    def ne(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.ne, a, b)

    def lt(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.lt, a, b)

    lt_ = lt

    def le(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.le, a, b)

    def gt(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.gt, a, b)

    def ge(self, a: TensorLike, b: TensorLike) -> Tensor:
        return self._build(ops.ge, a, b)

    def gelu(self, x: TensorLike) -> Tensor:
        return self._build(ops.gelu, x)

    def gelu_approx(self, x: TensorLike) -> Tensor:
        return self._build(ops.gelu_approx, x)

    def silu(self, x: TensorLike) -> Tensor:
        return self._build(ops.silu, x)

    def relu(self, x: TensorLike) -> Tensor:
        return self._build(ops.relu, x)

    def sigmoid(self, x: TensorLike) -> Tensor:
        return self._build(ops.sigmoid, x)

    def tanh(self, x: TensorLike) -> Tensor:
        return self._build(ops.tanh, x)

    def exp(self, x: TensorLike) -> Tensor:
        return self._build(ops.exp, x)

    def log(self, x: TensorLike) -> Tensor:
        return self._build(ops.log, x)

    def sqrt(self, x: TensorLike) -> Tensor:
        return self._build(ops.sqrt, x)

    def rsqrt(self, x: TensorLike) -> Tensor:
        return self._build(ops.rsqrt, x)

    def neg(self, x: TensorLike) -> Tensor:
        return self._build(ops.neg, x)

    def abs(self, x: TensorLike) -> Tensor:
        return self._build(ops.abs_, x)

    def sin(self, x: TensorLike) -> Tensor:
        return self._build(ops.sin, x)

    def cos(self, x: TensorLike) -> Tensor:
        return self._build(ops.cos, x)

    def tan(self, x: TensorLike) -> Tensor:
        return self._build(ops.tan, x)

    def atan(self, x: TensorLike) -> Tensor:
        return self._build(ops.atan, x)

    def round(self, x: TensorLike) -> Tensor:
        """To the nearest integer, halves to even."""
        return self._build(ops.round_, x)

    def recip(self, x: TensorLike) -> Tensor:
        return self._build(ops.recip, x)

    def stop_gradient(self, x: TensorLike) -> Tensor:
        """x, with no derivative flowing through."""
        return self._build(ops.stop_gradient, x)
