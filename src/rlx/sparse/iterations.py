"""Krylov methods as loops of a program: functions of the product with A, the right side and a preconditioner.

    x, iterations = cg(matvec, b, x0, precondition, tol, maxiter)

`matvec` and `precondition` take and return one vector. Every method stops when the residual that it carries along has
become `MARGIN · tol · |b|`, or is not a number, or after `maxiter` products; who calls looks at the true residual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import rlx
import rlx.numpy as rnp
from rlx.ir.shape import Size
from rlx.ops.define.operands import dtype_of

Map = Callable[[Any], Any]

# The residual that a method carries along drifts away from the true one; this leaves room for it.
MARGIN = 0.9


def dot(x: Any, y: Any) -> Any:
    """xᴴ y."""
    return rnp.sum(rnp.conj(x) * y) if dtype_of(x).is_complex else rnp.sum(x * y)


def norm2(x: Any) -> Any:
    """|x|², real."""
    return rnp.sum(rnp.real(x) ** 2 + rnp.imag(x) ** 2) if dtype_of(x).is_complex else rnp.sum(x * x)


def norm(x: Any) -> Any:
    return rnp.sqrt(norm2(x))


def divided(a: Any, b: Any) -> Any:
    """a / b, and 0 where b is 0: the steps of a method that has arrived."""
    is_zero = b == 0
    return rnp.where(is_zero, rnp.zeros_like(a), a / rnp.where(is_zero, rnp.ones_like(b), b))


def goal_of(b: Any, tol: float) -> Any:
    """The residual to be reached."""
    return norm(b) * (MARGIN * tol)


def cg(matvec: Map, b: Any, x0: Any, precondition: Map, tol: float, maxiter: Any) -> tuple[Any, Any]:
    """Conjugate gradients, for Hermitian positive definite A."""
    goal = goal_of(b, tol) ** 2
    r = b - matvec(x0)
    z = precondition(r)

    def unfinished(carry: Any) -> Any:
        _, _, _, _, size, k = carry
        return (size > goal) & (k < maxiter)

    def step(carry: Any) -> Any:
        x, r, p, rz, _, k = carry
        ap = matvec(p)
        alpha = divided(rz, rnp.real(dot(p, ap)))
        x, r = x + alpha * p, r - alpha * ap
        z = precondition(r)
        new = rnp.real(dot(r, z))
        return x, r, z + divided(new, rz) * p, new, norm2(r), k + 1

    done = rlx.while_loop(unfinished, step, (x0, r, z, rnp.real(dot(r, z)), norm2(r), rnp.int32(0)))
    return done[0], done[-1]


def bicgstab(matvec: Map, b: Any, x0: Any, precondition: Map, tol: float, maxiter: Any) -> tuple[Any, Any]:
    """Stabilised bi-conjugate gradients, for any regular A; one iteration has two products."""
    goal = goal_of(b, tol) ** 2
    shadow = b - matvec(x0)
    one = rnp.ones((), dtype_of(b).numpy)
    zero = rnp.zeros_like(b)

    def unfinished(carry: Any) -> Any:
        *_, size, k = carry
        return (size > goal) & (k < maxiter)

    def step(carry: Any) -> Any:
        x, r, p, v, rho, alpha, omega, _, k = carry
        new = dot(shadow, r)
        p = r + divided(new, rho) * divided(alpha, omega) * (p - omega * v)
        p_hat = precondition(p)
        v = matvec(p_hat)
        alpha = divided(new, dot(shadow, v))
        s = r - alpha * v
        s_hat = precondition(s)
        t = matvec(s_hat)
        omega = divided(dot(t, s), dot(t, t))
        x, r = x + alpha * p_hat + omega * s_hat, s - omega * t
        return x, r, p, v, new, alpha, omega, norm2(r), k + 1

    begin = (x0, shadow, zero, zero, one, one, one, norm2(shadow), rnp.int32(0))
    done = rlx.while_loop(unfinished, step, begin)
    return done[0], done[-1]


def minres(matvec: Map, b: Any, x0: Any, precondition: Map, tol: float, maxiter: Any) -> tuple[Any, Any]:
    """Minimal residuals, for Hermitian A that may be indefinite; the preconditioner must be positive definite.

    The Lanczos vectors v are orthogonal in the norm of the preconditioner, and so is the residual that is minimised:
    its size there is what the rotations know, so the residual itself is carried along, too.
    """
    goal = goal_of(b, tol)
    r = b - matvec(x0)
    z = precondition(r)
    beta = rnp.sqrt(rnp.maximum(rnp.real(dot(r, z)), 0.0))
    zero, real = rnp.zeros_like(b), rnp.zeros_like(beta)

    def unfinished(carry: Any) -> Any:
        *_, size, k = carry
        return (size > goal) & (k < maxiter)

    def step(carry: Any) -> Any:
        x, r, v, z, v_old, w, w_old, aw, aw_old, beta, eta, c, c_old, s, s_old, _, k = carry
        unit, direction = divided(v, beta), divided(z, beta)
        product = matvec(direction)
        alpha = rnp.real(dot(direction, product))
        v_new = product - alpha * unit - beta * v_old
        z_new = precondition(v_new)
        beta_new = rnp.sqrt(rnp.maximum(rnp.real(dot(v_new, z_new)), 0.0))
        # Two old rotations act on the new column of the tridiagonal matrix, then a new one makes it upper triangular.
        delta = c * alpha - c_old * s * beta
        diagonal = rnp.sqrt(delta**2 + beta_new**2)
        above, far = s * alpha + c_old * c * beta, s_old * beta
        c_new, s_new = divided(delta, diagonal), divided(beta_new, diagonal)
        w_new = divided(direction - far * w_old - above * w, diagonal)
        aw_new = divided(product - far * aw_old - above * aw, diagonal)
        x, r = x + c_new * eta * w_new, r - c_new * eta * aw_new
        vectors = (x, r, v_new, z_new, unit, w_new, w, aw_new, aw)
        return *vectors, beta_new, -s_new * eta, c_new, c, s_new, s, norm(r), k + 1

    vectors = (x0, r, r, z, *(zero,) * 5)
    begin = (*vectors, beta, beta, real + 1, real + 1, real, real, norm(r), rnp.int32(0))
    done = rlx.while_loop(unfinished, step, begin)
    return done[0], done[-1]


def gmres(matvec: Map, b: Any, x0: Any, precondition: Map, tol: float, maxiter: Any, restart: int) -> tuple[Any, Any]:
    """Generalised minimal residuals, started again after `restart` products; the preconditioner is on the right."""
    from rlx.ops import triangular_solve

    goal = goal_of(b, tol)
    size: Size = b.shape[0]
    dtype = dtype_of(b).numpy
    steps = rnp.arange(restart + 1)

    def cycle(carry: Any) -> Any:
        x, r, _, k = carry
        length = norm(r)
        basis = rnp.zeros((restart + 1, size), dtype).at[0].set(divided(r, length))
        begin = (
            *(basis, rnp.zeros((restart, restart), dtype)),
            *(rnp.zeros((restart,), dtype), rnp.zeros((restart,), dtype)),
            rnp.zeros((restart + 1,), dtype).at[0].set(rnp.astype(length, dtype)),
            *(length, rnp.int32(0), k),
        )
        basis, triangle, _, _, right, _, used, k = rlx.while_loop(expandable, expand, begin)
        # Columns that were not reached are those of the identity.
        is_used = steps[:restart] < used
        triangle = triangle + rnp.diag(rnp.where(is_used, rnp.zeros((), dtype), rnp.ones((), dtype)))
        weights = triangular_solve(triangle, rnp.where(is_used, right[:restart], rnp.zeros((), dtype)), lower=False)
        x = x + precondition(rnp.matmul(weights, basis[:restart]))
        r = b - matvec(x)
        return x, r, norm(r), k

    def expandable(carry: Any) -> Any:
        *_, left, j, k = carry
        return (left > goal) & (j < restart) & (k < maxiter)

    def expand(carry: Any) -> Any:
        basis, triangle, cosines, sines, right, _, j, k = carry
        w = matvec(precondition(basis[j]))
        # Twice is enough: what rounding leaves of the known directions is taken out again.
        column = rnp.zeros((restart + 1,), dtype)
        for _ in range(2):
            known = rnp.matmul(rnp.conj(basis), w)
            w, column = w - rnp.matmul(known, basis), column + known
        height = norm(w)
        basis = basis.at[j + 1].set(divided(w, height))

        def rotate(i: Any, column: Any) -> Any:
            a, b = column[i], column[i + 1]
            turned = column.at[i].set(cosines[i] * a + sines[i] * b)
            return rnp.where(i < j, turned.at[i + 1].set(cosines[i] * b - rnp.conj(sines[i]) * a), column)

        column = rlx.fori_loop(0, restart, rotate, column)
        head = column[j]
        total = rnp.sqrt(rnp.real(head * rnp.conj(head)) + height**2)
        modulus = rnp.abs(head)
        phase = rnp.where(modulus == 0, rnp.ones((), dtype), divided(head, rnp.astype(modulus, dtype)))
        cosine, sine = rnp.astype(divided(modulus, total), dtype), phase * divided(height, total)
        column = rnp.where(steps == j, phase * total, rnp.where(steps < j, column, rnp.zeros((), dtype)))
        here = right[j]
        right = right.at[j].set(cosine * here).at[j + 1].set(-rnp.conj(sine) * here)
        return (
            *(basis, triangle.at[:, j].set(column[:restart])),
            *(cosines.at[j].set(cosine), sines.at[j].set(sine), right),
            *(rnp.abs(right[j + 1]), j + 1, k + 1),
        )

    def unfinished(carry: Any) -> Any:
        _, _, left, k = carry
        return (left > goal) & (k < maxiter)

    r = b - matvec(x0)
    done = rlx.while_loop(unfinished, cycle, (x0, r, norm(r), rnp.int32(0)))
    return done[0], done[-1]


def lsqr(matvec: Map, adjoint: Map, b: Any, x0: Any, scale: Any, tol: float, maxiter: Any) -> tuple[Any, Any]:
    """Least squares by Golub-Kahan bidiagonalisation; stops when |Aᴴ r| has become `MARGIN · tol · scale · |r|`, where
    `scale` is a norm of A, or |r| small beside |b|. From x0 = 0 the solution of least norm."""
    goal = goal_of(b, tol)
    u = b - matvec(x0)
    beta = norm(u)
    u = divided(u, beta)
    v = adjoint(u)
    alpha = norm(v)
    v = divided(v, alpha)

    def unfinished(carry: Any) -> Any:
        _, _, _, _, alpha, _, cosine, phi, k = carry
        # |r| = phi and |Aᴴ r| = phi · alpha · cosine.
        small = (phi <= goal) | (alpha * cosine <= (MARGIN * tol) * scale)
        return ~small & (k < maxiter) & (phi == phi)

    def step(carry: Any) -> Any:
        x, u, v, w, alpha, rho_bar, _, phi, k = carry
        u = matvec(v) - alpha * u
        beta = norm(u)
        u = divided(u, beta)
        v = adjoint(u) - beta * v
        alpha = norm(v)
        v = divided(v, alpha)
        rho = rnp.sqrt(rho_bar**2 + beta**2)
        c, s = divided(rho_bar, rho), divided(beta, rho)
        x = x + divided(c * phi, rho) * w
        w = v - divided(s * alpha, rho) * w
        return x, u, v, w, alpha, -c * alpha, rnp.abs(c), s * phi, k + 1

    done = rlx.while_loop(unfinished, step, (x0, u, v, v, alpha, alpha, rnp.ones_like(beta), beta, rnp.int32(0)))
    return done[0], done[-1]
