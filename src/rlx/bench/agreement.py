"""How far one way of running a language model is from another: KL divergence, and how often both choose one token.

exact, fast = rlx.load("smollm2"), rlx.load("smollm2", activations="int8")
print(model_agreement(exact, fast, exact.tokenizer.encode(text)[:512]))
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rlx.bench.engine_process import Worker
from rlx.bench.engines import MODEL_VARIABLE
from rlx.errors import ShapeError

Floats = npt.NDArray[np.floating[Any]]

# Positions whose probabilities, a whole vocabulary each, are held at the same time.
_CHUNK = 64


class HasLogits(Protocol):
    """What a language model has."""

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]: ...


class Agreement(NamedTuple):
    """Over `positions` positions: mean and largest KL divergence in nats, and the share with the same likeliest
    token."""

    positions: int
    mean_kl: float
    max_kl: float
    top1: float

    def __str__(self) -> str:
        return f"{self.positions} positions: KL {self.mean_kl:.3g} (max {self.max_kl:.3g}), top-1 {self.top1:.2%}"


def model_agreement(exact: HasLogits, other: HasLogits, token_ids: Sequence[int]) -> Agreement:
    """How two models that read the same tokens agree on what follows each of them."""
    return compare_logits(exact.logits(token_ids), other.logits(token_ids))


def engine_logits(
    engine: str, model: Path, token_ids: Sequence[int], *, python: str = sys.executable, threads: int = 2
) -> npt.NDArray[np.float32]:
    """f32[len(token_ids), V] by an engine of `language_models`, in a process of its own."""
    worker = Worker("language_models", engine, python, threads, {MODEL_VARIABLE: str(model)})
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "logits.npy"
            worker.ask({"do": "logits", "tokens": list(token_ids), "result": str(file)})
            found: npt.NDArray[np.float32] = np.load(file, allow_pickle=False)
            return found
    finally:
        worker.close()


def compare_logits(exact: Floats, other: Floats) -> Agreement:
    """KL(p || q) = Σ p·(log p - log q) for the distributions p and q of each row of [positions, vocabulary].

    >>> rows = np.array([[0.0, 1.0], [2.0, 0.0]])
    >>> compare_logits(rows, rows[:, ::-1]).top1
    0.0
    """
    if exact.shape != other.shape or exact.ndim != 2 or not len(exact):
        raise ShapeError(
            f"compare_logits: two arrays [positions, vocabulary] are wanted, got {exact.shape, other.shape}"
        )
    found: list[npt.NDArray[np.float64]] = []
    for start in range(0, len(exact), _CHUNK):
        p, q = (_log_softmax(rows[start : start + _CHUNK]) for rows in (exact, other))
        found.append((np.exp(p) * (p - q)).sum(axis=1))
    divergence = np.concatenate(found)
    same = exact.argmax(axis=1) == other.argmax(axis=1)
    return Agreement(len(exact), float(divergence.mean()), float(divergence.max()), float(same.mean()))


def _log_softmax(rows: Floats) -> npt.NDArray[np.float64]:
    shifted = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
