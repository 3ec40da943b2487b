"""A BERT sentence encoder as an ONNX model: token ids and mask of any batch and length to vectors of length 1."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.bench.programs import Array
from rlx.errors import RlxError
from rlx.models.config import EncoderConfig
from rlx.ops.pointwise.unary import ActivationKind

onnx: Any = importlib.import_module("onnx")

OPSET = 20
# Added to the scores of padding; exp of it is 0.
HIDDEN_SCORE = -1e9


def bert_onnx(config: EncoderConfig, weights: Mapping[str, Array]) -> bytes:
    """The model of `config`; `weights` go by their Hugging Face names, without `bert.` before them."""
    has_all = config.family == "bert" and config.activation is ActivationKind.Gelu and config.normalize
    if not has_all or config.pooling != ("mean",):
        raise RlxError(f"bert_onnx: a BERT with GELU, mean pooling and vectors of length 1 is needed, got {config}")
    return _Writer(config, weights).model()


class _Writer:
    """Appends nodes; values are names."""

    def __init__(self, config: EncoderConfig, weights: Mapping[str, Array]) -> None:
        self._config, self._weights = config, weights
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._numbers = itertools.count()

    def model(self) -> bytes:
        describe = onnx.helper.make_tensor_value_info
        kinds = onnx.TensorProto
        inputs = [describe(name, kinds.INT64, ["batch", "sequence"]) for name in ("ids", "mask")]
        vectors = self._vectors()
        outputs = [describe(vectors, kinds.FLOAT, ["batch", self._config.hidden])]
        graph = onnx.helper.make_graph(self._nodes, "bert", inputs, outputs, list(self._constants.values()))
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
        content: bytes = model.SerializeToString()
        return content

    def _vectors(self) -> str:
        c = self._config
        mask = self._node("Cast", "mask", to=onnx.TensorProto.FLOAT)
        ones = self._constant("one", np.float32(1))
        missing = self._node("Sub", ones, self._node("Unsqueeze", mask, self._ints("mask_axes", 1, 2)))
        bias = self._node("Mul", missing, self._constant("hidden_score", np.float32(HIDDEN_SCORE)))
        x = self._embedded()
        for layer in range(c.layers):
            x = self._layer(f"encoder.layer.{layer}.", x, bias)
        weighted = self._node("Mul", x, self._node("Unsqueeze", mask, self._ints("last", -1)))
        total = self._node("ReduceSum", weighted, self._ints("one_axis", 1), keepdims=0)
        count = self._node("ReduceSum", mask, self._ints("one_axis", 1), keepdims=1)
        return self._node("LpNormalization", self._node("Div", total, count), axis=-1, p=2)

    def _embedded(self) -> str:
        seq = self._node("Slice", self._node("Shape", "ids"), self._ints("one_axis", 1), self._ints("two", 2))
        kinds = self._weights["embeddings.token_type_embeddings.weight"]
        places = self._weights["embeddings.position_embeddings.weight"] + kinds[0]
        table = self._constant("places", places.astype(np.float32))
        words = self._node("Gather", self._weight("embeddings.word_embeddings.weight"), "ids")
        x = self._node("Add", words, self._node("Slice", table, self._ints("zero", 0), seq))
        return self._norm("embeddings.LayerNorm", x)

    def _layer(self, name: str, x: str, bias: str) -> str:
        heads, depth = self._config.heads, self._config.head_dim
        split = self._ints("split", 0, 0, heads, depth)
        q, k, v = (
            self._node("Reshape", self._linear(f"{name}attention.self.{part}", x), split)
            for part in ("query", "key", "value")
        )
        q, v = (self._node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        scores = self._node("MatMul", q, self._node("Transpose", k, perm=[0, 2, 3, 1]))
        scores = self._node("Mul", scores, self._constant("scale", np.float32(1 / math.sqrt(depth))))
        shares = self._node("Softmax", self._node("Add", scores, bias), axis=-1)
        mixed = self._node("Transpose", self._node("MatMul", shares, v), perm=[0, 2, 1, 3])
        joined = self._node("Reshape", mixed, self._ints("join", 0, 0, self._config.hidden))
        x = self._norm(
            f"{name}attention.output.LayerNorm",
            self._node("Add", self._linear(f"{name}attention.output.dense", joined), x),
        )
        inner = self._node("Gelu", self._linear(f"{name}intermediate.dense", x))
        return self._norm(f"{name}output.LayerNorm", self._node("Add", self._linear(f"{name}output.dense", inner), x))

    def _linear(self, name: str, x: str) -> str:
        weight = self._constant(f"{name}.weight", np.ascontiguousarray(self._weights[f"{name}.weight"].T))
        return self._node("Add", self._node("MatMul", x, weight), self._weight(f"{name}.bias"))

    def _norm(self, name: str, x: str) -> str:
        gamma, beta = (self._weight(f"{name}.{part}") for part in ("weight", "bias"))
        return self._node("LayerNormalization", x, gamma, beta, axis=-1, epsilon=self._config.norm_eps)

    def _node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{next(self._numbers)}"
        self._nodes.append(onnx.helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def _weight(self, name: str) -> str:
        return self._constant(name, self._weights[name])

    def _ints(self, name: str, *values: int) -> str:
        return self._constant(name, np.array(values, np.int64))

    def _constant(self, name: str, array: Any) -> str:
        if name not in self._constants:
            self._constants[name] = onnx.numpy_helper.from_array(np.asarray(array), name)
        return name
