"""Language models from a file: rlx and llama.cpp read the same tokens and give the logits of the last one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.engines import MODEL_VARIABLE
from rlx.bench.programs import Array, Sizes

# Room for the longest prompt and the tokens that are decoded behind it.
CONTEXT = 1024
FIRST_TOKEN = 1000


def tokens_of(count: int) -> list[int]:
    """The same ordinary tokens for every engine."""
    return [FIRST_TOKEN + 37 * i % 5000 for i in range(count)]


class RlxModel:
    def __init__(self, threads: int) -> None:
        import rlx

        self.version = rlx.__version__
        self._model: Any = rlx.load(os.environ[MODEL_VARIABLE], threads=threads)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        tokens = tokens_of(sizes["tokens"])
        session = self._model.session()
        if program == "prefill":

            def prefill() -> Any:
                session.truncate(0)
                return session.prefill(tokens)

            return prefill
        session.prefill(tokens)

        def step() -> Any:
            session.truncate(len(tokens))
            return session.step(FIRST_TOKEN)

        return step

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result, np.float32).reshape(-1)


class LlamaCppModel:
    def __init__(self, threads: int) -> None:
        llama: Any = importlib.import_module("llama_cpp")
        self.version = str(llama.__version__)
        self._model = llama.Llama(
            os.environ[MODEL_VARIABLE], n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        tokens = tokens_of(sizes["tokens"])
        model = self._model
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
            model.eval([FIRST_TOKEN])
            return self._logits()

        return step

    def _forget(self, length: int) -> None:
        """What was read behind this length; `eval` removes it from the cache itself."""
        self._model.n_tokens = length

    def _logits(self) -> Any:
        return self._model._ctx.get_logits_ith(-1)

    def as_numpy(self, result: Any) -> Array:
        count = self._model.n_vocab()
        return np.ctypeslib.as_array(result, (count,)).astype(np.float32)
