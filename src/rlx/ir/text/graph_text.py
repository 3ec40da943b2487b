"""The text of programs: one grammar for HIR, MIR and LIR, printer and parser side by side, `show(parse(t)) == t`.

    mir @layer(%x: f32[B,64], %w: f32[64,32] {param}) {
      %0: f32[B,32] = matmul(%x, %w)
      %1: f32[] = constant() {value=2.0}
      %2: f32[B,32] = mul(%0, %1)
      return %2
    }

    program   = level ["direct" | "fusable"] body
    body      = "@" name "(" [leaf ("," leaf)*] ")" "{" node* "return" [result ("," result)*] "}"
    leaf      = "%" name ":" type ["{param}"]
    node      = "%" number ":" types "=" mnemonic "(" operands ")" ["{" attribute ("," attribute)* "}"]
    result    = operand ["into" leaf-name]          the output may overwrite that input
    types     = type | "(" type "," type ... ")"    several results, read by project
    attribute = name "=" value
    value     = None | True | False | number | "string" | x"hex bytes" | dtype | type | dim | "(" values ")" | body

Leaves are named, other nodes are numbered in order, so that the same program has the same text everywhere. Constants
of up to 16 elements are written out exactly; larger ones as `data="digest"`, with the values in a side table
(`large_constants`). Types are inferred again while parsing and must agree with what is written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlx.errors import ParseError, RlxError
from rlx.ir.dim_text import parse_dim
from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, NodeId
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.op import REGISTRY, Op, refuse_lowered
from rlx.ir.provenance import NodeOrigin
from rlx.ir.shape import Shape, parse_shape
from rlx.ir.tensor_data import TensorData
from rlx.ir.text.tokens import Reader, missing_bracket, unquote
from rlx.ir.words import nearest

INLINE_ELEMENTS = 16
# Text comes from anywhere: how deep it may nest, and how long an integer may be (2**64 has 20 digits).
MOST_NESTED, MOST_DIGITS = 64, 20

_PLAIN_NAME = re.compile(r"[A-Za-z_][\w.]*")


# Printing


def show(graph: Graph, locations: bool = False) -> str:
    """The text of a program; `locations` adds the user's source lines as comments."""
    lines = [f"{_level(graph)} {_header(graph)}"]
    _show_body(graph, "  ", lines, locations)
    return "\n".join([*lines, "}"]) + "\n"


def _level(graph: Graph) -> str:
    policy = getattr(graph, "fusion_policy", None)
    return graph.level if policy is None else f"{graph.level} {policy}"


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def _header(graph: Graph) -> str:
    leaves = []
    for node in graph.nodes:
        if isinstance(node.op, Input | Param):
            mark = " {param}" if isinstance(node.op, Param) else ""
            leaves.append(f"%{_name(node.op.key)}: {node.shape}{mark}")
    return f"@{_name(graph.name)}({', '.join(leaves)}) {{"


def value_names(graph: Graph) -> dict[NodeId, str]:
    """How the text calls each node: leaves by name, the others by number."""
    names: dict[NodeId, str] = {}
    count = 0
    for node in graph.nodes:
        if isinstance(node.op, Input | Param):
            names[node.id] = f"%{_name(node.op.key)}"
        else:
            names[node.id] = f"%{count}"
            count += 1
    return names


def _show_body(graph: Graph, indent: str, lines: list[str], locations: bool) -> None:
    names = value_names(graph)
    for node in graph.nodes:
        if node.is_leaf:
            continue
        types = str(node.shapes[0]) if len(node.shapes) == 1 else f"({', '.join(str(s) for s in node.shapes)})"
        operands = ", ".join([names[i] for i in node.inputs])
        line = f"{indent}{names[node.id]}: {types} = {node.op.mnemonic}({operands})"
        attributes = _show_attributes(node.op, indent, locations)
        if attributes:
            line += f" {{{attributes}}}"
        if locations and node.origin is not None and node.origin.source is not None:
            line += f"  # {node.origin.source}"
        lines.append(line)
    results = []
    for number, output in enumerate(graph.outputs):
        into = f" into %{_name(graph.aliases[number])}" if number in graph.aliases else ""
        results.append(names[output] + into)
    lines.append(f"{indent}return {', '.join(results)}".rstrip())


def _show_attributes(op: Op, indent: str, locations: bool) -> str:
    if isinstance(op, Constant):
        return _show_constant(op.value)
    shown = op.shown_attributes
    return ", ".join(f"{k}={show_value(v, indent, locations)}" for k, v in shown.items()) if shown else ""


