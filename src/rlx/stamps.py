"""Hashes of rlx's own sources: what is kept on disk is found again only by the sources that made it.

    source_stamp("kernels/ir", "kernels/emit")

covers every Python file below the named folders, however deep, by its path and its bytes: a file that changes, moves,
comes or goes gives another stamp. A name that is not there is an error, so that no re-layout can leave a stamp that
covers nothing.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from rlx.errors import InternalError

PACKAGE = Path(__file__).parent


@cache
def source_stamp(*names: str, package: Path = PACKAGE) -> str:
    """The stamp of files and folders, named relative to the package; "." is all of it."""
    stamp = hashlib.sha256()
    for name in names:
        root = package / name
        files = [root] if root.is_file() else sorted(root.rglob("*.py"))
        if not files:
            raise InternalError(f"no sources at rlx/{name}: the stamp of what they decide must name where they are now")
        for file in files:
            content = file.read_bytes()
            stamp.update(f"{file.relative_to(package).as_posix()} {len(content)}\0".encode() + content)
    return stamp.hexdigest()
