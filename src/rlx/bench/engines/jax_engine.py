"""JAX on the CPU: programs are jitted functions of all operands."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.kernel_programs import ConvSetting
from rlx.bench.programs import PROGRAMS, Array, Sizes, operands_of

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")


class JaxWords:
    def matmul(self, a: Any, b: Any) -> Any:
        return a @ b

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight + bias

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def silu(self, x: Any) -> Any:
        return jax.nn.silu(x)

    def softmax(self, x: Any) -> Any:
        return jax.nn.softmax(x, axis=-1)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gamma + beta

    def rms_norm(self, x: Any, gamma: Any) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * gamma

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        chosen = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        return jax.nn.logsumexp(logits, axis=-1) - chosen

    def attention(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        batch, heads, seq, depth = q.shape
        groups = q.reshape(batch, k.shape[1], heads // k.shape[1], seq, depth)
        scores = jnp.einsum("bhgqd,bhkd->bhgqk", groups, k) / math.sqrt(depth)
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        return jnp.einsum("bhgqk,bhkd->bhgqd", jax.nn.softmax(scores, axis=-1), v).reshape(batch, heads, seq, -1)

    def conv(self, x: Any, w: Any, setting: ConvSetting) -> Any:
        sides = [(setting.padding, setting.padding)] * 2
        steps = (setting.stride, setting.stride)
        return jax.lax.conv_general_dilated(x, w, steps, sides, feature_group_count=setting.groups)

    def conv_input_gradient(self, dy: Any, w: Any, setting: ConvSetting) -> Any:
        x = jnp.zeros((setting.batch, setting.channels, setting.size, setting.size), dy.dtype)
        return jax.vjp(lambda x: self.conv(x, w, setting), x)[1](dy)[0]

    def conv_weight_gradient(self, x: Any, dy: Any, setting: ConvSetting) -> Any:
        w = jnp.zeros((setting.outputs, setting.channels // setting.groups, setting.kernel, setting.kernel), x.dtype)
        return jax.vjp(lambda w: self.conv(x, w, setting), w)[1](dy)[0][None]

    def fft(self, x: Any, axes: int) -> Any:
        chosen = tuple(range(-axes, 0))
        return jnp.fft.fftn(x, axes=chosen) if jnp.iscomplexobj(x) else jnp.fft.rfftn(x, axes=chosen)

    def take(self, table: Any, ids: Any) -> Any:
        return table[ids]

    def first_rows(self, table: Any, like: Any) -> Any:
        return table[: like.shape[1]]

    def split_heads(self, x: Any, heads: int) -> Any:
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    def join_heads(self, x: Any) -> Any:
        return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


class JaxEngine:
    """Threads follow the affinity of the process, which the worker has set."""

    def __init__(self, threads: int) -> None:
        jax.config.update("jax_platforms", "cpu")

    @property
    def version(self) -> str:
        return str(jax.__version__)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        inputs, weights = operands_of(program, sizes)
        operands = {n: jnp.asarray(x) for n, x in {**inputs, **weights}.items()}
        call = jax.jit(lambda values: PROGRAMS[program].build(JaxWords(), values))
        return lambda: call(operands).block_until_ready()

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result)
