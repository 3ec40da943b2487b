"""Gradients of elementwise functions: `ActivationBackward(kind)` is f'(x)·dy for every kind of `Activation`.

The table below holds all f', each written once and used both on NumPy arrays and on tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import promote_inexact, require_float, require_inexact, require_same_dtype
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor
from rlx.ops.pointwise.special_functions import horner
from rlx.ops.pointwise.unary import Activation, ActivationKind, activation

__all__ = ["ActivationBackward", "ReluBackward", "activation_backward", "relu_backward"]

Array = np.ndarray[Any, np.dtype[Any]]


class _Functions(NamedTuple):
    """What a derivative is written with besides + - * / and comparisons."""

    f: Callable[[str, Any], Any]
    where: Callable[[Any, Any, Any], Any]


def _gelu(m: _Functions, x: Any) -> Any:
    density = m.f("exp", -0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
    return 0.5 * m.f("erfc", x * -math.sqrt(0.5)) + x * density


def _gelu_approx(m: _Functions, x: Any) -> Any:
    slope = math.sqrt(2.0 / math.pi)
    t = m.f("tanh", slope * (x + 0.044715 * x * x * x))
    # Long before the square overflows, what it is multiplied by is 0.
    near = m.where((x > -64.0) & (x < 64.0), x, 0.0)
    return 0.5 * (1.0 + t) + 0.5 * near * (1.0 - t * t) * (slope * (1.0 + 3.0 * 0.044715 * near * near))


def _silu(m: _Functions, x: Any) -> Any:
    s = m.f("sigmoid", x)
    return s * (1.0 + x * m.f("sigmoid", -x))


def _sigmoid(m: _Functions, x: Any) -> Any:
    # σ(-x) instead of 1 - σ(x), which cancels for large x.
    return m.f("sigmoid", x) * m.f("sigmoid", -x)


def _tanh(m: _Functions, x: Any) -> Any:
    t = m.f("tanh", x)
    return 1.0 - t * t


def _sqrt(m: _Functions, x: Any) -> Any:
    return 0.5 / m.f("sqrt", x)


def _rsqrt(m: _Functions, x: Any) -> Any:
    # r/x instead of r³, whose sign at -0.0 would be the wrong one.
    return -0.5 * m.f("rsqrt", x) / x


def _abs(m: _Functions, x: Any) -> Any:
    return m.where(x == 0.0, 1.0, m.f("sign", x))


def _tan(m: _Functions, x: Any) -> Any:
    t = m.f("tan", x)
    return 1.0 + t * t


def _erf(m: _Functions, x: Any) -> Any:
    return (2.0 / math.sqrt(math.pi)) * m.f("exp", -(x * x))


def _erf_inv(m: _Functions, x: Any) -> Any:
    y = m.f("erf_inv", x)
    return (0.5 * math.sqrt(math.pi)) * m.f("exp", y * y)


def _asin(m: _Functions, x: Any) -> Any:
    return m.f("rsqrt", (1.0 - x) * (1.0 + x))


def _cbrt(m: _Functions, x: Any) -> Any:
    root = m.f("cbrt", x)
    return 1.0 / (3.0 * root * root)


# ψ'(x) ~ 1/x + 1/(2x²) + Σ B_2k/x^(2k+1), highest power first; exact to f64 rounding from the shift on.
_BERNOULLI = (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)
_TRIGAMMA_SHIFT = 10


def _trigamma(m: _Functions, x: Any) -> Any:
    """ψ'(x) = ψ'(x + n) + Σ 1/(x + k)², and ψ'(x) = π²/sin²(πx) - ψ'(1 - x) left of ½."""
    reflected = x < 0.5
    z = m.where(reflected, 1.0 - x, x)
    steps = 1.0 / (z * z)
    for k in range(1, _TRIGAMMA_SHIFT):
        steps = steps + 1.0 / ((z + float(k)) * (z + float(k)))
    inverse = 1.0 / (z + float(_TRIGAMMA_SHIFT))
    series = inverse * (1.0 + inverse * (0.5 + inverse * horner(_BERNOULLI, inverse * inverse)))
    right = series + steps
    # The sine of the distance to the nearest integer has the same square, and no error far to the left.
    # floor, because its derivative is 0, where that of round is by definition 1.
    # Right of ½ it is that of ½, because a pole that is not chosen would be NaN in the derivative.
    sine = m.f("sin", math.pi * m.where(reflected, x - m.f("floor", x + 0.5), 0.5))
    return m.where(reflected, math.pi * math.pi / (sine * sine) - right, right)


# A float stands for a derivative that is the same everywhere.
_DERIVATIVES: dict[str, Callable[[_Functions, Any], Any]] = {
    "gelu": _gelu,
    "gelu_approx": _gelu_approx,
    "silu": _silu,
    "relu": lambda m, x: m.where(x > 0.0, 1.0, 0.0),
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "exp": lambda m, x: m.f("exp", x),
    "log": lambda m, x: 1.0 / x,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "neg": lambda m, x: -1.0,
    "abs": _abs,
    "sin": lambda m, x: m.f("cos", x),
    "cos": lambda m, x: -m.f("sin", x),
    "tan": _tan,
    "atan": lambda m, x: 1.0 / (1.0 + x * x),
    # Rounding passes gradients straight through, so that quantisation can be trained.
    "round": lambda m, x: 1.0,
    "recip": lambda m, x: -1.0 / (x * x),
    "floor": lambda m, x: 0.0,
    "ceil": lambda m, x: 0.0,
    "trunc": lambda m, x: 0.0,
    "sign": lambda m, x: 0.0,
    "square": lambda m, x: 2.0 * x,
    "expm1": lambda m, x: m.f("exp", x),
    "log1p": lambda m, x: 1.0 / (1.0 + x),
    "log2": lambda m, x: (1.0 / math.log(2.0)) / x,
    "exp2": lambda m, x: math.log(2.0) * m.f("exp2", x),
    "erf": _erf,
    "erfc": lambda m, x: -_erf(m, x),
    "erf_inv": _erf_inv,
    "asin": _asin,
    "acos": lambda m, x: -_asin(m, x),
    "sinh": lambda m, x: m.f("cosh", x),
    "cosh": lambda m, x: m.f("sinh", x),
    "asinh": lambda m, x: m.f("rsqrt", 1.0 + x * x),
    "acosh": lambda m, x: m.f("rsqrt", x - 1.0) * m.f("rsqrt", x + 1.0),
    "atanh": lambda m, x: 1.0 / ((1.0 - x) * (1.0 + x)),
    "cbrt": _cbrt,
    "lgamma": lambda m, x: m.f("digamma", x),
    "digamma": _trigamma,
}


def _evaluate(kind: str, x: Array) -> Any:
    return Activation(ActivationKind(kind)).eval(x)


_ON_ARRAYS = _Functions(_evaluate, np.where)


def derivative(kind: ActivationKind | str, x: Any) -> Any:
    """f'(x) of an elementwise function, written with ops; a Python float where it is constant."""
    from rlx.ops.pointwise.arithmetic import where

    return _DERIVATIVES[ActivationKind(kind)](_Functions(activation, where), x)


