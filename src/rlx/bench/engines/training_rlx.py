"""Training steps of rlx, as its users write them: `rlx.nn`, `rlx.optim`, `rlx.train`, `rlx.finetune`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import nn, optim, train
from rlx.bench.engines import DEVICE_VARIABLE, MODEL_VARIABLE
from rlx.bench.programs import Array, Sizes
from rlx.bench.training_programs import B2, DECAY, EPSILON, RATE, drawn
from rlx.knobs import knobs


def gpt_loss(heads: int) -> Callable[[Any, Any], Any]:
    def attention(p: Any, x: Any) -> Any:
        q, k, v = ((x @ p[name]).reshape(*x.shape[:2], heads, -1) for name in ("q", "k", "v"))
        return nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ p["out"]

    def norm(p: Any, x: Any) -> Any:
        return nn.layer_norm(x, p["scale"], p["b"], eps=EPSILON)

    def loss(params: Any, batch: Any) -> Any:
        x = nn.embedding(batch["ids"], params["tokens"]) + params["places"]
        for p in params["blocks"]:
            x = x + attention(p, norm(p["norm1"], x))
            x = x + nn.gelu(norm(p["norm2"], x) @ p["up"]) @ p["down"]
        logits = norm(params["last"], x) @ params["tokens"].T
        return nn.cross_entropy(rnp.astype(logits, "f32"), batch["labels"])

    return loss


def convnet_loss(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for name in ("conv1", "conv2"):
        x = nn.max_pool(nn.relu(nn.conv(x, params[name]["w"], params[name]["b"], padding="same")), 2)
    x = x.reshape(x.shape[0], -1)
    x = nn.relu(x @ params["dense1"]["w"] + params["dense1"]["b"])
    return nn.cross_entropy(x @ params["dense2"]["w"] + params["dense2"]["b"], batch["y"])


class RlxTraining:
    def __init__(self, threads: int) -> None:
        knobs.set(threads=threads)
        self.device = os.environ.get(DEVICE_VARIABLE, "cpu")

    @property
    def version(self) -> str:
        return rlx.__version__

    @property
    def peak_memory(self) -> int | None:
        """Bytes of a GPU that were used at most; None where memory is that of the process."""
        if self.device == "cpu":
            return None
        from rlx.backends.cuda.device import open_gpu

        return open_gpu(0).pool.most_used_bytes

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        prepare: dict[str, Callable[[Sizes], Callable[[], Any]]] = {
            "gpt": self._gpt,
            "lora": self._lora,
            "convnet": self._convnet,
            "adamw": self._adamw,
            "scan gradient": self._scan,
        }
        return prepare[program](sizes)

    def _gpt(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("gpt", sizes)
        optimizer = optim.adamw(RATE, b2=B2, weight_decay=DECAY)
        batch = {"ids": values["ids"], "labels": values["labels"]}
        return self._steps(gpt_loss(sizes["heads"]), optimizer, values["params"], batch, bool(sizes.get("bf16")))

    def _lora(self, sizes: Sizes) -> Callable[[], Any]:
        from rlx.finetune import AdapterConfig, causal_loss, trainable_decoder
        from rlx.models.model_files import open_decoder

        values = drawn("lora", sizes)
        files = open_decoder(Path(os.environ[MODEL_VARIABLE]))
        model = trainable_decoder(files, AdapterConfig(rank=sizes["rank"])).in_panels()
        batch = {"tokens": values["ids"], "labels": values["labels"], "frozen": model.frozen}
        return self._steps(causal_loss(model), optim.adamw(RATE, b2=B2, weight_decay=0.0), model.params, batch)

    def _convnet(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("convnet", sizes)
        optimizer = optim.adam(RATE)
        step = train.make_step(convnet_loss, optimizer)
        held = [self._placed(train.init_state(values["params"], optimizer))]
        batches = self._placed([{"x": x, "y": y} for x, y in zip(values["images"], values["labels"])])

        def epoch() -> float:
            for batch in batches:
                held[0], metrics = step(held[0], batch)
            return float(metrics["loss"])

        return epoch

    def _adamw(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("adamw", sizes)
        optimizer = optim.adamw(RATE, b2=B2, weight_decay=DECAY)

        def update(params: Any, state: Any, gradients: Any) -> Any:
            updates, state = optimizer.update(gradients, state, params)
            return optim.apply_updates(params, updates), state

        compiled = rlx.jit(update, donate_argnums=(0, 1))
        params = rlx.tree.map(np.array, values["params"])
        held = [self._placed((params, optimizer.init(params)))]
        gradients = self._placed(values["gradients"])

        def call() -> Any:
            held[0] = compiled(*held[0], gradients)
            return held[0][0]["w0"][0, 0]

        return call

    def _scan(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("scan gradient", sizes)

        def loss(w: Any, start: Any) -> Any:
            def step(state: Any, _: Any) -> Any:
                return state + 0.01 * rnp.tanh(state @ w), None

            last, _ = rlx.scan(step, start, None, length=sizes["length"], num_checkpoints=sizes["checkpoints"])
            return rnp.mean(rnp.square(last))

        gradient = rlx.jit(rlx.value_and_grad(loss))
        return lambda: gradient(values["params"]["w"], values["start"])[0]

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result, np.float32).reshape(1)

    def _placed(self, values: Any) -> Any:
        """Arrays where they are used."""
        return values if self.device == "cpu" else rlx.device_put(values, self.device)

    def _steps(self, loss: Any, optimizer: Any, params: Any, batch: Any, narrow: bool = False) -> Callable[[], float]:
        """A call that makes the next step."""
        step = train.make_step(loss, optimizer, precision="bf16" if narrow else None)
        held, batch = [self._placed(train.init_state(params, optimizer))], self._placed(batch)

        def call() -> float:
            held[0], metrics = step(held[0], batch)
            return float(metrics["loss"])

        return call
