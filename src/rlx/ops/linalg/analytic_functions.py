"""Analytic functions of square matrices: exponential, logarithm, square root. Leading axes are batches.

Their derivatives need no eigenvectors: f of the block matrix [[A, E], [0, A]] has L(A, E), the derivative of f at A in
the direction E, in its upper right block, and the adjoint of E -> L(A, E) is G -> L(Aᴴ, G).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import build_body
from rlx.ops.control.branches import While
from rlx.ops.define.operands import convert, dtype_of, promote_inexact, require_dtype, same_graph
from rlx.ops.define.rules import batch_by_loop_over_leading, zeros_like
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec
from rlx.ops.linalg.contraction import adjoint, matmul
from rlx.ops.linalg.schur import triangles_of
from rlx.ops.linalg.solve import REAL, BatchedDenseSolve, require_matrix, widened
from rlx.ops.pointwise.arithmetic import gt, lt, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.pointwise.unary import abs_
from rlx.ops.reduction.reductions import reduce_any, reduce_max, reduce_sum
from rlx.ops.shape.creation import eye
from rlx.ops.shape.movement import broadcast_to, concat, expand_dims, narrow

__all__ = ["Expm", "Logm", "Sqrtm", "expm", "logm", "sqrtm"]

Array = np.ndarray[Any, np.dtype[Any]]

# Padé's approximant of degree 13 to exp is exact to the last digit of a double for norms up to THETA.
PADE = (
    *(64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0),
    *(10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0),
)
THETA = 5.371920351148152
# Of log(1 + X): the degree of Padé's approximant, as a sum over nodes of Gauss, and the norms it is good for.
LOG_DEGREE, LOG_THETA = 7, 0.25
MAX_ROOTS = 100

_POSITIVE = ((4.0, 1.0, 0.5), (1.0, 3.0, -1.0), (0.5, -1.0, 5.0))
_OFF_THE_CUT = ((4.0 + 1.0j, 1.0, -1.0j), (0.5j, 3.0, 1.0 - 1.0j), (1.0, -1.0, 5.0j))


class _AnalyticFunction(Op):
    """What the functions share: derivatives by the block matrix, and the sizes of operands."""

    def _change(self, a: Tensor, change: Tensor) -> Any:
        size = a.shape[-1]
        upper = concat([a, change], -1)
        lower = concat([zeros_like(a), a], -1)
        return narrow(narrow(self(concat([upper, lower], -2)), -2, 0, size), -1, size, size)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: Tensor) -> Any:
        return self._change(primals[0], tangents[0])

    def vjp(self, ct: Tensor, y: Tensor, a: Tensor) -> Any:
        return self._change(adjoint(a), ct)

    batch = batch_by_loop_over_leading


@op("expm")
class Expm(_AnalyticFunction):
    """exp(A) = Σ Aᵏ/k! for square A [.., N, N]: Padé's approximant of A / 2ˢ, squared s times. NaN where A has NaN."""

    def infer(self, a: Shape) -> Shape:
        require_matrix(self, a, square=True)
        return a

    def eval(self, a: Array) -> Array:
        x = widened(a)
        with np.errstate(all="ignore"):
            size = np.abs(x).sum(-2).max(-1, initial=0.0)
            is_known = np.isfinite(size)
            halvings = np.ceil(np.log2(np.where(is_known & (size > THETA), size, THETA) / THETA))
            scaled = np.where(is_known, 0.5**halvings, 0.0)[..., None, None] * np.where(np.isfinite(x), x, 0.0)
            result = _pade_by_numpy(scaled)
            for i in range(int(halvings.max(initial=0.0))):
                result = np.where((i < halvings)[..., None, None], result @ result, result)
        return np.where(is_known[..., None, None], result, np.nan).astype(a.dtype)

    def decompose(self, a: Tensor) -> Any:
        wide = cast(a, DType.C128 if a.dtype.is_complex else DType.F64)
        size = reduce_max(reduce_sum(abs_(wide), -2), -1, keepdims=True)
        with same_graph(a):
            half = convert(expand_dims(size, -1), DType.F64)
            done, below = build_halving(half.type)
            # How often to halve is found by halving, which ends for every double.
            _, factor, count = While(done, below, max_iterations=1100)(
                half, broadcast_to(convert(1.0, DType.F64), half.shape), zeros_like(cast(half, DType.I32))
            )
            result = _pade(wide * convert(factor, wide.dtype))
            again, squared = build_squaring(result.type, count.type)
            result, _ = While(again, squared, max_iterations=1100)(result, count)
        return cast(result, a.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtypes in (REAL, COMPLEX):
            yield sample(cls(), spec(3, 3), dtypes=dtypes)
            yield sample(cls(), spec(2, 2, 2), dtypes=dtypes)
        yield sample(cls(), spec(2, 3, 3, low=-9.0, high=9.0), dtypes=("f64",))
        yield sample(cls(), spec(0, 2, 2), dtypes=REAL)
        yield sample(cls(), spec("B", 3, 3), dtypes=REAL, B=2)


def build_halving(size: Shape) -> tuple[Any, Any]:
    """Whether a norm is too large yet; and norm, scale and count of one more halving."""
    count = size.with_dtype(DType.I32)
    cond = build_body("too_large", lambda x, f, n: reduce_any(_halvable(x)), x=size, f=size, n=count)

    def halve(x: Any, f: Any, n: Any) -> Any:
        again = _halvable(x)
        return where(again, 0.5 * x, x), where(again, 0.5 * f, f), where(again, n + 1, n)

    return cond, build_body("halve", halve, x=size, f=size, n=count)


def _halvable(x: Any) -> Any:
    return gt(x, THETA) & lt(x, math.inf)


def build_squaring(result: Shape, count: Shape) -> tuple[Any, Any]:
    """As long as a matrix has to be squared: its square, and how often it still has to be."""
    cond = build_body("unfinished", lambda x, n: reduce_any(gt(n, 0)), x=result, n=count)
    body = build_body("square", lambda x, n: (where(gt(n, 0), matmul(x, x), x), n - 1), x=result, n=count)
    return cond, body


def _pade(a: Any) -> Any:
    """(V - U)⁻¹ (V + U), U the odd and V the even part of Padé's numerator."""
    even, odd = _pade_parts(a, matmul(a, a), matmul, broadcast_to(eye(a.shape[-1], dtype=a.dtype), a.shape))
    return BatchedDenseSolve()(even - odd, even + odd)


def _pade_by_numpy(a: Array) -> Array:
    even, odd = _pade_parts(a, a @ a, np.matmul, np.eye(a.shape[-1]))
    return np.linalg.solve(even - odd, even + odd)


def _pade_parts(a: Any, a2: Any, product: Any, one: Any) -> tuple[Any, Any]:
    a4 = product(a2, a2)
    a6 = product(a4, a2)
    parts = []
    for b in (PADE[0::2], PADE[1::2]):
        high = product(a6, b[6] * a6 + b[5] * a4 + b[4] * a2)
        parts.append(high + b[3] * a6 + b[2] * a4 + b[1] * a2 + b[0] * one)
    return parts[0], product(a, parts[1])


class _OffTheCut(_AnalyticFunction):
    """Functions that are analytic except on the negative real axis; the results, and so the operands, are complex."""

    primitive = True
    of_triangle: ClassVar[Any]

    def infer(self, a: Shape) -> Shape:
        require_dtype(self, a.dtype.is_complex, "complex", a)
        require_matrix(self, a, square=True)
        return a

    def eval(self, a: Array) -> Array:
        t, z = triangles_of(widened(a))
        result = np.empty_like(t)
        with np.errstate(all="ignore"):
            for at in np.ndindex(*a.shape[:-2]):
                result[at] = z[at] @ type(self).of_triangle(t[at]) @ z[at].conj().T
        return result.astype(a.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 3, values=_POSITIVE), dtypes=COMPLEX)
        yield sample(cls(), spec(2, 3, 3, values=_OFF_THE_CUT), dtypes=COMPLEX)
        yield sample(cls(), spec(0, 2, 2), dtypes=COMPLEX)
        yield sample(cls(), spec("B", 3, 3, values=_OFF_THE_CUT), dtypes=COMPLEX, B=2)


