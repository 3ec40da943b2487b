"""Values that are computed again instead of kept: less memory, the same numbers, and only where that is cheap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import nn
from rlx.compile.generators import generator_for
from rlx.compile.memory.interpret import interpret_lir
from rlx.compile.memory.recompute import LEAST_BYTES
from rlx.compile.pipeline import lower_to_lir, without_passes
from rlx.ir.lir import LirModule

ROWS = WIDTH = 256
VALUE = ROWS * WIDTH * 4
Loss = Callable[[Any, Any], Any]


def lir_of(loss: Loss, layers: int, cache_bytes: int) -> tuple[LirModule, dict[str, Any]]:
    """The gradient of a loss of some square matrices and an input, for caches of a size."""
    rng = np.random.default_rng(3)
    weights = [(0.1 * rng.standard_normal((WIDTH, WIDTH))).astype("f4") for _ in range(layers)]
    x = rng.standard_normal((ROWS, WIDTH)).astype("f4")
    graph = rlx.jit(rlx.value_and_grad(loss)).lower(weights, x).graph
    generator = generator_for("cpu")
    assert generator is not None
    lir = lower_to_lir(graph, generator._replace(cache_bytes=cache_bytes))
    return lir, dict(zip((key for key, _ in lir.buffers.io.inputs), [*weights, x], strict=True))


def gelu_layers(weights: Any, x: Any) -> Any:
    for w in weights:
        x = nn.gelu(x @ w)
    return rnp.mean(x * x)


def gated_layers(weights: Any, x: Any) -> Any:
    """Both results of the map, the activation and the product, are read in the backward pass."""
    for w in weights:
        x = nn.silu(x @ w) * (x @ w.T) + x
    return rnp.mean(x * x)


def normed_layers(weights: Any, x: Any) -> Any:
    """The normalised rows are kept; times the gain they need not be."""
    gain, bias = np.linspace(0.5, 1.5, WIDTH, dtype="f4"), np.full(WIDTH, 0.1, "f4")
    for w in weights:
        x = x + nn.layer_norm(x, gain, bias, eps=1e-5) @ w
    return rnp.mean(x * x)


def turned_layers(weights: Any, x: Any) -> Any:
    """What is computed again is read through views, those of the forward pass among them."""
    for w in weights:
        y = nn.gelu(x @ w).T
        x = (y @ x).T @ rnp.tanh(y)
    return rnp.mean(x * x)


@pytest.mark.parametrize("loss", [gelu_layers, gated_layers, normed_layers, turned_layers])
def test_it_takes_less_memory_and_gives_the_same_numbers(loss: Loss) -> None:
    layers = 6
    kept, leaves = lir_of(loss, layers, 0)
    again, _ = lir_of(loss, layers, 2 * VALUE)
    assert isinstance(kept.arena_size, int) and isinstance(again.arena_size, int)
    assert again.arena_size < kept.arena_size - VALUE
    for one, other in zip(interpret_lir(kept, leaves), interpret_lir(again, leaves), strict=True):
        np.testing.assert_array_equal(one, other)


def test_compiled_code_gives_the_same_numbers() -> None:
    rng = np.random.default_rng(4)
    weights = [(0.05 * rng.standard_normal((512, 512))).astype("f4") for _ in range(8)]
    x = rng.standard_normal((512, 512)).astype("f4")
    step = rlx.jit(rlx.value_and_grad(gated_layers))
    lowered = step.lower(weights, x)
    passes = rlx.CompilePipeline.new("cpu").compile(lowered.graph).passes
    assert any(record.changed for record in passes if record.name == "recompute")
    again = lowered.compile()
    with without_passes(["recompute"]):
        kept = rlx.jit(rlx.value_and_grad(gated_layers)).lower(weights, x).compile()
    for one, other in zip(rlx.tree.leaves(again(weights, x)), rlx.tree.leaves(kept(weights, x)), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_what_is_read_soon_stays() -> None:
    kept, _ = lir_of(gelu_layers, 3, 0)
    again, _ = lir_of(gelu_layers, 3, 100 * VALUE)
    assert [k.kind for k in again.kernels] == [k.kind for k in kept.kernels]


def test_small_values_stay() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return gelu_layers(weights, x[: LEAST_BYTES // (4 * WIDTH) - 1])

    kept, _ = lir_of(loss, 6, 0)
    again, _ = lir_of(loss, 6, 2 * VALUE)
    assert len(again.kernels) == len(kept.kernels)


def test_what_nothing_else_keeps_stays() -> None:
    """Of tanh the result is kept and not the operand: computing it again would keep that instead."""

    def loss(weights: Any, x: Any) -> Any:
        for w in weights:
            x = rnp.tanh(x @ w)
        return rnp.mean(x * x)

    kept, _ = lir_of(loss, 6, 0)
    again, _ = lir_of(loss, 6, 2 * VALUE)
    assert again.arena_size == kept.arena_size
