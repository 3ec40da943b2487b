"""The worker threads of the process. They are Python threads that lend themselves to native code once and for all, so
that no thread ever needs the GIL to take part in a run.

All programs share one pool, started when a run first wants more than one thread. A forked child has none of its
parent's threads and begins with a pool of its own. At the end of the process the workers are sent home before the
interpreter and the code they run are taken down.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading

import numpy as np

from rlx.backends.cpu.executor import Executor
from rlx.backends.cpu.executor_layout import LINE, Mailbox, PoolState, Spot, pool_words
from rlx.backends.cpu.threads import MAX_THREADS, allowed_cpus, note_change
from rlx.backends.memory import aligned_words
from rlx.backends.program.table_layout import WORD
from rlx.locks import fork_safe_lock
from rlx.systems import this_system

# A worker leaves within one ticket; a process that ends waits no longer than this for one that does not.
_EXIT_SECONDS = 2.0
# Made at once: a forked child may not look up functions of the system, whose locks another thread may have held.
_system = this_system()


class Pool:
    """Workers and the memory through which they are reached, at `address`, which is `argument` for native
    code. `run` may be called from any number of threads."""

    def __init__(self, native: Executor) -> None:
        self._native = native
        self._state, self.address = aligned_words(pool_words(MAX_THREADS - 1))
        self.argument = ctypes.c_void_p(self.address)
        self._workers: list[threading.Thread] = []
        self._lock = fork_safe_lock()
        self._is_closed = False
        self._make_spot(self.address + WORD * PoolState.PROGRESS)
        self._cpus = allowed_cpus()
        bits = sum(1 << cpu for cpu in self._cpus).to_bytes(LINE * WORD, "little")
        self._state[PoolState.CPUS : PoolState.CPUS + LINE] = np.frombuffer(bits, np.int64)

    def run(self, job: int, threads: int) -> None:
        """Run the job (its address) to the end with up to `threads` threads, this one included.

        Between two calls no thread is inside the job: an exception that a signal handler raises here, as Ctrl-C does,
        leaves nothing behind.
        """
        threads = self.ready(threads)
        while self._native.run(self.address, job, threads):
            pass

    def ready(self, threads: int) -> int:
        """Have workers for a run on so many threads; how many it may use."""
        if threads > 1 and len(self._workers) < threads - 1:
            self._hire(threads - 1)
        return 1 if self._is_closed else threads

    @property
    def workers(self) -> int:
        return len(self._workers)

    def close(self) -> None:
        """End the workers; later runs are done by their callers alone."""
        with self._lock:
            self._is_closed = True
            note_change()
            self._native.dismiss(self.address, len(self._workers))
        for worker in self._workers:
            worker.join(_EXIT_SECONDS)

    def _hire(self, count: int) -> None:
        with self._lock:
            while len(self._workers) < count and not self._is_closed:
                number = len(self._workers)
                mailbox = self.address + WORD * (PoolState.MAILBOXES + number * Mailbox.WORDS)
                self._make_spot(mailbox + WORD * Mailbox.SPOT)
                worker = threading.Thread(
                    target=self._native.serve,
                    args=(self.address, mailbox),
                    name=f"rlx-worker-{number + 1}",
                    daemon=True,
                )
                try:
                    worker.start()
                except RuntimeError:
                    return  # the system has no threads left: those who are there do the work
                self._workers.append(worker)
                if count + 1 == len(self._cpus):
                    # Every CPU is to have one thread: workers keep off that of whoever wakes them.
                    place = PoolState.MAILBOXES + number * Mailbox.WORDS + Mailbox.THREAD
                    self._state[place] = worker.native_id or 0

    def _make_spot(self, spot: int) -> None:
        _system.make_sleeping_place(spot + WORD * Spot.MUTEX, spot + WORD * Spot.CONDITION)


_pool: Pool | None = None
_making = fork_safe_lock()


def pool(native: Executor) -> Pool:
    """The pool of this process, made when it is first asked for."""
    return _pool if _pool is not None else _make_pool(native)


def _make_pool(native: Executor) -> Pool:
    global _pool
    with _making:
        if _pool is None:
            _pool = Pool(native)
        return _pool


def _forget_pool() -> None:
    """In a forked child: the memory stays as it was at the fork, and nobody is there to use it."""
    global _pool
    _pool = None
    note_change()


def _close_pool() -> None:
    if _pool is not None:
        _pool.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
atexit.register(_close_pool)
