"""A corpus of damaged and hostile GGUF and safetensors files, each with the words its error must contain.

    python tools/make_malformed_files.py FOLDER      # writes the files and a list of what is wrong with each

The files are put together byte by byte here, not by rlx's writers, which refuse to make most of them. The tests of
`rlx.formats` use `malformed_gguf()` and `malformed_safetensors()`; other readers may be tried on the written files.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import NamedTuple

U8, I8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10
TYPE_F32, TYPE_Q4_0 = 0, 2


class Case(NamedTuple):
    """One file. `lazy` files open well and fail when the part that is wrong is read."""

    name: str
    content: bytes
    message: str
    lazy: bool = False


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def tensor(
    name: str | bytes = "t",
    dims: tuple[int, ...] = (8,),
    kind: int = TYPE_F32,
    offset: int = 0,
    rank: int | None = None,
) -> bytes:
    sizes = b"".join(map(u64, dims))
    return text(name) + u32(len(dims) if rank is None else rank) + sizes + u32(kind) + u64(offset)


def gguf(
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    pair_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file of version 3, well formed as far as its parts are."""
    counts = (len(tensors) if tensor_count is None else tensor_count, len(pairs) if pair_count is None else pair_count)
    head = b"GGUF" + u32(version) + u64(counts[0]) + u64(counts[1]) + b"".join(pairs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def sound_gguf() -> bytes:
    """A small file with every kind of metadata and two tensors; the malformed ones are near it."""
    pairs = (
        pair("general.architecture", STRING, text("test")),
        pair("flag", BOOL, b"\1"),
        pair("number", F32, struct.pack("<f", 0.5)),
        pair("tokens", ARRAY, _texts(2, text("a"), text("ö"))),
        pair("scores", ARRAY, u32(F32) + u64(2) + bytes(8)),
        pair("nested", ARRAY, u32(ARRAY) + u64(1) + u32(U8) + u64(3) + b"\1\2\3"),
    )
    tensors = (tensor("a", (8,)), tensor("b", (32, 2), TYPE_Q4_0, 32))
    return gguf(pairs, tensors, bytes(range(32)) + bytes(36))


def _nested(depth: int) -> bytes:
    return (u32(ARRAY) + u64(1)) * depth + u32(U8) + u64(0)


def _texts(count: int, *items: bytes) -> bytes:
    """The value of an array that says it has `count` strings."""
    return u32(STRING) + u64(count) + b"".join(items)


def _with_alignment(kind: int, value: bytes) -> bytes:
    return gguf((pair("general.alignment", kind, value),), (tensor(),), bytes(32))


def malformed_gguf() -> list[Case]:
    huge = 2**63
    data = bytes(64)
    return [
        Case("empty", b"", "the file is empty"),
        Case("other_magic", b"GGML" + bytes(60), "starts with b'GGUF'"),
        Case("magic_only", b"GGUF", "version needs 4 bytes"),
        Case("version_0", gguf(version=0), "versions 1, 2 and 3, got 0"),
        Case("version_4", gguf(version=4), "versions 1, 2 and 3, got 4"),
        Case("version_huge", gguf(version=2**32 - 1), "versions 1, 2 and 3"),
        Case("huge_tensor_count", gguf(tensor_count=huge), "number of tensors"),
        Case("huge_pair_count", gguf(pair_count=huge), "number of metadata pairs"),
        Case("one_pair_too_many", gguf((pair("a", U8, b"\1"),), pair_count=2) + bytes(64), "empty key"),
        Case("huge_key", gguf((u64(huge) + b"key",)), "key of metadata pair 0 needs"),
        Case("key_not_utf8", gguf((pair(b"\xff\xfe", U8, b"\1"),)), "not UTF-8"),
        Case("empty_key", gguf((pair("", U8, b"\1"),)), "empty key"),
        Case("key_twice", gguf((pair("k", U8, b"\1"), pair("k", U8, b"\2"))), "'k' occurs twice"),
        Case("unknown_value_type", gguf((pair("k", 13, bytes(8)),)), "'k' has type 13"),
        Case("value_type_huge", gguf((pair("k", 2**32 - 1, bytes(8)),)), "has type 4294967295"),
        Case("value_cut", gguf((pair("k", U64, b"\1"),), alignment=1), "'k' needs 8 bytes"),
        Case("huge_string", gguf((pair("k", STRING, u64(huge)),)), "'k' needs 9223372036854775808 bytes"),
        Case("string_not_utf8", gguf((pair("k", STRING, text(b"\xc3\x28")),)), "'k' is not UTF-8"),
        Case("truth_of_two", gguf((pair("k", BOOL, b"\2"),)), "0 or 1, got 2"),
        Case("truths_of_two", gguf((pair("k", ARRAY, u32(BOOL) + u64(3) + b"\1\0\2"),)), "0 or 1, got 2"),
        Case("unknown_element_type", gguf((pair("k", ARRAY, u32(77) + u64(0)),)), "has type 77"),
        Case("huge_byte_array", gguf((pair("k", ARRAY, u32(U8) + u64(huge)),)), "'k' says 9223372036854775808 items"),
        Case("huge_number_array", gguf((pair("k", ARRAY, u32(U64) + u64(2**61)),)), "says 2305843009213693952 items"),
        Case("huge_string_array", gguf((pair("k", ARRAY, _texts(2**40)),)), "says 1099511627776 items"),
        Case("huge_array_array", gguf((pair("k", ARRAY, u32(ARRAY) + u64(2**40)),)), "says 1099511627776 items"),
        Case("string_past_end", gguf((pair("k", ARRAY, _texts(1, u64(huge))),)), "string 0 of metadata 'k'"),
        Case("deep_nesting", gguf((pair("k", ARRAY, _nested(5000)),)), "more than 8 deep"),
        Case(
            "element_not_utf8",
            gguf((pair("k", ARRAY, u32(STRING) + u64(1) + text(b"\xff")),)),
            "string 0 of",
            lazy=True,
        ),
        Case("alignment_0", _with_alignment(U32, u32(0)), "power of two and at least 8, got 0"),
        Case("alignment_4", _with_alignment(U32, u32(4)), "power of two and at least 8, got 4"),
        Case("alignment_48", _with_alignment(U32, u32(48)), "power of two and at least 8, got 48"),
        Case("alignment_of_wrong_type", _with_alignment(U64, u64(32)), "must be a uint32, got uint64"),
        Case("alignment_text", _with_alignment(STRING, text("32")), "must be a uint32, got string"),
        Case("alignment_past_end", _with_alignment(U32, u32(2**31)), "the file ends at"),
        Case("tensor_name_not_utf8", gguf((), (tensor(b"\xff"),), data), "name of tensor 0 is not UTF-8"),
        Case("tensor_twice", gguf((), (tensor("t"), tensor("t", offset=32)), data), "'t' occurs twice"),
        Case("five_dims", gguf((), (tensor(dims=(1, 1, 1, 1, 8)),), data), "has 5 dims"),
        Case("huge_rank", gguf((), (tensor(rank=2**32 - 1),), data), "has 4294967295 dims"),
        Case("huge_dim", gguf((), (tensor(dims=(2**64 - 1,)),), data), "more elements than fit"),
        Case("dims_that_overflow", gguf((), (tensor(dims=(2**32, 2**32)),), data), "more elements than fit"),
        Case("zero_times_huge", gguf((), (tensor(dims=(0, 2**63)),), data), "more elements than fit"),
        Case("removed_type", gguf((), (tensor(kind=4),), data), "unknown type 4"),
        Case("unknown_type", gguf((), (tensor(kind=999),), data), "unknown type 999"),
        Case("row_of_half_a_block", gguf((), (tensor(dims=(48,), kind=TYPE_Q4_0),), data), "multiple of 32"),
        Case("offset_not_aligned", gguf((), (tensor(offset=8),), data), "not a multiple of the alignment 32"),
        Case("offset_past_end", gguf((), (tensor(offset=2**40),), data), "the file ends at"),
        Case("offset_that_wraps", gguf((), (tensor(offset=2**64 - 32),), data), "the file ends at"),
        Case("data_cut", gguf((), (tensor(dims=(9,)),), bytes(35)), "the file ends at"),
        Case("tensors_overlap", gguf((), (tensor("a", (16,)), tensor("b", offset=32)), data), "'a' and 'b' overlap"),
    ]


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return u64(len(body) if length is None else length) + body + data


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def sound_safetensors() -> bytes:
    """A small file that the malformed ones are near."""
    header = {"__metadata__": {"format": "pt"}, "a": entry(), "b": entry("U8", (3, 2), (8, 14))}
    return safetensors(header, bytes(range(14)))


def malformed_safetensors() -> list[Case]:
    data = bytes(8)
    return [
        Case("empty", b"", "the file is empty"),
        Case("seven_bytes", bytes(7), "header length needs 8 bytes"),
        Case("huge_header", safetensors({}, length=2**63), "header says it has 9223372036854775808 bytes"),
        Case("header_past_end", safetensors({}, length=3), "header says it has 3 bytes"),
        Case("header_not_json", safetensors(b"hello!"), "not a JSON object"),
        Case("header_not_utf8", safetensors(b'{"\xff": 1}'), "not a JSON object"),
        Case("header_cut", safetensors(b'{"a": {"dtype"'), "not a JSON object"),
        Case("header_list", safetensors([1, 2]), "JSON object is needed, got list"),
        Case("header_deep", safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "header"),
        Case("name_twice", safetensors(b'{"a":1,"a":2}'), "'a' occurs twice"),
        Case("nan", safetensors(b'{"a":NaN}'), "NaN is not JSON"),
        Case("entry_not_object", safetensors({"a": 3}), "'a' must have exactly"),
        Case(
            "entry_lacks_shape", safetensors({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, data), "must have exactly"
        ),
        Case("entry_has_more", safetensors({"a": {**entry(), "x": 1}}, data), "must have exactly"),
        Case("unknown_dtype", safetensors({"a": entry("F12")}, data), "unknown dtype 'F12'"),
        Case("dtype_number", safetensors({"a": entry(7)}, data), "unknown dtype 7"),
        Case("negative_dim", safetensors({"a": entry(shape=(-2,))}, data), "whole numbers from 0 on"),
        Case("fraction_dim", safetensors({"a": entry(shape=(2.0,))}, data), "whole numbers from 0 on"),
        Case("true_dim", safetensors({"a": entry(shape=(True, 2))}, data), "whole numbers from 0 on"),
        Case("shape_text", safetensors({"a": entry(shape="2")}, data), "whole numbers from 0 on"),
        Case("many_dims", safetensors({"a": entry(shape=[1] * 100)}, data), "whole numbers from 0 on"),
        Case("huge_dims", safetensors({"a": entry(shape=(2**40, 2**40))}, data), "more than fits"),
        Case("zero_times_huge", safetensors({"a": entry(shape=(0, 2**62), offsets=(0, 0))}, b""), "more than fits"),
        Case("offsets_reversed", safetensors({"a": entry(offsets=(8, 0))}, data), "begin and an end"),
        Case("offsets_past_end", safetensors({"a": entry(offsets=(0, 16))}, data), "begin and an end"),
        Case("three_offsets", safetensors({"a": entry(offsets=(0, 4, 8))}, data), "begin and an end"),
        Case("wrong_size", safetensors({"a": entry(shape=(3,))}, data), "has 12 bytes, its place has 8"),
        Case("half_a_byte", safetensors({"a": entry("F4", (3,), (0, 1))}, b"\0"), "has 1.5 bytes"),
        Case("gap", safetensors({"a": entry(offsets=(8, 16))}, bytes(16)), "gap after the header"),
        Case("overlap", safetensors({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "overlaps with 'a'"),
        Case("more_bytes", safetensors({"a": entry()}, bytes(9)), "1 bytes follow the last tensor"),
        Case("metadata_number", safetensors({"__metadata__": {"a": 1}}), "map strings to strings"),
        Case("metadata_list", safetensors({"__metadata__": []}), "map strings to strings"),
        Case("bool_of_two", safetensors({"a": entry("BOOL", (8,))}, b"\2" * 8), "0 or 1, got 2", lazy=True),
    ]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, cases in (("gguf", malformed_gguf()), ("safetensors", malformed_safetensors())):
        for case in cases:
            (folder / f"{case.name}.{suffix}").write_bytes(case.content)
            print(f"{case.name}.{suffix}: {case.message}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/make_malformed_files.py FOLDER")
    main(Path(sys.argv[1]))
