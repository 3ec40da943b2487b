"""`run_benchmark`: one pattern on one device, checked, timed, and held to what the machine can do.

    result = run_benchmark(matmul(128, 768, 3072), "cpu", warmup=10, runs=100)
    result.median, result.p95, result.gflops, result.share_of_limit

Times are what a caller waits for: from arrays of the host to results that are there. Runs of different devices are
apart in time; for comparisons with others, `run_suite` interleaves its rounds.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.bench.engines import ENGINES, OURS
from rlx.bench.limits import Limits, measure_limits
from rlx.bench.patterns import BenchmarkPattern, Tier
from rlx.bench.programs import Array
from rlx.bench.report import aligned, duration
from rlx.compile.target import select
from rlx.errors import RlxError

# Fewer runs have no p95 to speak of, but slow devices need not run for minutes.
FEWEST_RUNS = 3


@dataclass(frozen=True)
class BenchmarkResult:
    """The times of all runs in nanoseconds, and what surrounds them. `memory` are the bytes of inputs, weights, results
    and values between kernels; `peak_memory` is the most that the process had in memory during the runs, None where the
    system does not say. `limits` are None for devices whose limits are not known."""

    pattern: str
    tier: Tier
    device: str
    samples_ns: tuple[int, ...]
    compile_seconds: float
    error: float
    flops: float
    traffic: float
    memory: int
    peak_memory: int | None
    limits: Limits | None

    @property
    def n_runs(self) -> int:
        return len(self.samples_ns)

    @property
    def min(self) -> int:
        return min(self.samples_ns)

    @property
    def max(self) -> int:
        return max(self.samples_ns)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples_ns)

    @property
    def median(self) -> float:
        return statistics.median(self.samples_ns)

    @property
    def p95(self) -> int:
        return percentile(self.samples_ns, 95)

    @property
    def p99(self) -> int:
        return percentile(self.samples_ns, 99)

    @property
    def gflops(self) -> float:
        """Operations per nanosecond, by the median."""
        return self.flops / self.median

    @property
    def gbytes(self) -> float:
        """Bytes that must be moved per nanosecond, by the median."""
        return self.traffic / self.median

    @property
    def share_of_limit(self) -> float | None:
        """The least time that this machine could take, as a part of the median; above 1 where data stayed in caches."""
        return None if self.limits is None else self.limits.seconds(self.flops, self.traffic) * 1e9 / self.median

    def to_json(self) -> dict[str, Any]:
        limits = None if self.limits is None else self.limits._asdict()
        told = "pattern device n_runs min max mean median p95 p99 gflops gbytes share_of_limit"
        told += " compile_seconds error memory peak_memory flops traffic"
        values = {name: getattr(self, name) for name in told.split()}
        return {**values, "tier": str(self.tier), "limits": limits, "samples_ns": list(self.samples_ns)}


def percentile(samples: Sequence[int], percent: int) -> int:
    """The smallest sample that so many percent of them do not exceed.

    >>> percentile([3, 1, 2, 4], 50), percentile([3, 1, 2, 4], 95), percentile([7], 99)
    (2, 4, 7)
    """
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def run_benchmark(
    pattern: BenchmarkPattern,
    device: str = "cpu",
    warmup: int = 10,
    runs: int = 100,
    *,
    limits: Limits | None = None,
    seconds: float | None = None,
) -> BenchmarkResult:
    """Compile, check and time a pattern on a device. With `seconds`, warm-up and runs end after about so long each,
    with at least three runs. A result that is wrong is an error, and is not timed."""
    if warmup < 0 or runs < 1:
        raise RlxError(f"run_benchmark needs warmup from 0 and runs from 1 on, got warmup={warmup}, runs={runs}")
    name = select(device).name
    session = rlx.Session(name)
    inputs, params = pattern.input_data(), pattern.param_data()
    started = time.perf_counter()
    compiled = session.compile(pattern.build_graph())
    compiled.set_params(params)
    compile_seconds = time.perf_counter() - started

    def run() -> list[Any]:
        return [value.block_until_ready() for value in compiled.run(inputs)]

    error = _error(np.asarray(run()[0]), pattern.expected())
    if not error <= ENGINES[OURS].largest_error:
        raise RlxError(f"{pattern.name} on {name} is wrong by {error:.1e} of its largest element; it is not timed")
    has_peak = _forget_peak()
    _samples(run, warmup, 0, seconds)
    samples = _samples(run, runs, min(runs, FEWEST_RUNS), seconds)
    needed = compiled.memory_info()
    # Patterns have no symbolic sizes.
    between, results = (int(str(size)) for size in (needed.arena, needed.outputs))
    return BenchmarkResult(
        pattern=pattern.name,
        tier=pattern.tier,
        device=name,
        samples_ns=samples,
        compile_seconds=compile_seconds,
        error=error,
        flops=pattern.flops,
        traffic=pattern.traffic,
        memory=sum(a.nbytes for a in inputs.values()) + needed.weights + between + results,
        peak_memory=_peak() if has_peak else None,
        limits=limits,
    )


def limits_of(device: str, threads: int) -> Limits | None:
    """What the machine of a device can do at most: measured where its memory is the host's, else not known."""
    return _host_limits(threads) if select(device).target.open is None else None


@cache
def _host_limits(threads: int) -> Limits:
    return measure_limits(threads)


def benchmark_devices() -> list[str]:
    """All registered devices that can run programs here and now."""
    from rlx.backends.api import registered_devices

    return [name for name in registered_devices() if rlx.is_available(name)]


def tier_table(results: Sequence[BenchmarkResult]) -> str:
    """For every pattern and device: times, rates, how near they are to the limits, memory."""
    head = ["pattern", "device", "median", "p95", "GFLOP/s", "GB/s", "of limit", "memory", "process", "runs"]
    rows = [
        [
            result.pattern,
            result.device,
            duration(result.median / 1e9),
            duration(result.p95 / 1e9),
            f"{result.gflops:.1f}",
            f"{result.gbytes:.2f}",
            "-" if result.share_of_limit is None else f"{result.share_of_limit:.0%}",
            f"{result.memory / 1e6:.1f} MB",
            "-" if result.peak_memory is None else f"{result.peak_memory / 1e6:.0f} MB",
            str(result.n_runs),
        ]
        for result in results
    ]
    lines = aligned([head, *rows])
    known = {r.limits for r in results if r.limits is not None}
    lines += ["", "memory: inputs, weights, results, values between kernels; process: its highest mark while it ran"]
    lines += [f"limits: {x.flops / 1e9:.0f} GFLOP/s and {x.bandwidth / 1e9:.1f} GB/s read" for x in known]
    return "\n".join(lines)


def _samples(run: Callable[[], object], runs: int, fewest: int, seconds: float | None) -> tuple[int, ...]:
    end = None if seconds is None else time.perf_counter() + seconds
    samples: list[int] = []
    while len(samples) < runs and (len(samples) < fewest or end is None or time.perf_counter() < end):
        start = time.perf_counter_ns()
        run()
        samples.append(max(1, time.perf_counter_ns() - start))
    return tuple(samples)


def _error(found: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest element."""
    if found.shape != wanted.shape:
        return float("inf")
    difference = np.abs(found.astype(wanted.dtype) - wanted).max(initial=0.0)
    return float(difference / np.abs(wanted).max(initial=1e-30))


def _forget_peak() -> bool:
    """Let the highest mark of this process's memory begin anew; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak() -> int | None:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
