"""Runs a suite: one process per engine, results checked, then rounds of all engines in turn."""

from __future__ import annotations

import functools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.bench.engine_process import EngineProblem, Worker
from rlx.bench.engines import FAMILIES, MODEL_VARIABLE, OURS, is_ours
from rlx.bench.limits import Limits, measure_limits
from rlx.bench.model_variants import converted
from rlx.bench.model_work import work_of
from rlx.bench.programs import Expected
from rlx.bench.suites import Case
from rlx.bench.training_programs import TRAINING
from rlx.errors import RlxError

# Threads of an engine may look for more work for a while after a round; the next engine waits for them to rest.
PAUSE_S = 0.03

Progress = Callable[[str], None]
Array = np.ndarray[Any, np.dtype[Any]]


class Timing(NamedTuple):
    """One engine on one case: the median of its rounds, or why there is none.

    `limit` is the least time for its work on this machine, 0 where that is not known. `memory` are the bytes that its
    process had more in a round, at most, than before it prepared the case; None where that is not known.
    """

    seconds: float | None
    rounds: tuple[float, ...] = ()
    first_call: float | None = None
    error: float | None = None
    problem: str = ""
    limit: float = 0.0
    memory: int | None = None


class CaseResult(NamedTuple):
    case: Case
    timings: Mapping[str, Timing]

    @property
    def best_peer(self) -> str | None:
        """The fastest engine that is not ours."""
        peers = {n: t.seconds for n, t in self.timings.items() if not is_ours(n) and t.seconds is not None}
        return min(peers, key=lambda n: peers[n]) if peers else None

    def ratio(self, peer: str | None, engine: str = OURS) -> float | None:
        """How many times as long a peer takes; the median over rounds, in each of which both ran."""
        if peer is None or peer not in self.timings or engine not in self.timings:
            return None
        pairs = list(zip(self.timings[peer].rounds, self.timings[engine].rounds))
        # What the clock saw nothing of has no ratio.
        found = [a / b for a, b in pairs if b > 0]
        return statistics.median(found) if found else None


class BenchResult(NamedTuple):
    suite: str
    threads: int
    limits: Limits
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    cases: tuple[CaseResult, ...]
    # What others did on this machine meanwhile, in processors' worth of work: ratios are noisy above a few tenths.
    load_before: float = 0.0


def chosen_engines(family: str, peers: Iterable[str] | None) -> list[str]:
    """Ours, and the peers that were named, or all there are; a name stands for what is made of it too.

    >>> chosen_engines("language_models", ["llama.cpp"])[-3:]
    ['llama.cpp', 'llama.cpp Q4_0', 'llama.cpp Q8_0']
    """
    known = list(FAMILIES[family])
    if peers is None:
        return known
    wanted = list(peers)
    unknown = [p for p in wanted if p not in known]
    if unknown:
        raise RlxError(f"bench: no engine is called {', '.join(unknown)}; known: {', '.join(known)}")
    return [n for n in known if is_ours(n) or any(n == p or n.startswith(f"{p} ") for p in wanted)]


def run_suite(
    suite: str,
    cases: Sequence[Case],
    *,
    family: str = "programs",
    peers: Iterable[str] | None = None,
    peer_python: str | None = None,
    model: str | Path | None = None,
    rounds: int = 7,
    round_seconds: float = 0.1,
    threads: int = 2,
    progress: Progress = lambda text: None,
) -> BenchResult:
    """Measure every case on rlx and on the peers that are installed; `model` is what engines of models run."""
    chosen = chosen_engines(family, peers)
    source = None if model is None else Path(model).resolve()
    workers: dict[str, Worker] = {}
    files: dict[str, Path | None] = {}
    missing: dict[str, str] = {}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    try:
        for name in chosen:
            progress(f"starting {name}")
            python = sys.executable if is_ours(name) else peer_python or sys.executable
            try:
                file = None if source is None else converted(source, FAMILIES[family][name].model_type, progress)
                environment = {} if file is None else {MODEL_VARIABLE: str(file)}
                workers[name], files[name] = Worker(family, name, python, threads, environment), file
            except (RlxError, OSError) as problem:
                missing[name] = str(problem)
        if OURS not in workers:
            raise RlxError(f"bench: rlx itself does not start: {missing[OURS]}")
        progress("measuring what the machine can do")
        limits = measure_limits(threads)
        results = []
        for number, case in enumerate(cases):
            tell = functools.partial(report_step, progress, f"{number + 1}/{len(cases)} {case.name}")
            timings = run_case(family, case, workers, rounds, round_seconds, tell)
            least = {file: limits.seconds(*work_of(case, file)) for file in set(files.values())}
            bounded = {n: t._replace(limit=least[files[n]]) for n, t in timings.items()}
            results.append(CaseResult(case, bounded))
        versions = {name: worker.version for name, worker in workers.items()}
        return BenchResult(suite, threads, limits, versions, missing, tuple(results), load)
    finally:
        for worker in workers.values():
            worker.close()


