"""`fit`: the loop around a training step, with evaluation, early stop, callbacks, metrics, checkpoints and resuming.

    result = rlx.train.fit(step, state, batches, steps=1000, out="run", save_every=100)

A run that was killed continues when it is called again with the same arguments: bit by bit as if nothing had happened,
because a step depends on its state and its number only.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.distributed.processes import process_index
from rlx.errors import TrainingError
from rlx.train.checkpoints import checkpoint_files, load_checkpoint, remove_unfinished, save_checkpoint
from rlx.train.curves import curve_text, write_curve
from rlx.train.data import BatchOf, Prefetch
from rlx.train.folders import folder_of, writing_to
from rlx.train.interrupts import HeldInterrupt
from rlx.train.journal import Journal, Row
from rlx.train.progress import ProgressLine
from rlx.train.steps import Step, TrainState

__all__ = ["FitResult", "StepReport", "fit"]


class StepReport(NamedTuple):
    """What callbacks get after every step. The state is overwritten by the next one."""

    step: int
    state: TrainState
    metrics: Row


class FitResult(NamedTuple):
    """The state after the last step, all rows of metrics, the best evaluation, and why it ended."""

    state: TrainState
    history: list[Row]
    best: Row | None
    reason: str


Callback = Callable[[StepReport], object]
Evaluate = Callable[[Any], Any]


class _Best:
    """The best evaluation so far, and how many there were since."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self.row: Row | None = saved.get("best")
        self.since: int = saved.get("since", 0)

    def saved(self) -> dict[str, Any]:
        return {"best": self.row, "since": self.since}

    def add(self, row: Row) -> bool:
        """Whether this evaluation is the best. One without a number never is, and any number is better."""
        before = math.inf if self.row is None or math.isnan(self.row["loss"]) else self.row["loss"]
        is_best = self.row is None or row["loss"] < before
        self.row, self.since = (row, 0) if is_best else (self.row, self.since + 1)
        return is_best


def fit(
    step: Step,
    state: TrainState,
    batches: BatchOf,
    steps: int,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    save_every: int | None = None,
    keep: int = 3,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 100,
    patience: int | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    prefetch: int = 2,
) -> FitResult:
    """Train until `steps` steps are made in all, those before a resume included.

    `batches(n)` gives the batch of step n; see `token_batches` and `array_batches`. `evaluate(params)` gives a loss, or
    a dict with one, after every `evaluate_every` steps and at the end; training stops when `patience` evaluations in a
    row brought nothing better, or when a callback (one function, or several) returns True.

    With `out`, a folder: metrics.jsonl, loss.png, a checkpoint after every `save_every` steps and at the end (the last
    `keep` stay), and best/ with the parameters of the best evaluation.
    """
    if not callable(batches):
        raise TrainingError(
            "fit: batches must be a function of the step, so that a run can be resumed anywhere; "
            "see rlx.train.array_batches and rlx.train.token_batches"
        )
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    _check_settings(steps, save_every, evaluate, evaluate_every, patience)
    folder = None if out is None else folder_of(out)
    state, saved = (state, {}) if folder is None else _begun(folder, state, resume)
    first = int(state.step)
    # Of many processes only the first one writes what all of them know.
    told = folder if process_index() == 0 else None
    run = _Run(step, state, folder, keep, _journal(told, first), _Best(saved))
    line = ProgressLine(first, steps, getattr(batches, "tokens_per_batch", None))
    reason = run.reason(patience)
    try:
        # A run that has ended by itself stays ended.
        end = first if reason != "finished" else steps
        with HeldInterrupt() as interrupt, Prefetch(batches, first, end, prefetch) as made:
            for number, batch in made:
                done = number + 1
                # The first step is compiled, which takes long, and there is nothing to save before it.
                interrupt.is_holding = number > first
                metrics = run.step(batch, done)
                line.show(done, metrics["loss"])
                is_last = done == steps
                if evaluate is not None and (done % evaluate_every == 0 or is_last):
                    metrics = run.evaluated(evaluate, metrics)
                run.finished(metrics)
                stops = [_is_true(callback(StepReport(done, run.state, metrics))) for callback in callbacks]
                reason = "stopped by a callback" if any(stops) else run.reason(patience)
                if is_last or reason != "finished" or (save_every and done % save_every == 0):
                    run.save()
                interrupt.release()
                if reason != "finished":
                    break
    except KeyboardInterrupt:
        if run.is_whole:
            run.save()
            saved_too = "; it is saved, and may be resumed" if folder else ""
            line.note(f"stopped after step {int(run.state.step)}{saved_too}")
        raise
    finally:
        line.end()
        run.journal.close()
    _draw(run.journal.rows, told, line.on)
    return FitResult(run.state, run.journal.rows, run.best.row, reason)


