"""What a model thinks of the tokens of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rlx.models.kv_cache import SequenceBatch

# Positions whose logits, a whole vocabulary each, are held at the same time.
_CHUNK = 128


def token_losses(
    batch: SequenceBatch, ids: Sequence[int], tell: Callable[[int], None] | None = None
) -> npt.NDArray[np.float64]:
    """-log p of each token but the first, read into a new sequence; `tell` hears how many were read."""
    found = []
    for start in range(0, len(ids), _CHUNK):
        scores = batch.all_logits(ids[start : start + _CHUNK]).astype(np.float64)
        following = np.array(ids[start + 1 : start + 1 + len(scores)], np.int64)
        scores = scores[: len(following)]
        top = scores.max(axis=1, keepdims=True)
        logs = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
        found.append(logs - scores[np.arange(len(following)), following])
        if tell is not None:
            tell(min(start + _CHUNK, len(ids)))
    return np.concatenate(found)
