"""What XLA says of the training step that a plan is about."""

from pathlib import Path

import numpy as np

import rlx
from rlx import optim, train
from rlx.distributed import layout_of, report
from rlx.finetune.divided import place_frozen, place_state
from rlx.finetune.run import causal_loss
from rlx.finetune.trainable import trainable_decoder
from rlx.ir.dtype import DType
from rlx.models.adapters import AdapterConfig
from rlx.models.config import DecoderConfig, RopeConfig
from rlx.models.layouts import training_places
from rlx.models.model_files import DecoderFiles
from rlx.planning import ModelShape

# Large enough for weights and values to be what memory is full of.
CONFIG = DecoderConfig("llama", 2, 128, 8, 8, 16, 384, 512, 1024, rope=RopeConfig(1e4, 16))
SHAPE = ModelShape("small", CONFIG, frozenset(), DType.F32)


def step_of(mesh, batch, length, lora=None, shape=SHAPE):
    """A training step over a mesh with its state and batch; all weights are 0."""
    layout = layout_of(rlx.Mesh.of(mesh))
    files = DecoderFiles(Path("small"), shape.config, shape.file(), lambda: None)
    adapter = None if lora is None else AdapterConfig(rank=lora)
    model = trainable_decoder(files, adapter, 0, training_places(layout))
    optimizer = optim.chain(optim.clip_by_global_norm(1.0), optim.adamw(1e-3, weight_decay=0.0))
    state = place_state(layout, model, train.init_state(model.params, optimizer))
    ids = np.zeros((batch, length), np.int32)
    texts = {**layout.place_batch({"tokens": ids, "labels": ids}), "frozen": place_frozen(layout, model)}
    return train.make_step(causal_loss(model, layout), optimizer), state, texts


def xla_report(mesh, batch, length, lora=None, shape=SHAPE):
    return report(*step_of(mesh, batch, length, lora, shape))
