"""Writing ONNX files: a graph of nodes with its weights, as `open_onnx` reads it.

x, y = OnnxValue("x", FLOAT, ("batch", 4)), OnnxValue("y", FLOAT, ("batch", 2))
graph = OnnxGraph("linear", [make_node("MatMul", ["x", "w"], ["y"])], {"w": make_tensor("w", w)}, [x], [y])
write_onnx("linear.onnx", graph)
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import FormatError
from rlx.formats.mapped_file import replace_file
from rlx.formats.onnx.structure import ELEMENT_TYPES, OnnxGraph, OnnxNode, OnnxTensor, OnnxValue
from rlx.ir.dtype import DType

# The number of f32 in `OnnxValue.type`.
FLOAT = 1
OPSET = 21
_IR_VERSION = 10
_TYPE_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}


def type_number(dtype: Any) -> int:
    """The number that files have for an element type."""
    number = _TYPE_NUMBERS.get(DType.of(dtype))
    if number is None:
        raise FormatError(f"ONNX has no element type for {dtype}")
    return number


def make_tensor(name: str, array: Any) -> OnnxTensor:
    """An array under a name."""
    given = np.asarray(array)
    stored = np.asarray(given, given.dtype.newbyteorder("<") if given.dtype.kind in "iufc" else given.dtype)
    number = type_number(given.dtype)
    if ELEMENT_TYPES[number].value in ("i4", "u4", "f4e2m1"):
        codes = stored.reshape(-1).view(np.uint8) & 15
        pairs = np.append(codes, np.zeros(codes.size % 2, np.uint8)).reshape(-1, 2)
        raw = pairs[:, 0] | (pairs[:, 1] << 4)
    else:
        raw = np.frombuffer(stored.tobytes(), np.uint8)
    return OnnxTensor(name, given.shape, number, f"tensor {name!r}", raw)


def make_node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", name: str = "", **attributes: Any
) -> OnnxNode:
    """A node; attributes are numbers, texts, arrays, graphs, or lists of numbers or texts."""
    return OnnxNode(op, domain, name, [*inputs], [*outputs], attributes)


def write_onnx(path: str | os.PathLike[str], graph: OnnxGraph, opsets: Mapping[str, int] | int = OPSET) -> None:
    """Write a graph as a file; `opsets` are the versions of the domains of its ops."""
    content = onnx_bytes(graph, opsets)
    with replace_file(Path(path)) as file:
        file.write(content)


def onnx_bytes(graph: OnnxGraph, opsets: Mapping[str, int] | int = OPSET) -> bytes:
    """The file as bytes."""
    versions = {"": opsets} if isinstance(opsets, int) else opsets
    imports = [_text(1, domain) + _number(2, version) for domain, version in versions.items()]
    return b"".join(
        [_number(1, _IR_VERSION), _text(2, "rlx"), *(_inner(8, part) for part in imports), _inner(7, _graph(graph))]
    )


def _graph(graph: OnnxGraph) -> bytes:
    parts = [_inner(1, _node(node)) for node in graph.nodes]
    parts.append(_text(2, graph.name))
    parts += [_inner(5, _tensor(name, tensor)) for name, tensor in graph.constants.items()]
    parts += [_inner(11, _value(value)) for value in graph.inputs]
    parts += [_inner(12, _value(value)) for value in graph.outputs]
    return b"".join(parts)


def _node(node: OnnxNode) -> bytes:
    parts = [_inner(1, name.encode()) for name in node.inputs]
    parts += [_inner(2, name.encode()) for name in node.outputs]
    parts += [_text(3, node.name), _inner(4, node.op.encode()), _text(7, node.domain)]
    parts += [_inner(5, _attribute(name, value)) for name, value in node.attributes.items()]
    return b"".join(parts)


def _attribute(name: str, value: Any) -> bytes:
    kind, content = _attribute_value(value)
    return _text(1, name) + content + _number(20, kind)


def _attribute_value(value: Any) -> tuple[int, bytes]:
    """The kind of an attribute and the field that holds it."""
    if isinstance(value, float):
        return 1, _key(2, 5) + struct.pack("<f", value)
    if isinstance(value, bool | int | np.integer):
        return 2, _key(3, 0) + _varint(int(value))
    if isinstance(value, str | bytes):
        return 3, _inner(4, value if isinstance(value, bytes) else value.encode())
    if isinstance(value, np.ndarray | OnnxTensor):
        tensor = value if isinstance(value, OnnxTensor) else make_tensor("", value)
        return 4, _inner(5, _tensor(tensor.name, tensor))
    if isinstance(value, OnnxGraph):
        return 5, _inner(6, _graph(value))
    if isinstance(value, list | tuple):
        if all(isinstance(item, bool | int | np.integer) for item in value):
            return 7, b"".join(_key(8, 0) + _varint(int(item)) for item in value)
        if all(isinstance(item, float | int) for item in value):
            return 6, b"".join(_key(7, 5) + struct.pack("<f", item) for item in value)
        if all(isinstance(item, str | bytes) for item in value):
            return 8, b"".join(_inner(9, item if isinstance(item, bytes) else item.encode()) for item in value)
    raise FormatError(f"an attribute cannot hold {value!r:.80}")


def _tensor(name: str, tensor: OnnxTensor) -> bytes:
    if tensor.raw is None:
        tensor = make_tensor(name, tensor.array())
    parts = [_key(1, 0) + _varint(size) for size in tensor.shape]
    assert tensor.raw is not None
    return b"".join([*parts, _number(2, tensor.type), _text(8, name), _inner(9, tensor.raw.tobytes())])


def _value(value: OnnxValue) -> bytes:
    if value.shape is None or value.type is None:
        raise FormatError(f"{value.name!r} needs a type and a shape to be written")
    dims: Iterable[bytes] = [
        _key(1, 0) + _varint(size) if isinstance(size, int) else _text(2, size or "") for size in value.shape
    ]
    shape = b"".join(_inner(1, dim) for dim in dims)
    return _text(1, value.name) + _inner(2, _inner(1, _number(1, value.type) + _inner(2, shape)))


def _varint(value: int) -> bytes:
    rest, found = value & (2**64 - 1), bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value)


def _inner(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _inner(number, text.encode()) if text else b""
