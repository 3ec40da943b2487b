"""Runs a suite: one process per engine, results checked against f64, then rounds of all engines in turn."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.bench.engines import FAMILIES, MODEL_VARIABLE, OURS
from rlx.bench.limits import Limits, measure_limits
from rlx.bench.programs import Expected
from rlx.bench.suites import Case
from rlx.errors import RlxError

# Error of a result relative to its largest element, above which an engine's time means nothing.
LARGEST_ERROR = 1e-4
# Engines that round activations to 8 bits differ from each other by this much at most.
LARGEST_DIFFERENCE = 0.1
# An engine that takes longer for one preparation or round is left out of the case.
PATIENCE_S = 180.0
# Threads of an engine may look for more work for a while after a round; the next engine waits for them to rest.
PAUSE_S = 0.03

Progress = Callable[[str], None]
Array = np.ndarray[Any, np.dtype[Any]]


class Timing(NamedTuple):
    """One engine on one case: the median of its rounds, or why there is none."""

    seconds: float | None
    rounds: tuple[float, ...] = ()
    first_call: float | None = None
    error: float | None = None
    problem: str = ""


class CaseResult(NamedTuple):
    case: Case
    timings: Mapping[str, Timing]
    limit: float

    @property
    def best_peer(self) -> str | None:
        """The fastest engine besides ours."""
        peers = {n: t.seconds for n, t in self.timings.items() if n != OURS and t.seconds is not None}
        return min(peers, key=lambda n: peers[n]) if peers else None

    def ratio(self, peer: str | None) -> float | None:
        """How many times as long a peer takes; the median over rounds, in each of which both ran."""
        if peer is None or peer not in self.timings or OURS not in self.timings:
            return None
        pairs = list(zip(self.timings[peer].rounds, self.timings[OURS].rounds))
        return statistics.median(a / b for a, b in pairs) if pairs else None


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
    """rlx and the peers that were named, or all there are."""
    known = FAMILIES[family]
    chosen = list(known) if peers is None else [OURS, *(p for p in peers if p != OURS)]
    unknown = [p for p in chosen if p not in known]
    if unknown:
        raise RlxError(f"bench: no engine is called {', '.join(unknown)}; known: {', '.join(known)}")
    return chosen


class EngineProblem(RlxError):
    """An engine could not do what it was asked, or took too long."""


def source_path() -> str:
    """PYTHONPATH with which another Python finds this very rlx."""
    here = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH", "")) if p)


class Worker:
    """The process of one engine."""

    def __init__(
        self, family: str, name: str, python: str, threads: int, more_environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        count = str(threads)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RLX_THREADS", "CPU_COUNT")
        environment = {
            **os.environ,
            **dict.fromkeys(names, count),
            "PYTHONPATH": source_path(),
            **(more_environment or {}),
        }
        self._process = subprocess.Popen(
            [python, "-m", "rlx.bench.worker", family, name, count],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        try:
            self.version = str(self._next(PATIENCE_S)["version"])
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _next(self, patience: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=patience)
        except queue.Empty:
            self.close()
            raise EngineProblem(f"no answer within {patience:.0f} s") from None
        if line is None:
            raise EngineProblem(f"the process ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineProblem(str(answer["error"]).splitlines()[0])
        return answer

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise EngineProblem("its process has ended") from None
        return self._next(PATIENCE_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


def run_suite(
    suite: str,
    cases: Sequence[Case],
    *,
    peers: Iterable[str] | None = None,
    peer_python: str | None = None,
    model: str | Path | None = None,
    rounds: int = 7,
    round_seconds: float = 0.1,
    threads: int = 2,
    progress: Progress = lambda text: None,
) -> BenchResult:
    """Measure every case on rlx and on the peers that are installed; `model` is the file of a language model."""
    family = "programs" if model is None else "language_models"
    chosen = chosen_engines(family, peers)
    environment = {} if model is None else {MODEL_VARIABLE: str(Path(model).resolve())}
    workers: dict[str, Worker] = {}
    missing: dict[str, str] = {}
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    try:
        for name in chosen:
            progress(f"starting {name}")
            python = sys.executable if name == OURS else peer_python or sys.executable
            try:
                workers[name] = Worker(family, name, python, threads, environment)
            except (EngineProblem, OSError) as problem:
                missing[name] = str(problem)
        if OURS not in workers:
            raise RlxError(f"bench: rlx itself does not start: {missing[OURS]}")
        progress("measuring what the machine can do")
        limits = measure_limits(threads)
        results = []
        for number, case in enumerate(cases):
            progress(f"{number + 1}/{len(cases)} {case.name}")
            timings = _run_case(case, workers, rounds, round_seconds)
            results.append(CaseResult(case, timings, limits.seconds(*case.work)))
        versions = {name: worker.version for name, worker in workers.items()}
        return BenchResult(suite, threads, limits, versions, missing, tuple(results), load)
    finally:
        for worker in workers.values():
            worker.close()


def _run_case(case: Case, workers: Mapping[str, Worker], rounds: int, seconds: float) -> dict[str, Timing]:
    wanted, largest = case.exact(), LARGEST_ERROR
    timings: dict[str, Timing] = {}
    times: dict[str, list[float]] = {}
    for name, worker in workers.items():
        try:
            first_call, found = _prepare(case, worker)
        except EngineProblem as problem:
            timings[name] = Timing(None, problem=str(problem))
            continue
        if wanted is None:
            wanted, largest = Expected(np.arange(len(found)), found), LARGEST_DIFFERENCE
        error = _error(found, wanted)
        is_right = error <= largest
        timings[name] = Timing(None, (), first_call, error, "" if is_right else f"wrong by {error:.1e}")
        if is_right:
            times[name] = []
    for number in range(rounds):
        # Every other round runs backwards: what an engine leaves behind in caches does not always hit the same one.
        for name in list(times) if number % 2 == 0 else list(reversed(times)):
            time.sleep(PAUSE_S)
            try:
                times[name].append(workers[name].ask({"do": "round", "seconds": seconds})["seconds"])
            except EngineProblem as problem:
                timings[name] = Timing(None, problem=str(problem))
                del times[name]
    for name, measured in times.items():
        timings[name] = timings[name]._replace(seconds=statistics.median(measured), rounds=tuple(measured))
    return timings


def _prepare(case: Case, worker: Worker) -> tuple[float, Array]:
    """Seconds of the first call, and its result."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.npy"
        request = {"do": "prepare", "program": case.program, "sizes": dict(case.sizes), "result": str(file)}
        seconds = float(worker.ask(request)["seconds"])
        return seconds, np.load(file, allow_pickle=False)


def _error(found: Array, wanted: Expected) -> float:
    """The largest difference, relative to the largest element."""
    if len(found) <= wanted.examples[-1] or found[wanted.examples].shape != wanted.values.shape:
        return math.inf
    difference = np.abs(found[wanted.examples].astype(np.float64) - wanted.values).max(initial=0.0)
    size = np.abs(wanted.values).max(initial=1e-30)
    return float(difference / size) if math.isfinite(difference) else math.inf
