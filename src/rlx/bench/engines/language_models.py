"""Language models from a file: rlx and llama.cpp read the same tokens and give the logits of the last one.

For `rlx.bench.parity` they also give the logits of every position.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.engines import MODEL_VARIABLE
from rlx.bench.programs import Array, Sizes

# Room for the longest prompt and the tokens that are decoded behind it.
CONTEXT = 1024


def tokens_of(count: int, vocabulary: int) -> list[int]:
    """The same ordinary tokens for every engine: not those at the beginning, which are special ones and bytes.

    >>> tokens_of(3, 50_000), tokens_of(3, 64)
    ([1000, 1037, 1074], [32, 37, 42])
    """
    first = min(1000, vocabulary // 2)
    return [first + 37 * i % min(5000, vocabulary - first) for i in range(count)]


class RlxModel:
    """As it comes: weights as the file has them, activations of 16 bits where they are blocks."""

    activations = "auto"

    def __init__(self, threads: int) -> None:
        import rlx

        self.version = rlx.__version__
        self._model = rlx.load(os.environ[MODEL_VARIABLE], threads=threads, activations=self.activations)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        tokens = tokens_of(sizes["tokens"], self._model.config.vocab)
        if program == "decode many":
            return self._many(tokens, sizes["sequences"])
        session = self._model.session()
        if program == "prefill":

            def prefill() -> Any:
                session.truncate(0)
                return session.prefill(tokens)

            return prefill
        session.prefill(tokens)

        def step() -> Any:
            session.truncate(len(tokens))
            return session.step(tokens[0])

        return step

    def _many(self, tokens: list[int], sequences: int) -> Callable[[], Any]:
        """A token more for each of some sequences that are equally long."""
        from rlx.models.kv_cache import SequenceBatch

        batch = SequenceBatch(self._model._runner, sequences)
        batch.extend([tokens] * sequences)

        def step() -> Any:
            for row in range(sequences):
                batch.truncate(row, len(tokens))
            return batch.extend([tokens[:1]] * sequences)[-1]

        return step

    def logits(self, tokens: list[int]) -> Array:
        return self._model.logits(tokens)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result, np.float32).reshape(-1)


class ExactRlxModel(RlxModel):
    """Activations in f32."""

    activations = "f32"


class Int8RlxModel(RlxModel):
    """Activations rounded to 8 bits, as llama.cpp does it."""

    activations = "int8"


class LlamaCppModel:
    """llama.cpp as it comes: activations rounded to 8 bits, keys and values kept in f16."""

    def __init__(self, threads: int) -> None:
        llama: Any = importlib.import_module("llama_cpp")
        self.version = str(llama.__version__)
        self._api, self._threads = llama, threads
        self._open = functools.partial(
            llama.Llama, os.environ[MODEL_VARIABLE], n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._model = self._open(n_ctx=CONTEXT)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        model = self._model
        tokens = tokens_of(sizes["tokens"], model.n_vocab())
        if program == "decode many":
            return self._many(tokens, sizes["sequences"])
        if program == "prefill":

            def prefill() -> Any:
                self._forget(0)
                model.eval(tokens)
                return self._logits()

            return prefill
        model.reset()
        model.eval(tokens)

        def step() -> Any:
            self._forget(len(tokens))
            model.eval(tokens[:1])
            return self._logits()

        return step

    def _many(self, tokens: list[int], sequences: int) -> Callable[[], Any]:
        """A token more for each of some sequences, in one batch of a context of their own."""
        api = self._api
        settings = api.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = CONTEXT * sequences, sequences
        settings.n_threads = settings.n_threads_batch = self._threads
        context = api.llama_init_from_model(self._model._model.model, settings)
        memory = api.llama_get_memory(context)
        batch = api.llama_batch_init(sequences, 0, 1)

        def advance(token: int, position: int) -> None:
            batch.n_tokens = sequences
            for i in range(sequences):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, True
                batch.seq_id[i][0] = i
            if api.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")

        for position, token in enumerate(tokens):
            advance(token, position)

        def step() -> Any:
            for i in range(sequences):
                api.llama_memory_seq_rm(memory, i, len(tokens), -1)
            advance(tokens[0], len(tokens))
            return api.llama_get_logits_ith(context, sequences - 1)

        return step

    def logits(self, tokens: list[int]) -> Array:
        """Of every position, which the model must be opened for."""
        model = self._open(n_ctx=len(tokens), logits_all=True)
        model.eval(tokens)
        return np.array(model.scores[: len(tokens)], np.float32)

    def _forget(self, length: int) -> None:
        """What was read behind this length; `eval` removes it from the cache itself."""
        self._model.n_tokens = length

    def _logits(self) -> Any:
        return self._model._ctx.get_logits_ith(-1)

    def as_numpy(self, result: Any) -> Array:
        count = self._model.n_vocab()
        return np.ctypeslib.as_array(result, (count,)).astype(np.float32)
