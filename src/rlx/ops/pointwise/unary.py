"""Elementwise functions of one operand: `Activation(kind)`, with a constructor per kind (`gelu(x)`, `exp(x)`, ...),
and the identity that stops gradients.

The table below is the meaning of every kind: its NumPy definition (on f64, or complex), which other dtypes it accepts,
and how it is built from more primitive kinds. A kind without a decomposition is a primitive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from rlx.ir.dtype import float_limits
from rlx.ir.op import Op, attribute_type, op, op_family
from rlx.ir.shape import Shape
from rlx.ir.words import Words
from rlx.ops.define.operands import dtype_of, keep_weak, promote_inexact, require_dtype
from rlx.ops.define.rules import batch_pointwise
from rlx.ops.define.samples import COMPLEX, FLOATS, INTS, Sample, sample, spec
from rlx.ops.pointwise.special_functions import (
    decompose_digamma,
    decompose_erf_inv,
    decompose_lgamma,
    digamma_f64,
    erf_f64,
    erf_inv_f64,
    erfc_f64,
    lgamma_f64,
)

__all__ = [
    "Activation",
    "ActivationKind",
    "StopGradient",
    "abs_",
    "acos",
    "acosh",
    "activation",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cbrt",
    "ceil",
    "cos",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "gelu",
    "gelu_approx",
    "lgamma",
    "log",
    "log1p",
    "log2",
    "neg",
    "recip",
    "relu",
    "round_",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "tan",
    "tanh",
    "trunc",
]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class ActivationKind(Words):
    """The elementwise functions of one operand. The first eighteen are those of the seed documents."""

    Gelu = "gelu"
    GeluApprox = "gelu_approx"
    Silu = "silu"
    Relu = "relu"
    Sigmoid = "sigmoid"
    Tanh = "tanh"
    Exp = "exp"
    Log = "log"
    Sqrt = "sqrt"
    Rsqrt = "rsqrt"
    Neg = "neg"
    Abs = "abs"
    Sin = "sin"
    Cos = "cos"
    Tan = "tan"
    Atan = "atan"
    Round = "round"
    Recip = "recip"
    Floor = "floor"
    Ceil = "ceil"
    Trunc = "trunc"
    Sign = "sign"
    Square = "square"
    Expm1 = "expm1"
    Log1p = "log1p"
    Log2 = "log2"
    Exp2 = "exp2"
    Erf = "erf"
    Erfc = "erfc"
    ErfInv = "erf_inv"
    Asin = "asin"
    Acos = "acos"
    Sinh = "sinh"
    Cosh = "cosh"
    Asinh = "asinh"
    Acosh = "acosh"
    Atanh = "atanh"
    Cbrt = "cbrt"
    Lgamma = "lgamma"
    Digamma = "digamma"


class _Definition(NamedTuple):
    """What one kind means."""

    formula: Callable[[Array], Array]
    decompose: Callable[[Any], Any] | None = None
    ints: bool = False
    complex: bool = False
    # Where tests draw operands from.
    low: float = -2.0
    high: float = 2.0


def _on_floats(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`f`, with integers left as they are: they have nothing to round, and i64 must not pass through f64."""
    return lambda x: x if x.dtype.kind in "iu" else f(x)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def _gelu(x: Array) -> Array:
    # erfc keeps the small tail of large negative x that 1 + erf(x) would cancel.
    return 0.5 * x * erfc_f64(-x * math.sqrt(0.5))


def _gelu_approx(x: Array) -> Array:
    # ½(1 + tanh u) = σ(2u), which keeps the tail.
    return x * _sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * x**3))


def _sign(x: Array) -> Array:
    # Zeros are their own sign; NumPy would drop that of -0.0.
    return np.where(x == 0, x, np.sign(x))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def activation(kind: ActivationKind | str, x: Any) -> Any:
    """Any elementwise function by name: `activation("gelu", x)`."""
    chosen = ActivationKind(kind)
    (operand,) = (x,) if _DEFINITIONS[chosen].ints else promote_inexact(x)
    return keep_weak(Activation(chosen)(operand), x)


def _constructor(kind: str) -> Callable[[Any], Any]:
    def build(x: Any) -> Any:
        return activation(kind, x)

    build.__name__ = build.__qualname__ = kind
    build.__doc__ = f"{kind}(x), elementwise; see `Activation`."
    return build


