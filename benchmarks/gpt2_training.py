"""One training step of a GPT-2 of 124 million parameters, as users of rlx and of torch write it.

step, state, batch = rlx_step(Gpt2(), "cuda")     # bf16 arithmetic, f32 weights, AdamW
state, metrics = step(state, batch)
run = torch_step(Gpt2())                          # the same weights under autocast, torch.compile and fused AdamW
loss = run()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rlx
from rlx import nn, optim

RATE, DECAY = 6e-4, 0.1


class Gpt2(NamedTuple):
    """Sizes; the vocabulary is padded to a multiple of 64, as trainers of this model do."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    length: int = 1024
    vocabulary: int = 50304
    batch: int = 8

    @property
    def body(self) -> nn.Layer:
        block = nn.transformer_block(self.heads, 4 * self.width, is_causal=True, use_bias=True)
        return nn.chain(*(rlx.train.block(block) for _ in range(self.layers)), nn.norm_layer())

    def drawn(self, seed: int = 0) -> dict[str, Any]:
        """Parameters as GPT-2 begins with them: matrices from a normal distribution of deviation 0.02."""
        rng = np.random.default_rng(seed)

        def matrix(*shape: int) -> Any:
            return 0.02 * rng.standard_normal(shape, np.float32)

        def leaf(name: str, shape: tuple[int, ...]) -> Any:
            return matrix(*shape) if name == "w" else np.full(shape, name == "scale", np.float32)

        def tree(x: Any) -> Any:
            if isinstance(x, dict):
                return {k: tree(v) if isinstance(v, dict) else leaf(k, v.shape) for k, v in x.items()}
            return [tree(v) for v in x]

        shapes = rlx.eval_shape(lambda key: self.body.init(key, (1, self.length, self.width)), rlx.random.key(0))
        tables = {"tokens": matrix(self.vocabulary, self.width), "places": matrix(self.length, self.width)}
        return {**tables, "body": tree(shapes)}

    def loss(self, params: Any, batch: Any) -> Any:
        x = params["tokens"][batch["ids"]] + params["places"]
        logits = self.body.apply(params["body"], x) @ params["tokens"].T
        return nn.cross_entropy(logits.astype("f32"), batch["labels"])

    def text(self, seed: int = 0) -> dict[str, Any]:
        drawn = np.random.default_rng(seed).integers(0, self.vocabulary, (self.batch, self.length + 1), dtype=np.int32)
        return {"ids": drawn[:, :-1].copy(), "labels": drawn[:, 1:].copy()}


def rlx_step(model: Gpt2, device: str) -> tuple[Any, Any, Any]:
    """The step, its first state and a batch, which live on the device."""
    optimizer = optim.adamw(RATE, weight_decay=DECAY)
    step = rlx.train.make_step(model.loss, optimizer, precision="bf16")
    state = rlx.device_put(rlx.train.init_state(model.drawn(), optimizer), device)
    return step, state, rlx.device_put(model.text(), device)


def torch_step(model: Gpt2, compiled: bool = True) -> Callable[..., Any]:
    """A step of torch from the same weights; each call makes one, of the batch that it is given or the one of before,
    and returns its loss."""
    import torch
    import torch.nn.functional as F

    def on_gpu(x: Any) -> Any:
        if isinstance(x, dict):
            return {k: on_gpu(v) for k, v in x.items()}
        if isinstance(x, list):
            return [on_gpu(v) for v in x]
        found = torch.from_numpy(x).cuda()
        return found.requires_grad_() if found.is_floating_point() else found.long()

    def leaves(x: Any) -> Any:
        for v in x.values() if isinstance(x, dict) else x:
            yield from leaves(v) if isinstance(v, dict | list) else [v]

    params, batch = on_gpu(model.drawn()), on_gpu(model.text())
    width, heads = model.width, model.heads

    def norm(p: Any, x: Any) -> Any:
        return F.layer_norm(x, (width,), p["scale"], p["b"])

    def linear(p: Any, x: Any) -> Any:
        return F.linear(x, p["w"].T, p["b"])

    def attend(p: Any, x: Any) -> Any:
        q, k, v = (linear(p[n], x).view(*x.shape[:2], heads, width // heads).transpose(1, 2) for n in "qkv")
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return linear(p["out"], y.transpose(1, 2).reshape(x.shape))

    def loss() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            x = F.embedding(batch["ids"], params["tokens"]) + params["places"]
            *blocks, last = params["body"]
            for (n1, attention), (n2, forward) in blocks:
                x = x + attend(attention, norm(n1, x))
                x = x + linear(forward["down"], F.gelu(linear(forward["up"], norm(n2, x))))
            logits = norm(last, x) @ params["tokens"].T
            return F.cross_entropy(logits.float().view(-1, model.vocabulary), batch["labels"].reshape(-1))

    every = list(leaves(params))
    optimizer = torch.optim.AdamW(every, RATE, weight_decay=DECAY, fused=True)
    forward = torch.compile(loss, dynamic=False) if compiled else loss

    def run(text: dict[str, Any] | None = None) -> Any:
        for name, array in (text or {}).items():
            batch[name].copy_(torch.from_numpy(array))
        optimizer.zero_grad(set_to_none=True)
        found = forward()
        found.backward()
        optimizer.step()
        return found.detach()

    return run
