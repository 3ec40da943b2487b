"""Programs as JSON and as binary files; no pickle, and nothing is trusted that a file says.

JSON: `{"format": "rlx.graph", "version": 1, "level", "name", "nodes", "outputs", "aliases", "constants"}`; a node is
`{"op", "inputs", "types", "attrs", "name", "origin"}` with attributes in the value syntax of the program text and
bodies as nested graphs. Constants are base64 by digest. Binary: `RLXG`, version, length of the JSON, the JSON without
constants, then every constant on a 64-byte boundary and a checksum. Version 1 files stay readable.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rlx.errors import FormatError, RlxError
from rlx.ir.graph import Graph
from rlx.ir.leaves import Constant
from rlx.ir.op import REGISTRY, Op, refuse_lowered
from rlx.ir.provenance import NodeOrigin, SourceLocation
from rlx.ir.shape import Shape, parse_shape
from rlx.ir.tensor_data import TensorData
from rlx.ir.text.graph_text import level_class, parse_value, show_value

FORMAT, VERSION = "rlx.graph", 1
_MAGIC = b"RLXG"
_HEADER = struct.Struct("<4sIQ")
_ALIGN = 64


def to_json(graph: Graph, indent: int | None = None) -> str:
    """The whole program as JSON, constants included."""
    table: dict[str, TensorData] = {}
    document = _document(graph, table)
    document["constants"] = {
        digest: {"type": str(data.shape), "base64": base64.b64encode(data.array.tobytes()).decode()}
        for digest, data in table.items()
    }
    return json.dumps(document, indent=indent, ensure_ascii=False)


def from_json(text: str | bytes, *, allow_lowered: bool = False) -> Graph:
    """The program in a JSON document; every type is inferred again and compared with what the file says.

    As for `parse`, `allow_lowered` is for documents that are the compiler's own.
    """
    document = _load(text)
    constants: dict[str, TensorData] = {}
    for digest, entry in _field(document, "constants", dict).items():
        try:
            data = base64.b64decode(_field(entry, "base64", str), validate=True)
        except binascii.Error as error:
            raise FormatError(f"constant {digest} is not valid base64: {error}") from None
        constants[digest] = _constant(digest, _field(entry, "type", str), data)
    return _guarded(lambda: _graph(document, _Source(constants, allow_lowered)))


def to_bytes(graph: Graph) -> bytes:
    """The whole program in the binary form."""
    table: dict[str, TensorData] = {}
    document = _document(graph, table)
    offset, entries = 0, {}
    for digest, data in table.items():
        entries[digest] = {"type": str(data.shape), "offset": offset, "size": data.array.nbytes}
        offset += _padded(data.array.nbytes)
    document["constants"] = entries
    head = json.dumps(document, ensure_ascii=False).encode()
    parts = [_HEADER.pack(_MAGIC, VERSION, len(head)), head]
    parts.append(b"\0" * (-(_HEADER.size + len(head)) % _ALIGN))
    for data in table.values():
        parts += [data.array.tobytes(), b"\0" * (-data.array.nbytes % _ALIGN)]
    body = b"".join(parts)
    return body + hashlib.blake2b(body, digest_size=16).digest()


def from_bytes(data: bytes, *, allow_lowered: bool = False) -> Graph:
    """The program in binary form; a damaged file is refused as a whole."""
    if len(data) < _HEADER.size + 16 or data[:4] != _MAGIC:
        raise FormatError("this is not an rlx graph file (it does not start with RLXG)")
    body, digest = data[:-16], data[-16:]
    if hashlib.blake2b(body, digest_size=16).digest() != digest:
        raise FormatError("the graph file is damaged: its checksum does not match")
    _, version, length = _HEADER.unpack_from(body)
    if version != VERSION:
        raise FormatError(f"the graph file has version {version}; this rlx reads version {VERSION}")
    if _HEADER.size + length > len(body):
        raise FormatError("the graph file is cut short")
    document = _load(body[_HEADER.size : _HEADER.size + length])
    start = _padded(_HEADER.size + length)
    constants: dict[str, TensorData] = {}
    for name, entry in _field(document, "constants", dict).items():
        offset, size = start + _field(entry, "offset", int), _field(entry, "size", int)
        if offset < start or size < 0 or offset + size > len(body):
            raise FormatError(f"constant {name} lies outside the graph file")
        constants[name] = _constant(name, _field(entry, "type", str), body[offset : offset + size])
    return _guarded(lambda: _graph(document, _Source(constants, allow_lowered)))


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a program to `path`, as JSON if it ends in `.json`, else binary. The file appears whole or not at all."""
    target = Path(path)
    data = to_json(graph, indent=1).encode() if target.suffix == ".json" else to_bytes(graph)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def load_graph(path: str | os.PathLike[str], *, allow_lowered: bool = False) -> Graph:
    """Read a program written by `save_graph`; `allow_lowered` as for `parse`."""
    data = Path(path).read_bytes()
    read = from_bytes if data[:4] == _MAGIC else from_json
    return read(data, allow_lowered=allow_lowered)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _document(graph: Graph, table: dict[str, TensorData]) -> dict[str, Any]:
    policy = getattr(graph, "fusion_policy", None)
    return {
        "format": FORMAT,
        "version": VERSION,
        "level": graph.level,
        **({} if policy is None else {"fusion_policy": str(policy)}),
        "name": graph.name,
        "nodes": [_node(n, table) for n in graph.nodes],
        "outputs": [int(o) for o in graph.outputs],
        "aliases": {str(k): v for k, v in graph.aliases.items()},
    }