gelu = _constructor("gelu")
gelu_approx = _constructor("gelu_approx")
silu = _constructor("silu")
relu = _constructor("relu")
sigmoid = _constructor("sigmoid")
tanh = _constructor("tanh")
exp = _constructor("exp")
log = _constructor("log")
sqrt = _constructor("sqrt")
rsqrt = _constructor("rsqrt")
neg = _constructor("neg")
sin = _constructor("sin")
cos = _constructor("cos")
tan = _constructor("tan")
atan = _constructor("atan")
round_ = _constructor("round")
recip = _constructor("recip")
floor = _constructor("floor")
ceil = _constructor("ceil")
trunc = _constructor("trunc")
sign = _constructor("sign")
square = _constructor("square")
expm1 = _constructor("expm1")
log1p = _constructor("log1p")
log2 = _constructor("log2")
exp2 = _constructor("exp2")
erf = _constructor("erf")
erfc = _constructor("erfc")
erf_inv = _constructor("erf_inv")
asin = _constructor("asin")
acos = _constructor("acos")
sinh = _constructor("sinh")
cosh = _constructor("cosh")
asinh = _constructor("asinh")
acosh = _constructor("acosh")
atanh = _constructor("atanh")
cbrt = _constructor("cbrt")
lgamma = _constructor("lgamma")
digamma = _constructor("digamma")


def abs_(x: Any) -> Any:
    """|x|, elementwise; real for complex x."""
    if dtype_of(x).is_complex:
        from rlx.ops.pointwise.complex_numbers import complex_abs

        return complex_abs(x)
    return activation(ActivationKind.Abs, x)


def _decompose_gelu_approx(x: Any) -> Any:
    return x * sigmoid(math.sqrt(8.0 / math.pi) * (x + 0.044715 * (x * x * x)))


def _decompose_relu(x: Any) -> Any:
    from rlx.ops.pointwise.arithmetic import maximum

    return maximum(x, 0)


def _decompose_sign(x: Any) -> Any:
    from rlx.ops.pointwise.arithmetic import gt, lt, minimum, where

    if not x.dtype.is_signed:
        return minimum(x, 1)
    # Zeros and NaN are their own sign.
    return where(gt(x, 0), 1, where(lt(x, 0), -1, x))


def _decompose_asin(x: Any) -> Any:
    from rlx.ops.pointwise.arithmetic import atan2

    return atan2(x, sqrt((1.0 - x) * (1.0 + x)))


def _decompose_acos(x: Any) -> Any:
    from rlx.ops.pointwise.arithmetic import atan2

    return atan2(sqrt((1.0 - x) * (1.0 + x)), x)


