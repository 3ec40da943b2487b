"""The torch side of `cuda_models.py`: the same decoder by hand, with a static cache; weights come from a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F
from cuda_models import ROPE_BASE, weight_dims

from rlx.models.config import DecoderConfig
from rlx.models.weight_names import HF_DECODERS

BF16 = torch.bfloat16


def seeded_weights(c: DecoderConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Made on the device; products keep the size of what they multiply."""
    made = torch.Generator("cuda").manual_seed(seed)

    def draw(dims: tuple[int, ...]) -> torch.Tensor:
        x = torch.randn(*dims, device="cuda", generator=made, dtype=torch.float32)
        return (1 + 0.1 * x if len(dims) == 1 else x * dims[-1] ** -0.5).to(BF16)

    return {name: draw(dims) for name, dims in weight_dims(c).items()}


def on_host(tensor: torch.Tensor) -> Any:
    found = tensor.cpu().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    # So that rlx does not copy it before it goes to the device.
    found.flags.writeable = False
    return found


class TorchModel:
    """Projections of one value are joined, as they are in rlx."""

    def __init__(self, c: DecoderConfig, weights: dict[str, torch.Tensor], dtype: torch.dtype = BF16) -> None:
        self.c, self.dtype = c, dtype
        names = HF_DECODERS["llama"]

        def of(role: str, i: int = 0) -> torch.Tensor:
            return weights[f"{names[role].replace('{i}', str(i))}.weight"].to(dtype)

        self.layers = [
            (
                of("attn_norm", i),
                torch.cat([of(r, i) for r in "qkv"]),
                of("o", i),
                of("ffn_norm", i),
                torch.cat([of("gate", i), of("up", i)]),
                of("down", i),
            )
            for i in range(c.layers)
        ]
        self.embed, self.gain = of("embed"), of("final_norm")
        self.head = self.embed if c.tied else of("head")
        self.caches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def start(self, capacity: int, batch: int = 1) -> None:
        c = self.c
        shape = (batch, c.kv_heads, capacity, c.head_dim)
        self.caches = [
            (torch.zeros(shape, device="cuda", dtype=BF16), torch.zeros(shape, device="cuda", dtype=BF16))
            for _ in range(c.layers)
        ]
        steps = torch.arange(0, c.head_dim, 2, device="cuda", dtype=torch.float64) / c.head_dim
        angle = torch.arange(capacity, device="cuda", dtype=torch.float64)[:, None] * ROPE_BASE**-steps
        self.cos, self.sin = (f.repeat(1, 2).float() for f in (angle.cos(), angle.sin()))

    def layer(
        self, x: Any, weights: Any, keys: Any, values: Any, places: Any, cos: Any, sin: Any, seen: int, causal: bool
    ) -> Any:
        """One layer of rows that stand at `places`; the first `seen` keys are read."""
        c = self.c
        gain1, qkv, o, gain2, gate_up, down = weights

        def turned(v: Any) -> Any:
            a, b = v.float().chunk(2, -1)
            return (v.float() * cos + torch.cat([-b, a], -1) * sin).to(v.dtype)

        rows = F.linear(F.rms_norm(x, (c.hidden,), gain1, c.norm_eps), qkv).view(*x.shape[:2], -1, c.head_dim)
        q, k, v = (t.transpose(1, 2) for t in rows.split([c.heads, c.kv_heads, c.kv_heads], 2))
        keys.index_copy_(2, places, turned(k).to(keys.dtype))
        values.index_copy_(2, places, v.to(values.dtype))
        k, v = (t[:, :, :seen].to(x.dtype) for t in (keys, values))
        a = F.scaled_dot_product_attention(turned(q), k, v, enable_gqa=True, is_causal=causal)
        x = x + F.linear(a.transpose(1, 2).reshape(*x.shape[:2], -1), o)
        gate, up = F.linear(F.rms_norm(x, (c.hidden,), gain2, c.norm_eps), gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, down)

    def last(self, x: Any, gain: Any, head: Any) -> Any:
        logits = F.linear(F.rms_norm(x[:, -1], (self.c.hidden,), gain, self.c.norm_eps), head)
        return logits, logits.argmax(-1, keepdim=True)

    def step(self, tokens: Any, places: Any, seen: int, layer: Any = None, last: Any = None) -> Any:
        """Logits after the last of tokens [B, S], and which is the highest; all sequences stand at the same places."""
        x = self.embed[tokens]
        cos, sin = self.cos[places], self.sin[places]
        for weights, (keys, values) in zip(self.layers, self.caches):
            x = (layer or self.layer)(x, weights, keys, values, places, cos, sin, seen, tokens.shape[1] > 1)
        return (last or self.last)(x, self.gain, self.head)

    def logits(self, tokens: Any, start: int) -> Any:
        """After tokens that stand at `start` and behind it, on the host."""
        places = torch.arange(start, start + len(tokens), device="cuda")
        with torch.no_grad():
            found = self.step(torch.tensor(tokens, device="cuda")[None], places, start + len(tokens))[0]
        return found[0].float().cpu().numpy()

    def as_graph(self, tokens: Any, start: int, is_compiled: bool) -> Callable[[int], Any]:
        """A step at places from `start` on as one CUDA graph, which feeds a single token back. Tokens are those of one
        sequence, or of each of several."""
        import torch._inductor.config

        parts: dict[str, Any] = {}
        if is_compiled:
            # Makes inductor write matrix-vector products itself.
            torch._inductor.config.coordinate_descent_tuning = np.size(tokens) == 1
            parts = {f.__name__: torch.compile(f, dynamic=False) for f in (self.layer, self.last)}
        ids = torch.tensor(np.atleast_2d(np.asarray(tokens)), device="cuda")
        places = torch.arange(start, start + ids.shape[1], device="cuda")
        seen, side = start + ids.shape[1], torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(3):
                self.step(ids, places, seen, **parts)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            best = self.step(ids, places, seen, **parts)[1]
            if ids.shape[1] == 1:
                ids.copy_(best)
        kept = (ids, places, self.caches)
        return lambda i: (graph.replay(), kept)[0]


def divergence(logits: Any, want: Any) -> float:
    """The mean KL of distributions from those wanted, in nats."""
    p, q = (torch.log_softmax(torch.as_tensor(np.asarray(x)).double(), -1) for x in (want, logits))
    return float((p.exp() * (p - q)).sum(-1).mean())
