"""Complex numbers: parts, making them from parts, conjugate, squared modulus. Parts of c64 are f32, of c128 f64.

Cotangents of complex values are conjugate Wirtinger derivatives ∂L/∂z̄, for which dL = 2·Re(conj(ct)·dz): the factor 2
enters where complex numbers are made from real ones, and ½ where they are taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, broadcast_dims
from rlx.ops.define.operands import dtype_of, promote_inexact, promote_operands, require_dtype, require_same_dtype
from rlx.ops.define.rules import batch_pointwise, unbroadcast, zeros_like
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.pointwise.arithmetic import atan2, div, eq, gt, hypot, mul, where
from rlx.ops.pointwise.conversion import cast

__all__ = [
    "ComplexNormSq",
    "ComplexNormSqBackward",
    "Conjugate",
    "Imag",
    "MakeComplex",
    "Real",
    "angle",
    "complex_",
    "complex_abs",
    "complex_norm_sq",
    "complex_norm_sq_backward",
    "complex_pow",
    "conjugate",
    "imag",
    "real",
]

Array = np.ndarray[Any, np.dtype[Any]]


def _require_complex(op: Op, z: Shape) -> None:
    require_dtype(op, z.dtype.is_complex, "complex", z)


def _complex_samples(make: type[Op]) -> Iterator[Sample]:
    yield sample(make(), spec(3, 4), dtypes=COMPLEX)
    yield sample(make(), spec(), dtypes=COMPLEX)
    yield sample(make(), spec(0, 2), dtypes=COMPLEX)
    yield sample(make(), spec("B", 4), dtypes=COMPLEX, B=3)


@op("real")
class Real(Op):
    """y = Re z."""

    primitive = True
    precision_class = "elementwise"
    linear_in = (0,)

    def infer(self, z: Shape) -> Shape:
        _require_complex(self, z)
        return z.with_dtype(z.dtype.real)

    def eval(self, z: Array) -> Array:
        return z.real

    def vjp(self, ct: Any, y: Any, z: Any) -> Any:
        return (cast(0.5 * ct, z.dtype),)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _complex_samples(cls)


@op("imag")
class Imag(Op):
    """y = Im z."""

    primitive = True
    precision_class = "elementwise"
    linear_in = (0,)

    def infer(self, z: Shape) -> Shape:
        _require_complex(self, z)
        return z.with_dtype(z.dtype.real)

    def eval(self, z: Array) -> Array:
        return z.imag

    def vjp(self, ct: Any, y: Any, z: Any) -> Any:
        half = 0.5 * ct
        return (MakeComplex()(zeros_like(half), half),)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _complex_samples(cls)


@op("make_complex")
class MakeComplex(Op):
    """z = re + i·im; both parts f32 (giving c64) or f64 (giving c128), broadcasting."""

    primitive = True
    precision_class = "elementwise"
    linear_in = (0, 1)

    def infer(self, re: Shape, im: Shape) -> Shape:
        dtype = require_same_dtype(self, re, im)
        require_dtype(self, dtype in (DType.F32, DType.F64), "f32 or f64", re, im)
        return Shape(broadcast_dims(re.dims, im.dims, self.mnemonic), dtype.complex)

    def eval(self, re: Array, im: Array) -> Array:
        # re + 1j * im would turn an infinite part into NaN.
        z = np.empty(np.broadcast_shapes(re.shape, im.shape), DType.of(re.dtype).complex.numpy)
        z.real, z.imag = re, im
        return z

    def vjp(self, ct: Any, y: Any, re: Any, im: Any) -> Any:
        return unbroadcast(2.0 * real(ct), re.type), unbroadcast(2.0 * imag(ct), im.type)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        parts = ("f32", "f64")
        yield sample(cls(), spec(3, 4), spec(3, 4), dtypes=parts)
        yield sample(cls(), spec(3, 1), spec(4), dtypes=parts)
        yield sample(cls(), spec(2, values=[np.inf, 1.0]), spec(2, values=[1.0, np.inf]), dtypes=parts)
        yield sample(cls(), spec("B", 4), spec(), dtypes=parts, B=3)


@op("conjugate")
class Conjugate(Op):
    """y = Re z - i·Im z."""

    precision_class = "elementwise"

    linear_in = (0,)

    def infer(self, z: Shape) -> Shape:
        _require_complex(self, z)
        return z

    def eval(self, z: Array) -> Array:
        return np.conjugate(z)

    def decompose(self, z: Any) -> Any:
        return complex_(real(z), -imag(z))

    def vjp(self, ct: Any, y: Any, z: Any) -> Any:
        return (conjugate(ct),)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _complex_samples(cls)


def _real_inner(a: Any, b: Any) -> Any:
    """Re(conj(a)·b)."""
    return real(a) * real(b) + imag(a) * imag(b)


@op("complex_norm_sq")
class ComplexNormSq(Op):
    """y = |z|² = re² + im², real."""

    precision_class = "elementwise"

    def infer(self, z: Shape) -> Shape:
        _require_complex(self, z)
        return z.with_dtype(z.dtype.real)

    def eval(self, z: Array) -> Array:
        re, im = z.real.astype(np.float64), z.imag.astype(np.float64)
        with np.errstate(all="ignore"):
            return (re * re + im * im).astype(z.real.dtype)

    def decompose(self, z: Any) -> Any:
        return _real_inner(z, z)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        return 2.0 * _real_inner(primals[0], tangents[0])

    def vjp(self, ct: Any, y: Any, z: Any) -> Any:
        return (complex_norm_sq_backward(z, ct),)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        return _complex_samples(cls)


@op("complex_norm_sq_backward")
class ComplexNormSqBackward(Op):
    """dz = g·z for real g, broadcasting: the Wirtinger gradient of |z|², ∂|z|²/∂z̄ = z."""

    precision_class = "elementwise"

    multilinear_in = (0, 1)

    def infer(self, z: Shape, g: Shape) -> Shape:
        _require_complex(self, z)
        require_dtype(self, g.dtype is z.dtype.real, f"complex and {z.dtype.real}", z, g)
        return Shape(broadcast_dims(z.dims, g.dims, self.mnemonic), z.dtype)

    def eval(self, z: Array, g: Array) -> Array:
        with np.errstate(all="ignore"):
            return MakeComplex().eval(g * z.real, g * z.imag)

    def decompose(self, z: Any, g: Any) -> Any:
        return complex_(g * real(z), g * imag(z))

    def vjp(self, ct: Any, y: Any, z: Any, g: Any) -> Any:
        return unbroadcast(self(ct, g), z.type), unbroadcast(2.0 * _real_inner(ct, z), g.type)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for z, g in (("c64", "f32"), ("c128", "f64")):
            yield sample(cls(), spec(3, 4, dtype=z), spec(3, 4, dtype=g), dtypes=(z,))
            yield sample(cls(), spec("B", dtype=z), spec("B", dtype=g), dtypes=(z,), B=3)


def real(z: Any) -> Any:
    """The real part; a real operand is its own."""
    return Real()(z) if dtype_of(z).is_complex else z


def imag(z: Any) -> Any:
    """The imaginary part; zeros for a real operand."""
    if dtype_of(z).is_complex:
        return Imag()(z)
    from rlx.ops.shape import creation

    return creation.zeros_like(z)


def complex_(re: Any, im: Any) -> Any:
    """re + i·im: c128 when a part is f64, else c64."""
    re, im = promote_inexact(re, im)
    if dtype_of(re).size_bytes < 4:
        re, im = cast(re, DType.F32), cast(im, DType.F32)
    return MakeComplex()(re, im)


def conjugate(z: Any) -> Any:
    """The complex conjugate; a real operand is its own."""
    return Conjugate()(z) if dtype_of(z).is_complex else z


def complex_norm_sq(z: Any) -> Any:
    """|z|², real."""
    return ComplexNormSq()(z)


def complex_norm_sq_backward(z: Any, g: Any) -> Any:
    """g·z for real g."""
    return ComplexNormSqBackward()(z, g)


def complex_abs(z: Any) -> Any:
    """|z| without overflow in the squares, real."""
    return hypot(Real()(z), Imag()(z))


# Up to this power products are as precise as exp and log, and cheaper.
_MANY_FACTORS = 100


def complex_pow(a: Any, b: Any) -> Any:
    """a to the power b, where one of them is complex: exp(b·log a). 0 to a power is 1 if that is 0, 0 if its real part
    is positive, and else NaN.

    A Python integer that is not large counts factors, so that the result and its derivatives hold at 0 too.

    >>> complex_pow(np.array([1 + 1j, 0]), 2).tolist()
    [2j, 0j]
    """
    from rlx.ops.pointwise.unary import exp, log

    if type(b) is int and abs(b) < _MANY_FACTORS:
        return _product_of_equals(a, b)
    a, b = promote_operands(a, b)
    is_zero = eq(a, 0)
    power = exp(mul(b, log(where(is_zero, 1, a))))
    of_zero = where(eq(b, 0), 1, where(gt(real(b), 0), 0, complex(np.nan, np.nan)))
    return where(is_zero, of_zero, power)


def _product_of_equals(a: Any, count: int) -> Any:
    """a multiplied `count` times with itself, by repeated squaring; the reciprocal for negative counts."""
    from rlx.ops.shape.creation import ones_like

    if count < 0:
        return div(1, _product_of_equals(a, -count))
    if count < 2:
        return a if count else ones_like(a)
    half = _product_of_equals(a, count // 2)
    square = mul(half, half)
    return mul(square, a) if count % 2 else square


def angle(z: Any) -> Any:
    """The argument of z in [-π, π]; a real operand has imaginary part 0."""
    if dtype_of(z).is_complex:
        return atan2(Imag()(z), Real()(z))
    (z,) = promote_inexact(z)
    return atan2(0.0, z)
