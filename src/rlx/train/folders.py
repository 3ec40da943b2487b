"""The folder of a run: where it lies, and what is said when it cannot be written to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlx.errors import TrainingError


def folder_of(out: str | os.PathLike[str]) -> Path:
    """The folder that a run is written to, which need not exist yet."""
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise TrainingError(f"{folder} is a file; a run is written to a folder")
    return folder


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Around what a run writes before its first step."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{folder}: the folder of the run cannot be written to: {error.strerror or error}; choose another one"
        ) from error
