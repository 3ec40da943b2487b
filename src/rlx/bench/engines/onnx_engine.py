"""ONNX Runtime: programs become ONNX models with weights inside."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.bench.programs import PROGRAMS, Array, Sizes, operands_of

onnx: Any = importlib.import_module("onnx")
ort: Any = importlib.import_module("onnxruntime")

OPSET = 20


class _Name(str):
    """A value of the model: its name, with the dims that are known of it."""

    dims: tuple[int, ...]


class OnnxWords:
    """Appends nodes; values are names."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._numbers = itertools.count()

    def node(self, op: str, *inputs: str, dims: tuple[int, ...], **attributes: Any) -> _Name:
        name = self.named(f"v{next(self._numbers)}", dims)
        self.nodes.append(onnx.helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def named(self, name: str, dims: tuple[int, ...]) -> _Name:
        value = _Name(name)
        value.dims = dims
        return value

    def constant(self, array: Array) -> _Name:
        name = self.named(f"c{next(self._numbers)}", array.shape)
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def number(self, value: float) -> _Name:
        return self.constant(np.array(value, np.float32))

    def matmul(self, a: Any, b: Any) -> Any:
        return self.node("MatMul", a, b, dims=(*a.dims[:-1], b.dims[-1]))

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.add(self.matmul(x, weight), bias)

    def add(self, a: Any, b: Any) -> Any:
        return self.node("Add", a, b, dims=a.dims)

    def mul(self, a: Any, b: Any) -> Any:
        return self.node("Mul", a, b, dims=a.dims)

    def gelu(self, x: Any) -> Any:
        return self.node("Gelu", x, dims=x.dims)

    def silu(self, x: Any) -> Any:
        return self.mul(x, self.node("Sigmoid", x, dims=x.dims))

    def softmax(self, x: Any) -> Any:
        return self.node("Softmax", x, dims=x.dims, axis=-1)

    def layer_norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        return self.node("LayerNormalization", x, gamma, beta, dims=x.dims, axis=-1, epsilon=1e-5)

    def rms_norm(self, x: Any, gamma: Any) -> Any:
        axes = self.constant(np.array([-1], np.int64))
        mean = self.node("ReduceMean", self.mul(x, x), axes, dims=(*x.dims[:-1], 1))
        root = self.node("Sqrt", self.add(mean, self.number(1e-6)), dims=mean.dims)
        return self.mul(self.node("Div", x, root, dims=x.dims), gamma)

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        return self.node("SoftmaxCrossEntropyLoss", logits, labels, dims=labels.dims, reduction="none")

    def attention(self, q: Any, k: Any, v: Any, causal: bool) -> Any:
        batch, heads, seq, depth = q.dims
        _, kv_heads, keys, _ = k.dims
        if kv_heads != heads:
            q = self.reshape(q, (batch, kv_heads, heads // kv_heads * seq, depth))
        turned = self.node("Transpose", k, dims=(batch, kv_heads, depth, keys), perm=[0, 1, 3, 2])
        scores = self.mul(self.matmul(q, turned), self.number(1.0 / math.sqrt(depth)))
        if causal:
            hidden = np.where(np.tril(np.ones((seq, keys), bool)), 0.0, -np.inf).astype(np.float32)
            scores = self.add(scores, self.constant(hidden))
        return self.reshape(self.matmul(self.softmax(scores), v), (batch, heads, seq, depth))

    def reshape(self, x: Any, dims: tuple[int, ...]) -> Any:
        return x if x.dims == dims else self.node("Reshape", x, self.constant(np.array(dims, np.int64)), dims=dims)

    def take(self, table: Any, ids: Any) -> Any:
        return self.node("Gather", table, ids, dims=(*ids.dims, table.dims[1]))

    def first_rows(self, table: Any, like: Any) -> Any:
        start, end = (self.constant(np.array([n], np.int64)) for n in (0, like.dims[1]))
        return self.node("Slice", table, start, end, dims=(like.dims[1], table.dims[1]))

    def split_heads(self, x: Any, heads: int) -> Any:
        batch, seq, width = x.dims
        parts = self.reshape(x, (batch, seq, heads, width // heads))
        return self.node("Transpose", parts, dims=(batch, heads, seq, width // heads), perm=[0, 2, 1, 3])

    def join_heads(self, x: Any) -> Any:
        batch, heads, seq, depth = x.dims
        turned = self.node("Transpose", x, dims=(batch, seq, heads, depth), perm=[0, 2, 1, 3])
        return self.reshape(turned, (batch, seq, heads * depth))


def onnx_model(program: str, sizes: Sizes) -> tuple[bytes, dict[str, Array]]:
    """A program as the bytes of an ONNX model, and its inputs."""
    inputs, weights = operands_of(program, sizes)
    inputs = {n: x.astype(np.int64) if x.dtype.kind == "i" else x for n, x in inputs.items()}
    words = OnnxWords()
    operands = {n: words.named(n, x.shape) for n, x in {**inputs, **weights}.items()}
    result = PROGRAMS[program].build(words, operands)
    described = [_described(n, x.shape, x.dtype) for n, x in inputs.items()]
    initializers = [*words.constants, *(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())]
    outputs = [_described(result, result.dims, np.dtype(np.float32))]
    graph = onnx.helper.make_graph(words.nodes, "bench", described, outputs, initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    content: bytes = model.SerializeToString()
    return content, inputs


def _described(name: str, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    return onnx.helper.make_tensor_value_info(str(name), kind, list(dims))


def session_options(threads: int) -> Any:
    """All graph optimisations, which are on by default; errors only."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


class OnnxEngine:
    def __init__(self, threads: int) -> None:
        self._options = session_options(threads)

    @property
    def version(self) -> str:
        return str(ort.__version__)

    def prepare(self, program: str, sizes: Sizes) -> Callable[[], Any]:
        content, inputs = onnx_model(program, sizes)
        session = ort.InferenceSession(content, self._options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, inputs)

    def as_numpy(self, result: Any) -> Array:
        return np.asarray(result[0])
