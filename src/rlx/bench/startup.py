"""The suite `startup`: what it costs to import an engine, to compile an encoder for the first time, and to call it.

Every measurement is a process of its own. "again" is a second process that finds what the first left on disk.
"""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rlx import errors as rlx_errors
from rlx.bench.driver import BenchResult, CaseResult, Progress, Timing, report_step, run_suite
from rlx.bench.engine_process import EngineProblem, Worker, engine_environment
from rlx.bench.engines import ENGINES, OURS
from rlx.bench.programs import Sizes
from rlx.bench.suites import CALLS, Case

ENCODER = {"batch": 1, "seq": 128}
IMPORT = "import numpy, time; t = time.perf_counter(); import {0}; print(time.perf_counter() - t)"
# An engine that needs longer for one round is not asked again: the whole suite should take about a minute.
LONG_ROUND_S = 15.0
# Where engines keep compiled code; a fresh folder makes a compile cold.
CACHES = ("RLX_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR")


class _Measured(NamedTuple):
    name: str
    times: dict[str, list[float]]
    problems: dict[str, str]

    def result(self) -> CaseResult:
        timings = {n: Timing(statistics.median(t), tuple(t)) for n, t in self.times.items() if t}
        timings |= {n: Timing(None, problem=p) for n, p in self.problems.items()}
        return CaseResult(Case(self.name, self.name, "", {}), timings)


def run_startup(
    *,
    peers: Iterable[str] | None = None,
    peer_python: str | None = None,
    rounds: int = 3,
    threads: int = 2,
    progress: Progress = lambda text: None,
) -> BenchResult:
    """Import, first compile, compile with a warm disk, and one small call, engine after engine in every round."""
    _compile_sources()
    calls = run_suite(
        "startup",
        CALLS,
        peers=peers,
        peer_python=peer_python,
        rounds=max(rounds, 5),
        threads=threads,
        progress=progress,
    )
    names = list(calls.versions)
    pythons = {n: sys.executable if n == OURS else peer_python or sys.executable for n in names}
    imports, cold, again = (
        _Measured(name, {n: [] for n in names}, {})
        for name in ("import, beside numpy", "encoder 1x128: compile and run", "encoder 1x128: again, from disk")
    )
    slow: set[str] = set()
    for number in range(rounds):
        for name in [n for n in names if n not in slow]:
            start = time.perf_counter()
            tell = partial(report_step, progress, f"round {number + 1}/{rounds}, {name}")
            with tempfile.TemporaryDirectory() as folder:
                caches = dict.fromkeys(CACHES, folder)
                call = partial(first_call, "programs", name, pythons[name], threads, caches, "encoder", ENCODER)
                _note(imports, name, partial(_import_seconds, name, pythons[name], threads), tell)
                _note(cold, name, call, tell)
                _note(again, name, call, tell)
            if time.perf_counter() - start > LONG_ROUND_S:
                slow.add(name)
    results = (imports.result(), cold.result(), again.result(), *calls.cases)
    return calls._replace(cases=results)


def _compile_sources() -> None:
    """Leave Python's own code of rlx on disk, as pip does for packages that it installs, peers among them: processes of
    a clone may be told to write none."""
    compileall.compile_dir(str(Path(rlx_errors.__file__).parent), quiet=2)


def _note(measured: _Measured, name: str, measure: Callable[[], float], tell: Progress) -> None:
    if name in measured.problems:
        return
    tell(measured.name)
    try:
        measured.times[name].append(measure())
    except (EngineProblem, OSError, subprocess.SubprocessError) as problem:
        measured.problems[name] = str(problem).splitlines()[0]
        del measured.times[name]


def _import_seconds(name: str, python: str, threads: int) -> float:
    package = OURS if name == OURS else ENGINES[name].needs[-1]
    code = [python, "-c", IMPORT.format(package)]
    done = subprocess.run(
        code, env=engine_environment(threads), capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout.split()[-1])


def first_call(
    family: str, name: str, python: str, threads: int, environment: Mapping[str, str], program: str, sizes: Sizes
) -> float:
    """Seconds of the first call of a program in a new process of an engine, with compilation."""
    return first_and_later_call(family, name, python, threads, environment, program, sizes)[0]


def first_and_later_call(
    family: str, name: str, python: str, threads: int, environment: Mapping[str, str], program: str, sizes: Sizes
) -> tuple[float, float]:
    """The same, and those of a call when everything is compiled."""
    worker = Worker(family, name, python, threads, environment)
    try:
        with tempfile.TemporaryDirectory() as folder:
            request = {"do": "prepare", "program": program, "sizes": dict(sizes), "result": f"{folder}/result.npy"}
            first = float(worker.ask(request)["seconds"])
            return first, float(worker.ask({"do": "round", "seconds": 0.0})["seconds"])
    finally:
        worker.close()
