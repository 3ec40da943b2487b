"""OpenVINO on the CPU, in f32, tuned for latency; programs are written with its own operations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import PROGRAMS, Array, Sizes, operands_of

ov: Any = importlib.import_module("openvino")
opset: Any = importlib.import_module("openvino.opset13")


class OpenVinoWords:
    def matmul(self, a: Any, b: Any) -> Any:
        return opset.matmul(a, b, False, False)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return opset.add(self.matmul(x, weight), bias)

    def add(self, a: Any, b: Any) -> Any:
        return opset.add(a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return opset.multiply(a, b)

    def gelu(self, x: Any) -> Any:
        return opset.gelu(x, "ERF")

    def silu(self, x: Any) -> Any:
        return opset.swish(x)

    def softmax(self, x: Any) -> Any:
        return opset.softmax(x, -1)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        normed = opset.mvn(x, np.array([-1]), True, 1e-5, "INSIDE_SQRT")
        return opset.add(opset.multiply(normed, gamma), beta)

    def rms_norm(self, x: Any, gamma: Any) -> Any:
        mean = opset.reduce_mean(opset.multiply(x, x), np.array([-1]), True)
        root = opset.sqrt(opset.add(mean, np.float32(1e-6)))
        return opset.multiply(opset.divide(x, root), gamma)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        chosen = opset.gather_elements(opset.log_softmax(logits, -1), opset.unsqueeze(labels, 1), 1)
        return opset.negative(opset.squeeze(chosen, 1))

    def attention(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        batch, heads, seq, depth = _dims(q)
        kv_heads = _dims(k)[1]
        if kv_heads != heads:
            q = _reshaped(q, (batch, kv_heads, heads // kv_heads * seq, depth))
        mixed = opset.scaled_dot_product_attention(q, k, v, causal=causal)
        return mixed if kv_heads == heads else _reshaped(mixed, (batch, heads, seq, depth))

    def take(self, table: Any, ids: Any) -> Any:
        return opset.gather(table, ids, np.int64(0))

    def first_rows(self, table: Any, like: Any) -> Any:
        return opset.slice(table, np.array([0]), np.array([_dims(like)[1]]), np.array([1]), np.array([0]))

    def split_heads(self, x: Any, heads: int) -> Any:
        batch, seq, width = _dims(x)
        return opset.transpose(_reshaped(x, (batch, seq, heads, width // heads)), np.array([0, 2, 1, 3]))

    def join_heads(self, x: Any) -> Any:
        batch, heads, seq, depth = _dims(x)
        return _reshaped(opset.transpose(x, np.array([0, 2, 1, 3])), (batch, seq, heads * depth))


def _dims(x: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def _reshaped(x: Any, dims: tuple[int, ...]) -> Any:
    return opset.reshape(x, np.array(dims, np.int64), False)


def compile_options(threads: int) -> dict[str, Any]:
    return {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


def version() -> str:
    return str(ov.__version__).split("-")[0]


class OpenVinoEngine:
    def __init__(self, threads: int) -> None:
        self.version = version()
        self._core = ov.Core()
        self._options = compile_options(threads)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        inputs, weights = operands_of(program, sizes)
        operands: dict[str, Any] = {n: opset.parameter(list(x.shape), x.dtype, n) for n, x in inputs.items()}
        parameters = list(operands.values())
        operands |= {n: opset.constant(w) for n, w in weights.items()}
        result = PROGRAMS[program].build(OpenVinoWords(), operands)
        compiled = self._core.compile_model(ov.Model([result], parameters, "bench"), "CPU", self._options)
        request = compiled.create_infer_request()
        arrays = list(inputs.values())
        return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)

    def as_numpy(self, result: Any) -> Array:
        return np.array(result[0])
