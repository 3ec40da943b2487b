"""How many threads a run may use: what the caller says, else what the machine lends to this process.

The first that says something counts: `with rlx.threads(n):` around the run, `CompileOptions.threads`, the knob
`threads` (`knobs.set`, `RLX_THREADS`), the number of CPUs that affinity and cgroup quota leave to the process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from rlx.backends.memory import aligned_words
from rlx.errors import RlxError
from rlx.knobs import NOT_SCOPED, knobs, watchers

# More than any machine has; the pool has memory for so many.
MAX_THREADS = 1024

_scoped: ContextVar[int | None] = ContextVar("rlx_threads", default=None)
# Context variables with the values they have where only the process says how many threads there are.
NOT_IN_SCOPES = ((_scoped, None), NOT_SCOPED)

# Counts how often something else than these variables has changed the number of threads or the pool: native code that
# was told of both compares this number.
_changes, CHANGES_AT = aligned_words(1)


def changes() -> int:
    return int(_changes[0])


def note_change() -> None:
    _changes[0] += 1


watchers.append(note_change)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """`with rlx.threads(2):` lets programs that run inside, in this thread or task, use two threads, the calling one
    included. Results do not depend on it."""
    token = _scoped.set(checked(count, "rlx.threads"))
    try:
        yield
    finally:
        _scoped.reset(token)


def checked(count: int, where: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_THREADS:
        raise RlxError(f"{where}: the number of threads is from 1 to {MAX_THREADS}, got {count!r}")
    return count


def thread_count(option: int | None) -> int:
    """The number of threads for a run of a program compiled with `CompileOptions(threads=option)`."""
    scoped = _scoped.get()
    if scoped is not None:
        return scoped
    if option is not None:
        return option
    known = knobs.threads
    return min(known, MAX_THREADS) if known is not None else usable_cpus()


@cache
def usable_cpus() -> int:
    """The CPUs this process may use, found once. A part of a CPU does not count: two threads that wait for each other
    on one and a half CPUs are slower than one thread."""
    allowed = len(allowed_cpus()) or os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, min(allowed, MAX_THREADS, MAX_THREADS if quota is None else int(quota)))


def allowed_cpus() -> frozenset[int]:
    """The numbers of the CPUs that this thread may run on, below `MAX_THREADS`; none where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    return frozenset(cpu for cpu in os.sched_getaffinity(0) if cpu < MAX_THREADS)


def cgroup_quota(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The smallest CPU quota of the control groups this process is in, in CPUs; None where there is no limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "cpu" if controllers else root
        # Inside a container the path may be one of the host that is not visible here; the root then has the limit.
        for directory in {base, *((base / group.lstrip("/")).parents), base / group.lstrip("/")}:
            if directory == base or base in directory.parents:
                quotas += _quota_in(directory)
    return min(quotas, default=None)


def _quota_in(directory: Path) -> list[float]:
    try:
        if (directory / "cpu.max").exists():
            quota, period = (directory / "cpu.max").read_text().split()
        else:
            quota = (directory / "cpu.cfs_quota_us").read_text().strip()
            period = (directory / "cpu.cfs_period_us").read_text().strip()
        is_limited = quota not in ("max", "-1") and int(period) > 0
        return [int(quota) / int(period)] if is_limited else []
    except (OSError, ValueError):
        return []
