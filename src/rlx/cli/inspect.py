"""Show what is in a model file: metadata and tensors of a GGUF, safetensors or ONNX file, of a Hugging Face folder, or
the text of a saved graph. Only headers are read.

examples:
  rlx inspect model.gguf
  rlx inspect model.gguf --tensors 'blk.0.*'
  rlx inspect model.onnx
  rlx inspect path/to/hf_dir --json
  rlx inspect smollm2
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlx.cli import add_command
from rlx.errors import FormatError, ParseError
from rlx.formats.gguf import GgufFile, open_gguf
from rlx.formats.safetensors import open_safetensors
from rlx.models.pull import locate

if TYPE_CHECKING:
    from rlx.cli import Subparsers

_LONGEST_TEXT = 100
_FIRST_ITEMS = 6


class TensorLine(NamedTuple):
    """One row of the table."""

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int


class Summary(NamedTuple):
    """What a file is and holds."""

    path: Path
    format: str
    metadata: dict[str, object]
    tensors: list[TensorLine]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "inspect", __doc__)
    parser.add_argument("path", help="a file, a folder, or the name of a pulled model")
    parser.add_argument("--tensors", metavar="PATTERN", default="*", help="only tensors whose name matches this glob")
    parser.add_argument("--no-tensors", action="store_true", help="metadata and totals only")
    parser.add_argument("--full", action="store_true", help="show long values and lists whole")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    return parser


def run(args: argparse.Namespace) -> int:
    path = locate(args.path)
    if path.is_file() and not _is_model(path):
        return _show_graph(path, args.json)
    summary = summarize(path)
    chosen = [t for t in summary.tensors if not args.no_tensors and fnmatch.fnmatchcase(t.name, args.tensors)]
    if args.json:
        print(json.dumps(_document(summary, chosen, args.full), indent=2, ensure_ascii=False))
        return 0
    print("\n".join(_lines(summary, chosen, args.full)))
    return 0


def summarize(path: Path) -> Summary:
    """Metadata and tensors of a model."""
    if path.is_dir() or path.name.endswith((".safetensors", ".json")):
        return _summary_of_safetensors(path)
    if path.name.endswith(".onnx"):
        return _summary_of_onnx(path)
    with open_gguf(path) as file:
        lines = [TensorLine(t.name, str(t.type), t.shape, t.nbytes, t.offset) for t in file.tensors.values()]
        return Summary(path, f"GGUF version {file.version}, {file.byte_order} endian", _metadata_of_gguf(file), lines)


def _metadata_of_gguf(file: GgufFile) -> dict[str, object]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in file.metadata.items()}


def _summary_of_onnx(path: Path) -> Summary:
    from rlx.formats.onnx import OnnxValue, open_onnx
    from rlx.formats.onnx.structure import ELEMENT_TYPES

    def kind(number: int | None) -> str:
        return str(ELEMENT_TYPES.get(number or 0, f"type {number}"))

    def shown(value: OnnxValue) -> str:
        sizes = "?" if value.shape is None else ",".join("?" if n is None else str(n) for n in value.shape)
        return f"{value.name}: {kind(value.type)}[{sizes}]" if value.kind == "tensor" else f"{value.name}: {value.kind}"

    file = open_onnx(path)
    graph = file.graph
    versions = ", ".join(f"{domain} {version}".strip() for domain, version in file.opsets.items())
    ops = Counter(node.op for node in graph.nodes)
    metadata: dict[str, object] = {
        "producer": file.producer,
        **file.metadata,
        "inputs": ", ".join(shown(v) for v in graph.inputs if v.name not in graph.constants),
        "outputs": ", ".join(map(shown, graph.outputs)),
        "ops": ", ".join(f"{n} {op}" if n > 1 else op for op, n in sorted(ops.items())),
    }
    lines = [TensorLine(name, kind(t.type).upper(), t.shape, t.nbytes, 0) for name, t in graph.constants.items()]
    return Summary(path, f"ONNX, opset {versions}", metadata, lines)


def _summary_of_safetensors(path: Path) -> Summary:
    with open_safetensors(path) as file:
        lines = [TensorLine(t.name, str(t.type), t.shape, t.nbytes, t.offset) for t in file.tensors.values()]
        metadata: dict[str, object] = dict(file.metadata)
        shards = len({t.path for t in file.tensors.values()})
    metadata |= {f"config.{key}": value for key, value in _config(path / "config.json").items()}
    return Summary(path, f"safetensors, {shards} file{'s' if shards != 1 else ''}", metadata, lines)


def _config(path: Path) -> dict[str, object]:
    """The configuration beside the weights; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path}: a JSON object is needed, got {type(value).__name__}")
    return value


