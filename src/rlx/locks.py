"""Locks that a fork cannot leave locked for ever.

A forked child has only the thread that forked. A lock that another thread held at that moment stays held in the child,
where nobody is left to release it. Locks made here are free again in the child, unless the forking thread itself is
inside. What they guard must therefore be valid between any two statements, as what a GIL switches between must be.

    lock = fork_safe_lock()
    with lock: ...
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def fork_safe_lock() -> threading.RLock:
    """A lock that its holder may take again, and that is free in a forked child if another thread held it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _release_those_of_others() -> None:
    for lock in list(_locks):
        if lock.acquire(blocking=False):
            lock.release()
        else:
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_those_of_others)