def _check_like(op: Op, x: Shape, dy: Shape) -> None:
    require_same_dtype(op, x, dy)
    if x.rank != dy.rank or not all(require_equal(a, b, op.name) for a, b in zip(x.dims, dy.dims)):
        raise op.fail(f"x and dy need the same dims, got {x} and {dy}")


@op("activation_backward")
class ActivationBackward(Op):
    """dx = f'(x)·dy for the `Activation` f of `kind`; for complex x, conj(f'(x))·dy.

    At kinks: relu' is 0 and abs' is 1 at 0; sqrt' is inf and rsqrt' -inf at 0, NaN left of it; round passes dy through,
    other step functions give 0. operands x, dy.
    """

    precision_class = "elementwise"

    kind: ActivationKind

    def infer(self, x: Shape, dy: Shape) -> Shape:
        require_inexact(self, x, dy)
        Activation(self.kind).infer(x)
        _check_like(self, x, dy)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array, dy: Array) -> Array:
        wide, upstream = as_f64(x, dy)
        return rounded(np.conj(_DERIVATIVES[self.kind](_ON_ARRAYS, wide)) * upstream, x.dtype)

    def decompose(self, x: Any, dy: Any) -> Any:
        from rlx.ops.pointwise.complex_numbers import conjugate

        wide, upstream = accumulators(x, dy)
        slope = derivative(self.kind, wide)
        if x.dtype.is_complex and not isinstance(slope, float):
            slope = conjugate(slope)
        return rounded_tensor(slope * upstream, x.dtype)

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for forward in Activation.samples():
            if DType.of(forward.dtypes[0]).is_inexact:
                x, op = forward.operands[0], cls(forward.op.attributes["kind"])
                # Close to 0 the slope of √x is too steep for tests by differences.
                x = x._replace(low=0.3) if x.low == 0 else x
                yield forward._replace(op=op, operands=(x, spec(*x.dims)))
        edge = spec(3, values=[0.0, -1.0, 2.0])
        for kind in ("relu", "abs", "round", "floor"):
            yield sample(cls(kind), edge, spec(3), smooth=False)


@op("relu_backward")
class ReluBackward(Op):
    """dx = dy where x > 0, else 0; operands x, dy."""

    precision_class = "elementwise"

    def infer(self, x: Shape, dy: Shape) -> Shape:
        require_float(self, x, dy)
        _check_like(self, x, dy)
        return x

    def eval(self, x: Array, dy: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.where(x > 0, dy, np.zeros((), dy.dtype))

    def decompose(self, x: Any, dy: Any) -> Any:
        from rlx.ops.pointwise.arithmetic import where

        return where(x > 0.0, dy, 0.0)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        # Flat in x on both sides of the kink.
        return None if tangents[1] is None else self(primals[0], tangents[1])

    def vjp(self, ct: Any, y: Any, x: Any, dy: Any) -> Any:
        return None, self(x, ct)

    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(3, 4))
        yield sample(cls(), spec(4, values=[0.0, -0.0, np.nan, 1.0]), spec(4), smooth=False)
        yield sample(cls(), spec("B", 0), spec("B", 0), B=2)


def activation_backward(kind: ActivationKind | str, x: Any, dy: Any) -> Any:
    """f'(x)·dy for an elementwise function by name."""
    return ActivationBackward(ActivationKind(kind))(*promote_inexact(x, dy))


def relu_backward(x: Any, dy: Any) -> Any:
    """dy where x > 0, else 0."""
    return ReluBackward()(*promote_inexact(x, dy))
