"""How long work on a GPU takes, measured so that two readings can be compared.

    cases = [Case("ours", ours), Case("theirs", theirs)]
    for name, found in measure(gpu, cases).items():
        print(name, found.median, found.spread)

What is known to mislead, and what is done about it: the chip slows down when it gets hot, so the order of the cases is
shuffled in every round and each begins after a pause; small inputs stay in the L2 cache, so a case is told the number
of the launch and takes turns among copies of its inputs, or the cache is written over before it; single launches are
shorter than the events around them, so many are put between two events. Medians, and how far readings lie apart.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.streams import Event, Stream
from rlx.errors import BackendError


class Case(NamedTuple):
    """Something to measure: `enqueue(i)` puts the i-th launch of it on the stream and does not wait."""

    name: str
    enqueue: Callable[[int], None]


class Measured(NamedTuple):
    """Seconds of one launch in every round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """The middle half of the readings, as a part of their median: differences below it are noise."""
        ordered = sorted(self.rounds)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / self.median if self.median else 0.0


class Limits(NamedTuple):
    """What the chip can do in this run: bytes that a copy reads and writes per second."""

    copy: float


def measure(
    gpu: Gpu,
    cases: Sequence[Case],
    *,
    stream: Stream | None = None,
    rounds: int = 7,
    launches: int = 20,
    pause: float = 0.05,
    cold: bool = False,
    seed: int = 0,
) -> dict[str, Measured]:
    """The time of one launch of each case. With `cold` the L2 cache is written over before every launch, which is then
    measured alone; else `launches` follow each other and their time is divided."""
    if len({case.name for case in cases}) != len(cases):
        raise BackendError(f"measure: the names of cases must differ, got {[case.name for case in cases]}")
    if rounds < 1 or launches < 1:
        raise BackendError(f"measure: at least one round of one launch is needed, got {rounds} of {launches}")
    gpu.use()
    stream = stream or gpu.stream
    flush = _Flush(gpu, stream) if cold else None
    order, chance = list(cases), random.Random(seed)
    found: dict[str, list[float]] = {case.name: [] for case in cases}
    for case in cases:
        # Code is loaded, and memory is handed out, by the first launches.
        for number in range(3):
            case.enqueue(number)
    stream.synchronize()
    for _ in range(rounds):
        chance.shuffle(order)
        for case in order:
            time.sleep(pause)
            found[case.name].append(_one(gpu, stream, case, launches, flush))
    return {name: Measured(tuple(seconds)) for name, seconds in found.items()}


def _one(gpu: Gpu, stream: Stream, case: Case, launches: int, flush: _Flush | None) -> float:
    start, stop = (Event(gpu, timed=True) for _ in range(2))
    if flush is None:
        stream.record(start)
        for number in range(launches):
            case.enqueue(number)
        stream.record(stop)
        stop.synchronize()
        return stop.seconds_since(start) / launches
    seconds = []
    for number in range(launches):
        flush()
        stream.record(start)
        case.enqueue(number)
        stream.record(stop)
        stop.synchronize()
        seconds.append(stop.seconds_since(start))
    return statistics.median(seconds)


class _Flush:
    """Writes over the L2 cache."""

    def __init__(self, gpu: Gpu, stream: Stream) -> None:
        self._driver, self._stream = gpu.driver, stream
        self._buffer = gpu.pool.allocate(2 * gpu.info.l2_bytes, stream, "the flush of the L2 cache")

    def __call__(self) -> None:
        self._driver.cuMemsetD8Async(self._buffer.address, 0, self._buffer.size, self._stream.handle)


def copy_case(gpu: Gpu, stream: Stream, size: int = 2 << 30) -> tuple[Case, int]:
    """A copy inside the memory of the GPU, and the bytes that it reads and writes: the limit of what is bound by
    memory."""
    source, to = (gpu.pool.allocate(size, stream, "a copy") for _ in range(2))
    gpu.driver.cuMemsetD8Async(source.address, 0x5A, size, stream.handle)

    def enqueue(number: int) -> None:
        gpu.driver.cuMemcpyDtoDAsync_v2(to.address, source.address, size, stream.handle)

    return Case("copy", enqueue), 2 * size


def measure_limits(gpu: Gpu, stream: Stream | None = None) -> Limits:
    """The bandwidth of a copy, now and on this chip."""
    stream = stream or gpu.stream
    gpu.use()
    case, size = copy_case(gpu, stream)
    return Limits(size / measure(gpu, [case], stream=stream, launches=5)[case.name].median)