def _node(node: Any, table: dict[str, TensorData]) -> dict[str, Any]:
    entry: dict[str, Any] = {"op": node.op.mnemonic}
    if node.inputs:
        entry["inputs"] = [int(i) for i in node.inputs]
    entry["types"] = [str(s) for s in node.shapes]
    attributes = {k: _attribute(v, table) for k, v in node.op.shown_attributes.items()}
    if attributes:
        entry["attrs"] = attributes
    if node.name:
        entry["name"] = node.name
    if node.origin is not None and any(part is not None for part in node.origin):
        origin = node.origin._asdict()
        entry["origin"] = {k: v for k, v in origin.items() if v is not None}
    return entry


def _attribute(value: Any, table: dict[str, TensorData]) -> Any:
    if isinstance(value, Graph):
        return _document(value, table)
    if isinstance(value, tuple) and any(isinstance(v, Graph) for v in value):
        return [_attribute(v, table) for v in value]
    if isinstance(value, TensorData):
        table[value.digest] = value
        return value.digest
    return show_value(value)


def _load(text: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f"not an rlx graph: the top level must be an object with format={FORMAT!r}")
    if document.get("version") != VERSION:
        raise FormatError(f"the graph has version {document.get('version')!r}; this rlx reads version {VERSION}")
    return document


def _field(entry: Any, key: str, kind: type) -> Any:
    if not isinstance(entry, dict) or not isinstance(entry.get(key), kind) or isinstance(entry.get(key), bool):
        raise FormatError(f"the graph file lacks {key!r} of type {kind.__name__} where it is needed")
    return entry[key]


def _constant(digest: str, type_text: str, data: bytes) -> TensorData:
    shape = parse_shape(type_text)
    if shape.size_bytes() != len(data):
        raise FormatError(f"constant {digest} is {shape} ({shape.size_bytes()} bytes) but has {len(data)} bytes")
    value = TensorData.from_bytes(data, shape)
    if value.digest != digest:
        raise FormatError(f"constant {digest} is damaged: its content hashes to {value.digest}")
    return value


class _Source(NamedTuple):
    """What a document is read with: its constants by digest, and whether it may hold what only the compiler makes."""

    constants: Mapping[str, TensorData]
    allow_lowered: bool


def _guarded(build: Callable[[], Graph]) -> Graph:
    """Turn whatever a hostile document provokes into one FormatError."""
    try:
        return build()
    except FormatError:
        raise
    except RlxError as error:
        raise FormatError(f"the graph file describes an invalid program: {error}") from error
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise FormatError(f"the graph file is malformed: {type(error).__name__}: {error}") from error


def _graph(document: dict[str, Any], source: _Source) -> Graph:
    graph = level_class(_field(document, "level", str))(_field(document, "name", str))
    if "fusion_policy" in document:
        policy = getattr(graph, "fusion_policy", None)
        if policy is None:
            raise FormatError(f"a graph of level {graph.level!r} has no fusion policy")
        setattr(graph, "fusion_policy", type(policy)(document["fusion_policy"]))  # noqa: B010
    for number, entry in enumerate(_field(document, "nodes", list)):
        node = graph.append(
            _op(entry, source),
            [_index(i) for i in entry.get("inputs", [])],
            name=entry.get("name"),
            origin=_origin(entry),
        )
        types = tuple(_shape(t) for t in _field(entry, "types", list))
        if types != node.shapes:
            raise FormatError(f"node {number} ({node.op.mnemonic}) is written {types}, but infers {node.shapes}")
    graph.set_outputs([_index(o) for o in _field(document, "outputs", list)])
    for key, name in document.get("aliases", {}).items():
        graph.alias(graph.outputs[int(key)], name)
    return graph


def _index(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(f"{value!r} is not a node number")
    return value


def _shape(text: Any) -> Shape:
    return parse_shape(text if isinstance(text, str) else repr(text))


def _op(entry: Any, source: _Source) -> Op:
    mnemonic = _field(entry, "op", str)
    if mnemonic not in REGISTRY:
        raise FormatError(f"unknown op {mnemonic!r}; it may come from a newer rlx or from an op package not imported")
    if mnemonic == Constant.name:
        digest = str(_field(entry.get("attrs"), "value", str))
        if digest not in source.constants:
            raise FormatError(f"the graph file lacks the data of constant {digest}")
        return Constant(source.constants[digest])
    attributes = {k: _read_attribute(v, source) for k, v in entry.get("attrs", {}).items()}
    op = REGISTRY[mnemonic](**attributes)
    if not source.allow_lowered:
        refuse_lowered(op)
    return op


def _read_attribute(value: Any, source: _Source) -> Any:
    if isinstance(value, dict):
        return _graph(value, source)
    if isinstance(value, list):
        return tuple(_read_attribute(v, source) for v in value)
    if not isinstance(value, str):
        raise FormatError(f"an attribute must be text or a graph, got {value!r}")
    return parse_value(value)


def _origin(entry: dict[str, Any]) -> NodeOrigin:
    fields = dict(entry.get("origin", {}))
    if "source" in fields:
        fields["source"] = SourceLocation(*fields["source"])
    return NodeOrigin(**fields)
