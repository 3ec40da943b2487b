"""Files with a graph that commands take: its text, or what `rlx.save_graph` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import FormatError

if TYPE_CHECKING:
    from rlx.ir.graph import Graph

# A text that is larger than this is something else.
_MOST_TEXT = 64 << 20


def read_graph(path: Path, *, allow_lowered: bool = False) -> Graph:
    """The graph of a file; `allow_lowered` as for `rlx.parse`."""
    # Not those of `rlx.ir`, which know an op only when somebody else has loaded it.
    from rlx import load_graph, parse

    if not path.is_file():
        raise FormatError(f"{path}: a regular file is needed")
    with open(path, "rb") as file:
        start = file.read(4)
    if start == b"RLXG" or start[:1] == b"{":
        return load_graph(path, allow_lowered=allow_lowered)
    if path.stat().st_size > _MOST_TEXT:
        raise FormatError(f"{path}: too large for the text of a graph")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FormatError(
            f"{path}: not GGUF, safetensors or the text of a graph, nor a file of rlx.save_graph"
        ) from None
    return parse(text, allow_lowered=allow_lowered)