def _root_of_triangle(t: Array) -> Array:
    """R, upper triangular, with R R = T: column by column, each element from those below and to the left."""
    size = len(t)
    r = np.diag(np.sqrt(np.diag(t)))
    for j in range(size):
        for i in reversed(range(j)):
            rest = t[i, j] - r[i, i + 1 : j] @ r[i + 1 : j, j]
            # Of two zeros only 0 has a root that is known without the other elements.
            r[i, j] = rest / (r[i, i] + r[j, j]) if rest != 0 else 0
    return r


def _log_of_triangle(t: Array) -> Array:
    """log T = 2ᵏ log T^(1/2ᵏ), with k so large that the root is near the identity."""
    size = len(t)
    if not (np.isfinite(t).all() and np.diag(t).all()):
        return np.full_like(t, np.nan)
    one, root, count = np.eye(size), t, 0
    while np.abs(root - one).sum(0).max(initial=0.0) > LOG_THETA:
        root, count = _root_of_triangle(root), count + 1
        if count > MAX_ROOTS:
            return np.full_like(t, np.nan)
    nodes, weights = np.polynomial.legendre.leggauss(LOG_DEGREE)
    x = root - one
    result = np.zeros_like(t)
    for node, weight in zip((nodes + 1) / 2, weights / 2):
        result += weight * np.linalg.solve(one + node * x, x)
    result = np.triu(result) * 2.0**count
    # The diagonal is known directly; by way of the roots it would lose digits.
    result[np.diag_indices(size)] = np.log(np.diag(t))
    return result


@op("sqrtm")
class Sqrtm(_OffTheCut):
    """The principal square root of complex A [.., N, N]: R R = A, eigenvalues with a real part that is not negative.

    A singular matrix may have none, and then NaN or infinity come out; so they do for NaN.
    """

    of_triangle = _root_of_triangle


@op("logm")
class Logm(_OffTheCut):
    """The principal logarithm of complex A [.., N, N]: exp(L) = A, imaginary parts of eigenvalues in (-π, π].

    All is NaN for a singular matrix, and for one with NaN or infinity in it.
    """

    of_triangle = _log_of_triangle


def expm(a: Any) -> Any:
    """exp(A) of every matrix; see `Expm`."""
    return Expm()(*promote_inexact(a))


def sqrtm(a: Any) -> Any:
    """The principal square root of every matrix, complex; see `Sqrtm`."""
    return Sqrtm()(_complex(a))


def logm(a: Any) -> Any:
    """The principal logarithm of every matrix, complex; see `Logm`."""
    return Logm()(_complex(a))


def _complex(a: Any) -> Any:
    (a,) = promote_inexact(a)
    return convert(a, dtype_of(a).complex)
