"""Collectives over symmetric memory, in rings: each rank reads from the one before it, so that traffic does not grow
with the number of ranks. Every part of a sum is formed once, in one order, so that all ranks get the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.driver.symmetric import LengthMismatch, SymmetricBuffer, SymmetricTransport
from rlx.errors import DTypeError
from rlx.ir.words import Words

Array = np.ndarray[Any, np.dtype[Any]]


class ReduceKind(Words):
    """How the values of all ranks are joined."""

    Sum = "sum"
    Mean = "mean"
    Max = "max"
    Min = "min"


_JOIN: dict[ReduceKind, Callable[[Array, Array], Array]] = {
    ReduceKind.Sum: np.add,
    ReduceKind.Mean: np.add,
    ReduceKind.Max: np.maximum,
    ReduceKind.Min: np.minimum,
}


def all_reduce(
    transport: SymmetricTransport, buffer: SymmetricBuffer, local: Any, kind: ReduceKind | str = ReduceKind.Sum
) -> Array:
    """The values of all ranks joined elementwise, on every rank. All call it, with arrays of one shape and dtype;
    `buffer` is symmetric memory with as many bytes as `local`, which is used for the exchange."""
    ring = _Ring(transport, buffer, local)
    ring.reduce(ReduceKind(kind))
    ring.gather(first=1)
    return ring.finish(ring.own(), ReduceKind(kind)).reshape(ring.shape)


def reduce_scatter(
    transport: SymmetricTransport, buffer: SymmetricBuffer, local: Any, kind: ReduceKind | str = ReduceKind.Sum
) -> Array:
    """The values of all ranks joined, of which each rank gets its part along axis 0, which the ranks divide."""
    values = np.asarray(local)
    ranks = transport.num_ranks()
    if values.ndim == 0 or values.shape[0] % ranks:
        raise LengthMismatch(f"reduce_scatter: {ranks} ranks do not divide axis 0 of an array of shape {values.shape}")
    ring = _Ring(transport, buffer, values)
    ring.reduce(ReduceKind(kind))
    # The rank before this one has finished the part of this one.
    before = ring.part_of(ring.before, ring.rank)
    result = ring.finish(before, ReduceKind(kind))
    ring.transport.barrier()
    return result.reshape(values.shape[0] // ranks, *values.shape[1:])


def all_gather(transport: SymmetricTransport, buffer: SymmetricBuffer, local: Any) -> Array:
    """The arrays of all ranks, one after the other along axis 0, on every rank. `buffer` has room for all of them."""
    values = np.asarray(local)
    if values.ndim == 0:
        raise LengthMismatch("all_gather: needs an array with an axis to join along, got a scalar")
    ranks, rank = transport.num_ranks(), transport.this_rank()
    whole = np.zeros((ranks, values.size), values.dtype)
    whole[rank] = values.reshape(-1)
    ring = _Ring(transport, buffer, whole)
    ring.gather(first=0)
    return ring.own().reshape(ranks * values.shape[0], *values.shape[1:])


class _Ring:
    """One exchange: the values of this rank in its symmetric memory, cut into a part for each rank."""

    def __init__(self, transport: SymmetricTransport, buffer: SymmetricBuffer, local: Any) -> None:
        values = np.asarray(local)
        if values.dtype.kind not in "fiu":
            raise DTypeError(f"a collective needs real numbers, got {values.dtype}")
        if buffer.len != values.nbytes:
            raise LengthMismatch(f"a collective over {values.nbytes} bytes needs a buffer of as many, got {buffer.len}")
        self.transport, self.buffer = transport, buffer
        self.shape, self.dtype = values.shape, values.dtype
        self.ranks, self.rank = transport.num_ranks(), int(transport.this_rank())
        self.before = (self.rank - 1) % self.ranks
        self.bounds = [values.size * i // self.ranks for i in range(self.ranks + 1)]
        transport.put(buffer.on(self.rank), values)
        transport.barrier()

    def part_of(self, rank: int, part: int) -> Array:
        """A copy of one part, as a rank has it now."""
        return self.transport.get(self._place(rank, part)).view(self.dtype)

    def own(self) -> Array:
        return self.transport.get(self.buffer.on(self.rank)).view(self.dtype)

    def _place(self, rank: int, part: int) -> SymmetricBuffer:
        start, stop = self.bounds[part % self.ranks], self.bounds[part % self.ranks + 1]
        size = self.dtype.itemsize
        return SymmetricBuffer(self.buffer.on(rank).rank, self.buffer.offset + start * size, (stop - start) * size)

    def reduce(self, kind: ReduceKind) -> None:
        """In each step a rank joins one part of the rank before it into its own; afterwards rank r has part r + 1."""
        for step in range(self.ranks - 1):
            part = self.rank - 1 - step
            joined = _JOIN[kind](self.part_of(self.before, part), self.part_of(self.rank, part))
            self.transport.put(self._place(self.rank, part), joined)
            self.transport.barrier()

    def gather(self, first: int) -> None:
        """In each step a rank takes over one part that the rank before it has; at first rank r has part r + `first`."""
        for step in range(self.ranks - 1):
            part = self.rank - 1 + first - step
            taken = self.part_of(self.before, part)
            self.transport.put(self._place(self.rank, part), taken)
            self.transport.barrier()

    def finish(self, total: Array, kind: ReduceKind) -> Array:
        return (total / self.ranks).astype(self.dtype) if kind is ReduceKind.Mean else total
