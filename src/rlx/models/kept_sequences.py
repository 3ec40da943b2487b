"""Sequences that nobody is writing, kept for prompts that begin in the same way: what they share is not read again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rlx.models.kv_cache import DecoderRunner, SequenceBatch

# Conversations whose caches are kept, and the bytes that they may have together; the last one is always kept.
MOST_SEQUENCES, MOST_BYTES = 8, 2 << 30


class KeptSequences:
    """The caches of the last conversations. Threads may share them."""

    def __init__(
        self, runner: DecoderRunner, most_sequences: int = MOST_SEQUENCES, most_bytes: int = MOST_BYTES
    ) -> None:
        self._runner, self.most_sequences, self.most_bytes = runner, most_sequences, most_bytes
        self._idle: list[SequenceBatch] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._idle)

    @property
    def size(self) -> int:
        """The bytes of all caches that are kept."""
        with self._lock:
            return sum(sequence.size for sequence in self._idle)

    def take(self, ids: Sequence[int]) -> SequenceBatch:
        """A sequence with as many of these tokens as one that is kept begins with, but for the last one: its logits
        were not kept. One that has little else is given away; of others the beginning is copied, for whoever else
        begins like this."""
        with self._lock:
            shared = [shared_length(sequence.tokens[0], ids) for sequence in self._idle]
            best = max(range(len(shared)), key=shared.__getitem__, default=None)
            if best is None or not min(shared[best], len(ids) - 1):
                return SequenceBatch(self._runner)
            length, found = min(shared[best], len(ids) - 1), self._idle[best]
            if 2 * length < len(found.tokens[0]):
                copy = SequenceBatch(self._runner)
                copy.take_over(found, 0, length)
                # It was of use: the others go first.
                self._idle.append(self._idle.pop(best))
                return copy
            del self._idle[best]
        found.truncate(0, length)
        return found

    def keep(self, sequence: SequenceBatch) -> None:
        """Keep a sequence that nobody goes on with."""
        if len(sequence.tokens) != 1 or not sequence.tokens[0]:
            return
        with self._lock:
            # What begins another one is of no further use.
            ids = sequence.tokens[0]
            self._idle = [one for one in self._idle if shared_length(one.tokens[0], ids) < len(one.tokens[0])]
            self._idle.append(sequence)
            total, kept = 0, 0
            for one in reversed(self._idle):
                total += one.size
                if kept and (kept == self.most_sequences or total > self.most_bytes):
                    break
                kept += 1
            self._idle = self._idle[-kept:]


def shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
