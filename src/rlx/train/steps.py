"""One training step as one compiled program: loss, gradients, loss scaling, optimiser.

    optimizer = rlx.optim.adamw(1e-3)
    step = rlx.train.make_step(loss, optimizer)
    state = rlx.train.init_state(params, optimizer, seed=0)
    state, metrics = step(state, batch)

The state is donated: its memory holds the next one, so a state must not be used after it was given to `step`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import random, tree
from rlx.compile.memory.loops import working_bytes
from rlx.errors import DTypeError, OpError, TrainingError
from rlx.optim import GradientTransformation, apply_updates
from rlx.train.loss_scale import DynamicScale, LossScale, all_finite, next_scale, scale_of, start_scale
from rlx.train.recompute import MemoryPlan, fitting, recomputing

__all__ = ["CompiledStep", "TrainState", "init_state", "make_step"]

Loss = Callable[..., Any]
_OWN_METRICS = frozenset({"loss", "loss_scale", "skipped", "step", "seconds"})
Step = Callable[[Any, Any], tuple[Any, dict[str, Any]]]


class TrainState(NamedTuple):
    """Everything that a run needs to go on: a tree of arrays."""

    params: Any
    opt_state: Any
    # Updates made so far, those that were skipped because of an overflow included.
    step: Any
    # Never changes; the key of a step is made from it and the number of the step.
    key: Any
    # With loss scaling, the scale and the number of good steps in a row.
    loss_scale: Any


def init_state(
    params: Any, optimizer: GradientTransformation, seed: int = 0, loss_scale: DynamicScale | float | None = None
) -> TrainState:
    """The state before the first step. The parameters are copied, because the state will be donated."""
    copied = tree.map(lambda p: np.array(p), params)
    if not tree.leaves(copied):
        raise OpError("init_state: there are no parameters to train")
    return TrainState(
        copied, optimizer.init(copied), np.zeros((), np.int32), np.array(random.key(seed)), start_scale(loss_scale)
    )


def make_step(
    loss_fn: Loss,
    optimizer: GradientTransformation,
    *,
    donate: bool = True,
    precision: str | None = None,
    loss_scale: DynamicScale | float | None = None,
    memory: int | None = None,
) -> CompiledStep:
    """`step(state, batch) -> (state, metrics)`, compiled once for each kind of batch.

    `loss_fn(params, batch)`, or `loss_fn(params, batch, key)` if it needs random numbers, returns the loss, or the loss
    and a dict of other scalars for the metrics. With `precision` "bf16" or "f16" the loss is computed in that dtype
    from f32 parameters, and the update in f32. f16 gradients of small losses vanish, so give
    `loss_scale=DynamicScale()` (to `init_state` too): steps whose gradients overflow change nothing but the scale.

    `memory` limits the bytes of a step, its arguments included: as many blocks as that takes (see `block`) compute
    their values again in the backward pass. `step.plan(state, batch)` says what a step needs before it runs.
    """
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise TrainingError(f"make_step: an optimiser of rlx.optim is needed (optim.adam(1e-3)); got {optimizer!r}")
    narrow = _narrow_dtype(precision)
    takes_key = _takes_key(loss_fn)

    def narrowed(values: Any) -> Any:
        if narrow is None:
            return values
        return tree.map(lambda x: rnp.astype(x, narrow) if _is_wide(x) else x, values)

    def scaled_loss(params: Any, batch: Any, key: Any, scale: Any) -> Any:
        arguments = (narrowed(params), narrowed(batch), *((key,) if takes_key else ()))
        result = loss_fn(*arguments)
        loss, metrics = result if isinstance(result, tuple) else (result, {})
        _check_metrics(metrics)
        if narrow is not None:
            loss = rnp.astype(loss, "f32")
        return (loss if scale is None else loss * rnp.astype(scale, loss.dtype)), (loss, metrics)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, Any]]:
        if not isinstance(state, TrainState):
            kind = type(state).__name__
            raise TrainingError(f"a step takes a state, which train.init_state(params, optimizer) makes; got a {kind}")
        key = random.fold_in(state.key, state.step)
        scale = scale_of(state.loss_scale, loss_scale)
        gradient = rlx.value_and_grad(scaled_loss, has_aux=True)
        (_, (loss, extra)), gradients = gradient(state.params, batch, key, scale)
        if scale is not None:
            gradients = tree.map(lambda g: g / rnp.astype(scale, g.dtype), gradients)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params = apply_updates(state.params, updates)
        metrics = {"loss": loss, **extra}
        held: LossScale | None = None
        if isinstance(loss_scale, DynamicScale):
            good = all_finite(gradients)
            params, opt_state = tree.map(
                lambda new, old: rnp.where(good, new, old), (params, opt_state), (state.params, state.opt_state)
            )
            held = next_scale(loss_scale, state.loss_scale, good)
            metrics |= {"loss_scale": state.loss_scale.scale, "skipped": rnp.logical_not(good)}
        return TrainState(params, opt_state, state.step + 1, state.key, held), metrics

    step.__name__ = f"train_{getattr(loss_fn, '__name__', 'step')}".replace("<lambda>", "step")
    return CompiledStep(step, (0,) if donate else (), memory)


class CompiledStep:
    """What `make_step` makes; call it with a state and a batch."""

    def __init__(self, step: Step, donated: tuple[int, ...], memory: int | None) -> None:
        self._step, self._donated, self._memory = step, donated, memory
        # By the number of blocks that are computed again; and which number a kind of arguments has.
        self._programs: dict[int, Any] = {}
        self._chosen: dict[Hashable, MemoryPlan] = {}

    def __call__(self, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        recomputed = 0 if self._memory is None else self.plan(state, batch).recomputed
        result: tuple[Any, dict[str, Any]] = self._program(recomputed)(state, batch)
        return result

    def lower(self, state: Any, batch: Any) -> Any:
        """The program for arguments of these types, before it is compiled; `.graph` is its text."""
        recomputed = 0 if self._memory is None else self.plan(state, batch).recomputed
        return self._program(recomputed).lower(state, batch)

    def plan(self, state: Any, batch: Any) -> MemoryPlan:
        """What a step with such arguments needs, found without running or generating code."""
        leaves, structure = tree.flatten((state, batch))
        kind = (structure, tuple((tuple(x.shape), str(x.dtype)) for x in map(rnp.asarray, leaves)))
        if kind not in self._chosen:
            size = sum(int(rnp.asarray(x).nbytes) for x in leaves)

            def plan_of(recomputed: int) -> MemoryPlan:
                with recomputing(recomputed) as met:
                    lowered = rlx.jit(self._step, donate_argnums=self._donated).lower(state, batch)
                pipeline = rlx.CompilePipeline.new(lowered.device or "cpu")
                lir, generator = pipeline.compile(lowered.graph).lir, pipeline.generator
                arena = lir.arena_size if generator is None else working_bytes(lir, generator)
                return MemoryPlan(int(arena), size, recomputed, met.met)

            self._chosen[kind] = plan_of(0) if self._memory is None else fitting(plan_of, self._memory)
        return self._chosen[kind]

    def _program(self, recomputed: int) -> Any:
        found = self._programs.get(recomputed)
        if found is None:

            @functools.wraps(self._step)
            def step(state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
                with recomputing(recomputed):
                    return self._step(state, batch)

            found = self._programs[recomputed] = rlx.jit(step, donate_argnums=self._donated)
        return found


def _check_metrics(metrics: Any) -> None:
    """The loss and what `fit` adds have names of their own."""
    if not isinstance(metrics, dict):
        raise TrainingError(
            f"make_step: beside the loss a dict of other scalars is expected, got a {type(metrics).__name__}"
        )
    taken = sorted(metrics.keys() & _OWN_METRICS)
    if taken:
        raise TrainingError(f"make_step: {taken[0]!r} is a metric of the step itself; give yours another name")


def _narrow_dtype(precision: str | None) -> str | None:
    if precision not in (None, "f32", "f16", "bf16"):
        raise DTypeError(f"make_step: precision must be 'f32', 'bf16' or 'f16', got {precision!r}")
    return None if precision == "f32" else precision


def _is_wide(x: Any) -> bool:
    return rlx.DType.of(rnp.asarray(x).dtype) is rlx.DType.F32


def _takes_key(loss_fn: Loss) -> bool:
    """Whether a loss has a third place for an argument."""
    try:
        parameters = inspect.signature(loss_fn).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [p for p in parameters if p.kind in kinds and p.default is p.empty]
    if len(places) not in (2, 3):
        raise OpError(
            f"make_step: the loss must take (params, batch) or (params, batch, key), it takes {len(places)} arguments"
        )
    return len(places) == 3
