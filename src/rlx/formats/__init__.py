"""Files in and out: GGUF, safetensors and ONNX.

A file from outside is hostile until proven sane. Readers check every count, length and offset against the bytes that
are there before they use it, raise `FormatError` with the place, and hand out views of the mapped file, not copies.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_FORMATS = ("gguf", "onnx", "safetensors")


def __getattr__(name: str) -> ModuleType:
    """Formats are loaded when they are first used."""
    if name in _FORMATS:
        return importlib.import_module(f"rlx.formats.{name}")
    raise AttributeError(
        f"module 'rlx.formats' has no attribute {name!r}; formats are {', '.join(_FORMATS)}", name=name
    )


def __dir__() -> list[str]:
    return sorted(_FORMATS)
