"""Running means of gradients and of their squares: momentum, Adam's and Lion's directions, and averages of trees."""

from __future__ import annotations

from typing import Any, NamedTuple

import rlx.numpy as rnp
from rlx import tree
from rlx.optim.transformation import GradientTransformation, number_in, stateful, zero_count

__all__ = [
    "AdaDeltaState",
    "AdamState",
    "EmaState",
    "LionState",
    "TraceState",
    "ema",
    "scale_by_adadelta",
    "scale_by_adam",
    "scale_by_belief",
    "scale_by_lion",
    "trace",
]


class TraceState(NamedTuple):
    """The decayed sum of the gradients."""

    trace: Any


class AdamState(NamedTuple):
    """The number of updates and the running means of the gradient and of its square."""

    count: Any
    mu: Any
    nu: Any


class LionState(NamedTuple):
    """The running mean of the gradient."""

    mu: Any


class AdaDeltaState(NamedTuple):
    """The running means of the squares of the gradient and of the update."""

    e_g: Any
    e_x: Any


class EmaState(NamedTuple):
    """The number of updates and the running mean, not corrected."""

    count: Any
    ema: Any


def zeros_like(params: Any, dtype: Any = None) -> Any:
    """A tree of zeros, in one dtype or in those of the parameters."""
    return tree.map(lambda p: rnp.zeros(rnp.shape(p), rnp.asarray(p).dtype if dtype is None else dtype), params)


def running_mean(old: Any, new: Any, decay: float) -> Any:
    """decay·old + (1 - decay)·new, leaf by leaf, in the dtype of what is new."""
    return tree.map(lambda m, x: (1 - decay) * x + decay * rnp.astype(m, x.dtype), old, new)


def like(values: Any, old: Any) -> Any:
    """`values` in the dtypes of `old`, so that a state has the same type after every update."""
    return tree.map(lambda x, before: rnp.astype(x, before.dtype), values, old)


def correction(decay: float, count: Any) -> Any:
    """1/(1 - decay^count): what a running mean that began at 0 lacks. In f64, for 1 - 0.999 loses digits in f32."""
    return 1.0 / (1.0 - rnp.power(decay, rnp.asarray(count, dtype="f64")))


def times(values: Any, factor: Any) -> Any:
    return tree.map(lambda x: x * rnp.astype(factor, x.dtype), values)


def with_lookahead(mu: Any, gradients: Any, decay: float, count: Any) -> Any:
    """The corrected mean one update ahead, which takes the newest gradient once more (Nesterov; Dozat 2016)."""
    ahead, now = correction(decay, count + 1), correction(decay, count)
    return running_mean(times(mu, ahead), times(gradients, now), decay)


def trace(decay: float, nesterov: bool = False, accumulator_dtype: Any = None) -> GradientTransformation:
    """Momentum: t = g + decay·t. The update is t, or g + decay·t with `nesterov`."""
    number_in("trace", "decay", decay, 0)

    def init(params: Any) -> TraceState:
        return TraceState(zeros_like(params, accumulator_dtype))

    def added(gradients: Any, sums: Any) -> Any:
        return tree.map(lambda g, t: g + decay * rnp.astype(t, g.dtype), gradients, sums)

    def update(gradients: Any, state: TraceState, params: Any = None) -> tuple[Any, TraceState]:
        sums = added(gradients, state.trace)
        return added(gradients, sums) if nesterov else sums, TraceState(like(sums, state.trace))

    return stateful("trace", TraceState, init, update)


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> GradientTransformation:
    """m/(√(v + eps_root) + eps), with the corrected running means m of the gradient and v of its square."""
    for name, value in (("b1", b1), ("b2", b2)):
        number_in("scale_by_adam", name, value, 0, 1)

    def init(params: Any) -> AdamState:
        return AdamState(zero_count(), zeros_like(params, mu_dtype), zeros_like(params))

    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        count = state.count + 1
        mu = running_mean(state.mu, gradients, b1)
        nu = running_mean(state.nu, tree.map(rnp.square, gradients), b2)
        m = with_lookahead(mu, gradients, b1, count) if nesterov else times(mu, correction(b1, count))
        v = times(nu, correction(b2, count))
        updates = tree.map(lambda m, v: m / (rnp.sqrt(v + eps_root) + eps), m, v)
        return updates, AdamState(count, like(mu, state.mu), like(nu, state.nu))

    return stateful("scale_by_adam", AdamState, init, update)