def show_value(value: Any, indent: str = "", locations: bool = False) -> str:
    """The text of one attribute value."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        return _show_float(value)
    if isinstance(value, int | Dim | Shape | DType):
        return str(value)
    if isinstance(value, str):
        return json.dumps(str(value))
    if isinstance(value, bytes):
        return f'x"{value.hex()}"'
    if isinstance(value, tuple):
        items = [show_value(v, indent, locations) for v in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(value, Graph):
        lines = [_header(value)]
        _show_body(value, indent + "    ", lines, locations)
        return "\n".join([*lines, f"{indent}  }}"])
    if isinstance(value, TensorData):
        return show_value(value.digest)
    # Registered attribute types are written as strings.
    return json.dumps(str(value))


def _show_float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def _show_constant(data: TensorData) -> str:
    return f"value={_show_elements(data)}" if _is_inline(data) else f'data="{data.digest}"'


def _is_inline(data: TensorData) -> bool:
    if data.array.size > INLINE_ELEMENTS or (data.array.size == 0 and data.array.ndim > 0):
        return False
    if not data.shape.dtype.is_inexact:
        return True
    # A NaN with unusual bits would not survive being written as `nan`.
    plain = np.where(np.isnan(data.array), np.asarray(np.nan).astype(data.array.dtype), data.array)
    return plain.astype(data.array.dtype).tobytes() == data.array.tobytes()


def _elements(data: TensorData) -> Any:
    array = data.array
    if data.shape.dtype.is_complex:
        array = np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind not in "fiub":
        array = array.astype(np.float64 if data.shape.dtype.is_inexact else np.int64)
    return array.tolist()


def _show_elements(data: TensorData) -> str:
    def write(item: Any) -> str:
        return f"[{', '.join(write(i) for i in item)}]" if isinstance(item, list) else show_value(item)

    if data.array.dtype == np.float32:
        # The shortest decimal that reads back as the same f32, not as the same f64.
        def write32(item: Any) -> str:
            if isinstance(item, list):
                return f"[{', '.join(write32(i) for i in item)}]"
            text = str(np.float32(item)) if math.isfinite(item) else _show_float(item)
            return text if any(c in text for c in ".enai") else text + ".0"

        return write32(_elements(data))
    return write(_elements(data))


def _from_elements(elements: Any, shape: Shape) -> TensorData:
    dims = shape.static_dims
    if shape.dtype.is_complex:
        parts = np.asarray(elements, shape.dtype.real.numpy).reshape((*dims, 2))
        array = np.empty(dims, shape.dtype.numpy)
        array.real, array.imag = parts[..., 0], parts[..., 1]
    else:
        with np.errstate(over="ignore"):
            array = np.asarray(elements, dtype=None if shape.dtype.is_int else np.float64).astype(shape.dtype.numpy)
    return TensorData(array.reshape(dims), shape)


def large_constants(graph: Graph) -> dict[str, TensorData]:
    """The side table of a program's text: constants that are written only by their digest, bodies included."""
    table: dict[str, TensorData] = {}
    stack = [graph]
    while stack:
        for node in stack.pop().nodes:
            if isinstance(node.op, Constant):
                if not _is_inline(node.op.value):
                    table[node.op.value.digest] = node.op.value
            else:
                stack.extend(node.op.bodies.values())
    return table


# Parsing


def parse(text: str, constants: Mapping[str, TensorData] | None = None, *, allow_lowered: bool = False) -> Graph:
    """The program written as `text`; `constants` holds the values of large constants by digest.

    Ops that only the compiler makes are refused unless `allow_lowered` says that the text is the compiler's own.
    """
    reader = Reader(text)
    try:
        return _program(reader, constants or {}, allow_lowered)
    except ParseError as error:
        raise missing_bracket(reader) or error from None


def _program(reader: Reader, constants: Mapping[str, TensorData], allow_lowered: bool) -> Graph:
    level = reader.take()
    make = _LEVELS.get(level)
    if make is None:
        raise ParseError(f"line 1: a program starts with one of {', '.join(_LEVELS)}, got {level!r}")
    graph = make("")
    if hasattr(graph, "fusion_policy") and reader.kind() == "name":
        word = reader.take()
        try:
            graph.fusion_policy = type(graph.fusion_policy)(word)
        except ValueError:
            raise ParseError(f"line 1: {word!r} is not a fusion policy; use direct or fusable") from None
    Parser(reader, constants, allow_lowered).body(graph)
    if reader.kind() != "end":
        raise reader.fail(f"expected the end of the program, got {reader.peek()!r}")
    return graph


