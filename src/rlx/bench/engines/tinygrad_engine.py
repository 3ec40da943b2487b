"""tinygrad on the CPU, with its JIT."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from collections.abc import Callable
from typing import Any

from rlx.bench.programs import PROGRAMS, Array, Sizes, operands_of

tinygrad: Any = importlib.import_module("tinygrad")


class TinygradWords:
    def matmul(self, a: Any, b: Any) -> Any:
        return a @ b

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x.linear(weight, bias)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def gelu(self, x: Any) -> Any:
        return 0.5 * x * (1.0 + (x / math.sqrt(2.0)).erf())

    def silu(self, x: Any) -> Any:
        return x.silu()

    def softmax(self, x: Any) -> Any:
        return x.softmax(-1)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        return x.layernorm(-1, 1e-5) * gamma + beta

    def rms_norm(self, x: Any, gamma: Any) -> Any:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gamma

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return -logits.log_softmax(-1).gather(1, labels.unsqueeze(1)).squeeze(1)

    def attention(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        return q.scaled_dot_product_attention(k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    def take(self, table: Any, ids: Any) -> Any:
        return table[ids]

    def first_rows(self, table: Any, like: Any) -> Any:
        return table[: like.shape[1]]

    def split_heads(self, x: Any, heads: int) -> Any:
        return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)

    def join_heads(self, x: Any) -> Any:
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class TinygradEngine:
    def __init__(self, threads: int) -> None:
        self._device = "CPU"

    @property
    def version(self) -> str:
        return importlib.metadata.version("tinygrad")

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        inputs, weights = operands_of(program, sizes)
        given = {n: tinygrad.Tensor(x, device=self._device).realize() for n, x in {**inputs, **weights}.items()}
        names = list(given)

        def call(*values: Any) -> Any:
            return PROGRAMS[program].build(TinygradWords(), dict(zip(names, values))).realize()

        jitted = tinygrad.TinyJit(call)
        device = tinygrad.Device[self._device]

        def run() -> Any:
            result = jitted(*given.values())
            device.synchronize()
            return result

        return run

    def as_numpy(self, result: Any) -> Array:
        array: Array = result.numpy()
        return array
