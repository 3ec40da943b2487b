"""Hashes of rlx's own sources: what is kept on disk is found again only by the sources that made it.

    source_stamp("kernels/ir", "kernels/emit")

covers every Python file below the named folders, however deep, by its path and its bytes: a file that changes, moves,
comes or goes gives another stamp. A name that is not there is an error, so that no re-layout can leave a stamp that
covers nothing.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

from rlx.errors import InternalError

PACKAGE = Path(__file__).parent


@cache
def source_stamp(*names: str, package: Path = PACKAGE) -> str:
    """The stamp of files and folders, named relative to the package; "." is all of it."""
    stamp = hashlib.sha256()
    for name in names:
        files = source_files(package / name)
        if not files:
            raise InternalError(f"no sources at rlx/{name}: the stamp of what they decide must name where they are now")
        for file in files:
            with open(file, "rb", buffering=0) as source:
                content = source.read()
            path = file.removeprefix(str(package)).replace(os.sep, "/")
            stamp.update(f"{path} {len(content)}\0".encode())
            stamp.update(content)
    return stamp.hexdigest()


def source_files(root: Path) -> list[str]:
    """The file, or all Python files below the folder. Strings, not paths: every process reads a thousand of them."""
    if root.is_file():
        return [str(root)]
    found: list[str] = []
    folders = [str(root)] if root.is_dir() else []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    found.append(entry.path)
                elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return sorted(found)
