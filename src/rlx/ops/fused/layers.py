"""Fused ops: several ops as one, for targets that claim them. Each means exactly what its decomposition means.

They are evaluated in f64 and rounded once; decompositions keep intermediate values in the accumulator type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, matmul_shape
from rlx.ops.define.operands import convert, promote_inexact, require_float, require_same_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor
from rlx.ops.nn.norms import LayerNorm, RmsNorm, check_features
from rlx.ops.pointwise.unary import Activation, ActivationKind, activation, silu

__all__ = [
    "FusedMatMulBiasAct",
    "FusedResidualLN",
    "FusedResidualRmsNorm",
    "FusedSwiGLU",
    "fused_matmul_bias_act",
    "fused_residual_ln",
    "fused_residual_rms_norm",
    "fused_swiglu",
]

Array = np.ndarray[Any, np.dtype[Any]]


@op("fused_matmul_bias_act")
class FusedMatMulBiasAct(Op):
    """y = act(x·w + b) with x [.., M, K], w [.., K, N], b [N]; without `activation` there is none."""

    is_blas = True
    is_fused = True
    is_heavy = True
    activation: ActivationKind | None = None

    def infer(self, x: Shape, w: Shape, b: Shape) -> Shape:
        require_float(self, x, w, b)
        require_same_dtype(self, x, w, b)
        out = matmul_shape(x, w, self.name)
        if b.rank != 1 or not require_equal(b.dims[0], out.dims[-1], self.name):
            raise self.fail(f"the bias must be [{out.dims[-1]}], got {b}")
        return out

    @np.errstate(all="ignore")
    def eval(self, x: Array, w: Array, b: Array) -> Array:
        wide, weight, bias = as_f64(x, w, b)
        y = np.matmul(wide, weight) + bias
        return rounded(y if self.activation is None else Activation(self.activation).eval(y), x.dtype)

    def decompose(self, x: Any, w: Any, b: Any) -> Any:
        from rlx.ops.linalg.contraction import matmul

        wide = x.dtype.accumulator
        y = matmul(x, w, out_dtype=wide) + convert(b, wide)
        return rounded_tensor(y if self.activation is None else activation(self.activation, y), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in (None, "gelu", "relu", "silu"):
            yield sample(cls(kind), spec(3, 4), spec(4, 5), spec(5))
        yield sample(cls("tanh"), spec("B", "S", 4), spec(4, 5), spec(5), B=2, S=3)


class _FusedResidualNorm(Op):
    """Operands x, residual [, bias], γ, β: the norm over the last axis of x + residual [+ bias].

    With `with_sum` there is a second result, the sum itself, which is what the next residual reads.
    """

    is_fused = True
    has_bias: bool = False
    eps: float = 1e-5
    with_sum: bool = False

    norm: ClassVar[type[LayerNorm] | type[RmsNorm]] = LayerNorm

    def _operands(self, rest: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Bias (or None), γ and β."""
        if len(rest) != 2 + self.has_bias:
            wanted = "x, residual, bias, gamma, beta" if self.has_bias else "x, residual, gamma, beta"
            raise self.fail(f"with has_bias={self.has_bias} the operands are {wanted}; got {2 + len(rest)}")
        bias, gamma, beta = rest if self.has_bias else (None, *rest)
        return bias, gamma, beta

    def infer(self, x: Shape, residual: Shape, *rest: Shape) -> Shape | tuple[Shape, ...]:
        bias, gamma, beta = self._operands(rest)
        check_features(self, x, -1, *(s for s in (bias, gamma, beta) if s is not None))
        same = residual.rank == x.rank and all(require_equal(a, b, self.name) for a, b in zip(residual.dims, x.dims))
        if not same or residual.dtype is not x.dtype:
            raise self.fail(f"the residual must have the type of x, {x}, got {residual}")
        return (x, x) if self.with_sum else x

    @np.errstate(all="ignore")
    def eval(self, x: Array, residual: Array, *rest: Array) -> Any:
        bias, gamma, beta = self._operands(rest)
        total = np.asarray(sum(as_f64(*(a for a in (x, residual, bias) if a is not None))))
        y = rounded(self.norm(axis=-1, eps=self.eps).eval(total, gamma, beta), x.dtype)
        return (y, rounded(total, x.dtype)) if self.with_sum else y

    def decompose(self, x: Any, residual: Any, *rest: Any) -> Any:
        bias, gamma, beta = self._operands(rest)
        total, other, gain, offset = accumulators(x, residual, gamma, beta)
        total = total + other
        if bias is not None:
            total = total + convert(bias, total.dtype)
        y = rounded_tensor(self.norm(axis=-1, eps=self.eps)(total, gain, offset), x.dtype)
        return (y, rounded_tensor(total, x.dtype)) if self.with_sum else y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        x, feature = spec(3, 4), spec(4)
        for with_sum in (False, True):
            yield sample(cls(with_sum=with_sum), x, x, feature, feature)
            yield sample(cls(True, 1e-3, with_sum), x, x, feature, feature, feature)
        symbolic = spec("B", "S", 4)
        yield sample(cls(with_sum=True), symbolic, symbolic, feature, feature, B=2, S=3)


