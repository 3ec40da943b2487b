"""Execution variants: one set of sizes under which a model runs, with a key for caches."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from rlx.ir.dim_binding import DimBinding
from rlx.ir.dims import Dim
from rlx.ir.words import Words


class ModelPhase(Words):
    """What a run of the model is for."""

    Prefill = "prefill"
    Decode = "decode"
    Encoder = "encoder"
    Inference = "inference"


class ModelVariant(NamedTuple):
    """Sizes of one run. `seq` counts new tokens; `past_seq` counts those already in the cache (decode only).

    >>> ModelVariant.decode(2, past=100, new=1).dim_binding()
    {'B': 2, 'S': 1, 'P': 100}
    """

    batch: int
    seq: int
    past_seq: int | None = None
    phase: ModelPhase = ModelPhase.Inference
    extra: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def prefill(batch: int, seq: int) -> ModelVariant:
        return ModelVariant(batch, seq, phase=ModelPhase.Prefill)

    @staticmethod
    def decode(batch: int, past: int, new: int) -> ModelVariant:
        return ModelVariant(batch, new, past, ModelPhase.Decode)

    @staticmethod
    def encoder(batch: int, seq: int) -> ModelVariant:
        return ModelVariant(batch, seq, phase=ModelPhase.Encoder)

    def with_extra(self, symbol: str | Dim, size: int) -> ModelVariant:
        """This variant with a size for one more symbol; a later size for the same symbol wins."""
        others = tuple(pair for pair in self.extra if pair[0] != str(symbol))
        return self._replace(extra=(*others, (str(symbol), size)))

    def dim_binding(self) -> DimBinding:
        """Sizes for the symbols B and S, for P when there is a past, and for the extra symbols."""
        binding = DimBinding.batch_seq(self.batch, self.seq)
        if self.past_seq is not None:
            binding.set("P", self.past_seq)
        for symbol, size in self.extra:
            binding.set(symbol, size)
        return binding

    def describe(self) -> str:
        """All fields in one line, in an order that does not depend on how the variant was built."""
        extra = ",".join(f"{symbol}={size}" for symbol, size in sorted(self.extra))
        return f"{self.phase} batch={self.batch} seq={self.seq} past={self.past_seq} extra=[{extra}]"

    def cache_key(self) -> int:
        """64 bits over all fields; the same on every machine and run."""
        return stable_hash(self.describe())


def stable_hash(text: str) -> int:
    """64 bits of blake2b."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
