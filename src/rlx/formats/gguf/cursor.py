"""Reading a GGUF header front to back: every step is checked against the end of the file before it is taken."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import U8

ByteOrder: TypeAlias = Literal["<", ">"]


class Cursor:
    """A place in the bytes of a file. `order` is `<` or `>`; lengths and counts have `length_bytes` bytes."""

    def __init__(self, path: Path, content: U8, order: ByteOrder, at: int, length_bytes: int) -> None:
        self.path, self.content, self.order, self.at = path, content, order, at
        self.end = content.size
        self.length_bytes = length_bytes
        self._view = content.data
        self._u32 = struct.Struct(f"{order}I")
        self._u64 = struct.Struct(f"{order}Q")
        self._length = self._u64 if length_bytes == 8 else self._u32

    def moved(self, at: int, end: int | None = None) -> Cursor:
        """A second cursor at `at`, so that readers in several threads do not disturb each other; for it the file ends
        at `end`, if that is given."""
        moved = Cursor(self.path, self.content, self.order, at, self.length_bytes)
        moved.end = self.end if end is None else end
        return moved

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        raise FormatError(f"{self.path}: byte {self.at if at is None else at}: {what}")

    def need(self, count: int, what: str) -> None:
        """Make sure that `count` more bytes exist."""
        if count > self.end - self.at:
            self.fail(f"{what} needs {count} bytes, the file has {self.end - self.at} left; it is cut off or damaged")

    def need_items(self, count: int, least: int, what: str) -> None:
        """Make sure that `count` items of at least `least` bytes can be there, before anything is made for them."""
        left = self.end - self.at
        if count > left // least:
            self.fail(
                f"{what} says {count} items, but the {left} bytes left hold at most {left // least}; "
                "the file is cut off or damaged"
            )

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = self._u32.unpack_from(self._view, self.at)
        self.at += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = self._u64.unpack_from(self._view, self.at)
        self.at += 8
        return int(value)

    def length(self, what: str) -> int:
        """A length or count: u64, or u32 in version 1."""
        return self.u64(what) if self.length_bytes == 8 else self.u32(what)

    def text(self, what: str) -> str:
        """A string: its length in bytes, then UTF-8."""
        start = self.at
        count = self.length(f"the length of {what}")
        self.need(count, what)
        try:
            value = str(self._view[self.at : self.at + count], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8: {error.reason} in its byte {error.start}", start)
        self.at += count
        return value

    def skip_texts(self, count: int, what: str) -> None:
        """Step over `count` strings."""
        at, end, view, width = self.at, self.end, self._view, self.length_bytes
        unpack = self._length.unpack_from
        for index in range(count):
            following = at + width
            if following > end or (following := following + unpack(view, at)[0]) > end:
                self.fail(f"string {index} of {what} goes past the end of the file", at)
            at = following
        self.at = at

    def texts(self, count: int, what: str, is_rest: bool) -> list[str]:
        """`count` strings that `skip_texts` has stepped over before; `is_rest` if nothing follows them."""
        rest, at, width = self._view[self.at : self.end], 0, self.length_bytes
        # Bytes are taken apart faster than a view of them.
        raw = bytes(rest) if is_rest else rest
        unpack = self._length.unpack_from
        values = []
        for index in range(count):
            start = at + width
            at = start + unpack(raw, at)[0]
            try:
                values.append(str(raw[start:at], "utf-8"))
            except UnicodeDecodeError as error:
                problem = f"string {index} of {what} is not UTF-8: {error.reason} in its byte {error.start}"
                self.fail(problem, self.at + start)
        self.at += at
        return values

    def numbers(self, dtype: np.dtype[np.generic], count: int, what: str) -> npt.NDArray[np.generic]:
        """`count` numbers as a read-only array, without a copy where the byte order is the machine's."""
        self.need(count * dtype.itemsize, what)
        raw = self.content[self.at : self.at + count * dtype.itemsize]
        self.at += raw.size
        values = raw.view(dtype.newbyteorder(self.order)).astype(dtype, copy=False)
        values.flags.writeable = False
        return values
