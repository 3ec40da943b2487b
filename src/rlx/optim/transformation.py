"""The pair of functions that everything in `rlx.optim` is, and those pairs that keep no moments.

`init(params)` makes the state, `update(gradients, state, params)` gives what is to be added to the parameters (or
handed to the next part of a chain) and the state after it. Both are pure and can be traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import tree
from rlx.errors import OpError
from rlx.optim.schedules import Schedule

__all__ = [
    "EmptyState",
    "GradientTransformation",
    "Optimizer",
    "ScaleByScheduleState",
    "add_decayed_weights",
    "apply_updates",
    "clip",
    "clip_by_block_rms",
    "clip_by_global_norm",
    "global_norm",
    "identity",
    "scale",
    "scale_by_learning_rate",
    "scale_by_param_block_rms",
    "scale_by_schedule",
    "scale_by_trust_ratio",
]

# A tree of bools with the structure of the parameters (or of the top of it), or a function of them that gives one.
Mask = Any
Rate = float | Schedule


class GradientTransformation(NamedTuple):
    """`init(params) -> state` and `update(gradients, state, params=None) -> (updates, state)`."""

    init: Callable[[Any], Any]
    update: Callable[..., tuple[Any, Any]]


Optimizer = GradientTransformation


class EmptyState(NamedTuple):
    """The state of what has none."""


class ScaleByScheduleState(NamedTuple):
    """How many updates there were."""

    count: Any


def stateless(function: Callable[[Any, Any], Any]) -> GradientTransformation:
    """The transformation that applies `function(updates, params)` and remembers nothing."""

    def init(params: Any) -> EmptyState:
        return EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return function(updates, params), state

    return GradientTransformation(init, update)


def stateful(
    what: str, kind: type, init: Callable[[Any], Any], update: Callable[..., tuple[Any, Any]]
) -> GradientTransformation:
    """The transformation whose states are of one type; those of others are refused by name."""

    def checked(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if not isinstance(state, kind):
            raise OpError(
                f"{what}: its state has the type {kind.__name__}, got {type(state).__name__}; make it by init(params)"
            )
        return update(updates, state, params)

    return GradientTransformation(init, checked)


def needed(params: Any, what: str) -> Any:
    """`params`, which an update was called with."""
    if params is None:
        raise OpError(f"{what}: it looks at the parameters; call update(gradients, state, params)")
    return params


def number_in(what: str, name: str, value: Any, low: float, high: float = math.inf) -> Any:
    """A setting that must lie in [low, high). Schedules, and values that a program is given, are not known here."""
    if callable(value) or isinstance(value, rlx.Tensor):
        return value
    if not isinstance(value, (int, float, np.number, np.ndarray)) or np.ndim(value):
        raise OpError(f"{what}: {name} must be a number, got {value!r:.60}")
    if low <= value < high:
        return value
    limits = f"at least {low:g}" + (f" and below {high:g}" if high < math.inf else "")
    raise OpError(f"{what}: {name} must be {limits}, got {value}")


def zero_count() -> Any:
    return rnp.zeros((), "i32")


def apply_updates(params: Any, updates: Any) -> Any:
    """`params + updates`, leaf by leaf, each in the dtype of the parameter."""
    return tree.map(lambda p, u: rnp.astype(rnp.asarray(p) + u, rnp.asarray(p).dtype), params, updates)


def identity() -> GradientTransformation:
    """Gradients as they are."""
    return stateless(lambda updates, params: updates)


def scale(factor: float) -> GradientTransformation:
    """Updates times a number."""
    return stateless(lambda updates, params: tree.map(lambda u: factor_like(u, factor) * u, updates))


def factor_like(x: Any, factor: Any) -> Any:
    """A number that multiplies x without changing its dtype, also where it is an argument of the program."""
    return rnp.asarray(factor, dtype=x.dtype) if isinstance(factor, rlx.Tensor) else factor


def scale_by_schedule(schedule: Schedule) -> GradientTransformation:
    """Updates times `schedule(count)`, where count is 0 at the first update."""

    def init(params: Any) -> ScaleByScheduleState:
        return ScaleByScheduleState(zero_count())

    def update(updates: Any, state: ScaleByScheduleState, params: Any = None) -> tuple[Any, ScaleByScheduleState]:
        factor = schedule(state.count)
        scaled = tree.map(lambda u: rnp.asarray(factor, dtype=u.dtype) * u, updates)
        return scaled, ScaleByScheduleState(state.count + 1)

    return stateful("scale_by_schedule", ScaleByScheduleState, init, update)


def scale_by_learning_rate(rate: Rate, *, flip_sign: bool = True) -> GradientTransformation:
    """Updates times minus the rate: a step downhill. With `flip_sign=False` times the rate."""
    number_in("learning rate", "rate", rate, -math.inf)
    sign = -1 if flip_sign else 1
    if callable(rate):
        return scale_by_schedule(lambda count: sign * rate(count))
    return scale(sign * rate)


def global_norm(tree_of_arrays: Any) -> Any:
    """The square root of the sum of the squares of all elements of all leaves, summed in f32 at least."""
    leaves = tree.leaves(tree_of_arrays)
    squares = [rnp.sum(rnp.square(rnp.astype(x, rnp.promote_types(x.dtype, "f32")))) for x in leaves]
    total = squares[0] if squares else rnp.zeros((), "f32")
    for square in squares[1:]:
        total = total + square
    return rnp.sqrt(total)


def clip_by_global_norm(max_norm: float) -> GradientTransformation:
    """Updates as they are while their global norm is below `max_norm`; else scaled down to it, all by one factor."""
    number_in("clip_by_global_norm", "max_norm", max_norm, 0)

    def clipped(updates: Any, params: Any) -> Any:
        norm = global_norm(updates)
        # One factor for all leaves, so that each is read once, with its optimiser step.
        factor = rnp.where(norm < max_norm, 1.0, max_norm / norm)
        return tree.map(lambda u: u * rnp.astype(factor, u.dtype), updates)

    return stateless(clipped)


def clip(max_delta: float) -> GradientTransformation:
    """Every element limited to [-max_delta, max_delta]."""
    number_in("clip", "max_delta", max_delta, 0)
    return stateless(lambda updates, params: tree.map(lambda u: rnp.clip(u, -max_delta, max_delta), updates))


def _rms(x: Any) -> Any:
    return rnp.sqrt(rnp.mean(rnp.square(x)))


def clip_by_block_rms(threshold: float) -> GradientTransformation:
    """Each leaf scaled down to a root mean square of `threshold` where it has more."""
    number_in("clip_by_block_rms", "threshold", threshold, 0)

    def clipped(updates: Any, params: Any) -> Any:
        return tree.map(lambda u: u / rnp.maximum(1.0, _rms(u) / threshold), updates)

    return stateless(clipped)


def scale_by_param_block_rms(min_scale: float = 1e-3) -> GradientTransformation:
    """Each leaf times the root mean square of its parameter, which counts as `min_scale` at least."""

    def scaled(updates: Any, params: Any) -> Any:
        known = needed(params, "scale_by_param_block_rms")
        return tree.map(lambda u, p: u * rnp.maximum(_rms(p), min_scale), updates, known)

    return stateless(scaled)


def scale_by_trust_ratio(min_norm: float = 0.0, trust_coefficient: float = 1.0, eps: float = 0.0) -> Any:
    """Each leaf times |parameter|/|update| (You et al. 2019); as it is where one of them is 0."""

    def scaled_leaf(u: Any, p: Any) -> Any:
        p_norm, u_norm = (rnp.maximum(rnp.sqrt(rnp.sum(rnp.square(x))), min_norm) for x in (p, u))
        is_zero = rnp.logical_or(p_norm == 0, u_norm == 0)
        ratio = trust_coefficient * p_norm / rnp.where(is_zero, 1.0, u_norm + eps)
        return u * rnp.where(is_zero, 1.0, ratio)

    return stateless(lambda updates, params: tree.map(scaled_leaf, updates, needed(params, "scale_by_trust_ratio")))


def add_decayed_weights(weight_decay: Rate = 0.0, mask: Mask = None) -> GradientTransformation:
    """Updates plus `weight_decay` times the parameters; with a mask, only where it is True."""
    from rlx.optim.combinators import chain, masked

    if mask is not None:
        return masked(add_decayed_weights(weight_decay), mask)
    number_in("add_decayed_weights", "weight_decay", weight_decay, 0)
    if not callable(weight_decay):

        def decayed(updates: Any, params: Any) -> Any:
            known = needed(params, "add_decayed_weights")
            return tree.map(lambda u, p: u + factor_like(p, weight_decay) * p, updates, known)

        is_off = not isinstance(weight_decay, rlx.Tensor) and weight_decay == 0
        return chain() if is_off else stateless(decayed)

    schedule = weight_decay

    def init(params: Any) -> ScaleByScheduleState:
        return ScaleByScheduleState(zero_count())

    def update(updates: Any, state: ScaleByScheduleState, params: Any = None) -> tuple[Any, ScaleByScheduleState]:
        factor = schedule(state.count)
        known = needed(params, "add_decayed_weights")
        decayed = tree.map(lambda u, p: u + rnp.asarray(factor, dtype=u.dtype) * p, updates, known)
        return decayed, ScaleByScheduleState(state.count + 1)

    return stateful("add_decayed_weights", ScaleByScheduleState, init, update)
