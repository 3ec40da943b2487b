"""Compiled programs of this process, found by their content, and the count of all compiles with the reason of each.

>>> before = compile_count()
>>> before >= 0
True

A program is compiled once for a device and a set of options, however often it is built or traced again. When a program
is compiled although one of its name has been compiled before, `compile_log()` says what was different.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from collections import OrderedDict, deque
from contextlib import nullcontext
from typing import NamedTuple

from rlx.backends.api import CompileOptions, Executable, backend_for
from rlx.collector import collector_at_rest
from rlx.ir.graph import Graph
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.text.printed import printed
from rlx.knobs import knobs, report_unknown_variables
from rlx.locks import fork_safe_lock
from rlx.ops.control.custom import global_registry
from rlx.perfetto import trace_span
from rlx.runtime.watching import watched

# Programs that are kept when nobody uses them, least recently used ones leave first.
KEPT = 64
# Compiles that `compile_log` remembers.
REMEMBERED = 1000
# Bytes of constants up to which programs are compared by their content.
MAX_CONSTANTS = 64 << 20

_serials = itertools.count()


class CompileEvent(NamedTuple):
    """One compile: of which program, for which device, how long it took, and why it was needed."""

    number: int
    program: str
    device: str
    seconds: float
    reason: str

    def __str__(self) -> str:
        return f"compile {self.number}: @{self.program} for {self.device}, {self.seconds:.3f} s; {self.reason}"


class _Known(NamedTuple):
    """What is remembered of the last program of a name: its key, the types of its leaves, its options and its size."""

    key: str
    leaves: dict[str, str]
    options: str
    nodes: int


class ProgramCache:
    """Executables by content. An executable holds no weights and no state, so all who compile a program share it."""

    def __init__(self, capacity: int = KEPT) -> None:
        self._capacity = capacity
        self._lock = fork_safe_lock()
        self._kept: OrderedDict[str, Executable] = OrderedDict()
        self._seen: set[str] = set()
        self._last: dict[tuple[str, str], _Known] = {}
        self._log: deque[CompileEvent] = deque(maxlen=REMEMBERED)
        self._count = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def count(self) -> int:
        return self._count

    def log(self) -> list[CompileEvent]:
        with self._lock:
            return list(self._log)

    def clear(self) -> None:
        """Forget the programs; the count stays."""
        with self._lock:
            self._kept.clear()

    def get(self, graph: Graph, device: str, options: CompileOptions) -> Executable:
        """The executable of a graph, compiled unless it is here."""
        with collector_at_rest():
            return self._get(graph, device, options)

    def _get(self, graph: Graph, device: str, options: CompileOptions) -> Executable:
        known, text = _describe(graph, device, options)
        with self._lock:
            found = self._kept.get(known.key)
            if found is not None:
                self._kept.move_to_end(known.key)
        if found is not None:
            if knobs.debug >= 1:
                print(f"rlx: @{graph.name} for {device}: compiled before by this process", file=sys.stderr)
            return found
        start = time.perf_counter()
        told = nullcontext() if text is None else printed(graph, text)
        with told, trace_span(f"compile @{graph.name}", "compile"):
            executable = backend_for(device).compile(graph, options)
        seconds = time.perf_counter() - start
        with self._lock:
            event = self._note(known, graph.name, device, seconds)
            # Another thread may have been faster; then all use its program.
            executable = self._kept.setdefault(known.key, executable)
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        if knobs.debug >= 1:
            print(f"rlx: {event}", file=sys.stderr)
        return executable

    def _note(self, known: _Known, name: str, device: str, seconds: float) -> CompileEvent:
        reason = self._reason(known, name, device)
        self._count += 1
        event = CompileEvent(self._count, name, device, seconds, reason)
        self._log.append(event)
        self._seen.add(known.key)
        self._last[name, device] = known
        return event

    def _reason(self, known: _Known, name: str, device: str) -> str:
        before = self._last.get((name, device))
        if known.key in self._seen:
            return f"it had been compiled, but only the last {self._capacity} programs are kept"
        if before is None:
            return f"the first program of this name for {device}"
        changed = _changes(before.leaves, known.leaves)
        if changed:
            return f"{changed}; sizes that change may be symbolic, then one compile serves them all"
        if before.options != known.options:
            return f"other options: {_changed_options(before.options, known.options)}"
        if before.nodes != known.nodes:
            return f"another program of this name: {known.nodes} nodes, the last one had {before.nodes}"
        return "another program of this name, with the same inputs and as many nodes"


def _describe(graph: Graph, device: str, options: CompileOptions) -> tuple[_Known, str | None]:
    """What is remembered of a program, and its text if it was printed for that."""
    leaves = {n.op.key: str(n.shape) for n in graph.nodes if isinstance(n.op, Input | Param)}
    # Knobs may change the program, too; those that only print do no harm here.
    settings = "\n".join((device, options.key(), str(options.threads), str(knobs.values())))
    # Programs name their custom ops; a name may be given another meaning.
    settings += f"\n{global_registry().replaced}"
    constraints = "\n".join(map(str, graph.constraints))
    constants = sum(n.op.value.array.nbytes for n in graph.nodes if isinstance(n.op, Constant))
    # To look at gigabytes takes longer than to compile: such a program is like no other.
    text = str(graph) if constants <= MAX_CONSTANTS else None
    content = "\n".join((settings, constraints, f"unique {next(_serials)}" if text is None else text))
    known = _Known(hashlib.sha256(content.encode()).hexdigest(), leaves, options.key(), len(graph.nodes))
    return known, text


def _changes(before: dict[str, str], now: dict[str, str]) -> str:
    both = [name for name in now if name in before]
    changed = [f"{name} was {before[name]} and is {now[name]}" for name in both if before[name] != now[name]]
    changed += [f"{name} ({shape}) is new" for name, shape in now.items() if name not in before]
    changed += [f"{name} is gone" for name in before if name not in now]
    shown = changed[:4] + ([f"{len(changed) - 4} more"] if len(changed) > 4 else [])
    return ", ".join(shown)


def _changed_options(before: str, now: str) -> str:
    return ", ".join(b for a, b in zip(before.split("; "), now.split("; ")) if a != b)


_cache = ProgramCache()


def compiled_program(graph: Graph, device: str, options: CompileOptions) -> Executable:
    """The executable of a graph, from the cache of this process or compiled."""
    if knobs.dump or knobs.override or knobs.ir_dump:
        # Who wants to see the stages, or to change them, wants a compile.
        clear_compile_cache()
    report_unknown_variables()
    return watched(_cache.get(graph, device, options), graph.name, device)


def compile_count() -> int:
    """How many programs this process has compiled, or read from disk where an earlier one had compiled them; those
    found in the cache of the process do not count."""
    return _cache.count


def compile_log() -> list[CompileEvent]:
    """The last compiles, oldest first, each with its reason."""
    return _cache.log()


def clear_compile_cache() -> None:
    """Forget the compiled programs of this process. Code on disk stays."""
    _cache.clear()
