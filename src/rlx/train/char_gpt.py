"""A character-level GPT, trained from scratch on any text file: `rlx train` and examples/char_gpt.py run it.

    result = train_char_gpt("text.txt", steps=2000, out="run")
    print(char_gpt_text(result.state.params, CharGpt(), b"Once", 200))

Tokens are the bytes of the file, which is mapped. A run that was stopped goes on when it is called again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn, optim
from rlx.distributed.layouts import Layout
from rlx.distributed.processes import process_index, wait_for_all
from rlx.train.checkpoints import checkpoint_files
from rlx.train.data import TokenBatches, open_tokens
from rlx.train.folders import folder_of
from rlx.train.loop import FitResult, fit
from rlx.train.settings import agree_on_settings
from rlx.train.steps import init_state, make_step

__all__ = ["CharGpt", "char_gpt_loss", "char_gpt_text", "train_char_gpt"]

_VOCAB = 256


class CharGpt(NamedTuple):
    """Sizes of a decoder with learned positions and the embedding as its last layer."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    length: int = 128

    def init(self, key: Any) -> dict[str, Any]:
        """Random parameters."""
        keys = rlx.random.split(key, 3)
        return {
            "tokens": self._embedding.init(keys[0], (1, self.length)),
            "places": rlx.random.normal(keys[1], (self.length, self.width)) * 0.02,
            "body": self._body.init(keys[2], (1, self.length, self.width)),
        }

    def logits(self, params: dict[str, Any], ids: Any, key: Any = None) -> Any:
        """f32[B, S, 256]; with a key elements are dropped, as in training."""
        x = self._embedding.apply(params["tokens"], ids) + params["places"][: ids.shape[1]]
        return self._body.apply(params["body"], x, key) @ params["tokens"]["table"].T

    @property
    def _embedding(self) -> nn.Layer:
        return nn.embedding_layer(_VOCAB, self.width)

    @property
    def _body(self) -> nn.Layer:
        block = nn.transformer_block(self.heads, 4 * self.width, is_causal=True, dropout=0.1)
        return nn.chain(*(block for _ in range(self.layers)), nn.norm_layer())


def char_gpt_text(params: Any, model: CharGpt, prompt: bytes, count: int, seed: int = 0) -> str:
    """What may follow the prompt; the window always has `length` places, so that one program serves all of it."""

    def next_byte(params: Any, window: Any, last: Any, key: Any) -> Any:
        row = rlx.dynamic_index_in_dim(model.logits(params, window[None])[0], last, 0, keepdims=False)
        return rlx.random.categorical(key, row / 0.8)

    choose = rlx.jit(next_byte)
    ids = list(prompt)
    for n in range(count):
        recent = ids[-model.length :]
        window = np.zeros(model.length, np.int32)
        window[: len(recent)] = recent
        ids.append(int(choose(params, window, np.int32(len(recent) - 1), rlx.random.fold_in(rlx.random.key(seed), n))))
    return bytes(ids).decode("utf-8", errors="replace")


def char_gpt_loss(model: CharGpt, layout: Layout | None = None) -> Callable[[Any, Any, Any], Any]:
    """How badly a model foretells the next byte of each window; a layout divides texts and tokens over devices."""

    def loss(params: Any, window: Any, key: Any) -> Any:
        ids = window[:, :-1] if layout is None else layout.tokens(window[:, :-1])
        return rnp.mean(nn.cross_entropy(model.logits(params, ids, key), window[:, 1:]))

    return loss


def train_char_gpt(
    data: str | os.PathLike[str],
    steps: int = 2000,
    *,
    out: str | os.PathLike[str] | None = None,
    model: CharGpt | None = None,
    batch: int = 8,
    rate: float = 1e-3,
    seed: int = 0,
    save_every: int = 200,
    resume: bool = True,
    layout: Layout | None = None,
) -> FitResult:
    """Train on nine tenths of a file; the last tenth says how well it does on text that it has not seen.

    With a layout the work is divided over the devices of its mesh; see `rlx.distributed`.
    """
    model = model or CharGpt()
    ids = open_tokens(data)
    split = len(ids) * 9 // 10
    batches = TokenBatches(ids[:split], batch, model.length, 0, None, f"{data}, its first nine tenths")
    # A short file has less of what is held out than a batch.
    windows = max((len(ids) - split - 1) // model.length, 1)
    held_out = TokenBatches(ids[split:], min(batch, windows), model.length, 0, None, f"{data}, its last tenth")

    loss = char_gpt_loss(model, layout)

    held_out_loss = rlx.jit(
        lambda params, window: rnp.mean(nn.cross_entropy(model.logits(params, window[:, :-1]), window[:, 1:]))
    )

    def evaluate(params: Any) -> float:
        count = min(held_out.steps_per_epoch, 10)
        return float(np.mean([float(held_out_loss(params, held_out(n))) for n in range(count)]))

    schedule = optim.warmup_cosine(rate, steps // 20, steps, end=rate / 10)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(schedule, b2=0.95, weight_decay=0.1))
    state = init_state(model.init(rlx.random.key(seed)), optimizer)
    # Nothing is written before all settings are known to fit each other.
    if out is not None and process_index() == 0 and (resume or not checkpoint_files(out)):
        agree_on_settings(folder_of(out), {**model._asdict(), "batch": batch, "seed": seed})
    wait_for_all("train")
    return fit(
        make_step(loss, optimizer),
        state if layout is None else layout.place_state(state),
        batches if layout is None else layout.batches(batches),
        steps,
        out=out,
        resume=resume,
        save_every=save_every,
        evaluate=evaluate,
        evaluate_every=save_every,
    )
