"""Steps measured by the size that gradients have had: RMSProp, Adagrad, Adamax, RAdam."""

from __future__ import annotations

from typing import Any, NamedTuple

import rlx.numpy as rnp
from rlx import tree
from rlx.optim.combinators import chain
from rlx.optim.moments import AdamState, correction, like, running_mean, times, trace, with_lookahead, zeros_like
from rlx.optim.transformation import (
    GradientTransformation,
    Rate,
    number_in,
    scale_by_learning_rate,
    stateful,
    zero_count,
)

__all__ = ["RmsState", "SumOfSquaresState", "adagrad", "adamax", "radam", "rmsprop", "scale_by_adamax"]
__all__ += ["scale_by_radam", "scale_by_rms", "scale_by_rss"]


class RmsState(NamedTuple):
    """The running mean of the squares, and that of the gradient, or None where it is not needed."""

    nu: Any
    mu: Any


class SumOfSquaresState(NamedTuple):
    """The sum of the squares of all gradients."""

    sum_of_squares: Any


def _constants(params: Any, value: float) -> Any:
    return tree.map(lambda p: rnp.full(rnp.shape(p), value, rnp.asarray(p).dtype), params)


def scale_by_rms(
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    *,
    centered: bool = False,
) -> GradientTransformation:
    """g/√(v + eps) with the running mean v of g², or g/(√v + eps); `centered` takes the square of the mean off v."""
    number_in("scale_by_rms", "decay", decay, 0, 1)

    def init(params: Any) -> RmsState:
        return RmsState(_constants(params, initial_scale), zeros_like(params) if centered else None)

    def update(gradients: Any, state: RmsState, params: Any = None) -> tuple[Any, RmsState]:
        nu = running_mean(state.nu, tree.map(rnp.square, gradients), decay)
        mu = running_mean(state.mu, gradients, decay) if centered else None
        spread = tree.map(lambda v, m: v - rnp.square(m), nu, mu) if centered else nu

        def scaled(g: Any, v: Any) -> Any:
            return g / rnp.sqrt(v + eps) if eps_in_sqrt else g / (rnp.sqrt(v) + eps)

        kept = RmsState(like(nu, state.nu), like(mu, state.mu) if centered else None)
        return tree.map(scaled, gradients, spread), kept

    return stateful("scale_by_rms", RmsState, init, update)


def scale_by_rss(initial_accumulator_value: float = 0.1, eps: float = 1e-7) -> GradientTransformation:
    """g/√(s + eps) with the sum s of all g² so far; 0 where s is."""

    def init(params: Any) -> SumOfSquaresState:
        return SumOfSquaresState(_constants(params, initial_accumulator_value))

    def update(gradients: Any, state: SumOfSquaresState, params: Any = None) -> tuple[Any, SumOfSquaresState]:
        sums = tree.map(lambda g, s: rnp.square(g) + rnp.astype(s, g.dtype), gradients, state.sum_of_squares)
        updates = tree.map(lambda g, s: rnp.where(s > 0, g / rnp.sqrt(s + eps), 0.0), gradients, sums)
        return updates, SumOfSquaresState(like(sums, state.sum_of_squares))

    return stateful("scale_by_rss", SumOfSquaresState, init, update)


def scale_by_adamax(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> GradientTransformation:
    """m/u with the corrected running mean m of the gradient and u = max(|g| + eps, b2·u)."""
    for name, value in (("b1", b1), ("b2", b2)):
        number_in("scale_by_adamax", name, value, 0, 1)

    def init(params: Any) -> AdamState:
        return AdamState(zero_count(), zeros_like(params), zeros_like(params))

    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        count = state.count + 1
        mu = running_mean(state.mu, gradients, b1)
        nu = tree.map(lambda g, u: rnp.maximum(rnp.abs(g) + eps, b2 * rnp.astype(u, g.dtype)), gradients, state.nu)
        updates = tree.map(lambda m, u: m / u, times(mu, correction(b1, count)), nu)
        return updates, AdamState(count, like(mu, state.mu), like(nu, state.nu))

    return stateful("scale_by_adamax", AdamState, init, update)


def scale_by_radam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam's direction once the mean of squares is one of enough gradients, the plain mean before (Liu et al. 2019)."""
    for name, value in (("b1", b1), ("b2", b2)):
        number_in("scale_by_radam", name, value, 0, 1)
    most = 2.0 / (1.0 - b2) - 1.0

    def init(params: Any) -> AdamState:
        return AdamState(zero_count(), zeros_like(params), zeros_like(params))

    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        count = state.count + 1
        mu = running_mean(state.mu, gradients, b1)
        nu = running_mean(state.nu, tree.map(rnp.square, gradients), b2)
        m = with_lookahead(mu, gradients, b1, count) if nesterov else times(mu, correction(b1, count))
        v = times(nu, correction(b2, count))
        decayed = rnp.power(b2, rnp.asarray(count, dtype="f64"))
        # How many gradients the mean of squares stands for.
        length = most - 2.0 * rnp.asarray(count, dtype="f64") * decayed / (1.0 - decayed)
        is_enough = length >= threshold
        safe = rnp.where(is_enough, length, most)
        factor = rnp.sqrt((safe - 4.0) * (safe - 2.0) * most / ((most - 4.0) * (most - 2.0) * safe))

        def direction(m: Any, v: Any) -> Any:
            scaled = rnp.astype(factor, m.dtype) * m / (rnp.sqrt(v + eps_root) + eps)
            return rnp.where(is_enough, scaled, m)

        return tree.map(direction, m, v), AdamState(count, like(mu, state.mu), like(nu, state.nu))

    return stateful("scale_by_radam", AdamState, init, update)


def rmsprop(
    learning_rate: Rate,
    decay: float = 0.9,
    eps: float = 1e-8,
    initial_scale: float = 0.0,
    eps_in_sqrt: bool = True,
    centered: bool = False,
    momentum: float | None = None,
    nesterov: bool = False,
) -> GradientTransformation:
    """Steps divided by the running root mean square of the gradient (Hinton 2012), then summed up with momentum."""
    parts = [scale_by_rms(decay, eps, initial_scale, eps_in_sqrt, centered=centered)]
    parts.append(scale_by_learning_rate(learning_rate))
    if momentum is not None:
        parts.append(trace(momentum, nesterov))
    return chain(*parts)


def adagrad(learning_rate: Rate, initial_accumulator_value: float = 0.1, eps: float = 1e-7) -> GradientTransformation:
    """Steps divided by the root of the sum of all squares so far, for sparse gradients (Duchi et al. 2011)."""
    return chain(scale_by_rss(initial_accumulator_value, eps), scale_by_learning_rate(learning_rate))


def adamax(learning_rate: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> GradientTransformation:
    """Adam by the largest gradient instead of the mean of squares (Kingma and Ba 2014)."""
    return chain(scale_by_adamax(b1, b2, eps), scale_by_learning_rate(learning_rate))


def radam(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    threshold: float = 5.0,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """Adam that begins as momentum, which replaces a warmup (Liu et al. 2019)."""
    direction = scale_by_radam(b1, b2, eps, eps_root, threshold, nesterov=nesterov)
    return chain(direction, scale_by_learning_rate(learning_rate))
