"""Sentence encoders from a Hugging Face directory, texts to vectors: rlx in three precisions, sentence-transformers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.engines import MODEL_VARIABLE
from rlx.bench.programs import Array, Sizes
from rlx.bench.sentences import sentences

BATCH = 32


class RlxEncoder:
    """f32 throughout."""

    weights: str | None = None
    activations = "f32"

    def __init__(self, threads: int) -> None:
        import rlx

        self.version = rlx.__version__
        self._encoder = rlx.load_encoder(
            os.environ[MODEL_VARIABLE], threads=threads, weights=self.weights, activations=self.activations
        )

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        texts = sentences(sizes["texts"])
        return lambda: self._encoder.embed(texts, BATCH)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result)


class Int8RlxEncoder(RlxEncoder):
    """8 bits on both sides of products."""

    weights = activations = "int8"


class Int8WeightsEncoder(RlxEncoder):
    """Weights of 8 bits, activations in f32."""

    weights = "int8"


class SentenceTransformersEncoder:
    """The library with which these models are published, on PyTorch."""

    def __init__(self, threads: int) -> None:
        torch: Any = importlib.import_module("torch")
        library: Any = importlib.import_module("sentence_transformers")
        torch.set_num_threads(threads)
        self.version = str(library.__version__)
        self._encoder = library.SentenceTransformer(os.environ[MODEL_VARIABLE], device="cpu")

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        texts = list(sentences(sizes["texts"]))
        return lambda: self._encoder.encode(texts, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result)
