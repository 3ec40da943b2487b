"""Object code kept on disk, one file per kernel, so that the next process need not compile; programs likewise.

Entries are checked on every read: a damaged, truncated or foreign file counts as absent and is compiled anew, and so
does anything but a regular file that this user alone can write. Files can be deleted at any time. What is promised of
the format: nothing but that an unknown version is ignored.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from rlx.cache_directory import cache_directory
from rlx.errors import BackendError

_MAGIC = b"rlxobj\x00\x01"  # the last byte is the format version
_DIGEST_BYTES = 32

_HANDLES = "/proc/self/fd"

# What a cache may grow to. A look at all of it takes a second where there are many entries, and happens about once for
# as many bytes that were written, by whichever processes.
MAX_BYTES = 1 << 30
_LOOK_AFTER_BYTES = 1 << 24


class ObjectCache(Protocol):
    """Where object code is looked up before it is compiled."""

    def get(self, key: str) -> bytes | None: ...

    def has(self, key: str) -> bool:
        """Whether there seems to be an entry; `get` looks closer."""
        ...

    def put(self, key: str, code: bytes) -> None: ...


def open_private(path: Path) -> IO[bytes]:
    """An entry to read, if it is a regular file of this user that nobody else can write; otherwise an `OSError`.

    The file that was opened is looked at, not the name, which may mean another file by then. Links are not followed,
    and opening waits for nobody, so that a pipe in the place of an entry does not block."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    info = os.fstat(file.fileno())
    is_ours = not hasattr(os, "getuid") or (info.st_uid == os.getuid() and not info.st_mode & 0o022)
    if not (stat.S_ISREG(info.st_mode) and is_ours):
        file.close()
        raise PermissionError(f"{path} is not a regular file that this user alone can write")
    return file


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A private file to write into that appears as `path` when the block ends well, so that no reader ever sees half of
    it. However else the block ends, by Ctrl-C or with the process, nothing is left."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    unnamed = _open_unnamed(path.parent)
    is_named = unnamed is None
    # Systems without files that have no name keep it if the process is killed; `DiskCache.trim` finds it.
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600) if unnamed is None else unnamed
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if not is_named:
                _give_name(handle, beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _open_unnamed(directory: Path) -> int | None:
    """A file in a directory that vanishes when it is closed, if the system has such files."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(_HANDLES):
        return None
    try:
        return os.open(directory, os.O_WRONLY | os.O_TMPFILE, 0o600)
    except OSError:
        return None


def _give_name(handle: int, path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        # With a directory given, the link is followed to the file that is open.
        os.link(f"{_HANDLES}/{handle}", path.name, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


class DiskCache:
    """An `ObjectCache` in a directory that only this user can read or write: code from it is run.

    `folder` is what entries of one kind are in, inside of the directory."""

    def __init__(self, directory: Path | str | None = None, folder: str = "objects") -> None:
        self.directory = (Path(directory) if directory is not None else cache_directory()) / folder
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = self.directory.lstat()
        is_private = stat.S_ISDIR(info.st_mode) and not info.st_mode & 0o077
        if hasattr(os, "getuid") and not (is_private and info.st_uid == os.getuid()):
            raise BackendError(
                f"{self.directory} must be a directory of your own with mode 700, because code is loaded from it; "
                "fix it with chmod 700, or set RLX_CACHE_DIR to another place"
            )

    def get(self, key: str) -> bytes | None:
        try:
            with open_private(self._path(key)) as file:
                content = file.read()
        except OSError:
            return None
        head = len(_MAGIC) + _DIGEST_BYTES
        code = content[head:]
        if content[:head] != _MAGIC + _digest(key, code):
            return None
        return code

    def has(self, key: str) -> bool:
        return self._path(key).exists()

    def put(self, key: str, code: bytes) -> None:
        """Keep an entry. Failure to write is not an error."""
        digest = _digest(key, code)
        try:
            with whole_file(self._path(key)) as file:
                file.write(_MAGIC + digest + code)
            if _asks_for_a_look(digest, len(code)):
                self.trim(MAX_BYTES)
        except OSError:
            return

    def trim(self, max_bytes: int) -> None:
        """Delete the oldest entries, and what writers that were killed left, until the rest fits into `max_bytes`."""
        entries = sorted(self._entries(), reverse=True)
        total = 0
        for _, size, path in entries:
            total += size
            if total > max_bytes:
                # A directory that somebody has put there stays; it must not keep the others.
                with suppress(OSError):
                    os.unlink(path)

    def _entries(self) -> list[tuple[float, int, str]]:
        entries = []
        with os.scandir(self.directory) as found:
            for entry in found:
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                entries.append((info.st_mtime, info.st_size, entry.path))
        return entries

    def _path(self, key: str) -> Path:
        if not key.isalnum():
            raise BackendError(f"a cache key is letters and digits, got {key!r}")
        return self.directory / f"{key}.o"


def _asks_for_a_look(digest: bytes, size: int) -> bool:
    """Whether an entry of this size is one of those after which the whole cache is looked at: digests are as good as
    drawn, so that larger entries are it more often, and all processes together often enough."""
    return int.from_bytes(digest[:4], "big") * _LOOK_AFTER_BYTES < size << 32


def _digest(key: str, code: bytes) -> bytes:
    """Over the key too, so that a file under another kernel's name is no entry."""
    return hashlib.sha256(key.encode() + b"\0" + code).digest()
