"""`DecodeSession`: one conversation, token by token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rlx.models.kv_cache import DecoderRunner, SequenceBatch
from rlx.models.picture_tokens import plain_token

F32 = npt.NDArray[np.float32]


class DecodeSession:
    """One conversation with its own cache. `prefill` and `step` return the logits f32[V] after the last token."""

    def __init__(self, runner: DecoderRunner) -> None:
        self._batch = SequenceBatch(runner)

    @property
    def tokens(self) -> list[int]:
        """The tokens so far."""
        return list(self._batch.tokens[0])

    def prefill(self, token_ids: Sequence[int]) -> F32:
        """Append several tokens."""
        return self._batch.extend([[plain_token(t) for t in token_ids]])[0]

    def step(self, token_id: int) -> F32:
        """Append one token."""
        return self._batch.extend([[int(token_id)]])[0]

    def truncate(self, length: int) -> None:
        """Go back to the first `length` tokens."""
        self._batch.truncate(0, length)
