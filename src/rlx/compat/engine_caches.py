"""Compiled graphs by a caller's key, and by size in buckets.

One compile serves every size where sizes are symbolic, so most programs need neither. They are for programs that are
built for one size: `CompileCache` keeps some of them, `BucketedCompileCache` rounds sizes up so that few are needed.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.api import CompileOptions
from rlx.errors import BindingError
from rlx.locks import fork_safe_lock
from rlx.runtime.arrays import Array, as_array
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device import Device
from rlx.runtime.session import Session

Build = Callable[[], Any]


class CompileCache:
    """The `capacity` most recently used compiled graphs, with their weights, by any key that can be hashed.

    >>> import rlx
    >>> def build():
    ...     g = rlx.Graph("double")
    ...     g.set_outputs([g.input("x", (2,)) * 2.0])
    ...     return g
    >>> cache = CompileCache("reference", capacity=4)
    >>> cache.get_or_compile("two", build) is cache.get_or_compile("two", build)
    True
    """

    def __init__(self, device: str | Device, capacity: int, options: CompileOptions | None = None) -> None:
        if capacity < 1:
            raise BindingError(f"CompileCache: the capacity is at least 1, got {capacity}")
        self._session = Session(device, options)
        self._capacity = capacity
        self._kept: OrderedDict[Hashable, CompiledGraph] = OrderedDict()
        self._lock = fork_safe_lock()

    def get_or_compile(self, key: Hashable, build: Build, options: CompileOptions | None = None) -> CompiledGraph:
        """What was compiled under `key`, else what `build()` gives, compiled."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        compiled = self._session.compile_with(build(), options or self._session.options)
        with self._lock:
            compiled = self._kept.setdefault(key, compiled)
            while len(self._kept) > self._capacity:
                self._kept.popitem(last=False)
        return compiled

    get_or_compile_with_options = get_or_compile

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_empty(self) -> bool:
        return not self._kept

    def contains(self, key: Hashable) -> bool:
        return key in self._kept

    __contains__ = contains


class Bucket(NamedTuple):
    """What serves a size: the size that was compiled, and the program."""

    upper: int
    compiled: CompiledGraph


class BucketedCompileCache:
    """One compile for each range of sizes, made when it is first needed, for the largest size of the range."""

    def __init__(self, device: str | Device, ranges: Sequence[range], options: CompileOptions | None = None) -> None:
        ordered = sorted(ranges, key=lambda r: r.start)
        if not ordered or any(len(r) == 0 or r.step != 1 for r in ordered):
            raise BindingError(f"BucketedCompileCache: ranges with something in them are needed, got {list(ranges)}")
        for before, after in itertools.pairwise(ordered):
            if after.start < before.stop:
                raise BindingError(f"BucketedCompileCache: {before} and {after} overlap")
        self._ranges = ordered
        self._cache = CompileCache(device, len(ordered), options)

    @staticmethod
    def power_of_two_ladder(
        device: str | Device, smallest: int, largest: int, options: CompileOptions | None = None
    ) -> BucketedCompileCache:
        """Sizes p, 2p, 4p, .. with p the power of two from `smallest` on, up to the first that holds `largest`.

        >>> cache = BucketedCompileCache.power_of_two_ladder("reference", 8, 50)
        >>> [b.stop - 1 for b in cache.buckets]
        [8, 16, 32, 64]
        """
        if not 1 <= smallest <= largest:
            raise BindingError(f"power_of_two_ladder: 1 <= smallest <= largest is needed, got {smallest} and {largest}")
        size, start = 1 << (smallest - 1).bit_length(), 1
        ranges: list[range] = []
        while not ranges or ranges[-1].stop <= largest:
            ranges.append(range(start, size + 1))
            start, size = size + 1, 2 * size
        return BucketedCompileCache(device, ranges, options)

    @property
    def buckets(self) -> list[range]:
        return list(self._ranges)

    @property
    def total_buckets(self) -> int:
        return len(self._ranges)

    @property
    def compiled_count(self) -> int:
        return len(self._cache)

    def bucket_for(self, size: int) -> range | None:
        return next((r for r in self._ranges if size in r), None)

    def get_or_compile(self, size: int, build: Callable[[int], Any]) -> Bucket | None:
        """The program for a size, `build(upper)` compiled if it is new; None, and nothing built, outside all ranges."""
        bucket = self.bucket_for(size)
        if bucket is None:
            return None
        upper = bucket.stop - 1
        return Bucket(upper, self._cache.get_or_compile(upper, lambda: build(upper)))

    def run_padded(
        self, size: int, build: Callable[[int], Any], inputs: Mapping[str, Any], rows: Sequence[str] | None = None
    ) -> list[Array]:
        """Run on inputs of `size` rows: those named in `rows` (None: all) are filled up with zeros to the compiled
        size, and outputs of that many rows are cut back."""
        bucket = self.get_or_compile(size, build)
        if bucket is None:
            raise BindingError(f"run_padded: no bucket holds {size}; there are {self._ranges[0]} .. {self._ranges[-1]}")
        padded = {name: pad_rows(x, bucket.upper) if rows is None or name in rows else x for name, x in inputs.items()}
        outputs = bucket.compiled.run(padded)
        return [slice_rows(y, size) if y.ndim and y.shape[0] == bucket.upper else y for y in outputs]


def pad_rows(x: Any, upper: int) -> np.ndarray[Any, Any]:
    """x with rows of zeros up to `upper`."""
    array = np.asarray(x)
    if not array.ndim or array.shape[0] > upper:
        raise BindingError(f"pad_rows: an array of at most {upper} rows is needed, got {list(array.shape)}")
    return np.concatenate([array, np.zeros((upper - array.shape[0], *array.shape[1:]), array.dtype)])


def slice_rows(x: Any, actual: int) -> Array:
    """The first `actual` rows of x."""
    array = np.asarray(x)
    if not array.ndim or array.shape[0] < actual:
        raise BindingError(f"slice_rows: an array of at least {actual} rows is needed, got {list(array.shape)}")
    return as_array(array[:actual].copy())
