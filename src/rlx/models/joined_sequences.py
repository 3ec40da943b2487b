"""Sequences that join a running batch and leave it again, one by one, without a copy of the others."""

from __future__ import annotations

from rlx.models.kv_cache import DecoderRunner, SequenceBatch


class JoinedSequences(SequenceBatch):
    """A batch whose caches have room for more rows than there are sequences: the first ones go to the program, which
    writes into them where they lie. For programs on the host."""

    def __init__(self, runner: DecoderRunner) -> None:
        super().__init__(runner, 0)

    def join(self, sequence: SequenceBatch) -> None:
        """Copy a sequence behind the last row."""
        row, length = len(self.tokens), len(sequence.tokens[0])
        self.reserve(length)
        self._writable()
        if row == self._own[0].shape[0]:
            used, old = max(map(len, self.tokens)), self._caches
            self._allocate(row + 1, self.capacity + 1)
            for new, before, part in zip(self._own, old, self._runner.parts(0, used)):
                new[:row][part] = before[part]
        self.tokens.append([])
        self._caches = [cache[: row + 1] for cache in self._own]
        self.take_over(sequence, 0, length, row)

    def leave(self, row: int) -> None:
        """Forget a row; the last one takes its place."""
        last = len(self.tokens) - 1
        caches, length = self._writable(), len(self.tokens[last])
        if row < last:
            for cache, part in zip(caches, self._runner.parts(0, length)):
                cache[row : row + 1][part] = cache[last:][part]
            self.tokens[row] = self.tokens[last]
        del self.tokens[last]
        self._caches = [cache[:last] for cache in caches]

    def _allocate(self, rows: int, capacity: int) -> None:
        # Pages of rows that nobody uses are never touched.
        self._own = self._runner.new_caches(1 << max(rows - 1, 1).bit_length(), capacity)
        self._caches = [cache[:rows] for cache in self._own]
