"""What this machine can do at most: multiply-adds and reads from memory per second, measured by our own kernels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rlx.backends.native.kernels import load
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel, ValueType
from rlx.kernels.machines import Machine, host

# More accumulators than a multiply-add takes cycles times how many start in one.
CHAINS = 12
# Tens of milliseconds: threads of the interpreter start one after the other.
FMA_STEPS = 1_600_000
# Larger than any cache that a few cores share.
READ_BYTES = 512 << 20
ROUNDS = 5
# Elements of each array of an update, in all threads together: 100 MB.
UPDATE_ELEMENTS = 25_000_000


class Limits(NamedTuple):
    """Floating-point operations and bytes read, per second, by all threads together."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, nbytes: float) -> float:
        """The least time for this much work."""
        return max(flops / self.flops, nbytes / self.bandwidth)

    def best(self, other: Limits) -> Limits:
        """Of two measurements on one machine: what was reached once is possible."""
        return Limits(max(self.flops, other.flops), max(self.bandwidth, other.bandwidth))


def measure_limits(threads: int) -> Limits:
    """The best of some rounds: limits are what was reached, not what was usual."""
    target = host()
    lanes = target.lanes(DType.F32)
    fma, read = load(_fma_kernel(target), target), load(_read_kernel(target), target)
    results = [np.zeros(lanes, np.float32) for _ in range(threads)]
    best = min(_together(threads, lambda i: fma(results[i], FMA_STEPS)) for _ in range(ROUNDS))
    flops = threads * 2.0 * lanes * CHAINS * FMA_STEPS / best
    count = READ_BYTES // 4 // threads // (lanes * CHAINS) * (lanes * CHAINS)
    data = [np.ones(count, np.float32) for _ in range(threads)]
    best = min(_together(threads, lambda i: read(data[i], results[i], count)) for _ in range(ROUNDS))
    return Limits(flops, threads * 4.0 * count / best)


def measure_update_stream(threads: int) -> float:
    """Bytes per second of a loop that reads four arrays and writes three of them, as an update of Adam does."""
    target = host()
    lanes = target.lanes(DType.F32)
    stream = load(_update_kernel(target), target)
    count = UPDATE_ELEMENTS // threads // lanes * lanes
    data = [[np.ones(count, np.float32) for _ in range(4)] for _ in range(threads)]
    best = min(_together(threads, lambda i: stream(*data[i], count)) for _ in range(ROUNDS))
    return threads * 7 * 4.0 * count / best


def _together(threads: int, work: Callable[[int], None]) -> float:
    """Seconds until every thread has done its part; kernels run without the interpreter's lock."""
    ready = threading.Barrier(threads + 1)

    def run(index: int) -> None:
        ready.wait()
        work(index)

    workers = [threading.Thread(target=run, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def _fma_kernel(target: Machine) -> Kernel:
    k = KernelBuilder("fma_rate")
    y, steps = k.pointer("y", DType.F32, write=True), k.index("steps")
    kind = ValueType(DType.F32, target.lanes(DType.F32))
    factor = k.const(0.999, kind)
    init = [k.const(float(i), kind) for i in range(CHAINS)]
    with k.fold("i", 0, steps, init=init) as fold:
        fold.next(*(k.fma(value, factor, k.const(0.001, kind)) for value in fold.values))
    total = fold.results[0]
    for value in fold.results[1:]:
        total = total + value
    k.store(y, 0, total)
    return k.build()


def _read_kernel(target: Machine) -> Kernel:
    k = KernelBuilder("read_rate")
    x, y = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True)
    count = k.index("count")
    lanes = target.lanes(DType.F32)
    kind = ValueType(DType.F32, lanes)
    with k.fold("i", 0, count, CHAINS * lanes, [k.const(0.0, kind)] * CHAINS) as fold:
        loaded = [k.load(x, fold.index + c * lanes, lanes=lanes) for c in range(CHAINS)]
        fold.next(*(a + b for a, b in zip(fold.values, loaded)))
    total = fold.results[0]
    for value in fold.results[1:]:
        total = total + value
    k.store(y, 0, total)
    return k.build()


def _update_kernel(target: Machine) -> Kernel:
    k = KernelBuilder("update_rate")
    held = [k.pointer(name, DType.F32, read=True, write=True) for name in ("p", "m", "v")]
    gradient = k.pointer("g", DType.F32)
    count = k.index("count")
    lanes = target.lanes(DType.F32)
    half = k.const(0.5, ValueType(DType.F32, lanes))
    with k.loop("i", 0, count, lanes) as i:
        g = k.load(gradient, i, lanes=lanes)
        for pointer in held:
            k.store(pointer, i, k.fma(k.load(pointer, i, lanes=lanes), half, g))
    return k.build()