def _decompose_asinh(x: Any) -> Any:
    from rlx.ops.pointwise.arithmetic import copysign, lt, where

    a = abs_(x)
    # Where 1 vanishes beside a², asinh a = log 2a; the square, which would overflow there, is not used.
    small = lt(a, 2.0 ** (float_limits(x.dtype).nmant // 2 + 1))
    squared = where(small, a * a, 1.0)
    near = log1p(a + squared / (1.0 + sqrt(1.0 + squared)))
    return copysign(where(small, near, log(a) + math.log(2.0)), x)


def _decompose_acosh(x: Any) -> Any:
    from rlx.ops.pointwise.arithmetic import lt, where

    # Where 1 vanishes beside x², acosh x = log 2x; the sum, which would overflow at the end of the range, is not used.
    small = lt(x, 2.0 ** (float_limits(x.dtype).nmant // 2 + 1))
    t = where(small, x, 2.0) - 1.0
    return where(small, log1p(t + sqrt(t) * sqrt(t + 2.0)), log(x) + math.log(2.0))


def _decompose_cbrt(x: Any) -> Any:
    # One Newton step after exp(log|x|/3) brings the result to working precision; 0, inf and NaN are fixed points.
    from rlx.ops.pointwise.arithmetic import and_, copysign, gt, lt, where

    a = abs_(x)
    regular = and_(gt(a, 0.0), lt(a, math.inf))
    safe = where(regular, a, 1.0)
    y = exp(log(safe) * (1.0 / 3.0))
    y = y - (y - safe / (y * y)) * (1.0 / 3.0)
    return where(regular, copysign(y, x), x)


_D = _Definition
_DEFINITIONS: dict[str, _Definition] = {
    "gelu": _D(_gelu, lambda x: 0.5 * x * erfc(x * -math.sqrt(0.5)), low=-4, high=4),
    "gelu_approx": _D(_gelu_approx, _decompose_gelu_approx, low=-4, high=4),
    "silu": _D(_silu, lambda x: x * sigmoid(x), low=-4, high=4),
    "relu": _D(lambda x: np.maximum(x, 0), _decompose_relu, ints=True),
    "sigmoid": _D(_sigmoid, lambda x: 1.0 / (1.0 + exp(-x)), low=-6, high=6),
    "tanh": _D(np.tanh, complex=True),
    "exp": _D(np.exp, complex=True),
    "log": _D(np.log, complex=True, low=0.1, high=4),
    "sqrt": _D(np.sqrt, complex=True, low=0, high=4),
    "rsqrt": _D(lambda x: 1.0 / np.sqrt(x), lambda x: 1.0 / sqrt(x), low=0.1, high=4),
    "neg": _D(np.negative, ints=True, complex=True),
    "abs": _D(np.abs, ints=True),
    "sin": _D(np.sin, complex=True),
    "cos": _D(np.cos, complex=True),
    "tan": _D(np.tan, lambda x: sin(x) / cos(x), low=-1.4, high=1.4),
    "atan": _D(np.arctan),
    "round": _D(_on_floats(np.rint), ints=True, low=-4, high=4),
    "recip": _D(lambda x: 1.0 / x, lambda x: 1.0 / x, complex=True, low=0.3, high=3),
    "floor": _D(_on_floats(np.floor), ints=True, low=-4, high=4),
    "ceil": _D(_on_floats(np.ceil), ints=True, low=-4, high=4),
    "trunc": _D(_on_floats(np.trunc), ints=True, low=-4, high=4),
    "sign": _D(_sign, _decompose_sign, ints=True),
    "square": _D(np.square, lambda x: x * x, ints=True, complex=True),
    "expm1": _D(np.expm1),
    "log1p": _D(np.log1p, low=-0.9, high=4),
    "log2": _D(np.log2, lambda x: log(x) * (1.0 / math.log(2.0)), low=0.1, high=4),
    "exp2": _D(np.exp2, lambda x: exp(x * math.log(2.0))),
    "erf": _D(erf_f64),
    "erfc": _D(erfc_f64),
    "erf_inv": _D(erf_inv_f64, decompose_erf_inv, low=-0.95, high=0.95),
    "asin": _D(np.arcsin, _decompose_asin, low=-0.95, high=0.95),
    "acos": _D(np.arccos, _decompose_acos, low=-0.95, high=0.95),
    "sinh": _D(np.sinh, lambda x: 0.5 * (expm1(x) - expm1(-x))),
    "cosh": _D(np.cosh, lambda x: 0.5 * (exp(x) + exp(-x))),
    "asinh": _D(np.arcsinh, _decompose_asinh),
    "acosh": _D(np.arccosh, _decompose_acosh, low=1.1, high=4),
    "atanh": _D(np.arctanh, lambda x: 0.5 * (log1p(x) - log1p(-x)), low=-0.9, high=0.9),
    "cbrt": _D(np.cbrt, _decompose_cbrt),
    "lgamma": _D(lgamma_f64, decompose_lgamma, low=-3.4, high=12),
    "digamma": _D(digamma_f64, decompose_digamma, low=0.2, high=12),
}


# Piecewise constant.
_STEPS = (ActivationKind.Floor, ActivationKind.Ceil, ActivationKind.Trunc, ActivationKind.Sign)


@op_family(ActivationKind)
class Activation(Op):
    """y = f(x) elementwise, f given by `kind`.

    f16, bf16 and f32 are computed in f64 and rounded once. Some kinds accept integers or complex numbers.
    """

    is_elementwise = True
    precision_class = "elementwise"

    Gelu: ClassVar[ActivationKind] = ActivationKind.Gelu
    GeluApprox: ClassVar[ActivationKind] = ActivationKind.GeluApprox
    Silu: ClassVar[ActivationKind] = ActivationKind.Silu
    Relu: ClassVar[ActivationKind] = ActivationKind.Relu
    Sigmoid: ClassVar[ActivationKind] = ActivationKind.Sigmoid
    Tanh: ClassVar[ActivationKind] = ActivationKind.Tanh
    Exp: ClassVar[ActivationKind] = ActivationKind.Exp
    Log: ClassVar[ActivationKind] = ActivationKind.Log
    Sqrt: ClassVar[ActivationKind] = ActivationKind.Sqrt
    Rsqrt: ClassVar[ActivationKind] = ActivationKind.Rsqrt
    Neg: ClassVar[ActivationKind] = ActivationKind.Neg
    Abs: ClassVar[ActivationKind] = ActivationKind.Abs
    Sin: ClassVar[ActivationKind] = ActivationKind.Sin
    Cos: ClassVar[ActivationKind] = ActivationKind.Cos
    Tan: ClassVar[ActivationKind] = ActivationKind.Tan
    Atan: ClassVar[ActivationKind] = ActivationKind.Atan
    Round: ClassVar[ActivationKind] = ActivationKind.Round
    Recip: ClassVar[ActivationKind] = ActivationKind.Recip

    kind: ActivationKind

    @property
    def is_primitive(self) -> bool:
        return _DEFINITIONS[self.kind].decompose is None

    def infer(self, x: Shape) -> Shape:
        definition = _DEFINITIONS[self.kind]
        ok = (
            (x.dtype.is_float and not x.dtype.is_storage)
            or (definition.ints and x.dtype.is_int)
            or (definition.complex and x.dtype.is_complex)
        )
        accepted = "float" + (" or integer" if definition.ints else "") + (" or complex" if definition.complex else "")
        require_dtype(self, ok, accepted, x)
        return x

    def eval(self, x: Array) -> Array:
        formula = _DEFINITIONS[self.kind].formula
        with np.errstate(all="ignore"):
            if x.dtype.kind in "iu":
                return np.asarray(formula(x), dtype=x.dtype)
            wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
            return np.asarray(formula(wide)).astype(x.dtype)

    def decompose(self, x: Any) -> Any:
        build = _DEFINITIONS[self.kind].decompose
        assert build is not None
        return build(x)

    @property
    def derivative_is_defined(self) -> bool:
        """Rounding passes derivatives straight through, so that quantisation can be trained."""
        return self.kind is ActivationKind.Round

    @property
    def derivative_is_zero(self) -> bool:
        return self.kind in _STEPS

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        from rlx.ops.pointwise.complex_numbers import conjugate

        scaled = self._scaled(primals[0], conjugate(tangents[0]))
        return None if scaled is None else conjugate(scaled)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        return (self._scaled(x, ct),)

    def _scaled(self, x: Any, t: Any) -> Any:
        """conj(f'(x))·t, or None where f' is 0 everywhere."""
        from rlx.ops.pointwise.activation_gradients import ActivationBackward, ReluBackward

        if self.derivative_is_zero:
            return None
        match self.kind:
            case ActivationKind.Round:
                return t
            case ActivationKind.Neg:
                return neg(t)
            case ActivationKind.Relu:
                return ReluBackward()(x, t)
        return ActivationBackward(self.kind)(x, t)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for kind in ActivationKind:
            definition = _DEFINITIONS[kind]
            low, high = definition.low, definition.high
            yield sample(cls(kind), spec(3, 4, low=low, high=high))
            if definition.ints:
                yield sample(cls(kind), spec(5), dtypes=INTS)
            if definition.complex:
                yield sample(cls(kind), spec(3, 2, low=0.2, high=1.2), dtypes=COMPLEX)
        yield sample(cls("tanh"), spec(0, 3))
        yield sample(cls("exp"), spec())
        yield sample(cls("gelu"), spec("B", 4), B=3)


@op("stop_gradient")
class StopGradient(Op):
    """y = x; no gradient and no tangent passes through. Any dtype."""

    is_elementwise = True
    precision_class = "elementwise"

    derivative_is_defined = True

    @property
    def derivative_is_zero(self) -> bool:
        return True

    def infer(self, x: Shape) -> Shape:
        return x

    def eval(self, x: Array) -> Array:
        return x

    def decompose(self, x: Any) -> Any:
        return x

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        return None

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        return (None,)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), dtypes=(*FLOATS, "i32", "bool", "c64"))
        yield sample(cls(), spec("B", 0), B=2)


def stop_gradient(x: Any) -> Any:
    """x, as a constant in the eyes of differentiation."""
    return StopGradient()(x)
