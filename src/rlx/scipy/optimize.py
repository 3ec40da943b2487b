"""Minima of functions, under the name of `scipy.optimize`: one compiled loop, which `vmap` runs for many starts.

>>> import numpy as np
>>> minimize(lambda x: (x[0] - 1.0) ** 2 + (x[1] + 2.0) ** 2, np.zeros(2, "f4"), method="BFGS").x.round(3).tolist()
[1.0, -2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx.errors import OpError, ShapeError
from rlx.numpy.arguments import inexact
from rlx.ops.define.operands import dims_of, dtype_of

__all__ = ["OptimizeResults", "minimize"]


class OptimizeResults(NamedTuple):
    """Where the search ended: `status` is 0 where the gradient is small enough, 1 after `maxiter` steps, 3 where no
    step along the line made the function smaller."""

    x: Any
    success: Any
    status: Any
    fun: Any
    jac: Any
    hess_inv: Any
    nfev: Any
    njev: Any
    nit: Any


# A step must gain this share of what the slope promises, and flatten the slope to this share (Wolfe's conditions).
_GAIN, _FLATTER = 1e-4, 0.9


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """A minimum of `fun(x, *args)` near the vector x0 by the method "BFGS".

    `options` are `maxiter` (200 per element), `gtol` (1e-5, or `tol`), the largest entry of the gradient at the end (of
    its norm of the order `norm`), and `line_search_maxiter` (30).
    """
    if not isinstance(args, tuple):
        raise OpError(f"minimize: args is a tuple of what follows x, got {args!r}")
    if str(method).lower() != "bfgs":
        raise OpError(f"minimize: the method is 'BFGS', got {method!r}")
    chosen: dict[str, Any] = {
        "maxiter": None,
        "gtol": 1e-5 if tol is None else tol,
        "norm": np.inf,
        "line_search_maxiter": 30,
    }
    unknown = {*(options or {})} - {*chosen}
    if unknown:
        raise OpError(f"minimize: there is no option {', '.join(sorted(unknown))}; there are {', '.join(chosen)}")
    chosen |= options or {}
    (x0,) = inexact(x0)
    if len(dims_of(x0)) != 1:
        raise ShapeError(f"minimize: x0 must be a vector, got shape {dims_of(x0)}; see rlx.flatten_util.ravel_pytree")
    return _bfgs(lambda x: fun(x, *args), x0, **chosen)


class _State(NamedTuple):
    x: Any
    f: Any
    g: Any
    inverse: Any
    steps: Any
    calls: Any
    has_failed: Any


def _bfgs(
    fun: Callable[[Any], Any], x0: Any, maxiter: int | None, gtol: float, norm: Any, line_search_maxiter: int
) -> OptimizeResults:
    size = dims_of(x0)[0]
    most = 200 * size if maxiter is None else maxiter
    value_and_slope = rlx.value_and_grad(fun)
    unit = rnp.eye(size, dtype=dtype_of(x0))

    def length(g: Any) -> Any:
        return rnp.linalg.norm(g, ord=norm)

    def unfinished(s: _State) -> Any:
        return (length(s.g) > gtol) & (s.steps < most) & rnp.logical_not(s.has_failed)

    def step(s: _State) -> _State:
        direction = -(s.inverse @ s.g)
        t, f, g, calls, is_good = _line_search(value_and_slope, s, direction, line_search_maxiter)
        moved, turned = t * direction, g - s.g
        curvature = turned @ moved
        rho = rnp.where(curvature > 0, 1 / rnp.where(curvature > 0, curvature, 1), 0)
        left = unit - rho * rnp.outer(moved, turned)
        inverse = left @ s.inverse @ left.T + rho * rnp.outer(moved, moved)
        inverse = rnp.where(curvature > 0, inverse, s.inverse)
        return _State(s.x + moved, f, g, inverse, s.steps + 1, s.calls + calls, rnp.logical_not(is_good))

    f0, g0 = value_and_slope(x0)
    zero, one = rnp.asarray(0, "i32"), rnp.asarray(1, "i32")
    end = rlx.while_loop(unfinished, step, _State(x0, f0, g0, unit, zero, one, rnp.asarray(False)))
    converged = length(end.g) <= gtol
    status = rnp.where(converged, 0, rnp.where(end.has_failed, 3, 1))
    return OptimizeResults(
        end.x, converged, status, end.f, end.g, end.inverse, nfev=end.calls, njev=end.calls, nit=end.steps
    )


def _line_search(value_and_slope: Callable[[Any], Any], s: _State, direction: Any, most: int) -> tuple[Any, ...]:
    """A step length that meets both of Wolfe's conditions, by halving and doubling: `(t, f, gradient, calls, found)`.

    Where rounding leaves no such step, any that makes the function no larger is taken.
    """
    slope = s.g @ direction

    def gains(t: Any, f: Any) -> Any:
        return f <= s.f + _GAIN * t * slope

    def is_flat(g: Any) -> Any:
        return g @ direction >= _FLATTER * slope

    def unfinished(state: Any) -> Any:
        t, _, _, f, g, calls = state
        return rnp.logical_not(gains(t, f) & is_flat(g)) & (calls < most)

    def nearer(state: Any) -> Any:
        t, low, high, f, g, calls = state
        low, high = rnp.where(gains(t, f), t, low), rnp.where(gains(t, f), high, t)
        t = rnp.where(rnp.isinf(high), 2 * low, (low + high) / 2)
        f, g = value_and_slope(s.x + t * direction)
        return t, low, high, f, g, calls + 1

    t = rnp.ones_like(s.f)
    f, g = value_and_slope(s.x + t * direction)
    start = (t, rnp.zeros_like(t), rnp.full_like(t, np.inf), f, g, rnp.asarray(1, "i32"))
    t, _, _, f, g, calls = rlx.while_loop(unfinished, nearer, start)
    found = f <= s.f
    return rnp.where(found, t, 0), rnp.where(found, f, s.f), rnp.where(found, g, s.g), calls, found & (f < s.f)