def _is_model(path: Path) -> bool:
    if path.name.endswith((".gguf", ".safetensors", ".index.json", ".onnx")):
        return True
    with open(path, "rb") as file:
        return file.read(4) == b"GGUF"


def _show_graph(path: Path, as_json: bool) -> int:
    """A graph saved by `save_graph`, or its text. It is only shown, so it may be what the compiler made of one."""
    from rlx.cli.graph_files import read_graph
    from rlx.ir.serialize import to_json

    try:
        graph = read_graph(path, allow_lowered=True)
    except ParseError as error:
        raise FormatError(f"{path} is not GGUF, safetensors or the text of a graph: {error}") from None
    print(to_json(graph, indent=2) if as_json else str(graph))
    return 0


def _document(summary: Summary, tensors: Sequence[TensorLine], full: bool) -> dict[str, object]:
    values = summary.metadata if full else {key: _shortened(value) for key, value in summary.metadata.items()}
    return {
        "path": str(summary.path),
        "format": summary.format,
        "metadata": values,
        "parameters": _parameters(summary.tensors),
        "bytes": sum(t.nbytes for t in summary.tensors),
        "types": dict(Counter(t.type for t in summary.tensors)),
        "tensors": [t._asdict() for t in tensors],
    }


def _shortened(value: object) -> object:
    """A list as its length and first items; everything else as it is."""
    if isinstance(value, list) and len(value) > _FIRST_ITEMS:
        return {"length": len(value), "first": value[:_FIRST_ITEMS]}
    return value


def _lines(summary: Summary, tensors: Sequence[TensorLine], full: bool) -> Iterable[str]:
    yield f"{summary.path}: {summary.format}"
    if summary.metadata:
        yield "\nmetadata"
        width = max(map(len, summary.metadata))
        for key, value in summary.metadata.items():
            yield f"  {key:<{width}}  {_display(value, full)}"
    if tensors:
        yield "\ntensors"
        rows = [(t.name, t.type, "x".join(map(str, t.shape)) or "scalar", f"{t.nbytes:,}") for t in tensors]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        for name, kind, shape, size in rows:
            yield f"  {name:<{widths[0]}}  {kind:<{widths[1]}}  {shape:>{widths[2]}}  {size:>{widths[3]}} bytes"
    types = ", ".join(f"{count} {kind}" for kind, count in Counter(t.type for t in summary.tensors).most_common())
    total = sum(t.nbytes for t in summary.tensors)
    yield (
        f"\n{len(summary.tensors)} tensors ({types}), {_parameters(summary.tensors):,} parameters, "
        f"{total / 1e6:,.1f} MB"
    )


def _parameters(tensors: Iterable[TensorLine]) -> int:
    return sum(math.prod(t.shape) for t in tensors)


def _display(value: object, full: bool) -> str:
    if isinstance(value, list):
        shown = value if full else value[:_FIRST_ITEMS]
        more = f", ... ({len(value):,} items)" if len(shown) < len(value) else ""
        return f"[{', '.join(map(repr, shown))}{more}]"
    text = repr(value) if isinstance(value, str) and "\n" in value else str(value)
    if len(text) > _LONGEST_TEXT and not full:
        return f"{text[:_LONGEST_TEXT]}... ({len(text):,} characters)"
    return text
