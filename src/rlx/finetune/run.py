"""`finetune`: a model and a file in, an adapter (or a whole new model) out, with everything a long run needs.

    finetune("smollm2", "chats.jsonl", "run", adapter=AdapterConfig(rank=8), steps=200)

The folder gets metrics.jsonl, loss.png and checkpoints while it trains (see `rlx.train.fit`), settings.json, which a
resumed run must agree with, and at the end adapter_config.json and adapter_model.safetensors; or, where all weights
were trained, model.gguf.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx import nn, optim, train
from rlx.compile.generators import generator_for
from rlx.distributed.layouts import Layout, PlacedBatches
from rlx.distributed.processes import gather, process_index, wait_for_all
from rlx.errors import OpError, TrainingError
from rlx.finetune.divided import place_frozen, place_state
from rlx.finetune.examples import IGNORED, ExampleBatches, example_batches
from rlx.finetune.trainable import Trainable, trainable_decoder
from rlx.models.adapter_files import write_peft
from rlx.models.adapters import ALL_LINEAR, AdapterConfig
from rlx.models.layouts import training_places
from rlx.models.merging import write_changed
from rlx.models.model_files import DecoderFiles, open_decoder
from rlx.models.pull import find_model
from rlx.models.weights import plain_weight
from rlx.runtime.device import default_device
from rlx.train.folders import folder_of
from rlx.train.settings import agree_on_settings

__all__ = ["FinetuneResult", "causal_loss", "finetune"]

# Steps until the learning rate is what it stays; the moments of the first gradients mean little.
_WARMUP = 10
MODEL_NAME = "model.gguf"


class FinetuneResult(NamedTuple):
    """Where the result is, how many numbers were trained, and how the run went."""

    path: Path
    trained: int
    fit: train.FitResult


def causal_loss(model: Trainable, layout: Layout | None = None) -> Callable[..., Any]:
    """The loss of a decoder: the mean cross-entropy of the labels that count. Batches have `tokens`, `labels`, perhaps
    `rows` (see `rlx.finetune.examples`), and `frozen`, the arrays that stay as they are. A layout divides texts and
    tokens over devices."""
    drops = model.adapter is not None and model.adapter.dropout > 0

    def loss(params: Any, batch: Any, key: Any) -> Any:
        tokens = batch["tokens"] if layout is None else layout.tokens(batch["tokens"])
        logits = model.logits(params, batch["frozen"], tokens, key if drops else None, batch.get("rows"))
        return nn.cross_entropy(logits, batch["labels"], ignore_index=IGNORED)

    return loss


def finetune(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    adapter: AdapterConfig | None = AdapterConfig(),  # noqa: B008 - it is frozen
    steps: int = 100,
    batch: int = 1,
    length: int = 256,
    rate: float | None = None,
    seed: int = 0,
    save_every: int = 50,
    resume: bool = False,
    callbacks: Sequence[Callable[[train.StepReport], object]] = (),
    layout: Layout | None = None,
) -> FinetuneResult:
    """Tune a language model on a .txt file, or on the answers of a .jsonl file of chats; see `rlx.finetune.examples`.

    With `adapter=None` all weights of a float model are trained. The learning rate rises to `rate` (2e-4, or 2e-5 for
    all weights) within ten steps and stays there, so that a resumed run may be given more steps. `callbacks` are those
    of `rlx.train.fit`. With a `layout` the work is divided over the devices of its mesh, and over processes: each puts
    its parts of the weights on its devices, and the first one writes the result; see `rlx.finetune.divided`.
    """
    files = open_decoder(find_model(model))
    if length > files.config.context:
        raise OpError(f"finetune: a length of {length} is more than the {files.config.context} tokens of this model")
    peak = rate if rate is not None else (2e-5 if adapter is None else 2e-4)
    if not 0 < peak < 10:
        raise OpError(f"finetune: the learning rate must be above 0 and below 10, got {peak}")
    place = folder_of(out)
    settings = {
        "model": files.path.name,
        "data": hashlib.sha256(Path(data).read_bytes()).hexdigest() if Path(data).is_file() else "",
        "adapter": None if adapter is None else asdict(adapter),
        "batch": batch,
        "length": length,
        "rate": peak,
        "seed": seed,
    }
    batches = example_batches(data, files.tokenizer(), batch, length, files.config.vocab, seed)
    places = None if layout is None else training_places(layout.checked(), "rows" not in batches(0))
    trainable = trainable_decoder(files, adapter, seed, places)
    if layout is None and generator_for(default_device()) is not None:
        trainable = trainable.in_panels()
    if process_index() == 0:
        agree_on_settings(place, settings)
    wait_for_all("finetune")
    warmup = optim.linear(peak / _WARMUP, peak, _WARMUP)
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(warmup, weight_decay=0.0))
    state, frozen = train.init_state(trainable.params, optimizer, seed=seed), trainable.frozen
    if layout is not None:
        state, frozen = place_state(layout, trainable, state), place_frozen(layout, trainable)
    done = train.fit(
        train.make_step(causal_loss(trainable, layout), optimizer),
        state,
        _WithFrozen(batches if layout is None else layout.batches(batches), frozen),
        steps,
        out=place,
        resume=resume,
        save_every=save_every,
        callbacks=callbacks,
    )
    params = done.state.params if layout is None else gather(done.state.params)
    if process_index() == 0:
        _write(place, files, trainable, params, str(model), adapter)
    wait_for_all("finetune")
    return FinetuneResult(place, sum(p.size for p in trainable.params.values()), done)


class _WithFrozen:
    """Batches with the arrays that stay as they are: arguments of the step, so that the program has no copy of them."""

    def __init__(self, batches: ExampleBatches | PlacedBatches, frozen: dict[str, Any]) -> None:
        self._batches, self._frozen = batches, frozen
        self.tokens_per_batch = batches.tokens_per_batch

    def __call__(self, step: int) -> dict[str, Any]:
        return {**self._batches(step), "frozen": self._frozen}


def _write(
    folder: Path, files: DecoderFiles, model: Trainable, params: Any, name: str, config: AdapterConfig | None
) -> None:
    try:
        if config is not None:
            targets = () if ALL_LINEAR in config.targets else config.targets
            write_peft(folder, model.trained(params), files.config, files.weights, name, targets)
        else:
            changed = {name: plain_weight(np.asarray(array)) for name, array in params.items()}
            # Tensors of a GGUF file keep their types; those of a directory get the one that its matrices mostly have.
            type = None if files.weights.is_gguf else _usual_type(files)
            write_changed(files, changed, folder / MODEL_NAME, type)
    except OSError as error:
        kept = train.checkpoint_files(folder)[-1][1].name
        raise TrainingError(
            f"{folder}: the result cannot be written: {error.strerror or error}; the last checkpoint is {kept}. "
            "Make room and resume"
        ) from error


def _usual_type(files: DecoderFiles) -> str:
    """F32, F16 or BF16: how most numbers of a model are stored."""
    sizes: Counter[str] = Counter()
    for _, weight in files.weights.items():
        sizes[weight.dtype.name.upper()] += math.prod(weight.dims)
    name = sizes.most_common(1)[0][0]
    return name if name in ("F16", "BF16") else "F32"
