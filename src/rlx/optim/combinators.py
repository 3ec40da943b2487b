"""Transformations made of others: one after another, on a part of the parameters, once in several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import rlx.numpy as rnp
from rlx import tree
from rlx.errors import OpError
from rlx.optim.moments import like, zeros_like
from rlx.optim.transformation import GradientTransformation, Mask, stateful, zero_count

__all__ = ["AccumulateState", "MaskedState", "accumulate", "chain", "masked", "partition"]


class MaskedState(NamedTuple):
    """The state of the inner transformation, whose trees have None in the place of what it does not see."""

    inner: Any


class AccumulateState(NamedTuple):
    """The gradients gathered so far, their mean, the updates made, and the state of the inner transformation."""

    mini_step: Any
    gradient_step: Any
    mean: Any
    inner: Any


def chain(*parts: GradientTransformation) -> GradientTransformation:
    """The parts one after another; the state is a tuple of theirs."""

    def init(params: Any) -> tuple[Any, ...]:
        return tuple(part.init(params) for part in parts)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, tuple[Any, ...]]:
        if len(state) != len(parts):
            raise OpError(f"chain: it has {len(parts)} parts, the state has {len(state)}; make it by init(params)")
        states = []
        for part, old in zip(parts, state):
            updates, new = part.update(updates, old, params)
            states.append(new)
        return updates, tuple(states)

    return GradientTransformation(init, update)


def _selected(mask: Mask, params: Any) -> list[bool]:
    """One bool per leaf of `params`; a bool of the mask counts for everything below its place."""
    chosen = mask(params) if callable(mask) else mask
    flags, structure = tree.flatten(chosen)
    strange = [flag for flag in flags if not isinstance(flag, (bool, np.bool_))]
    if strange:
        raise OpError(f"masked: a mask is a tree of True and False, got {strange[0]!r}")
    parts = structure.flatten_up_to(params)
    return [bool(flag) for flag, part in zip(flags, parts) for _ in tree.leaves(part)]


def _kept(values: Any, flags: list[bool]) -> Any:
    leaves, structure = tree.flatten(values)
    return structure.unflatten(x if flag else None for x, flag in zip(leaves, flags))


def masked(inner: GradientTransformation, mask: Mask) -> GradientTransformation:
    """`inner` for the parameters whose mask is True; the updates of the others pass as they are.

    The mask is a tree of bools with the structure of the parameters or of its top, or a function of them:

        rlx.optim.masked(decay, lambda params: rlx.tree.map(lambda p: p.ndim > 1, params))
    """

    def init(params: Any) -> MaskedState:
        return MaskedState(inner.init(_kept(params, _selected(mask, params))))

    def update(updates: Any, state: MaskedState, params: Any = None) -> tuple[Any, MaskedState]:
        flags = _selected(mask, updates if params is None else params)
        known = None if params is None else _kept(params, flags)
        changed, after = inner.update(_kept(updates, flags), state.inner, known)
        leaves, structure = tree.flatten(updates)
        new = iter(tree.leaves(changed))
        return structure.unflatten(next(new) if f else u for u, f in zip(leaves, flags)), MaskedState(after)

    return stateful("masked", MaskedState, init, update)


def partition(
    parts: Mapping[str, GradientTransformation], labels: Any | Callable[[Any], Any]
) -> GradientTransformation:
    """Each parameter to the transformation that its label names; labels are a tree of names, or a function of params.

    The state is a dict of the states by name.
    """

    def mask_of(name: str) -> Callable[[Any], Any]:
        def mask(params: Any) -> Any:
            found = labels(params) if callable(labels) else labels
            unknown = sorted(set(tree.leaves(found)) - set(parts))
            if unknown:
                raise OpError(f"partition: no transformation is named {unknown[0]!r}; there are {sorted(parts)}")
            return tree.map(lambda label: label == name, found)

        return mask

    each = {name: masked(part, mask_of(name)) for name, part in parts.items()}

    def init(params: Any) -> dict[str, Any]:
        return {name: part.init(params) for name, part in each.items()}

    def update(updates: Any, state: dict[str, Any], params: Any = None) -> tuple[Any, dict[str, Any]]:
        states = {}
        for name, part in each.items():
            # The masks do not overlap, so what one part changed the others let pass.
            updates, states[name] = part.update(updates, state[name], params)
        return updates, states

    return stateful("partition", dict, init, update)


def accumulate(inner: GradientTransformation, steps: int, accumulator_dtype: Any = None) -> GradientTransformation:
    """`inner` once in `steps` calls, with the mean of the gradients since; the other calls give zeros.

    So a batch that does not fit into memory is taken in parts. Gradients are gathered in f32 at least.
    """
    if steps < 1:
        raise OpError(f"accumulate: steps must be 1 or more, got {steps}")

    def wide(p: Any) -> Any:
        dtype = rnp.promote_types(rnp.asarray(p).dtype, "f32") if accumulator_dtype is None else accumulator_dtype
        return rnp.zeros(rnp.shape(p), dtype)

    def init(params: Any) -> AccumulateState:
        return AccumulateState(zero_count(), zero_count(), tree.map(wide, params), inner.init(params))

    def update(gradients: Any, state: AccumulateState, params: Any = None) -> tuple[Any, AccumulateState]:
        weight = 1.0 / rnp.asarray(state.mini_step + 1, dtype="f64")

        def moved(m: Any, g: Any) -> Any:
            return m + (rnp.astype(g, m.dtype) - m) * rnp.astype(weight, m.dtype)

        mean = tree.map(moved, state.mean, gradients)
        updates, after = inner.update(like(mean, gradients), state.inner, params)
        is_last = state.mini_step == steps - 1

        def chosen(new: Any, old: Any) -> Any:
            return tree.map(lambda n, o: rnp.where(is_last, n, o), new, old)

        return chosen(updates, zeros_like(updates)), AccumulateState(
            (state.mini_step + 1) % steps,
            state.gradient_step + rnp.astype(is_last, "i32"),
            chosen(zeros_like(mean), mean),
            chosen(after, state.inner),
        )

    return stateful("accumulate", AccumulateState, init, update)
