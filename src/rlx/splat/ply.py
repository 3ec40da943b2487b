"""PLY files: their header and elements, without knowing what they are for.

A file is a header of text lines, then the rows of its elements, one after the other, as text or in binary. Sizes are
checked against the file before anything is allocated; lists are not read, as splats have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from rlx.errors import FormatError
from rlx.formats.mapped_file import file_bytes, replace_file

Column = npt.NDArray[np.generic]
# Property name -> column, for each element.
Elements = dict[str, dict[str, Column]]

_MOST_HEADER = 65536
_MOST_PROPERTIES = 512
_TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    **dict.fromkeys(("uchar", "uint8"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}
_NAMES = {"i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int", "u4": "uint", "f4": "float"}
_ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


class _Element(NamedTuple):
    name: str
    rows: int
    # Name and type code, in the order of the file.
    properties: list[tuple[str, str]]
    has_lists: bool


def read_ply(path: Path) -> Elements:
    """The columns of every element up to the first that has lists."""
    content = file_bytes(path)
    order, elements, at = _header(path, bytes(content[:_MOST_HEADER]))
    found: Elements = {}
    if not order:
        return _rows_of_text(path, elements, bytes(content[at:]))
    for element in elements:
        if element.has_lists:
            break
        if not element.properties:
            found[element.name] = {}
            continue
        row = np.dtype([(name, f"{order}{code}") for name, code in element.properties])
        if element.rows > (content.size - at) // row.itemsize:
            _fail(
                path,
                f"element {element.name} says {element.rows} rows of {row.itemsize} bytes, but {content.size - at} "
                "bytes are left; the file is cut off or damaged",
            )
        rows = content[at : at + element.rows * row.itemsize].view(row)
        at += element.rows * row.itemsize
        found[element.name] = {n: rows[n].astype(rows[n].dtype.newbyteorder("=")) for n, _ in element.properties}
    return found


def _fail(path: Path, what: str) -> NoReturn:
    raise FormatError(f"{path}: {what}")


def _header(path: Path, start: bytes) -> tuple[str, list[_Element], int]:
    """The byte order ("" for text), the elements, and where their rows begin."""
    if not start.startswith(b"ply"):
        _fail(path, "not a PLY file: it must start with 'ply'")
    end = start.find(b"end_header")
    stop = start.find(b"\n", end) if end >= 0 else -1
    if stop < 0:
        _fail(path, f"the header has no 'end_header' line within {_MOST_HEADER} bytes")
    order: str | None = None
    elements: list[_Element] = []
    for number, line in enumerate(start[:end].decode("latin-1").splitlines()[1:], 2):
        match line.split():
            case [] | ["comment" | "obj_info", *_]:
                pass
            case ["format", kind, "1.0"] if kind in _ORDERS and order is None:
                order = _ORDERS[kind]
            case ["element", name, count] if count.isascii() and count.isdigit() and len(count) <= 12:
                if any(e.name == name for e in elements):
                    _fail(path, f"line {number}: element {name} is declared twice")
                elements.append(_Element(name, int(count), [], False))
            case ["property", "list", *_] if elements:
                elements[-1] = elements[-1]._replace(has_lists=True)
            case ["property", kind, name] if elements and kind in _TYPES:
                if any(known == name for known, _ in elements[-1].properties):
                    _fail(path, f"line {number}: property {name} is declared twice")
                elements[-1].properties.append((name, _TYPES[kind]))
                if len(elements[-1].properties) > _MOST_PROPERTIES:
                    _fail(path, f"element {elements[-1].name} has more than {_MOST_PROPERTIES} properties")
            case _:
                _fail(path, f"line {number} of the header is not understood: {line[:80]!r}")
    if order is None:
        _fail(path, "the header has no 'format' line with ascii, binary_little_endian or binary_big_endian 1.0")
    return order, elements, stop + 1


def _rows_of_text(path: Path, elements: list[_Element], text: bytes) -> Elements:
    found: Elements = {}
    lines = text.split(b"\n")
    at = 0
    for element in elements:
        if element.has_lists:
            break
        if element.rows > len(lines) - at:
            _fail(path, f"element {element.name} says {element.rows} rows, but {len(lines) - at} lines are left")
        try:
            rows = [[float(word) for word in line.split()] for line in lines[at : at + element.rows]]
        except ValueError as error:
            _fail(path, f"element {element.name} has a row that is not made of numbers: {error}")
        width = len(element.properties)
        if any(len(row) != width for row in rows):
            _fail(path, f"element {element.name} needs {width} numbers in every row")
        table = np.asarray(rows, np.float64).reshape(element.rows, width)
        at += element.rows
        with np.errstate(all="ignore"):
            found[element.name] = {
                name: table[:, i].astype(np.dtype(code)) for i, (name, code) in enumerate(element.properties)
            }
    return found


def write_ply(path: Path, elements: Mapping[str, Mapping[str, Column]], comment: str = "") -> None:
    """Columns to a binary file, little endian; it appears whole or not at all."""
    lines = ["ply", "format binary_little_endian 1.0", *([f"comment {comment}"] if comment else [])]
    tables = []
    for element, columns in elements.items():
        count = len(next(iter(columns.values()))) if columns else 0
        row = np.dtype([(name, column.dtype.newbyteorder("<")) for name, column in columns.items()])
        table = np.empty(count, row)
        lines.append(f"element {element} {count}")
        for name, column in columns.items():
            table[name] = column
            lines.append(f"property {_NAMES[column.dtype.str[1:]]} {name}")
        tables.append(table)
    with replace_file(path) as file:
        file.write("\n".join([*lines, "end_header", ""]).encode("ascii"))
        for table in tables:
            file.write(table.tobytes())
