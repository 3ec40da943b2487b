"""Traces for chrome://tracing and ui.perfetto.dev, on when the knob `trace_perfetto` (RLX_TRACE_PERFETTO) names a file.

    with trace_span("compile", "rlx"):
        ...

The file is a JSON array of complete events `{"name", "cat", "ph": "X", "ts", "dur", "pid", "tid", "args"}`, times in
microseconds. It is written in batches and at exit, and is valid JSON after every write.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Mapping
from types import TracebackType

from rlx.knobs import knobs
from rlx.locks import fork_safe_lock

# Events are kept in memory until there are this many.
_EVENTS_PER_WRITE = 1024

Number = int | float


def enabled() -> bool:
    return knobs.trace_perfetto is not None


def emit_complete(
    name: str, cat: str, start_ns: int, end_ns: int, args: Mapping[str, Number | str] | None = None
) -> None:
    """Record that `name` ran from `start_ns` to `end_ns`; `args` (bytes, flops, ...) are shown with it.

    Does nothing while tracing is off.
    """
    path = knobs.trace_perfetto
    if path is None:
        return
    event: dict[str, object] = {
        "name": name,
        "cat": cat,
        "ph": "X",
        "ts": start_ns / 1000,
        "dur": max(end_ns - start_ns, 0) / 1000,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
    }
    if args:
        event["args"] = dict(args)
    _trace.add(path, json.dumps(event))


def flush_and_finalize() -> None:
    """Write what is still in memory. Later events extend the file."""
    _trace.flush()


class TraceSpan:
    """Records the time between entering and leaving. `args` may be filled inside the block."""

    def __init__(self, name: str, cat: str, args: Mapping[str, Number | str] | None = None) -> None:
        self.name, self.cat, self.args = name, cat, dict(args or {})

    def __enter__(self) -> TraceSpan:
        self.start_ns = time.perf_counter_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        emit_complete(self.name, self.cat, self.start_ns, time.perf_counter_ns(), self.args)


class _NoSpan:
    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


_NO_SPAN = _NoSpan()


def trace_span(name: str, cat: str = "rlx", args: Mapping[str, Number | str] | None = None) -> TraceSpan | _NoSpan:
    """A context manager that records a span; it yields None, at next to no cost, while tracing is off."""
    return TraceSpan(name, cat, args) if enabled() else _NO_SPAN


class _Trace:
    """The events of the process on their way to a file. When the path changes, a new file begins."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._path = ""
        self._pending: list[str] = []
        # Where the next event goes: over the bracket that closes the array. 0 before the first write.
        self._end = 0

    def add(self, path: str, event: str) -> None:
        with self._lock:
            if path != self._path:
                self._write()
                self._path, self._end = path, 0
            self._pending.append(event)
            if len(self._pending) >= _EVENTS_PER_WRITE:
                self._write()

    def flush(self) -> None:
        with self._lock:
            self._write()

    def _write(self) -> None:
        if not self._pending:
            return
        text = (",\n" if self._end else "[\n") + ",\n".join(self._pending)
        self._pending.clear()
        with open(self._path, "r+b" if self._end else "wb") as file:
            file.seek(self._end)
            file.write(text.encode())
            self._end = file.tell()
            file.write(b"\n]\n")


_trace = _Trace()
atexit.register(_trace.flush)
