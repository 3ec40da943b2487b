"""How threads of the executor sleep, yield and tell the time: what its code calls of the system that it runs on.

A thread that wants to sleep counts itself in its spot and then looks at the word that it waits for once more. Who
changes the word looks at the count afterwards, so that one of the two sees the other; the rest is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rlx.backends.cpu.executor_layout import LINE, Mailbox, PoolState, Spot
from rlx.backends.cpu.executor_words import Function, FunctionHolder
from rlx.backends.program.table_layout import WORD
from rlx.kernels.machines import Machine

_SECOND = 1_000_000_000
_FOREVER = -1

# All that the executor needs from a system.
POSIX_SYMBOLS = frozenset(
    {
        "clock_gettime",
        "pthread_cond_broadcast",
        "pthread_cond_wait",
        "pthread_mutex_lock",
        "pthread_mutex_unlock",
        "sched_yield",
    }
)
# Linux can be told where a thread may run.
LINUX_SYMBOLS = POSIX_SYMBOLS | {"sched_getcpu", "sched_setaffinity"}
WINDOWS_SYMBOLS = frozenset(
    {"QueryPerformanceCounter", "QueryPerformanceFrequency", "SwitchToThread", "WaitOnAddress", "WakeByAddressAll"}
)


def is_windows(machine: Machine) -> bool:
    return "windows" in machine.triple


def is_linux(machine: Machine) -> bool:
    return "linux" in machine.triple


def system_symbols(machine: Machine) -> frozenset[str]:
    """The functions of the system that the executor may call."""
    if is_windows(machine):
        return WINDOWS_SYMBOLS
    return LINUX_SYMBOLS if is_linux(machine) else POSIX_SYMBOLS


class PosixSleep:
    """A mutex and a condition variable. Sleepers hold the mutex from their last look until they sleep."""

    def __init__(self, module: FunctionHolder) -> None:
        self.module, number, address = module, module.i32, module.address
        self.mutex_lock = module.declare("pthread_mutex_lock", number, address)
        self.mutex_unlock = module.declare("pthread_mutex_unlock", number, address)
        self.condition_wait = module.declare("pthread_cond_wait", number, address, address)
        self.condition_broadcast = module.declare("pthread_cond_broadcast", number, address)
        self.sched_yield = module.declare("sched_yield", number)
        self.clock_gettime = module.declare("clock_gettime", number, number, address)

    def now(self, f: Function) -> Any:
        moment = f.b.alloca(self.module.ir.ArrayType(f.i64, 2))
        # Systems number their clocks differently; this code is for the one that it is made on, or for Linux.
        f.b.call(self.clock_gettime, [self.module.i32(getattr(time, "CLOCK_MONOTONIC", 1)), moment])
        return f.b.add(f.b.mul(f.field(moment, 0), f.i64(_SECOND)), f.field(moment, 1))

    def yield_cpu(self, f: Function) -> None:
        f.b.call(self.sched_yield, [])

    def wake(self, f: Function, spot: Any) -> None:
        mutex = f.word(spot, Spot.MUTEX)
        f.b.call(self.mutex_lock, [mutex])
        f.b.call(self.mutex_unlock, [mutex])
        f.b.call(self.condition_broadcast, [f.word(spot, Spot.CONDITION)])

    def sleep_until(self, f: Function, is_reached: Callable[[], Any], spot: Any) -> None:
        mutex, sleepers = f.word(spot, Spot.MUTEX), f.word(spot, Spot.SLEEPERS)
        f.b.call(self.mutex_lock, [mutex])
        f.atomic_add(sleepers, f.i64(1), "seq_cst")
        with f.forever() as sleeping:
            sleeping.leave_if(is_reached())
            f.b.call(self.condition_wait, [f.word(spot, Spot.CONDITION), mutex])
        f.atomic_add(sleepers, f.i64(-1), "seq_cst")
        f.b.call(self.mutex_unlock, [mutex])


class WindowsSleep:
    """A number in the spot that every call to wake changes. Sleepers wait until it is not what it was before their last
    look."""

    def __init__(self, module: FunctionHolder) -> None:
        self.module, number, address = module, module.i32, module.address
        self.wait_on_address = module.declare("WaitOnAddress", number, address, address, module.i64, number)
        self.wake_by_address = module.declare("WakeByAddressAll", module.void, address)
        self.switch_to_thread = module.declare("SwitchToThread", number)
        self.counter = module.declare("QueryPerformanceCounter", number, address)
        self.frequency = module.declare("QueryPerformanceFrequency", number, address)

    def now(self, f: Function) -> Any:
        count, frequency = (f.variable(f.i64(0)) for _ in range(2))
        f.b.call(self.counter, [count])
        f.b.call(self.frequency, [frequency])
        # In two parts: a product of the whole count would not fit.
        ticks, each = f.load(count), f.load(frequency)
        rest = f.b.udiv(f.b.mul(f.b.urem(ticks, each), f.i64(_SECOND)), each)
        return f.b.add(f.b.mul(f.b.udiv(ticks, each), f.i64(_SECOND)), rest)

    def yield_cpu(self, f: Function) -> None:
        f.b.call(self.switch_to_thread, [])

    def wake(self, f: Function, spot: Any) -> None:
        calls = f.word(spot, Spot.MUTEX)
        f.atomic_add(calls, f.i64(1), "seq_cst")
        f.b.call(self.wake_by_address, [calls])

    def sleep_until(self, f: Function, is_reached: Callable[[], Any], spot: Any) -> None:
        calls, sleepers = f.word(spot, Spot.MUTEX), f.word(spot, Spot.SLEEPERS)
        before = f.variable(f.i64(0))
        f.atomic_add(sleepers, f.i64(1), "seq_cst")
        with f.forever() as sleeping:
            f.b.store(f.atomic_load(calls, "seq_cst"), before)
            sleeping.leave_if(is_reached())
            f.b.call(self.wait_on_address, [calls, before, f.i64(8), self.module.i32(_FOREVER)])
        f.atomic_add(sleepers, f.i64(-1), "seq_cst")


_BITS = 64


def build_keep_apart(module: FunctionHolder) -> Any:
    """keep_apart(pool, mailbox): before a sleeping worker is woken, let it run on no CPU but others than the caller's.

    Where every CPU is wanted and another library's threads spin on some of them, Linux takes the CPU of who wakes for
    the best one, and the two then share it for milliseconds: a product beside NumPy took twice its time."""
    f = Function(module, "keep_apart", module.void, module.address, module.address)
    pool, box = f.function.args
    getcpu = module.declare("sched_getcpu", module.i32)
    setaffinity = module.declare("sched_setaffinity", module.i32, module.i32, module.i64, module.address)
    thread = f.field(box, Mailbox.THREAD)
    f.returns_if(f.b.icmp_signed("==", thread, f.i64(0)))
    sleepers = f.atomic_load(f.word(box, Mailbox.SPOT + Spot.SLEEPERS), "monotonic")
    f.returns_if(f.b.icmp_signed("==", sleepers, f.i64(0)))
    cpu = f.b.zext(f.b.call(getcpu, []), f.i64)
    f.returns_if(f.b.icmp_unsigned(">=", cpu, f.i64(LINE * _BITS)))
    avoided = f.b.add(cpu, f.i64(1))
    f.returns_if(f.b.icmp_signed("==", f.field(box, Mailbox.AVOIDED), avoided))
    f.b.store(avoided, f.word(box, Mailbox.AVOIDED))
    with f.b.goto_entry_block():
        others = f.b.alloca(f.i64, LINE)
    for i in range(LINE):
        f.b.store(f.field(pool, PoolState.CPUS + i), f.word(others, i))
    place = f.word(others, f.b.udiv(cpu, f.i64(_BITS)))
    bit = f.b.shl(f.i64(1), f.b.urem(cpu, f.i64(_BITS)))
    f.b.store(f.b.and_(f.load(place), f.b.not_(bit)), place)
    # Where nothing is left the system refuses, and the worker stays as it is.
    f.b.call(setaffinity, [f.b.trunc(thread, module.i32), f.i64(LINE * WORD), others])
    f.b.ret_void()
    return f.function
