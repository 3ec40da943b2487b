"""Where runs note the times of their kernels: one list for a thread or task, whatever device its programs run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rlx.backends.api import KernelTime

# None: runs are not to be measured.
times: ContextVar[list[KernelTime] | None] = ContextVar("rlx_kernel_times", default=None)


@contextmanager
def timed() -> Iterator[list[KernelTime]]:
    """Inside, runs are measured, and their kernels are added to the list in the order in which they run."""
    noted: list[KernelTime] = []
    token = times.set(noted)
    try:
        yield noted
    finally:
        times.reset(token)
