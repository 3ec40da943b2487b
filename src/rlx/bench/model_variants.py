"""A language model in other types: converted once by the code of `rlx quantize`, and kept in the cache."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rlx.errors import RlxError
from rlx.formats.gguf import open_gguf, quantize_file
from rlx.models.pull_cache import lock, models_directory

FOLDER = "converted"


def main_type(path: Path) -> str:
    """The type that most matrices of a GGUF file have."""
    with open_gguf(path) as file:
        types = Counter(t.type.name for t in file.tensors.values() if len(t.shape) > 1)
    return types.most_common(1)[0][0] if types else ""


def converted(source: Path, model_type: str, progress: Callable[[str], None] = lambda text: None) -> Path:
    """The file of `source` with all matrices in `model_type`, made from its dequantised weights where it is not there.

    "" is the file itself. Speed is that of any file of the type; its answers are worse than those of the source.
    """
    if not model_type:
        return source
    if source.suffix != ".gguf":
        raise RlxError(f"bench: only GGUF files are converted, got {source}")
    if main_type(source) == model_type:
        raise RlxError(f"bench: {source.name} has the type {model_type} already")
    info = source.stat()
    identity = f"{source.resolve()} {info.st_size} {info.st_mtime_ns}"
    name = f"{source.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}-{model_type}.gguf"
    target = models_directory() / FOLDER / name
    with lock(FOLDER):
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            progress(f"converting {source.name} to {model_type}")
            quantize_file(source, target, model_type)
    return target