@op("fused_residual_ln")
class FusedResidualLN(_FusedResidualNorm):
    """y = LayerNorm(x + residual [+ bias]) over the last axis; operands x, residual [, bias], γ, β.

    With `with_sum` the sum is a second result.
    """

    precision_class = "reduction"


@op("fused_residual_rms_norm")
class FusedResidualRmsNorm(_FusedResidualNorm):
    """y = RmsNorm(x + residual [+ bias]) over the last axis; operands x, residual [, bias], γ, β.

    With `with_sum` the sum is a second result.
    """

    precision_class = "reduction"

    has_bias: bool = False
    eps: float = 1e-6
    with_sum: bool = False

    norm: ClassVar[type[LayerNorm] | type[RmsNorm]] = RmsNorm


@op("fused_swiglu")
class FusedSwiGLU(Op):
    """y = up·silu(gate), where p [.., 2N] holds (up, gate), or (gate, up) with `gate_first`; y is [.., N].

    With `cast_to` the result has that dtype.
    """

    is_fused = True
    precision_class = "elementwise"
    cast_to: DType | None = None
    gate_first: bool = False

    def infer(self, p: Shape) -> Shape:
        require_float(self, p)
        if not p.rank or not require_equal(p.dims[-1] % 2, 0, self.name):
            raise self.fail(f"the last axis holds two halves of one size, got {p}")
        return Shape((*p.dims[:-1], p.dims[-1] // 2), self.cast_to or p.dtype)

    @np.errstate(all="ignore")
    def eval(self, p: Array) -> Array:
        low, high = np.split(as_f64(p)[0], 2, axis=-1)
        up, gate = (high, low) if self.gate_first else (low, high)
        return rounded(up * Activation(ActivationKind.Silu).eval(gate), (self.cast_to or DType.of(p.dtype)).numpy)

    def decompose(self, p: Any) -> Any:
        from rlx.ops.shape.movement import narrow

        half = p.shape[-1] // 2
        low, high = accumulators(narrow(p, -1, 0, half), narrow(p, -1, half, half))
        up, gate = (high, low) if self.gate_first else (low, high)
        return convert(up * silu(gate), self.cast_to or p.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for gate_first in (False, True):
            yield sample(cls(None, gate_first), spec(3, 8))
            # The steps of f16 are too coarse for tests by differences.
            yield sample(cls("f16", gate_first), spec(2, 3, 4), smooth=False)
        yield sample(cls(), spec("B", "2*N"), B=2, N=3)
        yield sample(cls(), spec(0, 4))


def fused_matmul_bias_act(x: Any, w: Any, b: Any, activation: ActivationKind | str | None = None) -> Any:
    """activation(x·w + b) as one op."""
    return FusedMatMulBiasAct(None if activation is None else ActivationKind(activation))(*promote_inexact(x, w, b))


def _residual_norm(
    cls: type[_FusedResidualNorm], x: Any, residual: Any, bias: Any, gamma: Any, beta: Any, eps: float, with_sum: bool
) -> Any:
    operands = (x, residual, gamma, beta) if bias is None else (x, residual, bias, gamma, beta)
    return cls(bias is not None, eps, with_sum)(*promote_inexact(*operands))


def fused_residual_ln(
    x: Any, residual: Any, bias: Any, gamma: Any, beta: Any, eps: float = 1e-5, with_sum: bool = False
) -> Any:
    """Layer normalisation of x + residual (+ bias, unless None); with `with_sum` the sum is returned too."""
    return _residual_norm(FusedResidualLN, x, residual, bias, gamma, beta, eps, with_sum)


def fused_residual_rms_norm(
    x: Any, residual: Any, bias: Any, gamma: Any, beta: Any, eps: float = 1e-6, with_sum: bool = False
) -> Any:
    """RMS normalisation of x + residual (+ bias, unless None); with `with_sum` the sum is returned too."""
    return _residual_norm(FusedResidualRmsNorm, x, residual, bias, gamma, beta, eps, with_sum)


def fused_swiglu(p: Any, cast_to: DTypeLike | None = None, gate_first: bool = False) -> Any:
    """up·silu(gate) for p = [up, gate] along the last axis, or [gate, up] with `gate_first`."""
    return FusedSwiGLU(None if cast_to is None else DType.of(cast_to), gate_first)(*promote_inexact(p))
