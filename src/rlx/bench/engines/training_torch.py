"""The same training steps in PyTorch, eager and compiled, with its fused optimiser unless its name says otherwise."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.engines import ADAPTER_VARIABLE, DEVICE_VARIABLE, MODEL_VARIABLE
from rlx.bench.programs import Array, Sizes
from rlx.bench.training_programs import B2, DECAY, EPSILON, RATE, drawn

torch: Any = importlib.import_module("torch")
F: Any = importlib.import_module("torch.nn.functional")


class TorchTraining:
    kind = "fused"

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self.device = os.environ.get(DEVICE_VARIABLE, "cpu")
        torch.set_default_device(self.device)

    @property
    def version(self) -> str:
        return str(torch.__version__)

    @property
    def peak_memory(self) -> int | None:
        """Bytes of the GPU that were used at most; None where memory is that of the process."""
        return None if self.device == "cpu" else int(torch.cuda.max_memory_allocated())

    def function(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        prepare: dict[str, Callable[[Sizes], Callable[[], Any]]] = {
            "gpt": self._gpt,
            "lora": self._lora,
            "convnet": self._convnet,
            "adamw": self._adamw,
        }
        return prepare[program](sizes)

    def _optimizer(self, tensors: Any, decay: float, b2: float = B2) -> Any:
        return torch.optim.AdamW(tensors, RATE, (0.9, b2), 1e-8, weight_decay=decay, **{self.kind: True})

    def _gpt(self, sizes: Sizes) -> Callable[[], Any]:
        values, heads, width = drawn("gpt", sizes), sizes["heads"], sizes["width"]
        every: list[Any] = []

        def own(array: Array) -> Any:
            every.append(torch.tensor(array).requires_grad_())
            return every[-1]

        def norm(p: Any) -> Any:
            return own(p["scale"]), own(p["b"])

        params = values["params"]
        tokens, places, last = own(params["tokens"]), own(params["places"]), norm(params["last"])
        # Matrices are [outputs, inputs] and queries, keys and values one product, as people write it with torch.
        blocks = [
            (
                norm(p["norm1"]),
                own(np.concatenate([p[n].T for n in "qkv"])),
                own(p["out"].T.copy()),
                norm(p["norm2"]),
                own(p["up"].T.copy()),
                own(p["down"].T.copy()),
            )
            for p in params["blocks"]
        ]
        ids, labels = (torch.tensor(values[name]).long() for name in ("ids", "labels"))

        def normed(p: Any, x: Any) -> Any:
            return F.layer_norm(x, (width,), p[0], p[1], EPSILON)

        def loss(ids: Any, labels: Any) -> Any:
            x = F.embedding(ids, tokens) + places
            for norm1, joined, out, norm2, up, down in blocks:
                parts = F.linear(normed(norm1, x), joined).split(width, -1)
                q, k, v = (part.view(*x.shape[:2], heads, -1).transpose(1, 2) for part in parts)
                seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                x = x + F.linear(seen.transpose(1, 2).reshape(x.shape), out)
                x = x + F.linear(F.gelu(F.linear(normed(norm2, x), up)), down)
            logits = F.linear(normed(last, x), tokens)
            return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), labels.view(-1))

        compiled = self.function(loss)

        def narrowed() -> Any:
            with torch.autocast(self.device, torch.bfloat16, enabled=bool(sizes.get("bf16"))):
                return compiled(ids, labels)

        return _steps(narrowed, self._optimizer(every, DECAY))

    def _lora(self, sizes: Sizes) -> Callable[[], Any]:
        """The model with all weights as f32, under the very adapters that rlx begins with."""
        peft: Any = importlib.import_module("peft")
        transformers: Any = importlib.import_module("transformers")
        values = drawn("lora", sizes)
        base = transformers.AutoModelForCausalLM.from_pretrained(os.environ[MODEL_VARIABLE], dtype=torch.float32)
        model = peft.PeftModel.from_pretrained(base, os.environ[ADAPTER_VARIABLE], is_trainable=True).to(self.device)
        model.train()
        ids, labels = (torch.tensor(values[name]).long() for name in ("ids", "labels"))

        def loss() -> Any:
            logits = model(ids, use_cache=False).logits
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))

        return _steps(loss, self._optimizer([p for p in model.parameters() if p.requires_grad], 0.0))

    def _convnet(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("convnet", sizes)
        params = values["params"]
        own = {n: {k: torch.tensor(x).requires_grad_() for k, x in p.items()} for n, p in params.items()}
        for name in ("dense1", "dense2"):
            own[name]["w"] = torch.tensor(params[name]["w"].T.copy()).requires_grad_()

        def loss(x: Any, y: Any) -> Any:
            for name in ("conv1", "conv2"):
                x = F.max_pool2d(F.relu(F.conv2d(x, own[name]["w"], own[name]["b"], padding=1)), 2)
            x = F.relu(F.linear(x.flatten(1), own["dense1"]["w"], own["dense1"]["b"]))
            return F.cross_entropy(F.linear(x, own["dense2"]["w"], own["dense2"]["b"]), y)

        images = torch.tensor(values["images"])
        labels = torch.tensor(values["labels"]).long()
        compiled = self.function(loss)
        optimizer = self._optimizer([x for p in own.values() for x in p.values()], 0.0, 0.999)
        batch: list[Any] = []
        step = _steps(lambda: compiled(*batch), optimizer)

        def epoch() -> float:
            for x, y in zip(images, labels):
                batch[:] = x, y
                found = step()
            return found

        return epoch

    def _adamw(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("adamw", sizes)
        params = [torch.tensor(x).requires_grad_() for x in values["params"].values()]
        for tensor, gradient in zip(params, values["gradients"].values()):
            tensor.grad = torch.tensor(gradient)
        optimizer = self._optimizer(params, DECAY)

        def call() -> float:
            optimizer.step()
            return float(params[0][0, 0])

        return call

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result, np.float32).reshape(1)


class ForeachTorchTraining(TorchTraining):
    kind = "foreach"


class CompiledTorchTraining(TorchTraining):
    def function(self, call: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(call, dynamic=False)
        return compiled


def _steps(loss: Callable[[], Any], optimizer: Any) -> Callable[[], float]:
    def call() -> float:
        optimizer.zero_grad(set_to_none=True)
        found = loss()
        found.backward()
        optimizer.step()
        return float(found.item())

    return call