# Program levels by their first word; the module that defines a level registers its graph class.
_LEVELS: dict[str, type[Graph]] = {"mir": Graph}


def register_level(graph_class: type[Graph]) -> None:
    _LEVELS[graph_class.level] = graph_class


class Parser:
    def __init__(self, reader: Reader, constants: Mapping[str, TensorData], allow_lowered: bool = False) -> None:
        self.reader, self.constants, self.allow_lowered = reader, constants, allow_lowered
        self.depth = 0

    @contextmanager
    def nested(self) -> Iterator[None]:
        """One level deeper in brackets or bodies, as far as the parser follows."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.reader.fail(f"values and bodies nest at most {MOST_NESTED} deep")
        yield
        self.depth -= 1

    def body(self, graph: Graph) -> Graph:
        reader = self.reader
        reader.take("@")
        graph.name = reader.identifier()
        names: dict[str, NodeId] = {}
        reader.take("(")
        for _ in reader.list_until(")"):
            line = reader.line
            name = self.value_name()
            reader.take(":")
            shape = self.type()
            leaf: Op = Input(name, shape)
            if reader.accept("{"):
                reader.take("param")
                reader.take("}")
                leaf = Param(name, shape)
            names["%" + name] = self.append(graph, leaf, [], line)
        reader.take("{")
        count = 0
        while not reader.accept("return"):
            self.node(graph, names, count)
            count += 1
        self.results(graph, names)
        reader.take("}")
        return graph

    def value_name(self) -> str:
        self.reader.take("%")
        return self.reader.identifier()

    def operand(self, names: dict[str, NodeId]) -> NodeId:
        line = self.reader.line
        quoted = self.reader.peek(1).startswith('"')
        name = self.value_name()
        key = "%" + name if quoted or not name.isdigit() else "#" + name
        if key not in names:
            raise self.reader.fail(f"%{name} is used before it is defined", line)
        return names[key]

    def node(self, graph: Graph, names: dict[str, NodeId], count: int) -> None:
        reader = self.reader
        line = reader.line
        number = self.value_name()
        if number != str(count):
            raise reader.fail(f"nodes are numbered in order: expected %{count}, got %{number}", line)
        reader.take(":")
        shapes = self.types()
        reader.take("=")
        mnemonic = reader.take()
        reader.take("(")
        inputs = [self.operand(names) for _ in reader.list_until(")")]
        attributes = self.attributes(mnemonic, shapes) if reader.accept("{") else {}
        if mnemonic not in REGISTRY or mnemonic in ("input", "param"):
            raise reader.fail(f"unknown op {mnemonic!r}{nearest(mnemonic, REGISTRY)}", line)
        try:
            op = REGISTRY[mnemonic](**attributes)
            if not self.allow_lowered:
                refuse_lowered(op)
        except RlxError as error:
            raise reader.fail(str(error), line) from None
        names[f"#{number}"] = self.append(graph, op, inputs, line)
        inferred = graph.nodes[-1].shapes
        if inferred != shapes:
            written = ", ".join(str(s) for s in shapes)
            got = ", ".join(str(s) for s in inferred)
            raise reader.fail(f"%{number} is written {written}, but {mnemonic} infers {got}", line)

    def append(self, graph: Graph, op: Op, inputs: list[NodeId], line: int) -> NodeId:
        try:
            # Provenance is not part of the text.
            with graph.originating(NodeOrigin()):
                return graph.append(op, inputs).id
        except RlxError as error:
            raise self.reader.fail(str(error).split("\n")[0], line) from None

    def results(self, graph: Graph, names: dict[str, NodeId]) -> None:
        reader = self.reader
        if reader.peek() == "}":
            return
        outputs: list[NodeId] = []
        while True:
            outputs.append(self.operand(names))
            if reader.accept("into"):
                graph.aliases[len(outputs) - 1] = self.value_name()
            if not reader.accept(","):
                break
        try:
            graph.set_outputs(outputs)
            for number, key in list(graph.aliases.items()):
                graph.alias(outputs[number], key)
        except RlxError as error:
            raise reader.fail(str(error)) from None

    def types(self) -> tuple[Shape, ...]:
        if not self.reader.accept("("):
            return (self.type(),)
        return tuple(self.type() for _ in self.reader.list_until(")"))

    def type(self) -> Shape:
        reader = self.reader
        line = reader.line
        text = reader.take()
        reader.take("[")
        depth, parts = 1, [text, "["]
        while depth:
            if reader.kind() == "end":
                raise reader.fail("a type is not closed with ]", line)
            token = reader.take()
            depth += (token == "[") - (token == "]")
            parts.append(token)
        try:
            return parse_shape("".join(parts))
        except RlxError as error:
            raise reader.fail(str(error), line) from None

    def attributes(self, mnemonic: str, shapes: tuple[Shape, ...]) -> dict[str, Any]:
        reader = self.reader
        found: dict[str, Any] = {}
        for _ in reader.list_until("}"):
            key = reader.identifier()
            reader.take("=")
            if mnemonic == "constant" and key == "value":
                found["value"] = self.constant_value(shapes[0])
            elif mnemonic == "constant" and key == "data":
                found["value"] = self.constant_data()
            else:
                found[key] = self.value()
        return found

    def constant_value(self, shape: Shape) -> TensorData:
        line = self.reader.line
        elements = self.elements()
        try:
            return _from_elements(elements, shape)
        except (ValueError, OverflowError, TypeError, RlxError):
            raise self.reader.fail(f"the value does not have the type {shape}", line) from None

    def elements(self) -> Any:
        if self.reader.accept("["):
            with self.nested():
                return [self.elements() for _ in self.reader.list_until("]")]
        return self.value()

    def constant_data(self) -> TensorData:
        line = self.reader.line
        digest = self.reader.identifier()
        if digest not in self.constants:
            raise self.reader.fail(
                f"the values of constant {digest} are missing; pass them as parse(text, constants)", line
            )
        return self.constants[digest]

    def value(self) -> Any:
        reader = self.reader
        kind, text, line = reader.tokens[reader.position]
        if text == "(":
            reader.take()
            with self.nested():
                return tuple([self.value() for _ in reader.list_until(")")])
        if text == "@":
            with self.nested():
                return self.body(Graph(""))
        if kind == "string":
            reader.take()
            return unquote(text, line)
        if kind == "bytes":
            reader.take()
            try:
                return bytes.fromhex(text[2:-1])
            except ValueError:
                raise reader.fail(f"{text} is not an even number of hex digits", line) from None
        if text in _WORDS:
            reader.take()
            return _WORDS[text]
        if kind == "name" and reader.peek(1) == "[":
            return self.type()
        if kind == "name" and text in _DTYPES:
            reader.take()
            return DType(text)
        return self.number_or_dim()

    def number_or_dim(self) -> Any:
        """A number, or a symbolic size up to the next `,` `)` `}` or `]` outside parentheses."""
        reader = self.reader
        line = reader.line
        parts: list[str] = []
        depth = 0
        while reader.kind() != "end" and not (depth == 0 and reader.peek() in (",", ")", "}", "]")):
            token = reader.take()
            depth += (token == "(") - (token == ")")
            parts.append(token)
        text = "".join(parts)
        negative = text.removeprefix("-")
        if negative in ("inf", "nan"):
            return float(text)
        if re.fullmatch(r"\d+", negative):
            if len(negative) > MOST_DIGITS:
                raise reader.fail(f"integers have at most 64 bits, got one of {len(negative)} digits", line)
            return int(text)
        if re.fullmatch(r"(\d+\.\d*|\.\d+|\d+)([eE][-+]?\d+)?", negative):
            return float(text)
        try:
            return parse_dim(text)
        except RlxError:
            raise reader.fail(f"{text if len(text) <= 80 else text[:77] + '...'!r} is not a value", line) from None


_WORDS: dict[str, Any] = {"None": None, "True": True, "False": False, "inf": math.inf, "nan": math.nan}
_DTYPES = frozenset(d.value for d in DType)


def parse_value(text: str) -> Any:
    """One attribute value from its text, as `show_value` writes it."""
    reader = Reader(text)
    value = Parser(reader, {}).value()
    if reader.kind() != "end":
        raise reader.fail(f"unexpected {reader.peek()!r} after a value")
    return value


def level_class(level: str) -> type[Graph]:
    """The graph class of a program level."""
    if level not in _LEVELS:
        raise ParseError(f"{level!r} is not a program level; known are {', '.join(_LEVELS)}")
    return _LEVELS[level]
