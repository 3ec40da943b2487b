"""Integer programs as files, `*.rlxq`: the same bytes for the same program, and any flipped bit is an error.

    magic, 8 bytes | version, u32 | length of the text, u64 | text, JSON | zeros to a multiple of 16 | arrays | sha256

All numbers are little endian. The text holds the steps; arrays are named by their place after it, each on a multiple of
16 bytes. Weights of 4 and 2 bits are packed. The sha256 is of everything before it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import struct
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from rlx.errors import FormatError, RlxError
from rlx.formats.mapped_file import file_bytes, replace_file
from rlx.ir.dtype import DType
from rlx.quantized import plain_steps, products, recurrent_steps, sequence_steps, table_steps
from rlx.quantized.packing import packed_size, unpack
from rlx.quantized.program import Program
from rlx.quantized.steps import Step
from rlx.quantized.values import Array, Multipliers, Value, Weights

VERSION = 1
_MAGIC = b"rlxq\r\n\x1a\n"
_START = struct.Struct("<8sIQ")
_ALIGN = 16
_DIGEST = 32
_SHIPPED = Path(__file__).with_name("data")

# Name in the file -> kind of step.
KINDS: dict[str, type[Step]] = {
    "dense": products.Dense,
    "conv2d": products.Conv2d,
    "max_pool": plain_steps.MaxPool,
    "mean_pool": plain_steps.MeanPool,
    "add": plain_steps.Add,
    "mul": plain_steps.Mul,
    "rescale": plain_steps.Rescale,
    "clamp": plain_steps.Clamp,
    "argmax": plain_steps.Argmax,
    "lookup": table_steps.Lookup,
    "softmax": table_steps.Softmax,
    "add_constant": plain_steps.AddConstant,
    "concat": plain_steps.Concat,
    "rows": plain_steps.Rows,
    "interpolate": table_steps.Interpolate,
    "layer_norm": sequence_steps.LayerNorm,
    "attention": sequence_steps.Attention,
    "gru": recurrent_steps.Gru,
    "lstm": recurrent_steps.Lstm,
}
_NAMES = {kind: name for name, kind in KINDS.items()}


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program; the file appears whole or not at all."""
    data = to_bytes(program)
    with replace_file(Path(path)) as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> Program:
    """The program of a file, or one that comes with rlx, by its name: `load("mnist")`."""
    place = Path(path)
    shipped = _SHIPPED / f"{place}.rlxq"
    if not place.exists() and place.name == str(place) and shipped.exists():
        place = shipped
    if not place.exists():
        known = ", ".join(sorted(f.stem for f in _SHIPPED.glob("*.rlxq"))) or "none"
        raise FormatError(f"{place}: there is no such file; programs that come with rlx: {known}")
    return from_bytes(file_bytes(place, mmap=False).tobytes(), str(place))


