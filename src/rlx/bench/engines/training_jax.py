"""The same training steps in JAX with optax: one jitted function with a donated state."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import Array, Sizes
from rlx.bench.training_programs import B2, DECAY, EPSILON, RATE, drawn

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
optax: Any = importlib.import_module("optax")


def gpt_loss(heads: int) -> Callable[[Any, Any], Any]:
    def attention(p: Any, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = ((x @ p[name]).reshape(batch, length, heads, -1) for name in ("q", "k", "v"))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(width // heads)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        seen = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
        return seen.reshape(x.shape) @ p["out"]

    def norm(p: Any, x: Any) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * p["scale"] + p["b"]

    def loss(params: Any, batch: Any) -> Any:
        x = params["tokens"][batch["ids"]] + params["places"]
        for p in params["blocks"]:
            x = x + attention(p, norm(p["norm1"], x))
            x = x + jax.nn.gelu(norm(p["norm2"], x) @ p["up"], approximate=False) @ p["down"]
        logits = norm(params["last"], x) @ params["tokens"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    return loss


def convnet_loss(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for name in ("conv1", "conv2"):
        p = params[name]
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, p["w"], (1, 1), "SAME") + p["b"][:, None, None])
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(x.reshape(x.shape[0], -1) @ params["dense1"]["w"] + params["dense1"]["b"])
    logits = x @ params["dense2"]["w"] + params["dense2"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


class JaxTraining:
    """Threads follow the affinity of the process, which the worker has set."""

    def __init__(self, threads: int) -> None:
        jax.config.update("jax_platforms", "cpu")
        # With a folder for compiled programs, keep even those that were quick to compile.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

    @property
    def version(self) -> str:
        return str(jax.__version__)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        prepare: dict[str, Callable[[Sizes], Callable[[], Any]]] = {
            "gpt": self._gpt,
            "convnet": self._convnet,
            "adamw": self._adamw,
        }
        return prepare[program](sizes)

    def _gpt(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("gpt", sizes)
        batch = {name: jnp.asarray(values[name]) for name in ("ids", "labels")}
        step = _step(gpt_loss(sizes["heads"]), optax.adamw(RATE, b2=B2, weight_decay=DECAY), values["params"])
        return lambda: step(batch)

    def _convnet(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("convnet", sizes)
        step = _step(convnet_loss, optax.adam(RATE), values["params"])

        def epoch() -> float:
            for x, y in zip(values["images"], values["labels"]):
                found = step({"x": x, "y": y})
            return found

        return epoch

    def _adamw(self, sizes: Sizes) -> Callable[[], Any]:
        values = drawn("adamw", sizes)
        optimizer = optax.adamw(RATE, b2=B2, weight_decay=DECAY)

        def update(params: Any, state: Any, gradients: Any) -> Any:
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state

        compiled = jax.jit(update, donate_argnums=(0, 1))
        params, gradients = (jax.tree.map(jnp.array, values[name]) for name in ("params", "gradients"))
        held = [(params, optimizer.init(params))]

        def call() -> float:
            held[0] = jax.block_until_ready(compiled(*held[0], gradients))
            return float(held[0][0]["w0"][0, 0])

        return call

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result, np.float32).reshape(1)


def _step(loss: Any, optimizer: Any, params: Any) -> Callable[[Any], float]:
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    compiled = jax.jit(step, donate_argnums=(0, 1))
    own = jax.tree.map(jnp.array, params)
    held = [(own, optimizer.init(own))]

    def call(batch: Any) -> float:
        *state, value = jax.block_until_ready(compiled(*held[0], batch))
        held[0] = (state[0], state[1])
        return float(value)

    return call
