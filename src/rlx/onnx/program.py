"""An ONNX graph as programs of rlx: usually one.

Nodes are read in order, each by its rule, and what is known already is computed at once. Where a shape depends on
values (the places of NonZero, the limit of a Range that was computed), the program ends: it is run, and the rest is
read with what it has given. Such a part is built again only when other values, or sizes that nothing tells, come.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

import rlx.onnx.attention_rules
import rlx.onnx.elementwise
import rlx.onnx.host_rules
import rlx.onnx.images
import rlx.onnx.layers
import rlx.onnx.losses_and_draws
import rlx.onnx.quantized_rules
import rlx.onnx.recurrent
import rlx.onnx.scans
import rlx.onnx.shape_rules
import rlx.onnx.signals  # noqa: F401  (they register their rules)
from rlx.errors import FormatError, ParseError, RlxError, ShapeError, UnsupportedOnnx
from rlx.formats.onnx import OnnxFile, OnnxGraph, OnnxNode, OnnxTensor, OnnxValue
from rlx.formats.onnx.structure import element_type
from rlx.ir.dims import Dim, as_dim, bind_dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building
from rlx.onnx.expansion import CONTROL, Expanded, all_nodes, call_function, expand, in_order, names_read
from rlx.onnx.size_rules import of_sizes
from rlx.onnx.values import HOST_RULES, RULES, Array, Call, NeedsValue, Sizes, Value, as_tensor, sizes

# Arrays of more elements than this are weights of the program, smaller ones constants in it.
MOST_CONSTANT = 64
# What depends on nothing but arrays of so many elements in all is computed while the model is read.
_MOST_FOLDED = 1 << 16


class Held(NamedTuple):
    """A value that a run gives: an input of the program that reads it."""

    type: Shape


@dataclass
class Part:
    """One program of a model, and what comes after it."""

    graph: Graph
    inputs: dict[str, Shape]
    params: dict[str, Array]
    # Names of the outputs of the program.
    outputs: list[str]
    # What is known without it.
    known: dict[str, Value]
    types: dict[str, Shape]
    # The rest; empty when this is the last program.
    rest: list[OnnxNode] = field(default_factory=list)
    # The name whose value the rest needs, or "" when its first node runs on the host.
    needs: str = ""


class Builder:
    """Makes the parts of one file."""

    def __init__(self, file: OnnxFile, fixed: Mapping[str, int]) -> None:
        self.file, self.fixed = file, fixed
        self._require_rules()
        constants = file.graph.constants
        # Of all sizes that the file leaves open, those that are fixed included.
        self._symbols: set[str] = set()
        self.inputs = {v.name: self._input_type(v) for v in file.graph.inputs if v.name not in constants}
        self.outputs = [value.name for value in file.graph.outputs]
        if unknown := [name for name in fixed if name not in self._symbols]:
            has = ", ".join(sorted(self._symbols)) or "none"
            raise ShapeError(f"{file.path}: there is no size {unknown[0]!r}; it has {has}")

    def first(self) -> Part:
        env: dict[str, Value] = {name: Held(type) for name, type in self.inputs.items()}
        return self.part({**self.file.graph.constants, **env}, in_order(self.file.graph.nodes))

    def _require_rules(self) -> None:
        """All ops that there is no rule for, at once, before anything else is said."""
        missing: dict[str, list[OnnxNode]] = {}
        bodies = [self.file.graph.nodes, *(f.nodes for f in self.file.functions.values())]
        for node in (node for nodes in bodies for node in all_nodes(nodes)):
            key = node.domain, node.op
            if not (key in RULES or key in HOST_RULES or key in CONTROL or key in self.file.functions):
                missing.setdefault(f"{node.domain}.{node.op}".lstrip("."), []).append(node)
        if missing:
            shown = ", ".join(
                f"{op} ({len(nodes)} node{'s' * (len(nodes) > 1)}, such as {nodes[0].name or nodes[0].outputs[:1]!r})"
                for op, nodes in missing.items()
            )
            raise UnsupportedOnnx(f"{self.file.path}: rlx has no rule for: {shown}")

    def _input_type(self, value: OnnxValue) -> Shape:
        where = f"{self.file.path}: input {value.name!r}"
        if value.kind != "tensor":
            raise UnsupportedOnnx(f"{where} is a {value.kind}; only tensors are supported")
        if value.shape is None or value.type is None:
            raise UnsupportedOnnx(f"{where} has no shape in the file, not even a number of axes; export it with one")
        dims = [self._size(value.name, axis, size) for axis, size in enumerate(value.shape)]
        return Shape(dims, element_type(value.type, where))

    def _size(self, name: str, axis: int, size: int | str | None) -> int | Dim:
        if isinstance(size, int):
            return size
        text = size or f"{name}_{axis}"
        try:
            # A minus sign has spaces around it; otherwise it is a part of a name.
            found = as_dim(re.sub(r"(?<=\w)-(?=\w)", "_", text))
        except (ParseError, ShapeError):
            # Names may be any text; symbols are words.
            found = as_dim(re.sub(r"\W", "_", f"n{text}" if not text[:1].isalpha() else text))
        if isinstance(found, Dim):
            self._symbols.update(found.symbols)
        return bind_dim(found, self.fixed)

    def part(self, env: dict[str, Value], nodes: Sequence[OnnxNode]) -> Part:
        """The program of these nodes, up to the first that needs what only a run tells."""
        return _PartBuilder(self, env, nodes).build()


class _PartBuilder:
    def __init__(self, builder: Builder, env: Mapping[str, Value], nodes: Sequence[OnnxNode]) -> None:
        self._builder, self._file = builder, builder.file
        self._graph = Graph(re.sub(r"\W", "_", builder.file.graph.name) or "main")
        self._params: dict[str, Array] = {}
        self._lifted: dict[str, Tensor] = {}
        self._env = dict(env)
        self._work = deque(nodes)
        self._is_inside = False

    def build(self) -> Part:
        env, graph = self._env, self._graph
        for name, value in env.items():
            if isinstance(value, Held):
                env[name] = graph.input(name, value.type)
        needs, is_cut = "", False
        while self._work:
            node = self._work[0]
            try:
                if (node.domain, node.op) in HOST_RULES and not self._is_known(node):
                    is_cut = True
                    break
                self._take(node)
            except NeedsValue as found:
                needs, is_cut = found.name, True
                break
        return self._finished(needs, is_cut)

    def _finished(self, needs: str, is_cut: bool) -> Part:
        wanted = names_read(self._work) | {*self._builder.outputs}
        live = {name: self._env[name] for name in wanted if name in self._env}
        if lost := [n for n in self._builder.outputs if n not in self._env] if not is_cut else []:
            raise FormatError(f"{self._file.path}: nothing computes the output {lost[0]!r}")
        if any(isinstance(v, list) and any(isinstance(p, Tensor) for p in v) for v in live.values()):
            name = next(n for n, v in live.items() if isinstance(v, list))
            place = f"across {self._work[0]}" if self._work else "as an output"
            raise UnsupportedOnnx(f"{self._file.path}: the sequence {name!r} {place} is not supported")
        for name, value in live.items():
            if isinstance(value, Sizes) and (not is_cut or name == needs):
                with building(self._graph):
                    live[name] = as_tensor(value)
        tensors = {name: value for name, value in live.items() if isinstance(value, Tensor)}
        self._graph.set_outputs(list(tensors.values()))
        types = {name: Shape(value.shape, value.dtype) for name, value in tensors.items()}
        known = {name: value for name, value in live.items() if name not in tensors}
        rest = list(self._work) if is_cut else []
        inputs = {str(node.name): node.shape for node in self._graph.inputs}
        return Part(self._graph, inputs, self._params, list(tensors), known, types, rest, needs)

    def _is_known(self, node: OnnxNode) -> bool:
        return all(isinstance(self._read(name, node), np.ndarray) for name in node.inputs if name)

    def _read(self, name: str, node: OnnxNode) -> Value:
        value = self._env.get(name)
        if value is None:
            raise FormatError(f"{self._file.path}: node {node} reads {name!r}, which nothing before it computes")
        if isinstance(value, OnnxTensor):
            value = self._env[name] = value.array()
        return value

    def _take(self, node: OnnxNode) -> None:
        """Replaces the first node of what is left by its results, or by the nodes that it stands for."""
        key = node.domain, node.op
        function = self._file.functions.get(key)
        if key in CONTROL or function is not None:
            for name in node.inputs:
                if name:
                    self._read(name, node)
            opsets = self._file.opsets
            expanded = call_function(node, function, opsets) if function else expand(node, self._env, self._file.path)
            self._replace(expanded)
            return
        results = self._results(node, [self._read(name, node) if name else None for name in node.inputs])
        self._work.popleft()
        self._env.update({name: value for name, value in zip(node.outputs, results) if name})

    def _replace(self, expanded: Expanded) -> None:
        self._work.popleft()
        self._work.extendleft(reversed(expanded.nodes))
        self._env.update(expanded.values)

    def _results(self, node: OnnxNode, inputs: Sequence[Value]) -> Sequence[Value]:
        opset = node.opset or self._file.opsets.get(node.domain, self._file.opsets.get("", 1))
        path, key = self._file.path, (node.domain, node.op)
        try:
            if key in HOST_RULES:
                return [grown.array for grown in HOST_RULES[key](Call(node, inputs, opset, path))]
            if any(isinstance(value, Sizes) for value in inputs) or node.op == "Shape":
                found = of_sizes(Call(node, inputs, opset, path))
                if found is not None:
                    return found if isinstance(found, tuple) else (found,)
            is_weight = node.op == "DequantizeLinear" and _is_conv_weight(inputs[0])
            if not is_weight and _folds(inputs) and _result_size(node.op, inputs) <= _MOST_FOLDED:
                found = RULES[key](Call(node, inputs, opset, path))
                return [_plain(value) for value in _several(found)]
            # The body of a scan has a program of its own, which is being built already.
            with nullcontext() if self._is_inside else building(self._graph):
                return _several(RULES[key](Call(node, inputs, opset, path, self._lift, self._run_inside)))
        except (FormatError, UnsupportedOnnx):
            raise
        except (RlxError, ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError) as error:
            raise FormatError(f"{path}: node {node}: {error}{_open_sizes(inputs)}") from error

    def _lift(self, name: str, value: Value) -> Any:
        if isinstance(value, list):
            raise FormatError(f"{self._file.path}: {name!r} is a sequence, where a tensor is needed")
        if isinstance(value, np.ndarray) and value.dtype.kind == "O":
            raise UnsupportedOnnx(f"{self._file.path}: {name!r} holds texts, which programs cannot compute with")
        if not isinstance(value, np.ndarray) or value.size <= MOST_CONSTANT or not name:
            return as_tensor(value)
        if name not in self._lifted:
            self._lifted[name] = self._graph.param(name, value.shape, DType.of(value.dtype))
            self._params[name] = value
        return self._lifted[name]

    def _run_inside(self, graph: OnnxGraph, given: Sequence[Value]) -> list[Value]:
        """The outputs of a graph whose shapes depend on no values, for the body of a scan."""
        inner = dict(self._env)
        inner.update(graph.constants)
        inner.update(zip((value.name for value in graph.inputs), given))
        before, self._env = self._env, inner
        work, self._work = self._work, deque(in_order(graph.nodes))
        outside, self._is_inside = self._is_inside, True
        try:
            while self._work:
                self._take(self._work[0])
            return [self._lift(value.name, self._read(value.name, graph.nodes[-1])) for value in graph.outputs]
        except NeedsValue as found:
            what = f"a shape inside of a Scan that depends on the values of {found.name!r}"
            raise UnsupportedOnnx(f"{self._file.path}: {what} is not supported") from None
        finally:
            self._env, self._work, self._is_inside = before, work, outside


def _several(found: Any) -> Sequence[Value]:
    return found if isinstance(found, tuple | list) else (found,)


def _open_sizes(inputs: Iterable[Value]) -> str:
    """What to do where a file promises more than it keeps: exporters fix sizes that they call open."""
    dims = (d for value in inputs if isinstance(value, Tensor) for d in value.shape if isinstance(d, Dim))
    symbols = sorted({symbol for d in dims for symbol in d.symbols})
    if not symbols:
        return ""
    wanted = ", ".join(f"{symbol!r}: ..." for symbol in symbols)
    return f" (if the model does not serve every size, fix them: rlx.onnx.load(path, sizes={{{wanted}}}))"


def _folds(inputs: Iterable[Value]) -> bool:
    given = [value for value in inputs if value is not None]
    if any(not isinstance(value, np.ndarray) or value.dtype.kind == "O" for value in given):
        return False
    return sum(value.size for value in given) <= _MOST_FOLDED


def _is_conv_weight(value: Value) -> bool:
    """Codes that are kept, for products of codes: the program makes numbers of them where it has no such product."""
    return isinstance(value, np.ndarray) and value.dtype == np.int8 and value.ndim >= 3 and value.size > MOST_CONSTANT


def _result_size(op: str, inputs: Sequence[Value]) -> float:
    """How many elements the ops give whose results may be far larger than their inputs; 0 for all others."""
    if op in ("ConstantOfShape", "Expand"):
        return math.prod(map(float, inputs[-1].reshape(-1).tolist()))
    if op == "Tile":
        return float(inputs[0].size) * math.prod(map(float, inputs[1].reshape(-1).tolist()))
    if op == "Range":
        start, limit, step = (float(value.reshape(-1)[0]) for value in inputs)
        return (limit - start) / step
    return 0


def _plain(value: Value) -> Value:
    return value if value is None or isinstance(value, list | Sizes) else np.asarray(value)


def bound_sizes(value: Sizes, binding: Mapping[str, int]) -> Value:
    numbers = np.empty(value.shape, object)
    for index, number in np.ndenumerate(value.numbers):
        numbers[index] = bind_dim(number, binding) if isinstance(number, Dim) else number
    return sizes(numbers, value.dtype)