def to_bytes(program: Program) -> bytes:
    """The content of the file of a program."""
    arrays: list[bytes] = []
    document = {
        "name": program.name,
        "input": _encoded(program.input, arrays),
        "input_axes": list(program.input_axes),
        "steps": [[_NAMES[type(s)], _encoded_fields(s, arrays)] for s in program.steps],
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    body = _START.pack(_MAGIC, VERSION, len(text)) + text
    body += bytes(-len(body) % _ALIGN) + b"".join(arrays)
    return body + hashlib.sha256(body).digest()


def from_bytes(data: bytes, where: str = "program") -> Program:
    """The program of a file's content; a FormatError for anything else."""
    if len(data) < _START.size + _DIGEST or not data.startswith(_MAGIC):
        raise FormatError(f"{where}: this is no integer program of rlx (.rlxq)")
    body = data[:-_DIGEST]
    if hashlib.sha256(body).digest() != data[-_DIGEST:]:
        raise FormatError(f"{where}: the file is damaged; write it again")
    _, version, length = _START.unpack_from(body)
    if version != VERSION:
        raise FormatError(f"{where}: version {version} of the format is not known here, only {VERSION}; update rlx")
    if length > len(body) - _START.size:
        raise FormatError(f"{where}: the text is longer than the file")
    end = _START.size + length
    blob = memoryview(body)[end + -end % _ALIGN :]
    try:
        document = json.loads(body[_START.size : end], parse_float=_no_float, parse_constant=_no_float)
        return Program(
            str(document["name"]),
            _decoded(document["input"], blob),
            tuple(document["input_axes"]),
            tuple(KINDS[kind](**_decoded_fields(fields, blob)) for kind, fields in document["steps"]),
        )
    except RlxError as error:
        raise FormatError(f"{where}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(f"{where}: the program is malformed: {type(error).__name__}: {error}") from None


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"{text} is no integer; floats are written as text")


def _encoded_fields(owner: Any, arrays: list[bytes]) -> dict[str, Any]:
    return {f.name: _encoded(getattr(owner, f.name), arrays) for f in dataclasses.fields(owner)}


def _encoded(value: Any, arrays: list[bytes]) -> Any:
    match value:
        case Value() | Multipliers():
            return {"is": type(value).__name__.lower(), **_encoded_fields(value, arrays)}
        case Weights():
            place = _put(value.packed, arrays)
            scales = _encoded(value.scales, arrays)
            dims = list(value.codes.shape)
            return {"is": "weights", "at": place, "dims": dims, "bits": value.bits, "scales": scales}
        case np.ndarray():
            place = _put(np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes(), arrays)
            return {"is": "array", "at": place, "dims": list(value.shape), "dtype": str(DType.of(value.dtype))}
        case DType():
            return {"is": "dtype", "name": str(value)}
        case float():
            return {"is": "float", "hex": value.hex()}
        case tuple():
            return [_encoded(v, arrays) for v in value]
        case int() | str():
            return value
    raise TypeError(f"{type(value).__name__} has no place in a file")


def _put(data: bytes, arrays: list[bytes]) -> int:
    at = sum(map(len, arrays))
    arrays.append(data + bytes(-len(data) % _ALIGN))
    return at


def _decoded_fields(fields: dict[str, Any], blob: memoryview) -> dict[str, Any]:
    return {str(name): _decoded(value, blob) for name, value in fields.items() if name != "is"}


def _decoded(value: Any, blob: memoryview) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(v, blob) for v in value)
    if not isinstance(value, dict):
        if not isinstance(value, str | bool) and type(value) is not int:
            raise ValueError(f"{value!r:.40} has no place in a program")
        return value
    match value["is"]:
        case "value":
            return Value(**_decoded_fields(value, blob))
        case "multipliers":
            return Multipliers(**_decoded_fields(value, blob))
        case "weights":
            dims, bits = _dims(value), int(value["bits"])
            data = _cut(blob, value["at"], packed_size(math.prod(dims), bits))
            codes = unpack(data, math.prod(dims), bits).reshape(dims)
            return Weights(codes, _decoded(value["scales"], blob), bits)
        case "array":
            return _array(value, blob)
        case "dtype":
            return DType.of(value["name"])
        case "float":
            return float.fromhex(value["hex"])
    raise ValueError(f"there is no {value['is']!r}")


def _array(value: dict[str, Any], blob: memoryview) -> Array:
    dims, dtype = _dims(value), DType.of(value["dtype"])
    data = _cut(blob, value["at"], math.prod(dims) * dtype.size_bytes)
    return np.frombuffer(data, dtype.numpy).reshape(dims).copy()


def _dims(value: dict[str, Any]) -> tuple[int, ...]:
    dims = tuple(int(d) for d in value["dims"])
    if any(d < 0 for d in dims):
        raise ValueError(f"sizes must not be negative, got {dims}")
    return dims


def _cut(blob: memoryview, at: int, size: int) -> memoryview:
    if at < 0 or at + size > len(blob):
        raise ValueError(f"{size} bytes at {at} lie outside of the {len(blob)} bytes of arrays")
    return blob[at : at + size]
