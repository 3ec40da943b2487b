"""The native executor: threads that walk a command table together.

    run(pool, job, threads) -> 1 if the job is not finished     serve(pool, mailbox)     dismiss(pool, workers)
    call(self, arguments, count) -> results of a small program; see `executor_call`

A run is a table of commands and one counter of tickets. Every thread takes the next ticket, waits until all that the
ticket depends on is completed, runs its iterations, and takes another. So a thread that comes late, or never, delays
nobody: the caller alone finishes any job. What a ticket computes depends on the shapes, never on who computes it.

Loops and branches cut a table into segments. The last ticket of a segment decides which one follows, and gives the
addresses that change to its kernels; tickets of the next segment are dealt out meanwhile, and wait for it. Segments
with too little work to share are run by the thread that comes to them, without tickets.

A caller has the workers from the moment it becomes the pool's owner until the last of them has left its job; who finds
the pool owned walks its table alone, which is the best use of the machine when there are several callers.
`run` also comes back, with no thread inside the job, when a tenth of a second has passed, so that Python can handle
signals; calling it again goes on. Who waits spins for 50 us, then yields, and sleeps after a millisecond until it is
woken; workers without a run sleep after a fifth of that.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from rlx.backends.cpu.executor_layout import EXPORTS
from rlx.backends.cpu.executor_sleep import system_symbols
from rlx.backends.native.code_cache import object_cache
from rlx.backends.native.kept_stamps import kept_stamp
from rlx.backends.native.kernels import codegen_stamp
from rlx.backends.native.linker import link
from rlx.kernels.machines import Machine, host
from rlx.locks import fork_safe_lock

# What decides the code besides the target, the code generator and LLVM's version.
SOURCES = (
    "backends/program/table_layout.py",
    "backends/cpu/executor_layout.py",
    "backends/cpu/executor_words.py",
    "backends/cpu/executor_sleep.py",
    "backends/cpu/executor_call.py",
    "backends/cpu/executor_ir.py",
)


class Executor(NamedTuple):
    """The functions above; ctypes releases the GIL while they run. `call` is an address, for Python itself."""

    run: Any
    serve: Any
    dismiss: Any
    call: Any
    code: Any  # keeps the code in memory


_making = fork_safe_lock()


def executor() -> Executor:
    """The executor for this machine: the one that came with a program, else from disk, else compiled."""
    with _making:
        return _made_once()


@cache
def _made_once() -> Executor:
    return link_executor(_given or executor_code(), host())


def start_executor() -> None:
    """Let a thread make it, which every program needs, while the caller compiles one."""
    if _made_once.cache_info().currsize:
        return

    def make() -> None:
        # Who needs it tries again, and sees the error where it belongs.
        with suppress(Exception):
            executor()

    # Where the system has no threads left, it is made when it is needed.
    with suppress(RuntimeError):
        threading.Thread(target=make, name="rlx-executor").start()


# Code that came with a program before the executor was first needed.
_given: bytes | None = None


def use_executor(code: bytes) -> None:
    """Take the executor from a saved program, so that nothing has to be compiled; too late is no harm."""
    global _given
    _given = code


def executor_code() -> bytes:
    """The object code of the executor: from disk, else compiled."""
    machine, objects = host(), object_cache()
    key = executor_key(machine)
    code = objects.get(key) if objects is not None else None
    if code is None:
        code = compile_executor(machine)
        if objects is not None:
            objects.put(key, code)
    return code


def compile_executor(machine: Machine, **options: int) -> bytes:
    """The object code of the executor; `options` are those of `executor_text`."""
    from rlx.backends.cpu.executor_ir import executor_text
    from rlx.kernels.emit.llvm_codegen import compile_text

    return compile_text(executor_text(machine, **options), machine, "the executor")


def link_executor(code: bytes, machine: Machine) -> Executor:
    """The executor as functions of this process."""
    linked = link(code, "the executor", machine, EXPORTS, system_symbols(machine))
    address, number = ctypes.c_void_p, ctypes.c_int64
    return Executor(
        ctypes.CFUNCTYPE(number, address, address, number)(linked.addresses["rlx.run"]),
        ctypes.CFUNCTYPE(None, address, address)(linked.addresses["rlx.serve"]),
        ctypes.CFUNCTYPE(None, address, number)(linked.addresses["rlx.dismiss"]),
        linked.addresses["rlx.call"],
        linked,
    )


def executor_key(machine: Machine) -> str:
    """What decides the code: executors of other sources expect other records."""
    return hashlib.sha256(f"{kept_stamp(*SOURCES)} {codegen_stamp()} {machine!r}".encode()).hexdigest()
