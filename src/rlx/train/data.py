"""Batches as functions of the step: the same number always gives the same batch, so a run can begin at any step.

    batches = rlx.train.token_batches("text.npy", batch=8, length=128, seed=0)
    batches(0)                # i32 [8, 129]: inputs are [:, :-1], targets [:, 1:]

Files are mapped into memory, not read. `Prefetch` makes the next batches in a thread.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx import tree
from rlx.errors import FormatError, OpError, ShapeError

__all__ = ["ArrayBatches", "BatchOf", "Prefetch", "TokenBatches", "array_batches", "open_tokens", "token_batches"]

BatchOf = Callable[[int], Any]
Tokens = npt.NDArray[np.integer[Any]]


def open_tokens(path: str | os.PathLike[str], dtype: Any = None) -> Tokens:
    """The token ids of a file, mapped: a `.npy` file of one axis, or raw numbers of `dtype` (bytes unless given)."""
    place = Path(path)
    if place.is_dir():
        raise FormatError(f"{place}: a file is needed; this is a directory")
    if not place.is_file():
        raise FormatError(f"{place}: there is no such file")
    if place.stat().st_size == 0:
        raise FormatError(f"{place}: the file is empty; at least one window of tokens is needed")
    if place.suffix == ".npy":
        try:
            ids = np.load(place, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise FormatError(f"{place}: not a NumPy file: {error}") from None
    else:
        kind = np.dtype(np.uint8 if dtype is None else dtype)
        if place.stat().st_size % kind.itemsize:
            raise FormatError(f"{place}: {place.stat().st_size} bytes are not a whole number of {kind} tokens")
        ids = np.memmap(place, kind, "r")
    return _one_row(ids, str(place))


def _one_row(ids: npt.NDArray[Any], name: str) -> Tokens:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise FormatError(f"{name}: token ids are one row of integers, got {ids.dtype}{list(ids.shape)}")
    return ids


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of one epoch; kept, because every batch of it asks."""
    return np.random.default_rng([seed, epoch]).permutation(count)


class _Epochs:
    """Which items a batch has: every item once in an epoch, in an order of its own; what is left over waits."""

    def __init__(self, count: int, batch: int, seed: int | None) -> None:
        self.count, self.batch, self.seed = count, batch, seed
        self.steps_per_epoch = count // batch

    def items(self, step: int) -> npt.NDArray[np.int64]:
        epoch, place = divmod(step, self.steps_per_epoch)
        first = place * self.batch
        if self.seed is None:
            return np.arange(first, first + self.batch)
        return _order(self.count, self.seed, epoch)[first : first + self.batch]


class TokenBatches:
    """`batches(step)` is i32 [batch, length + 1]: windows that overlap by one token, shuffled anew in every epoch."""

    def __init__(self, ids: Tokens, batch: int, length: int, seed: int | None, vocab: int | None, name: str) -> None:
        windows = (len(ids) - 1) // length
        if batch < 1 or length < 1:
            raise OpError(f"token_batches: batch and length must be 1 or more, got {batch} and {length}")
        if windows < batch:
            raise FormatError(
                f"{name}: {len(ids)} tokens are {max(windows, 0)} windows of {length} and a target; "
                f"a batch needs {batch}: use a longer file, a shorter length or a smaller batch"
            )
        self._ids, self._length, self._vocab, self._name = ids, length, vocab, name
        self._epochs = _Epochs(windows, batch, seed)
        self.tokens_per_batch = batch * length

    @property
    def steps_per_epoch(self) -> int:
        return self._epochs.steps_per_epoch

    def __call__(self, step: int) -> npt.NDArray[np.int32]:
        starts = self._epochs.items(step) * self._length
        found = np.stack([self._ids[s : s + self._length + 1] for s in starts]).astype(np.int32)
        if self._vocab is not None and not 0 <= found.min() <= found.max() < self._vocab:
            strange = found.max() if found.max() >= self._vocab else found.min()
            raise FormatError(
                f"{self._name}: token {strange} at step {step} is not below the vocabulary's {self._vocab}"
            )
        return found


def token_batches(
    source: str | os.PathLike[str] | Tokens | Sequence[int],
    batch: int,
    length: int,
    *,
    seed: int | None = 0,
    vocab: int | None = None,
    dtype: Any = None,
) -> TokenBatches:
    """Batches of windows from a file (see `open_tokens`) or a row of ids; with seed None in the file's order.

    With `vocab` every id is checked to be below it.
    """
    if isinstance(source, (str, os.PathLike)):
        return TokenBatches(open_tokens(source, dtype), batch, length, seed, vocab, str(source))
    ids = _one_row(np.asarray(source), "token_batches")
    return TokenBatches(ids, batch, length, seed, vocab, "token_batches")


class ArrayBatches:
    """`batches(step)` has `batch` rows of every array of a tree, shuffled anew in every epoch."""

    tokens_per_batch: int | None = None

    def __init__(self, arrays: Any, batch: int, seed: int | None) -> None:
        sizes = {np.shape(x)[:1] for x in tree.leaves(arrays)}
        if () in sizes or not sizes:
            what = "a number (lists are trees; make arrays of them by np.array)" if sizes else "none"
            raise ShapeError(f"array_batches: arrays with one row per example are needed, got {what}")
        if len(sizes) != 1:
            rows = sorted(size for (size,) in sizes)
            raise ShapeError(f"array_batches: all arrays need the same number of rows, got {rows}")
        ((count,),) = sizes
        if not 1 <= batch <= count:
            raise ShapeError(f"array_batches: batch must be between 1 and the {count} rows, got {batch}")
        self._arrays, self._epochs = arrays, _Epochs(count, batch, seed)

    @property
    def steps_per_epoch(self) -> int:
        return self._epochs.steps_per_epoch

    def __call__(self, step: int) -> Any:
        rows = self._epochs.items(step)
        return tree.map(lambda x: np.asarray(x)[rows], self._arrays)


def array_batches(arrays: Any, batch: int, *, seed: int | None = 0) -> ArrayBatches:
    """Batches of rows of arrays that lie in memory (or are mapped); with seed None in their order."""
    return ArrayBatches(arrays, batch, seed)


class Prefetch:
    """The batches of steps first, first + 1, ... as (step, batch), made in a thread up to `depth` ahead.

    What goes wrong in the thread is raised where its batch would have come. Close it, or use it in a `with` block.
    """

    def __init__(self, batch_of: BatchOf, first: int, end: int, depth: int = 2) -> None:
        self._made: queue.Queue[tuple[int, Any, BaseException | None]] = queue.Queue(max(depth, 1))
        self._batch_of, self._first, self._end = batch_of, first, end
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._make, name="rlx-batches", daemon=True)
        self._thread.start()

    def _make(self) -> None:
        for step in range(self._first, self._end):
            try:
                item: tuple[int, Any, BaseException | None] = (step, self._batch_of(step), None)
            except Exception as error:
                item = (step, None, error)
            while not self._closed.is_set():
                try:
                    self._made.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._closed.is_set() or item[2] is not None:
                return

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for _ in range(self._first, self._end):
            step, batch, error = self._made.get()
            if error is not None:
                raise error
            yield step, batch

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
