"""Kernels compiled in a second thread, while the thread that wants them makes more of them.

LLVM's part of a compile runs without the interpreter's lock, and takes longer than all that Python does before it. One
thread compiles while the caller makes kernels; a caller that has to wait for one compiles others meanwhile. The thread
lives as long as there are kernels. The caller takes what it comes to first, so that nobody waits for a thread that has
no CPU.

    ahead = CompileAhead(compile)
    ahead.add(key, kernel)
    ahead.take(key)         # the code, made by whichever thread came first; None for keys that were not added
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING
from weakref import WeakSet

from rlx.locks import fork_safe_lock

if TYPE_CHECKING:
    from rlx.kernels.ir.loop_ir import Kernel


class _Job:
    """A kernel that is to be compiled, with the settings of who wants it. `code` stays None where that failed."""

    def __init__(self, kernel: Kernel, length: int = 0) -> None:
        self.kernel, self.length = kernel, length
        self.context: Context = copy_context()
        self.code: bytes | None = None
        self.is_done = threading.Event()


class CompileAhead:
    """`compile(kernel)` for kernels that are added, each once; of those that wait, the longest first."""

    def __init__(self, compile: Callable[[Kernel], bytes]) -> None:
        self._compile = compile
        self._lock = fork_safe_lock()
        self._waiting: dict[str, _Job] = {}
        self._begun: dict[str, _Job] = {}
        self._thread: threading.Thread | None = None
        _all.add(self)

    def add(self, key: str, kernel: Kernel, length: int = 0) -> None:
        """Let a kernel be compiled. With one alone it is not worth a thread: the caller comes to it at once. What has a
        larger `length` takes longer."""
        with self._lock:
            if key in self._waiting or key in self._begun:
                return
            self._waiting[key] = _Job(kernel, length)
            if self._thread is None and len(self._waiting) > 1:
                self._thread = threading.Thread(target=self._work, name="rlx-compile")
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None  # the system has no threads left: the caller compiles all

    def take(self, key: str) -> bytes | None:
        """The code of a kernel that was added, once. None where there is none: the caller compiles it, and sees why
        that fails."""
        with self._lock:
            self._waiting.pop(key, None)
            job = self._begun.pop(key, None)
        if job is None:
            return None
        while not job.is_done.is_set() and self._compile_one():
            pass
        job.is_done.wait()
        return job.code

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
            self._compile_one()

    def _compile_one(self) -> bool:
        """Compile one of the kernels that wait; whether there was one. A long one that is begun last would leave the
        other threads with nothing to do."""
        with self._lock:
            if not self._waiting:
                return False
            key = max(self._waiting, key=lambda k: self._waiting[k].length)
            job = self._begun[key] = self._waiting.pop(key)
        try:
            job.code = job.context.run(self._compile, job.kernel)
        except Exception:
            # Whoever needs the kernel compiles it again, and sees the error where it belongs.
            job.code = None
        finally:
            job.is_done.set()
        return True

    def forget(self) -> None:
        """In a forked child, where no other thread is: nothing has been begun."""
        self._waiting, self._begun, self._thread = {}, {}, None


_all: WeakSet[CompileAhead] = WeakSet()


def _forget_all() -> None:
    for ahead in list(_all):
        ahead.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
