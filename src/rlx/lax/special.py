"""Special functions under the names of `jax.lax`; `rlx.scipy.special` has them under SciPy's. They load when used."""

from __future__ import annotations

from typing import Any

from rlx import ops


def igamma(a: Any, x: Any) -> Any:
    """The lower incomplete gamma function, regularised."""
    from rlx.scipy.incomplete import gammainc

    return gammainc(a, x)


def igammac(a: Any, x: Any) -> Any:
    """The upper incomplete gamma function, regularised."""
    from rlx.scipy.incomplete import gammaincc

    return gammaincc(a, x)


def igamma_grad_a(a: Any, x: Any) -> Any:
    """The derivative of `igamma` in its parameter."""
    from rlx.autodiff import jvp

    a, x = ops.add(a, ops.mul(x, 0.0)), ops.add(x, ops.mul(a, 0.0))
    return jvp(lambda a: igamma(a, x), (a,), (ops.ones_like(a),))[1]


def betainc(a: Any, b: Any, x: Any) -> Any:
    """The incomplete beta function, regularised."""
    from rlx.scipy.incomplete import betainc

    return betainc(a, b, x)


def bessel_i0e(x: Any) -> Any:
    """e^-|x|·I0(x)."""
    from rlx.scipy.bessel import i0e

    return i0e(x)


def bessel_i1e(x: Any) -> Any:
    """e^-|x|·I1(x)."""
    from rlx.scipy.bessel import i1e

    return i1e(x)


def polygamma(m: Any, x: Any) -> Any:
    """The m-th derivative of digamma."""
    from rlx.scipy.hypergeometric import polygamma

    return polygamma(m, x)


def zeta(x: Any, q: Any) -> Any:
    """Hurwitz's zeta function."""
    from rlx.scipy.hypergeometric import zeta

    return zeta(x, q)
