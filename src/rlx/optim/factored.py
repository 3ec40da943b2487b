"""Adafactor's scaling: the running mean of squared gradients of a matrix, kept as its row and column means.

A matrix of n·m weights needs n + m numbers instead of n·m (Shazeer and Stern 2018).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import rlx.numpy as rnp
from rlx import tree
from rlx.optim.transformation import GradientTransformation, needed, number_in, stateful, zero_count

__all__ = ["FactoredState", "scale_by_factored_rms"]


class FactoredState(NamedTuple):
    """Means over rows and columns of factored leaves, of all elements of others; what a leaf lacks has size 1."""

    count: Any
    v_row: Any
    v_col: Any
    v: Any


class _Leaf(NamedTuple):
    update: Any
    v_row: Any
    v_col: Any
    v: Any


def _factored_axes(shape: tuple[int, ...], min_size: int) -> tuple[int, int] | None:
    """The second largest axis and the largest one, where both are long enough to be worth it."""
    if len(shape) < 2:
        return None
    order = np.argsort(shape)
    second, largest = int(order[-2]), int(order[-1])
    return (second, largest) if shape[second] >= min_size else None


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def scale_by_factored_rms(
    factored: bool = True,
    decay_rate: float = 0.8,
    step_offset: int = 0,
    min_dim_size_to_factor: int = 128,
    eps: float = 1e-30,
) -> GradientTransformation:
    """Gradients divided by the root of the running mean of their squares.

    The decay at update t is 1 - (t + 1 - step_offset)^-decay_rate. Leaves with two axes of at least
    `min_dim_size_to_factor` keep the means over these axes only.
    """
    number_in("scale_by_factored_rms", "decay_rate", decay_rate, 0)

    def axes_of(shape: tuple[int, ...]) -> tuple[int, int] | None:
        return _factored_axes(shape, min_dim_size_to_factor) if factored else None

    def init(params: Any) -> FactoredState:
        def leaf(p: Any) -> _Leaf:
            p = rnp.asarray(p)
            shape, dtype = tuple(p.shape), p.dtype
            axes = axes_of(shape)
            shapes = ((1,), (1,), shape) if axes is None else (_without(shape, axes[1]), _without(shape, axes[0]), (1,))
            return _Leaf(None, *(rnp.zeros(s, dtype) for s in shapes))

        leaves, structure = tree.flatten(params)
        made = [leaf(p) for p in leaves]
        return FactoredState(zero_count(), *(structure.unflatten(m[i] for m in made) for i in (1, 2, 3)))

    def update(gradients: Any, state: FactoredState, params: Any = None) -> tuple[Any, FactoredState]:
        exact = 1.0 - rnp.power(rnp.asarray(state.count + (1 - step_offset), dtype="f64"), -decay_rate)

        def leaf(g: Any, v_row: Any, v_col: Any, v: Any, p: Any) -> _Leaf:
            decay = rnp.astype(exact, g.dtype)

            def mean(old: Any, new: Any) -> Any:
                return rnp.astype(decay * old + (1.0 - decay) * new, old.dtype)

            square = rnp.square(g) + eps
            axes = axes_of(tuple(p.shape))
            if axes is None:
                v = mean(v, square)
                return _Leaf(g * rnp.power(v, -0.5), v_row, v_col, v)
            second, largest = axes
            v_row, v_col = mean(v_row, rnp.mean(square, axis=largest)), mean(v_col, rnp.mean(square, axis=second))
            inner = second - 1 if second > largest else second
            row = rnp.power(v_row / rnp.mean(v_row, axis=inner, keepdims=True), -0.5)
            column = rnp.power(v_col, -0.5)
            return _Leaf(g * rnp.expand_dims(row, largest) * rnp.expand_dims(column, second), v_row, v_col, v)

        known = needed(params, "scale_by_factored_rms")
        leaves, structure = tree.flatten(gradients)
        columns = [structure.flatten_up_to(t) for t in (state.v_row, state.v_col, state.v, known)]
        done = [leaf(*row) for row in zip(leaves, *columns)]
        updates, v_row, v_col, v = (structure.unflatten(d[i] for d in done) for i in range(4))
        return updates, FactoredState(state.count + 1, v_row, v_col, v)

    return stateful("scale_by_factored_rms", FactoredState, init, update)