def report_step(progress: Progress, work: str, step: str) -> None:
    progress(f"{work}: {step}")


def run_case(
    family: str, case: Case, workers: Mapping[str, Worker], rounds: int, seconds: float, tell: Progress
) -> dict[str, Timing]:
    """First calls and their results, then rounds of all engines in turn."""
    timings: dict[str, Timing] = {}
    times: dict[str, list[float]] = {}
    held: dict[str, int | None] = {}
    wanted: dict[str, Expected] = {}
    for name, worker in workers.items():
        entry = FAMILIES[family][name]
        tell(f"{name}, first call")
        try:
            first_call, held[name], found = prepare(case, worker)
        except EngineProblem as problem:
            timings[name] = Timing(None, problem=str(problem))
            continue
        if entry.model_type not in wanted:
            # Ours come first, and the exact one first of all.
            wanted[entry.model_type] = case.exact() or Expected(np.arange(len(found)), found)
        measure = mean_turn if family == "encoders" else largest_difference
        error = measure(found, wanted[entry.model_type])
        is_right = error <= entry.largest_error
        timings[name] = Timing(None, (), first_call, error, "" if is_right else f"wrong by {error:.1e}")
        if is_right:
            times[name] = []
    for number in range(rounds):
        tell(f"round {number + 1}/{rounds}")
        # Every other round runs backwards: what an engine leaves behind in caches does not always hit the same one.
        for name in list(times) if number % 2 == 0 else list(reversed(times)):
            time.sleep(PAUSE_S)
            try:
                answer = workers[name].ask({"do": "round", "seconds": seconds})
                times[name].append(answer["seconds"])
                more = _difference(answer.get("peak"), held[name])
                timings[name] = timings[name]._replace(memory=max(more or 0, timings[name].memory or 0) or None)
            except EngineProblem as problem:
                timings[name] = Timing(None, problem=str(problem))
                del times[name]
    for name, measured in times.items():
        timings[name] = timings[name]._replace(seconds=statistics.median(measured), rounds=tuple(measured))
    return timings


def _difference(peak: int | None, held: int | None) -> int | None:
    return None if peak is None or held is None else max(peak - held, 0)


def prepare(case: Case, worker: Worker) -> tuple[float, int | None, Array]:
    """Seconds of the first call, bytes that the process had before it, and its result."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.npy"
        request = {"do": "prepare", "program": case.program, "sizes": dict(case.sizes), "result": str(file)}
        answer = worker.ask(request)
        if case.program in TRAINING:
            # The loss of a later step says that gradients and updates are right too.
            worker.ask({"do": "call", "result": str(file)})
        return float(answer["seconds"]), answer.get("held"), np.load(file, allow_pickle=False)


def largest_difference(found: Array, wanted: Expected) -> float:
    """The largest difference, relative to the largest element."""
    if len(found) <= wanted.examples[-1] or found[wanted.examples].shape != wanted.values.shape:
        return math.inf
    difference = np.abs(found[wanted.examples].astype(wanted.values.dtype) - wanted.values).max(initial=0.0)
    size = np.abs(wanted.values).max(initial=1e-30)
    return float(difference / size) if math.isfinite(difference) else math.inf


def mean_turn(found: Array, wanted: Expected) -> float:
    """1 less the mean cosine between vectors.

    >>> mean_turn(np.eye(2), Expected(np.arange(2), 3 * np.eye(2)))
    0.0
    """
    if found.shape != wanted.values.shape:
        return math.inf
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (found.astype(np.float64), wanted.values))
    cosine = float((a * b).sum(axis=1).mean())
    return max(1.0 - cosine, 0.0) if math.isfinite(cosine) else math.inf
