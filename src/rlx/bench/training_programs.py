"""What `rlx bench train` measures: training steps from numbers that are the same in every process.

Parameters and batches are drawn here with NumPy; the engines write the networks in their own words. Every program is a
call that makes one step (of the convnet: many) and gives its loss.

    gpt        a decoder with AdamW: `layers`, `width`, `heads`, `batch`, `length`, `vocabulary`
    lora       adapters of rank `rank` on a model file, over `length` tokens
    convnet    `steps` batches of `batch` images of digits, with Adam
    adamw      the update of `parameters` numbers from gradients that are there already
    scan       the gradient of a loop of `length` steps that keeps `checkpoints` states, 0 for all
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import Array, Sizes

RATE, DECAY, B2 = 1e-3, 0.1, 0.95
EPSILON = 1e-5

Tree = dict[str, Any]


def drawn(program: str, sizes: Sizes) -> Tree:
    """Parameters and batches of a program; not to be written to."""
    return _drawn(program, tuple(sizes.items()))


@functools.lru_cache(maxsize=1)
def _drawn(program: str, sizes: tuple[tuple[str, int], ...]) -> Tree:
    return TRAINING[program](dict(sizes), np.random.default_rng(7))


def _gpt(sizes: Sizes, rng: np.random.Generator) -> Tree:
    """Blocks as `nn.transformer_block` has them; matrices are [inputs, outputs]."""
    width, vocabulary = sizes["width"], sizes["vocabulary"]

    def matrix(rows: int, columns: int, deviation: float = 0.02) -> Array:
        return deviation * rng.standard_normal((rows, columns), np.float32)

    def norm() -> Tree:
        return {"scale": np.ones(width, np.float32), "b": np.zeros(width, np.float32)}

    blocks = [
        {
            "norm1": norm(),
            **{name: matrix(width, width) for name in ("q", "k", "v", "out")},
            "norm2": norm(),
            "up": matrix(width, 4 * width),
            "down": matrix(4 * width, width),
        }
        for _ in range(sizes["layers"])
    ]
    ids = rng.integers(0, vocabulary, (sizes["batch"], sizes["length"] + 1), dtype=np.int32)
    tables = {"tokens": matrix(vocabulary, width), "places": matrix(sizes["length"], width)}
    return {
        "params": {**tables, "blocks": blocks, "last": norm()},
        "ids": ids[:, :-1].copy(),
        "labels": ids[:, 1:].copy(),
    }


def _convnet(sizes: Sizes, rng: np.random.Generator) -> Tree:
    """Two convolutions of 3x3 with pools, two dense layers, on images of 28x28."""

    def weights(*shape: int, inputs: int) -> Array:
        return math.sqrt(2 / inputs) * rng.standard_normal(shape, np.float32)

    def zeros(count: int) -> Array:
        return np.zeros(count, np.float32)

    params = {
        "conv1": {"w": weights(32, 1, 3, 3, inputs=9), "b": zeros(32)},
        "conv2": {"w": weights(64, 32, 3, 3, inputs=288), "b": zeros(64)},
        "dense1": {"w": weights(3136, 128, inputs=3136), "b": zeros(128)},
        "dense2": {"w": weights(128, 10, inputs=128), "b": zeros(10)},
    }
    count = sizes["steps"] * sizes["batch"]
    images = rng.random((sizes["steps"], sizes["batch"], 1, 28, 28), np.float32)
    labels = rng.integers(0, 10, count, dtype=np.int32).reshape(sizes["steps"], sizes["batch"])
    return {"params": params, "images": images, "labels": labels}


def _adamw(sizes: Sizes, rng: np.random.Generator) -> Tree:
    """Matrices of a model: many leaves of usual sizes."""
    shape = (512, 2048)
    count = max(sizes["parameters"] // math.prod(shape), 1)
    return {
        what: {f"w{n}": rng.standard_normal(shape, np.float32) for n in range(count)}
        for what in ("params", "gradients")
    }


def _scan(sizes: Sizes, rng: np.random.Generator) -> Tree:
    width = sizes["width"]
    weights = rng.standard_normal((width, width), np.float32) / math.sqrt(width)
    return {"params": {"w": weights}, "start": rng.standard_normal((sizes["rows"], width), np.float32)}


def _lora(sizes: Sizes, rng: np.random.Generator) -> Tree:
    """Ids that every vocabulary has; the model itself comes from a file."""
    ids = rng.integers(10, 10_000, (1, sizes["length"] + 1), dtype=np.int32)
    return {"ids": ids[:, :-1].copy(), "labels": ids[:, 1:].copy()}


TRAINING: dict[str, Callable[[Sizes, np.random.Generator], Tree]] = {
    "gpt": _gpt,
    "lora": _lora,
    "convnet": _convnet,
    "adamw": _adamw,
    "scan gradient": _scan,
}


def gpt_flops(sizes: Sizes) -> float:
    """Multiply-adds of a step, twice: matrices three times (forward, and the gradients of both operands), scores of a
    causal attention over the places that are seen only: twice forward, five times backward, where they are made again.
    """
    tokens, width = sizes["batch"] * sizes["length"], sizes["width"]
    matrices = sizes["layers"] * 12 * width * width + sizes["vocabulary"] * width
    seen = sizes["batch"] * sizes["length"] * (sizes["length"] + 1) / 2
    return 6.0 * matrices * tokens + sizes["layers"] * 14.0 * width * seen


def convnet_flops(sizes: Sizes) -> float:
    """Of all batches; the first convolution needs no gradient of the images."""
    first, second = 28 * 28 * 32 * 9, 14 * 14 * 64 * 288
    dense = 3136 * 128 + 128 * 10
    return 2.0 * (2 * first + 3 * second + 3 * dense) * sizes["steps"] * sizes["batch"]


def scan_flops(sizes: Sizes) -> float:
    """Of a loop that keeps everything: a product forward and two backward in every step."""
    return 6.0 * sizes["length"] * sizes["rows"] * sizes["width"] ** 2


def lora_flops(sizes: Sizes, matrix_elements: float, adapter_elements: float, score_width: float) -> float:
    """Frozen matrices are multiplied twice (forward, gradient of the input), adapters three times; `score_width` is the
    sum of the widths of all layers' queries."""
    tokens = sizes["length"]
    return tokens * (4.0 * matrix_elements + 6.0 * adapter_elements) + 14.0 * score_width * tokens * (tokens + 1) / 2
