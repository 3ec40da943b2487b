"""Muon's scaling: the running mean of a matrix gradient, with all its singular values brought near 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import rlx.numpy as rnp
from rlx import tree
from rlx.errors import OpError
from rlx.optim.moments import correction, like, running_mean, times, with_lookahead, zeros_like
from rlx.optim.transformation import GradientTransformation, number_in, stateful, stateless, zero_count

__all__ = ["MuonState", "orthogonalize", "scale_by_muon", "scale_by_shape"]

# The quintic a·x + b·x³ + c·x⁵ with the steepest rise at 0 that keeps singular values near 1 (Jordan 2024).
QUINTIC = (3.4445, -4.7750, 2.0315)


class MuonState(NamedTuple):
    """The number of updates and the running mean of the gradient."""

    count: Any
    mu: Any


def orthogonalize(x: Any, steps: int = 5, coefficients: Sequence[float] = QUINTIC, eps: float = 1e-8) -> Any:
    """A matrix with the singular vectors of x and singular values near 1, by Newton-Schulz steps: products only."""
    if len(x.shape) != 2:
        raise OpError(f"orthogonalize: a matrix is needed, got the shape {tuple(x.shape)}")
    a, b, c = coefficients
    is_tall = x.shape[0] > x.shape[1]
    # The products are of the shorter side, so a tall matrix is turned first.
    y = x.T if is_tall else x
    y = y / (rnp.sqrt(rnp.sum(rnp.square(y))) + eps)
    for _ in range(steps):
        gram = y @ y.T
        y = a * y + (b * gram + c * (gram @ gram)) @ y
    return y.T if is_tall else y


def scale_by_muon(
    steps: int = 5,
    coefficients: Sequence[float] = QUINTIC,
    beta: float = 0.95,
    eps: float = 1e-8,
    mu_dtype: Any = None,
    *,
    nesterov: bool = True,
) -> GradientTransformation:
    """The running mean of each gradient, orthogonalised; every leaf must be a matrix."""
    number_in("scale_by_muon", "beta", beta, 0, 1)

    def init(params: Any) -> MuonState:
        return MuonState(zero_count(), zeros_like(params, mu_dtype))

    def update(gradients: Any, state: MuonState, params: Any = None) -> tuple[Any, MuonState]:
        count = state.count + 1
        mu = running_mean(state.mu, gradients, beta)
        mean = with_lookahead(mu, gradients, beta, count) if nesterov else times(mu, correction(beta, count))
        updates = tree.map(lambda m: orthogonalize(m, steps, coefficients, eps), mean)
        return updates, MuonState(count, like(mu, state.mu))

    return stateful("scale_by_muon", MuonState, init, update)


def scale_by_shape(consistent_rms: float | None = None) -> GradientTransformation:
    """Matrices [in, out] times √max(1, out/in); or times consistent_rms·√max(in, out), an update of that size."""

    def factor(shape: Sequence[int]) -> float:
        inputs, outputs = shape
        if consistent_rms is None:
            return float(max(1.0, outputs / max(inputs, 1)) ** 0.5)
        return float(max(inputs, outputs) ** 0.5 * consistent_rms)

    return stateless(lambda updates, params: tree.map(lambda u: u * factor(u.shape), updates))
