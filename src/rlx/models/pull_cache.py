"""Where pulled models live, and how they get there: checked, whole, and one process at a time.

`<cache>/models/<name>` holds the files of a model. A model is put together in a folder beside it and moved into place
when every file has been checked, so that a folder with that name is always complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from rlx.cache_directory import cache_directory
from rlx.errors import FormatError, RlxError
from rlx.models.pull_progress import Progress

# Of one part of a path; file systems allow 255, and names of parts that are still being fetched are longer.
MAX_NAME_BYTES = 200
_CHUNK = 1 << 20


def models_directory() -> Path:
    """`models` in the cache directory (`RLX_CACHE_DIR`, else the user's)."""
    return cache_directory() / "models"


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Keep other processes from pulling `name` at the same time; the lock ends with the process, however it ends."""
    folder = models_directory()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{name}.lock", "a+b") as file:
        _lock_file(file)
        yield


def _lock_file(file: IO[bytes]) -> None:
    if os.name == "nt":
        import msvcrt

        file.seek(0)
        # locking() gives up after ten seconds; another process may well need longer.
        while True:
            try:
                return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,no-any-return,unused-ignore]
            except OSError:
                time.sleep(0.1)
    import fcntl

    fcntl.flock(file.fileno(), fcntl.LOCK_EX)


@contextlib.contextmanager
def staging(final: Path) -> Iterator[Path]:
    """An empty folder that becomes `final` when the block ends well, and is removed otherwise."""
    final.parent.mkdir(parents=True, exist_ok=True)
    folder = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    folder.mkdir()
    try:
        yield folder
        if final.exists():
            shutil.rmtree(final)
        folder.replace(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def safe_path(folder: Path, name: str) -> Path:
    """The place of the file `name` inside `folder`; a name that leads out of it is refused."""
    parts = PurePosixPath(name).parts
    odd = {"", ".", ".."}
    if not parts or name.startswith("/") or "\\" in name or ":" in name or any(p in odd for p in parts):
        raise FormatError(f"{shortened(name)!r} is not a file name inside a model")
    # Characters that are none, or that file systems refuse, and names that are too long for them.
    if not name.isprintable() or any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in parts):
        raise FormatError(f"{shortened(name)!r} is not a file name that a model can have")
    return folder.joinpath(*parts)


def shortened(name: str) -> str:
    """A name as errors show it."""
    return name if len(name) <= 100 else f"{name[:90]}... ({len(name)} characters)"


def copy_checked(source: IO[bytes], target: Path, size: int, sha256: str, label: str, progress: Progress) -> None:
    """Copy exactly `size` bytes whose digest is `sha256`; nothing is left behind when they are not."""
    digest = hashlib.sha256()
    done = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as file:
        while done <= size and (chunk := source.read(_CHUNK)):
            digest.update(chunk)
            file.write(chunk)
            done += len(chunk)
            progress(label, done, size)
    if done != size or digest.hexdigest() != sha256:
        target.unlink()
        raise RlxError(
            f"pull: {label} is not the file that rlx knows: wanted {size} bytes with sha256 {sha256}, "
            f"got {done} bytes with {digest.hexdigest()}"
        )
