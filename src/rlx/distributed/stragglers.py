"""Which process is slow, and which has more to do: times and tokens of each, gathered while training runs.

    watch = rlx.distributed.RankWatch(every=50)
    fit(step, state, watch.batches(layout.batches(batches)), 1000, callbacks=[watch])
    print(watch.reports[-1])

    steps 51 to 100, 31.2 ms each: process 2 is slow, its own work takes 4.1 times the median (batches 40.2 ms, a fixed
    product 1.3 ms)
    tokens per step 2,048 to 3,072: process 3 has 1.33 times the mean

The time of a step is the same everywhere, because all wait for the slowest. What tells processes apart is what each
does alone: making its batches, and a fixed product on its own device, timed once in an interval. Every process must
make the same steps, since all of them gather after each interval.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import rlx
from rlx import tree
from rlx.distributed.processes import gather, process_count, process_index
from rlx.errors import ShardingError
from rlx.sharding import NamedSharding, PartitionSpec

__all__ = ["RankReport", "RankRow", "RankWatch"]

# Own work that is so many times the median is slow; tokens that are so many times the mean are skewed.
_SLOW, _SKEWED = 1.5, 1.1
# Below it times are noise.
_LEAST_SECONDS = 2e-3
_PROBE_SIZE = 256


class RankRow(NamedTuple):
    """Means of one process over the steps of an interval: seconds of a step, of making its batch, of a fixed product,
    and its tokens in a step."""

    rank: int
    step_seconds: float
    batch_seconds: float
    probe_seconds: float
    tokens: float

    @property
    def own_seconds(self) -> float:
        return self.batch_seconds + self.probe_seconds


class RankReport(NamedTuple):
    """One interval of steps, seen by all processes."""

    first: int
    last: int
    rows: tuple[RankRow, ...]

    @property
    def slow(self) -> RankRow | None:
        """The process whose own work takes longest, if that is much more than what it takes the others."""
        worst = max(self.rows, key=lambda row: row.own_seconds)
        usual = self._usual_seconds()
        is_slow = worst.own_seconds > max(_SLOW * usual, usual + _LEAST_SECONDS)
        return worst if is_slow and len(self.rows) > 1 else None

    def _usual_seconds(self) -> float:
        """The median of the others: with two processes one of them must not hide itself."""
        worst = max(self.rows, key=lambda row: row.own_seconds)
        return statistics.median([row.own_seconds for row in self.rows if row is not worst] or [worst.own_seconds])

    @property
    def skewed(self) -> RankRow | None:
        """The process with most tokens, if that is more than its share."""
        most = max(self.rows, key=lambda row: row.tokens)
        mean = statistics.fmean(row.tokens for row in self.rows)
        return most if most.tokens > _SKEWED * mean else None

    def __str__(self) -> str:
        step = statistics.fmean(row.step_seconds for row in self.rows)
        lines = [f"steps {self.first} to {self.last}, {step * 1e3:.1f} ms each: {self._slow_text()}"]
        tokens = [row.tokens for row in self.rows]
        if any(tokens):
            lines.append(f"tokens per step {min(tokens):,.0f} to {max(tokens):,.0f}: {self._skew_text()}")
        return "\n".join(lines)

    def _slow_text(self) -> str:
        slow = self.slow
        if slow is None:
            return f"none of {len(self.rows)} processes is slow"
        ratio = slow.own_seconds / max(self._usual_seconds(), 1e-9)
        return (
            f"process {slow.rank} is slow, its own work takes {ratio:.1f} times the median "
            f"(batches {slow.batch_seconds * 1e3:.1f} ms, a fixed product {slow.probe_seconds * 1e3:.1f} ms)"
        )

    def _skew_text(self) -> str:
        most = self.skewed
        if most is None:
            return "all have their share"
        mean = statistics.fmean(row.tokens for row in self.rows)
        return f"process {most.rank} has {most.tokens / mean:.2f} times the mean"


class RankWatch:
    """A callback of `rlx.train.fit` that reports after every `every` steps; `reports` has them all, in every process.

    `tokens_of(batch)` counts what this process has of a batch; by default the ids of its first array of whole numbers
    that are not negative, so that labels which do not count are left out where labels come first. The first process
    hands what is wrong to `tell`, standard error by default.
    """

    def __init__(
        self,
        every: int = 50,
        tokens_of: Callable[[Any], float] | None = None,
        tell: Callable[[str], object] | None = None,
    ) -> None:
        if every < 1:
            raise ShardingError(f"RankWatch: every counts steps from 1 on, got {every}")
        self._every = every
        self._tokens_of = own_tokens if tokens_of is None else tokens_of
        self._tell = tell if tell is not None else lambda text: print(text, file=sys.stderr, flush=True)
        self.reports: list[RankReport] = []
        # By step, because batches are made ahead of their steps.
        self._made: dict[int, tuple[float, float]] = {}
        self._steps: list[tuple[int, float]] = []
        self._probe: Callable[[], float] | None = None

    def batches(self, batches: Callable[[int], Any]) -> WatchedBatches:
        """The same batches, timed and counted."""
        return WatchedBatches(self, batches)

    def made(self, step: int, seconds: float, batch: Any) -> None:
        self._made[step] = (seconds, float(self._tokens_of(batch)))

    def __call__(self, report: Any) -> None:
        self._steps.append((report.step, float(report.metrics["seconds"])))
        if len(self._steps) == self._every:
            self._gather()

    def _gather(self) -> None:
        numbers = [step for step, _ in self._steps]
        # Step n, counted from 1, used the batch of number n - 1.
        made = [self._made.pop(n - 1) for n in numbers if n - 1 in self._made]
        if self._probe is None:
            self._probe = _probe()
        own = [
            statistics.median([seconds for _, seconds in self._steps]),
            statistics.fmean([seconds for seconds, _ in made] or [0.0]),
            self._probe(),
            statistics.fmean([tokens for _, tokens in made] or [0.0]),
        ]
        rows = tuple(RankRow(rank, *map(float, values)) for rank, values in enumerate(_from_all(own)))
        self._steps.clear()
        found = RankReport(numbers[0], numbers[-1], rows)
        self.reports.append(found)
        if process_index() == 0 and (found.slow is not None or found.skewed is not None):
            self._tell(str(found))


class WatchedBatches:
    """What `RankWatch.batches` gives."""

    def __init__(self, watch: RankWatch, batches: Callable[[int], Any]) -> None:
        self._watch, self._batches = watch, batches
        self.tokens_per_batch = getattr(batches, "tokens_per_batch", None)

    def __call__(self, step: int) -> Any:
        started = time.perf_counter()
        batch = self._batches(step)
        self._watch.made(step, time.perf_counter() - started, batch)
        return batch


def own_tokens(batch: Any) -> float:
    """How many ids that are not negative this process has of the first array of whole numbers."""
    for leaf in tree.leaves(batch):
        if np.dtype(leaf.dtype).kind in "iu":
            return float(sum(int((part >= 0).sum()) for part in _own_parts(leaf)))
    return 0.0


def _own_parts(leaf: Any) -> Iterator[Any]:
    """Each part that this process has, once however many of its devices have a copy."""
    if getattr(leaf, "sharding", None) is None:
        yield np.asarray(leaf)
        return
    parts = {str(shard.index): shard for shard in leaf.addressable_shards}
    yield from (np.asarray(shard.data) for shard in parts.values())


def _probe() -> Callable[[], float]:
    """A function that gives the seconds of a fixed product on the first device of this process."""
    product = rlx.jit(lambda a: (a @ a).sum(), device="xla")
    matrix = np.ones((_PROBE_SIZE, _PROBE_SIZE), np.float32)
    float(product(matrix))

    def seconds() -> float:
        found = []
        for _ in range(3):
            started = time.perf_counter()
            float(product(matrix))
            found.append(time.perf_counter() - started)
        return min(found)

    return seconds


def _from_all(own: Sequence[float]) -> list[Any]:
    """The numbers of every process, by rank."""
    if process_count() == 1:
        return [np.array(own)]
    devices = rlx.devices("xla")
    mesh = rlx.make_mesh((len(devices),), ("device",))
    where = NamedSharding(mesh, PartitionSpec("device"))
    # A row for each device, which is that of its process.
    mine = np.array([own], np.float32)
    rows = gather(rlx.make_array_from_callback((len(devices), len(own)), where, lambda index: mine))
    by_device = dict(zip(mesh.flat_ids, rows))
    owner = {device.process_index: by_device[device.id] for device in devices}
    return [owner[rank] for rank in range(process_count())]
