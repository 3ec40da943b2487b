"""The native executor by itself: tables written by hand, run by real threads."""

import os
import threading
import time

import numpy as np
import pytest

from rlx.backends.cpu.executor import compile_executor, executor, link_executor
from rlx.backends.cpu.executor_layout import Job
from rlx.backends.cpu.executor_sleep import system_symbols
from rlx.backends.cpu.pool import Pool
from rlx.backends.memory import aligned_words
from rlx.backends.native import kernels as native
from rlx.backends.native.elf import undefined_symbols
from rlx.backends.program.table_layout import WORD, Command, Patch, Segment
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.machines import AVX2, NEON, RISCV, SSE2, host

I64 = DType.I64
SIZE = 96


def rotated_kernel():
    """y[i] = x[(i + 1) % n] + 1: each element needs another thread's work."""
    k = KernelBuilder("rotated")
    x, y, n = k.pointer("x", I64), k.pointer("y", I64, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, k.load(x, (i + 1) % n) + 1)
    return k.build()


def rotated_plus_one():
    return native.load(rotated_kernel())


def counted():
    """Adds 1 to its own element, so that an iteration that runs twice or never shows."""
    k = KernelBuilder("counted")
    x, n = k.pointer("x", I64, write=True, read=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(x, i, k.load(x, i) + 1)
    return native.load(k.build())


class TableByHand:
    """Commands over slots, with addresses given as patches."""

    def __init__(self, commands, values):
        """commands: (kernel, value numbers, n, iterations, grain, waits)."""
        self.slots, patches, rows = [], [], []
        ticket = after = 0
        for kernel, numbers, n, iterations, grain, waits in commands:
            count = -(-iterations // grain)
            after = ticket if waits else after
            row = [0] * Command.WORDS
            row[Command.ENTRY], row[Command.ARGS] = kernel.address, len(self.slots)
            row[Command.FIRST], row[Command.END], row[Command.AFTER] = ticket, ticket + count, after
            row[Command.GRAIN], row[Command.ITERATIONS] = grain, iterations
            rows.append(row)
            patches += [(len(self.slots) + i, v, 0) for i, v in enumerate(numbers)]
            self.slots += [0] * len(numbers) + [n]
            ticket += count
        self.keep = [k for k, *_ in commands], values
        slots, slots_at = aligned_words(len(self.slots))
        slots[:] = self.slots
        table, table_at = aligned_words(len(rows) * Command.WORDS)
        table[:] = np.array(rows).reshape(-1)
        table.reshape(-1, Command.WORDS)[:, Command.ARGS] = (
            slots_at + WORD * table.reshape(-1, Command.WORDS)[:, Command.ARGS]
        )
        patch, patch_at = aligned_words(len(patches) * Patch.WORDS)
        patch[:] = np.array(patches).reshape(-1)
        addresses, addresses_at = aligned_words(len(values))
        addresses[:] = [v.ctypes.data for v in values]
        segment, segment_at = aligned_words(Segment.WORDS)
        segment[Segment.COMMANDS], segment[Segment.TICKETS], segment[Segment.IS_LAST] = table_at, ticket, 1
        segment[Segment.PATCHES], segment[Segment.PATCH_COUNT] = patch_at, len(patches)
        self.job, self.address = aligned_words(Job.WORDS)
        self.job[Job.START], self.job[Job.SLOTS], self.job[Job.VALUES] = segment_at, slots_at, addresses_at
        self.memory = slots, table, patch, addresses, segment

    def run(self, pool, threads):
        self.job[Job.NEXT] = self.job[Job.COMPLETED] = 0
        pool.run(self.address, threads)


@pytest.fixture
def pool():
    made = Pool(executor())
    yield made
    made.close()
    assert not any(t.is_alive() for t in made._workers)


def chain(length, grain=1):
    kernel = rotated_plus_one()
    a, b = np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64)
    commands = [(kernel, (i % 2, 1 - i % 2), SIZE, SIZE, grain, True) for i in range(length)]
    return TableByHand(commands, [a, b]), a, b


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("grain", [1, 5, 1000])
def test_a_barrier_waits_for_everything_before_it(pool, threads, grain):
    table, a, b = chain(51, grain)
    for _ in range(20):
        a[:] = np.arange(SIZE)
        table.run(pool, threads)
        np.testing.assert_array_equal(b, np.roll(np.arange(SIZE), -51) + 51)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_iteration_runs_once(pool, threads):
    kernel = counted()
    values = [np.zeros(1000, np.int64) for _ in range(4)]
    table = TableByHand([(kernel, (i,), 1000, 1000, 1 + i, False) for i in range(4)], values)
    for times in range(1, 30):
        table.run(pool, threads)
        assert all((v == times).all() for v in values)


def test_independent_commands_after_a_barrier_wait_for_it_too(pool):
    rotate, count = rotated_plus_one(), counted()
    a, b, c = (np.zeros(SIZE, np.int64) for _ in range(3))
    # The third command shares no memory with the second, and both read what the first wrote.
    table = TableByHand(
        [
            (count, (0,), SIZE, SIZE, 1, False),
            (rotate, (0, 1), SIZE, SIZE, 1, True),
            (rotate, (0, 2), SIZE, SIZE, 1, False),
        ],
        [a, b, c],
    )
    for times in range(1, 200):
        table.run(pool, 4)
        assert (b == times + 1).all() and (c == times + 1).all()


def test_commands_without_iterations(pool):
    a = np.zeros(4, np.int64)
    table = TableByHand([(counted(), (0,), 4, 0, 1, False), (counted(), (0,), 4, 4, 1, True)], [a])
    table.run(pool, 3)
    np.testing.assert_array_equal(a, np.ones(4))


def test_callers_do_not_disturb_each_other(pool):
    tables = [chain(21) for _ in range(6)]
    failures = []

    def work(table, a, b):
        for i in range(60):
            a[:] = i
            table.run(pool, 2)
            if not (b == i + 21).all():
                failures.append(i)

    threads = [threading.Thread(target=work, args=t) for t in tables]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_a_pause_loses_nothing():
    """An executor that comes back to Python after every ticket: the job goes on where it stood."""
    pool = Pool(link_executor(compile_executor(host(), pause_ns=1), host()))
    calls = 0
    run = pool._native.run

    def counting(*args):
        nonlocal calls
        calls += 1
        return run(*args)

    pool._native = pool._native._replace(run=counting)
    try:
        for threads in (1, 2, 4):
            table, a, _ = chain(30)
            a[:] = np.arange(SIZE)
            table.run(pool, threads)
            np.testing.assert_array_equal(a, np.roll(np.arange(SIZE), -30) + 30)
        assert calls > 100
    finally:
        pool.close()


def test_a_closed_pool_runs_in_the_caller(pool):
    table, _, b = chain(5)
    table.run(pool, 3)
    pool.close()
    b[:] = 0
    table.run(pool, 3)
    assert (b == 5 + 4).all()


def test_workers_are_hired_when_they_are_wanted(pool):
    table, _, _ = chain(1)
    table.run(pool, 1)
    assert pool.workers == 0
    table.run(pool, 3)
    table.run(pool, 2)
    assert pool.workers == 2
    names = {t.name for t in pool._workers}
    assert names == {"rlx-worker-1", "rlx-worker-2"} and all(t.daemon for t in pool._workers)


@pytest.mark.parametrize("target", [SSE2, AVX2, NEON, RISCV], ids=lambda t: t.name)
def test_it_compiles_for_every_cpu_and_calls_only_the_system(target):
    assert undefined_symbols(compile_executor(target)) <= system_symbols(target)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system says nothing of where threads run")
def test_a_sleeping_worker_is_woken_on_another_cpu_than_the_callers(pool):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("this process has one CPU")
    table, a, b = chain(51)
    one = {min(allowed)}
    try:
        table.run(pool, len(allowed))
        for mine in (one, {max(allowed)}):
            time.sleep(0.05)  # workers sleep long before
            os.sched_setaffinity(0, mine)
            a[:] = 0
            table.run(pool, len(allowed))
            assert (b == 51).all()
            places = [os.sched_getaffinity(worker.native_id) for worker in pool._workers]
            assert places == [allowed - mine] * (len(allowed) - 1)
    finally:
        os.sched_setaffinity(0, allowed)


def test_workers_fewer_than_cpus_run_where_the_system_likes(pool):
    table, _, _ = chain(5)
    count = len(pool._cpus) + 1
    time.sleep(0.01)
    table.run(pool, count)
    time.sleep(0.01)
    table.run(pool, count)
    assert all(os.sched_getaffinity(worker.native_id) == pool._cpus for worker in pool._workers if pool._cpus)
