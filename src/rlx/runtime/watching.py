"""Runs that somebody wants to see: the times of kernels for `RLX_DEBUG=1`, and a trace for `RLX_TRACE_PERFETTO`.

`watched` puts a `WatchedExecutable` around a compiled program if one of the two is set when it is compiled, and leaves
it alone otherwise, so that runs nobody watches cost nothing. A watched run goes kernel by kernel on one thread, as that
of `CompiledGraph.profile` does. What each kernel took is summed over all runs of the process and printed when it ends.
"""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from rlx.backends.api import Array, Executable, KernelTime, Prepared
from rlx.backends.donation import Held
from rlx.errors import BackendError
from rlx.ir.shape import Size
from rlx.knobs import knobs
from rlx.locks import fork_safe_lock
from rlx.perfetto import emit_complete

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport

# Kernels of a program that are printed, slowest first.
SHOWN = 12

# Set while somebody measures a run otherwise.
_is_measured: ContextVar[bool] = ContextVar("rlx_is_measured", default=False)


def watched(executable: Executable, name: str, device: str) -> Executable:
    """The executable, with a clock around its runs if a knob asks for times."""
    if knobs.debug < 1 and knobs.trace_perfetto is None:
        return executable
    return WatchedExecutable(executable, name, device)


class WatchedExecutable(Executable):
    """An executable that notes what its runs take."""

    def __init__(self, inner: Executable, name: str, device: str) -> None:
        self._inner, self._name = inner, name
        self._times = _times_of(name, device) if knobs.debug >= 1 else None

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> Prepared:
        return self._inner.prepare(changed, before, source)

    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        with self._clock():
            return self._inner.run(inputs, params)

    def hold(self, results: Sequence[Array], homes: Mapping[str, int]) -> Held | None:
        return self._inner.hold(results, homes)

    def run_held(
        self, held: Held, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared
    ) -> list[Array] | None:
        with self._clock():
            return self._inner.run_held(held, inputs, params)

    @property
    def arena_bytes(self) -> Size:
        return self._inner.arena_bytes

    @contextmanager
    def timed(self) -> Iterator[list[KernelTime]]:
        token = _is_measured.set(True)
        try:
            with self._inner.timed() as times:
                yield times
        finally:
            _is_measured.reset(token)

    @property
    def report(self) -> CompileReport:
        return self._inner.report

    @contextmanager
    def _clock(self) -> Iterator[None]:
        if _is_measured.get():
            yield
            return
        start = time.perf_counter_ns()
        with self._kernel_times() as kernels:
            yield
        end = time.perf_counter_ns()
        if self._times is not None:
            self._times.add(kernels, (end - start) / 1e9)
        emit_complete(f"run @{self._name}", "run", start, end)
        for kernel in kernels:
            stop = start + round(kernel.seconds * 1e9)
            emit_complete(kernel.what, f"kernel {kernel.kind}", start, stop)
            start = stop

    def _kernel_times(self) -> AbstractContextManager[list[KernelTime]]:
        try:
            return self._inner.timed()
        except BackendError:
            # A backend that does not measure single kernels: the run as a whole.
            return _no_times()


@contextmanager
def _no_times() -> Iterator[list[KernelTime]]:
    yield []


class _Times:
    """What the kernels of one program took, over all its runs."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device, self.runs, self.seconds = name, device, 0, 0.0
        self._kernels: dict[tuple[int, str, str], float] = {}
        self._lock = fork_safe_lock()

    def add(self, kernels: Sequence[KernelTime], seconds: float) -> None:
        with self._lock:
            self.runs += 1
            self.seconds += seconds
            for number, kernel in enumerate(kernels):
                key = (number, kernel.kind, kernel.what)
                self._kernels[key] = self._kernels.get(key, 0.0) + kernel.seconds

    def __str__(self) -> str:
        total = sum(self._kernels.values())
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        where = f"{len(self._kernels)} kernels {total * 1e3:.3f} ms" if self._kernels else "kernels not measured"
        lines = [f"rlx: @{self.name} on {self.device}, {runs} on one thread {self.seconds * 1e3:.3f} ms, {where}"]
        slowest = sorted(self._kernels.items(), key=lambda item: -item[1])
        for (number, kind, what), seconds in slowest[:SHOWN]:
            share = seconds / total if total else 0.0
            lines.append(f"  {seconds * 1e3:10.3f} ms {share:6.1%}  k{number:<4} {kind:8} {what}")
        if len(slowest) > SHOWN:
            lines.append(f"  {sum(s for _, s in slowest[SHOWN:]) * 1e3:10.3f} ms in {len(slowest) - SHOWN} others")
        return "\n".join(lines)


_programs: dict[tuple[str, str], _Times] = {}
_programs_lock = fork_safe_lock()


def _times_of(name: str, device: str) -> _Times:
    with _programs_lock:
        if not _programs:
            atexit.register(print_times)
        return _programs.setdefault((name, device), _Times(name, device))


def print_times() -> None:
    """Print what the kernels of all watched programs took so far; done when the process ends."""
    for times in list(_programs.values()):
        if times.runs:
            print(times, file=sys.stderr)
