"""Numbers in kernels that know real and complex ones: one value, or two parts, with the arithmetic they need."""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value

# (re,) or (re, im).
Number = tuple[Value, ...]


def splat(k: KernelBuilder, number: Number, lanes: int) -> Number:
    return tuple(k.splat(x, lanes) for x in number)


def add(a: Number, b: Number) -> Number:
    return tuple(x + y for x, y in zip(a, b))


def multiply_add(k: KernelBuilder, a: Number, b: Number, total: Number) -> Number:
    """total + a·b."""
    if len(a) == 1:
        return (k.fma(a[0], b[0], total[0]),)
    (re, im), (x, y) = a, b
    return k.fma(-im, y, k.fma(re, x, total[0])), k.fma(im, x, k.fma(re, y, total[1]))


def multiply_subtract(k: KernelBuilder, a: Number, b: Number, total: Number) -> Number:
    """total - a·b."""
    return multiply_add(k, tuple(-x for x in a), b, total)


def conjugate(a: Number) -> Number:
    return a if len(a) == 1 else (a[0], -a[1])


def divide(k: KernelBuilder, a: Number, b: Number) -> Number:
    """a / b; of complex numbers scaled by the larger part of b, so that squares do not overflow.

    The larger part becomes 1 or -1 without a division, which infinity by itself would not survive.
    """
    if len(a) == 1:
        return (a[0] / b[0],)
    (re, im), (x, y) = a, b
    size = k.max(k.abs(x), k.abs(y))
    is_first = k.abs(x) >= k.abs(y)
    u, v = k.select(is_first, _sign(k, x), x / size), k.select(is_first, y / size, _sign(k, y))
    norm = x * u + y * v
    return (re * u + im * v) / norm, (im * u - re * v) / norm


def _sign(k: KernelBuilder, x: Value) -> Value:
    """1 or -1; NaN for NaN."""
    return k.select(x < 0.0, k.const(-1.0, x.type), k.select(x >= 0.0, k.const(1.0, x.type), x))


def square(a: Number) -> Value:
    """|a|²."""
    return a[0] * a[0] if len(a) == 1 else a[0] * a[0] + a[1] * a[1]


def choose(k: KernelBuilder, condition: Value, a: Number, b: Number) -> Number:
    return tuple(k.select(condition, x, y) for x, y in zip(a, b))


def subtract(a: Number, b: Number) -> Number:
    return tuple(x - y for x, y in zip(a, b))


def multiply(k: KernelBuilder, a: Number, b: Number) -> Number:
    if len(a) == 1:
        return (a[0] * b[0],)
    (re, im), (x, y) = a, b
    return re * x - im * y, re * y + im * x


def scale(a: Number, factor: Value) -> Number:
    """A number times a real one."""
    return tuple(x * factor for x in a)


def modulus(k: KernelBuilder, a: Number) -> Value:
    """|a|; the larger part is taken out, so that no square overflows."""
    if len(a) == 1:
        return k.abs(a[0])
    x, y = (k.abs(part) for part in a)
    larger, smaller = k.max(x, y), k.min(x, y)
    ratio = k.select(larger > 0.0, smaller / larger, 0.0)
    found = larger * k.sqrt(ratio * ratio + 1.0)
    # Infinity by itself has no ratio.
    return k.select(k.eq(larger, smaller) & (larger > 1.0e300), larger, found)


def root(k: KernelBuilder, a: Number) -> Number:
    """The square root of a complex number whose real part is not negative."""
    re, im = a
    zero = k.const(0.0, DType.F64)
    larger = k.sqrt((modulus(k, a) + k.abs(re)) * 0.5)
    other = k.select(larger > 0.0, im / (larger * 2.0), zero)
    turned = k.select(im < 0.0, -larger, larger)
    return k.select(re >= 0.0, larger, k.abs(other)), k.select(re >= 0.0, other, turned)