def scale_by_belief(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-16, eps_root: float = 1e-16, *, nesterov: bool = False
) -> GradientTransformation:
    """m/(√s + eps), s being the corrected running mean of (g - m)²: small where the gradient is as expected."""
    for name, value in (("b1", b1), ("b2", b2)):
        number_in("scale_by_belief", name, value, 0, 1)

    def init(params: Any) -> AdamState:
        return AdamState(zero_count(), zeros_like(params), zeros_like(params))

    def update(gradients: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        count = state.count + 1
        mu = running_mean(state.mu, gradients, b1)
        surprise = tree.map(lambda g, m: rnp.square(g - m), gradients, mu)
        nu = tree.map(lambda v: v + eps_root, running_mean(state.nu, surprise, b2))
        m = with_lookahead(mu, gradients, b1, count) if nesterov else times(mu, correction(b1, count))
        updates = tree.map(lambda m, v: m / (rnp.sqrt(v) + eps), m, times(nu, correction(b2, count)))
        return updates, AdamState(count, like(mu, state.mu), like(nu, state.nu))

    return stateful("scale_by_belief", AdamState, init, update)


def scale_by_adadelta(rho: float = 0.9, eps: float = 1e-6) -> GradientTransformation:
    """The gradient times the ratio of the sizes of past updates and gradients, so that it needs no rate."""
    number_in("scale_by_adadelta", "rho", rho, 0, 1)

    def init(params: Any) -> AdaDeltaState:
        return AdaDeltaState(zeros_like(params), zeros_like(params))

    def update(gradients: Any, state: AdaDeltaState, params: Any = None) -> tuple[Any, AdaDeltaState]:
        e_g = running_mean(state.e_g, tree.map(rnp.square, gradients), rho)
        updates = tree.map(lambda g, v, x: rnp.sqrt(x + eps) / rnp.sqrt(v + eps) * g, gradients, e_g, state.e_x)
        e_x = running_mean(state.e_x, tree.map(rnp.square, updates), rho)
        return updates, AdaDeltaState(like(e_g, state.e_g), like(e_x, state.e_x))

    return stateful("scale_by_adadelta", AdaDeltaState, init, update)


def scale_by_lion(b1: float = 0.9, b2: float = 0.99, mu_dtype: Any = None) -> GradientTransformation:
    """The sign of the gradient mixed with its running mean (Chen et al. 2023)."""
    for name, value in (("b1", b1), ("b2", b2)):
        number_in("scale_by_lion", name, value, 0, 1)

    def init(params: Any) -> LionState:
        return LionState(zeros_like(params, mu_dtype))

    def update(gradients: Any, state: LionState, params: Any = None) -> tuple[Any, LionState]:
        updates = tree.map(rnp.sign, running_mean(state.mu, gradients, b1))
        return updates, LionState(like(running_mean(state.mu, gradients, b2), state.mu))

    return stateful("scale_by_lion", LionState, init, update)


def ema(decay: float, debias: bool = True, accumulator_dtype: Any = None) -> GradientTransformation:
    """The running mean of whatever comes in: of gradients in a chain, or of the parameters beside the training.

        average = rlx.optim.ema(0.999)
        state = average.init(params)
        smooth_params, state = average.update(params, state)

    `debias` divides by 1 - decay^count, so that the mean is one from the first update on.
    """
    number_in("ema", "decay", decay, 0, 1)

    def init(params: Any) -> EmaState:
        return EmaState(zero_count(), zeros_like(params, accumulator_dtype))

    def update(values: Any, state: EmaState, params: Any = None) -> tuple[Any, EmaState]:
        count = state.count + 1
        mean = running_mean(state.ema, values, decay)
        result = times(mean, correction(decay, count)) if debias else mean
        return result, EmaState(count, like(mean, state.ema))

    return stateful("ema", EmaState, init, update)
