"""Reading an ONNX file: a `ModelProto` of Protocol Buffers, by its published field numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from rlx.errors import FormatError
from rlx.formats.mapped_file import U8, file_bytes
from rlx.formats.onnx.messages import BYTES, Message
from rlx.formats.onnx.structure import (
    ExternalData,
    OnnxFile,
    OnnxFunction,
    OnnxGraph,
    OnnxNode,
    OnnxTensor,
    OnnxValue,
)

_MOST_AXES = 64


def open_onnx(path: str | os.PathLike[str], mmap: bool = True) -> OnnxFile:
    """Open an ONNX file; tensors stay in it, or in the files beside it, until they are read."""
    place = Path(path)
    if place.is_dir():
        found = sorted(place.glob("*.onnx"))
        if len(found) != 1:
            names = ", ".join(f.name for f in found) or "none"
            raise FormatError(f"{place}: a file is needed, or a folder with one .onnx file; found {names}")
        place = found[0]
    return _Reader(str(place), place.parent).file(file_bytes(place, mmap))


def read_onnx(content: bytes, name: str = "<bytes>", folder: str | os.PathLike[str] = ".") -> OnnxFile:
    """The same of bytes in memory; external data is looked for in `folder`."""
    return _Reader(name, Path(folder)).file(np.frombuffer(content, np.uint8))


class _Reader:
    def __init__(self, path: str, folder: Path) -> None:
        self.path, self.folder = path, folder

    def file(self, content: U8) -> OnnxFile:
        graph, producer = None, ""
        opsets: dict[str, int] = {}
        functions: dict[tuple[str, str], OnnxFunction] = {}
        metadata: dict[str, str] = {}
        for field in Message(self.path, content, 0, content.size).fields():
            match field.number:
                case 2:
                    producer = field.text
                case 7:
                    graph = self._graph(field.inner)
                case 8:
                    opsets |= self._opset(field.inner)
                case 14:
                    key, value = self._pair(field.inner)
                    metadata[key] = value
                case 25:
                    function = self._function(field.inner)
                    functions[function.domain, function.name] = function
        if graph is None or (not graph.nodes and not graph.outputs):
            raise FormatError(f"{self.path}: there is no graph in it; this is no ONNX file, or it is damaged")
        return OnnxFile(self.path, graph, opsets, functions, producer, metadata)

    def _opset(self, message: Message) -> dict[str, int]:
        domain, version = "", 0
        for field in message.fields():
            if field.number == 1:
                domain = _domain(field.text)
            elif field.number == 2:
                version = field.integer
        return {domain: version}

    def _pair(self, message: Message) -> tuple[str, str]:
        texts = {field.number: field.text for field in message.fields() if field.number in (1, 2)}
        return texts.get(1, ""), texts.get(2, "")

    def _function(self, message: Message) -> OnnxFunction:
        found = OnnxFunction("", "", [], [], {}, [], {})
        for field in message.fields():
            match field.number:
                case 1:
                    found.name = field.text
                case 4:
                    found.inputs.append(field.text)
                case 5:
                    found.outputs.append(field.text)
                case 7:
                    found.nodes.append(self._node(field.inner))
                case 9:
                    found.opsets |= self._opset(field.inner)
                case 10:
                    found.domain = _domain(field.text)
                case 11:
                    name, value, _ = self._attribute(field.inner)
                    found.defaults[name] = value
        return found

    def _graph(self, message: Message) -> OnnxGraph:
        graph = OnnxGraph("", [], {}, [], [])
        for field in message.fields():
            match field.number:
                case 1:
                    graph.nodes.append(self._node(field.inner))
                case 2:
                    graph.name = field.text
                case 5:
                    tensor = self._tensor(field.inner)
                    graph.constants[tensor.name] = tensor
                case 11:
                    graph.inputs.append(self._value(field.inner))
                case 12:
                    graph.outputs.append(self._value(field.inner))
                case 15:
                    raise FormatError(f"{self.path}: graph {graph.name!r} has sparse weights, which rlx does not read")
        return graph

    def _node(self, message: Message) -> OnnxNode:
        node = OnnxNode("", "", "", [], [], {})
        for field in message.fields():
            match field.number:
                case 1:
                    node.inputs.append(field.text)
                case 2:
                    node.outputs.append(field.text)
                case 3:
                    node.name = field.text
                case 4:
                    node.op = field.text
                case 5:
                    name, value, reference = self._attribute(field.inner)
                    if reference:
                        node.references[name] = reference
                    else:
                        node.attributes[name] = value
                case 7:
                    node.domain = _domain(field.text)
        return node

    def _attribute(self, message: Message) -> tuple[str, Any, str]:
        """Name, value, and the name of the function's attribute that it stands for."""
        name, reference, kind = "", "", 0
        value: Any = None
        lists: dict[int, list[Any]] = {7: [], 8: [], 9: [], 10: [], 11: []}
        for field in message.fields():
            match field.number:
                case 1:
                    name = field.text
                case 2:
                    value = field.number32
                case 3:
                    value = field.integer
                case 4:
                    value = field.bytes.tobytes()
                case 5:
                    value = self._tensor(field.inner)
                case 6:
                    value = self._graph(field.inner)
                case 7:
                    lists[7] += field.numbers("<f4").tolist()
                case 8:
                    lists[8] += field.integers.tolist()
                case 9:
                    lists[9].append(field.bytes.tobytes())
                case 10:
                    lists[10].append(self._tensor(field.inner))
                case 11:
                    lists[11].append(self._graph(field.inner))
                case 20:
                    kind = field.integer
                case 21:
                    reference = field.text
        filled = [items for items in lists.values() if items]
        if filled:
            value = filled[0]
        elif value is None:
            # What a file leaves out is zero, and an empty list; the kind tells them apart.
            value = {1: 0.0, 2: 0, 3: b""}.get(kind, [])
        return name, value, reference

    def _tensor(self, message: Message) -> OnnxTensor:
        shape: list[int] = []
        parts: list[np.ndarray[Any, Any]] = []
        external: dict[str, str] = {}
        tensor, is_external = OnnxTensor("", (), 0, ""), False
        for field in message.fields():
            match field.number:
                case 1:
                    shape += field.integers.tolist()
                case 2:
                    tensor.type = field.integer
                case 4:
                    parts.append(field.numbers("<f4"))
                case 5 | 7:
                    parts.append(field.integers)
                case 6:
                    tensor.texts.append(field.bytes.tobytes())
                case 8:
                    tensor.name = field.text
                case 9:
                    tensor.raw = field.bytes
                case 10:
                    parts.append(field.numbers("<f8"))
                case 11:
                    parts.append(field.integers.view(np.uint64))
                case 13:
                    key, value = self._pair(field.inner)
                    external[key] = value
                case 14:
                    is_external = field.integer == 1
        tensor.where = f"{self.path}: tensor {tensor.name!r}"
        if len(shape) > _MOST_AXES or any(not 0 <= n < 2**48 for n in shape):
            raise FormatError(f"{tensor.where} has the shape {shape[:_MOST_AXES]}, which no memory holds")
        tensor.shape = tuple(shape)
        tensor.listed = np.concatenate(parts) if parts else None
        if is_external:
            tensor.external = self._external(tensor.where, external)
        return tensor

    def _external(self, where: str, entries: dict[str, str]) -> ExternalData:
        place = entries.get("location", "")
        parts = Path(place).parts
        if not place or Path(place).is_absolute() or ".." in parts or "\0" in place:
            raise FormatError(f"{where} lies in the file {place!r}; it must lie beside the model's file or below it")
        try:
            offset = int(entries.get("offset", "0"))
            length = int(entries["length"]) if "length" in entries else None
        except ValueError:
            raise FormatError(f"{where}: offset and length in {place!r} must be whole numbers") from None
        return ExternalData(self.folder / place, offset, length)

    def _value(self, message: Message) -> OnnxValue:
        found = OnnxValue("", None, None)
        for field in message.fields():
            if field.number == 1:
                found = found._replace(name=field.text)
            elif field.number == 2:
                kind, elements, shape = self._type(field.inner)
                found = found._replace(kind=kind, type=elements, shape=shape)
        return found

    def _type(self, message: Message) -> tuple[str, int | None, tuple[int | str | None, ...] | None]:
        kinds = {4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}
        for field in message.fields():
            if field.number in kinds:
                return kinds[field.number], None, None
            if field.number == 1:
                return "tensor", *self._tensor_type(field.inner)
        return "tensor", None, None

    def _tensor_type(self, message: Message) -> tuple[int | None, tuple[int | str | None, ...] | None]:
        elements, shape = None, None
        for field in message.fields():
            if field.number == 1:
                elements = field.integer
            elif field.number == 2:
                shape = tuple(self._size(f.inner) for f in field.inner.fields() if f.number == 1 and f.kind == BYTES)
        return elements, shape

    def _size(self, message: Message) -> int | str | None:
        found: int | str | None = None
        for field in message.fields():
            if field.number == 1:
                found = field.integer
            elif field.number == 2:
                found = field.text or None
        return None if isinstance(found, int) and found < 0 else found


def _domain(name: str) -> str:
    """The standard's own domain has two names."""
    return "" if name == "ai.onnx" else name