def _begun(folder: Path, state: TrainState, resume: bool) -> tuple[TrainState, dict[str, Any]]:
    """The state that a run in a folder begins with, and what else its newest checkpoint holds."""
    with writing_to(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
    if not checkpoint_files(folder):
        return state, {}
    if not resume:
        raise TrainingError(f"{folder}: there are checkpoints of an earlier run; resume, or choose another folder")
    loaded, info = load_checkpoint(folder, state)
    return loaded, info.extra


def _draw(rows: Sequence[Mapping[str, Any]], folder: Path | None, on_terminal: bool) -> None:
    """The losses as a curve, if there are any."""
    points = [(row["step"], math.nan if row["loss"] is None else row["loss"]) for row in rows]
    if not any(math.isfinite(loss) for _, loss in points):
        return
    if folder is not None:
        write_curve(folder / "loss.png", points)
    if on_terminal:
        print(curve_text(points), file=sys.stderr)


def _is_true(answer: object) -> bool:
    """Comparisons of metrics and of arrays give bools of their own; any other answer does not stop a run."""
    found = np.asarray(answer)
    return bool(found.dtype == bool and found.size == 1 and found.item())


def _numbers(what: str, values: Mapping[str, Any]) -> Row:
    """Metrics as Python numbers, which every line of the journal holds."""
    found: Row = {}
    for name, value in values.items():
        array = np.asarray(value)
        number = array.item() if array.size == 1 else None
        if not isinstance(number, (bool, int, float)):
            raise TrainingError(f"fit: {what} {name!r} must be one number, got {array.dtype}{list(array.shape)}")
        found[name] = number
    return found


def _journal(folder: Path | None, first: int) -> Journal:
    if folder is None:
        return Journal(None, first)
    with writing_to(folder):
        return Journal(folder / "metrics.jsonl", first)


def _check_settings(
    steps: int, save_every: int | None, evaluate: Evaluate | None, evaluate_every: int, patience: int | None
) -> None:
    counts = {"save_every": save_every, "evaluate_every": evaluate_every, "patience": patience}
    wrong = [f"{name}={value}" for name, value in counts.items() if value is not None and value < 1]
    if wrong or steps < 0:
        raise TrainingError(f"fit: numbers of steps and evaluations must be 1 or more, got {', '.join(wrong) or steps}")
    if patience is not None and evaluate is None:
        raise TrainingError("fit: patience counts evaluations; give evaluate=, a function of the parameters")


class _Run:
    """What one call of `fit` carries through its steps."""

    def __init__(
        self, step: Step, state: TrainState, folder: Path | None, keep: int, journal: Journal, best: _Best
    ) -> None:
        self._step, self._folder, self._keep = step, folder, keep
        self.state, self.journal, self.best = state, journal, best
        # False from the moment a step overwrites the state until its metrics are in the journal: what is interrupted
        # between must not be saved.
        self.is_whole = True

    def step(self, batch: Any, number: int) -> Row:
        """Make one step; its metrics as Python numbers. A loss that is no number ends the run."""
        started = time.perf_counter()
        self.is_whole = False
        self.state, found = self._step(self.state, batch)
        row: Row = {"step": number, **_numbers("the metric", found)}
        row["seconds"] = round(time.perf_counter() - started, 6)
        # A step that was skipped because of an overflow is no failure until the scale cannot fall any further.
        is_skipped = row.get("skipped", False) and row["loss_scale"] > 1
        if not math.isfinite(row["loss"]) and not is_skipped:
            raise TrainingError(
                f"the loss is {row['loss']} at step {number}; {self._last()}. Use a smaller learning rate, "
                "optim.clip_by_global_norm, or look for a division by 0 or a log of 0 in the loss"
            )
        return row

    def evaluated(self, evaluate: Evaluate, row: Row) -> Row:
        result = evaluate(self.state.params)
        found = result if isinstance(result, dict) else {"loss": result}
        if "loss" not in found:
            raise TrainingError(f"fit: evaluate must return a loss or a dict with 'loss', got the keys {sorted(found)}")
        values = _numbers("evaluate's", found)
        is_best = self.best.add({"step": row["step"], **values})
        if is_best and self._folder is not None:
            save_checkpoint(self._folder / "best", self.state.params, row["step"], keep=1)
        return row | {f"eval_{name}": value for name, value in values.items()}

    def finished(self, row: Row) -> None:
        """All of a step is done, its evaluation included."""
        self.journal.add(row)
        self.is_whole = True

    def reason(self, patience: int | None) -> str:
        """Why the run ends, as far as evaluations say."""
        has_stopped = patience is not None and self.best.since >= patience
        return f"no better evaluation in {patience}" if has_stopped else "finished"

    def save(self) -> None:
        if self._folder is not None:
            extra = self.best.saved()
            save_checkpoint(self._folder, self.state, int(self.state.step), keep=self._keep, extra=extra)

    def _last(self) -> str:
        found = [] if self._folder is None else checkpoint_files(self._folder)
        return f"the last checkpoint is {found[-1][1]}" if found else "there is no checkpoint"
