"""rlx itself: programs become graphs, with symbolic sizes where a program has them, and weights are params."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx
from rlx import ops
from rlx.bench.kernel_programs import ConvSetting, conv_op
from rlx.bench.programs import PROGRAMS, Array, Sizes, operands_of
from rlx.ir.graph import Graph
from rlx.knobs import knobs


class RlxWords:
    def matmul(self, a: Any, b: Any) -> Any:
        return ops.matmul(a, b)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return ops.matmul(x, weight) + bias

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def gelu(self, x: Any) -> Any:
        return ops.gelu(x)

    def silu(self, x: Any) -> Any:
        return ops.silu(x)

    def softmax(self, x: Any) -> Any:
        return ops.softmax(x, -1)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        return ops.layer_norm(x, gamma, beta, eps=1e-5)

    def rms_norm(self, x: Any, gamma: Any) -> Any:
        return ops.rms_norm(x, gamma, eps=1e-6)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return ops.softmax_cross_entropy_with_logits(logits, labels)

    def attention(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        kind = "causal" if causal else "none"
        return ops.attention(q, k, v, layout="bhsd", num_heads=q.shape[1], num_kv_heads=k.shape[1], mask_kind=kind)

    def conv(self, x: Any, w: Any, setting: ConvSetting) -> Any:
        return conv_op("Conv", setting)(x, w)

    def conv_input_gradient(self, dy: Any, w: Any, setting: ConvSetting) -> Any:
        return conv_op("Conv2dBackwardInput", setting)(dy, w)

    def conv_weight_gradient(self, x: Any, dy: Any, setting: ConvSetting) -> Any:
        return ops.expand_dims(conv_op("Conv2dBackwardWeight", setting)(x, dy), 0)

    def fft(self, x: Any, axes: int) -> Any:
        if x.dtype.is_complex:
            return ops.fftn(x, tuple(range(-axes, 0)))
        return ops.fftn(ops.Rfft()(x), tuple(range(-axes, -1)))

    def take(self, table: Any, ids: Any) -> Any:
        return ops.gather(table, ids, 0)

    def first_rows(self, table: Any, like: Any) -> Any:
        return ops.narrow(table, 0, 0, like.shape[1])

    def split_heads(self, x: Any, heads: int) -> Any:
        batch, seq, width = x.shape
        return ops.transpose(ops.reshape(x, (batch, seq, heads, width // heads)), (0, 2, 1, 3))

    def join_heads(self, x: Any) -> Any:
        batch, heads, seq, depth = x.shape
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (batch, seq, heads * depth))


def program_graph(program: str, sizes: Sizes) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
    """The graph of a program, its inputs and its weights."""
    inputs, weights = operands_of(program, sizes)
    graph = rlx.Graph("bench")
    dims = PROGRAMS[program].dynamic
    operands = {n: graph.input(n, dims.get(n, x.shape), x.dtype) for n, x in inputs.items()}
    operands |= {n: graph.param(n, w.shape, w.dtype) for n, w in weights.items()}
    graph.set_outputs([PROGRAMS[program].build(RlxWords(), operands)])
    return graph, inputs, weights


class RlxEngine:
    def __init__(self, threads: int) -> None:
        knobs.set(threads=threads)
        self._known: dict[str, Any] = {}

    @property
    def version(self) -> str:
        return rlx.__version__

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        is_dynamic = bool(PROGRAMS[program].dynamic)
        graph, inputs, weights = program_graph(program, sizes)
        compiled = self._known.get(program) if is_dynamic else None
        if compiled is None:
            compiled = rlx.Session("cpu").compile(graph)
            compiled.set_params(weights)
        if is_dynamic:
            self._known[program] = compiled
        return lambda: compiled.run(inputs)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result[0])
