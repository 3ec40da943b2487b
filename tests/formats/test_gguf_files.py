"""GGUF files read and written: versions, byte orders, types, views, and byte-identical copies."""

import os
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.errors import FormatError
from rlx.formats.gguf import (
    TYPES,
    GgufTensor,
    TypedValue,
    ValueType,
    can_write,
    open_gguf,
    quantize,
    quantize_file,
    tensor_type,
    write_gguf,
)
from rlx.quant.decode import FORMATS

rng = np.random.default_rng(6)
METADATA = {
    "general.architecture": "test",
    "text": "ünïcode \n 🙂",
    "u32": 7,
    "negative": -7,
    "wide": 2**40,
    "widest": 2**64 - 1,
    "float": 0.1,
    "yes": True,
    "u8": np.uint8(200),
    "i16": np.int16(-300),
    "f64": np.float64(0.1),
    "tokens": ["a", "", "b c"],
    "ids": [1, -2, 3],
    "wide_ids": [2**40, 1],
    "scores": np.array([0.5, -1.5], np.float32),
    "flags": [True, False],
    "nothing": np.array([], np.int64),
    "nested": [["a", "b"], ["c"]],
    "nested_numbers": [np.array([1, 2], np.uint16), np.array([], np.uint16)],
}


def plain(value):
    """Metadata in a form that == compares."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    return [plain(item) for item in value] if isinstance(value, list) else value


def some_tensors():
    """One tensor of every type, with random bytes, plus a scalar and an empty one."""
    tensors = {}
    for kind in TYPES.values():
        raw = rng.integers(0, 256, 3 * 2 * kind.bytes).astype(np.uint8)
        tensors[f"t.{kind}"] = GgufTensor(f"t.{kind}", (3, 2 * kind.elements), kind, raw)
    tensors["scalar"] = GgufTensor("scalar", (), "F32", np.arange(4, dtype=np.uint8))
    tensors["empty"] = GgufTensor("empty", (0, 5), "I16", np.zeros(0, np.uint8))
    return tensors


@pytest.mark.parametrize("byte_order", ["little", "big"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_is_written_is_read(version, byte_order, tmp_path):
    path = tmp_path / "model.gguf"
    tensors = some_tensors()
    write_gguf(path, METADATA, tensors, version=version, byte_order=byte_order)
    with open_gguf(path) as file:
        assert (file.version, file.byte_order, file.alignment) == (version, byte_order, 32)
        wanted = {**METADATA, "float": float(np.float32(0.1)), "ids": np.array([1, -2, 3], np.int32)}
        wanted |= {"wide_ids": np.array([2**40, 1]), "flags": np.array([True, False])}
        wanted |= {key: METADATA[key].item() for key in ("u8", "i16", "f64")}
        assert {k: plain(v) for k, v in file.metadata.items()} == {k: plain(v) for k, v in wanted.items()}
        assert list(file.tensors) == list(tensors)
        for name, tensor in file.tensors.items():
            assert (tensor.name, tensor.shape, tensor.type) == (name, tensors[name].shape, tensors[name].type)
            assert tensor.offset % 32 == 0 and tensor.nbytes == tensors[name].nbytes
            assert tensor.data().tobytes() == tensors[name].data().tobytes()
            assert tensor.array().tobytes() == tensors[name].array().tobytes()


def test_big_endian_words_are_swapped_in_the_file(tmp_path):
    write_gguf(tmp_path / "little", {}, {"x": np.array([1.0, 2.0], np.float32)})
    write_gguf(tmp_path / "big", {}, {"x": np.array([1.0, 2.0], np.float32)}, byte_order="big")
    with open_gguf(tmp_path / "big") as file:
        at = file.tensors["x"].offset
        assert file.tensors["x"].array().tolist() == [1.0, 2.0]
    assert (tmp_path / "big").read_bytes()[at : at + 8] == np.array([1.0, 2.0], ">f4").tobytes()
    assert (tmp_path / "little").read_bytes()[at : at + 8] == np.array([1.0, 2.0], "<f4").tobytes()


def test_the_words_of_a_type_lie_inside_its_block():
    for kind in TYPES.values():
        covered = np.zeros(kind.bytes, int)
        for offset, width, count in kind.words:
            covered[offset : offset + width * count] += 1
            assert offset + width * count <= kind.bytes
        assert covered.max(initial=0) <= 1


@pytest.mark.parametrize("alignment", [8, 32, 128, 4096])
def test_copies_are_byte_identical(alignment, tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    write_gguf(source, {**METADATA, "general.alignment": alignment}, some_tensors())
    with open_gguf(source) as file:
        assert file.alignment == alignment
        write_gguf(copy, file.metadata, file.tensors)
    assert source.read_bytes() == copy.read_bytes()


def test_one_changed_value_keeps_the_types_of_the_others(tmp_path):
    write_gguf(tmp_path / "a", {"x": np.int8(3), "y": np.float64(0.1)}, {})
    with open_gguf(tmp_path / "a") as file:
        write_gguf(tmp_path / "b", {**file.metadata.typed(), "z": "new"}, file.tensors)
    with open_gguf(tmp_path / "b") as file:
        assert file.metadata.type_of("x") == (ValueType.INT8, None)
        assert (file.metadata["y"], file.metadata["z"]) == (0.1, "new")


VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=20).filter(lambda t: t.encode("utf-8", "replace").decode() == t),
    st.lists(st.text("abcäß🙂", max_size=5), min_size=1, max_size=5),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5).map(lambda v: np.array(v, np.int32)),
)


@settings(max_examples=60)
@given(metadata=st.dictionaries(st.text("abc._", min_size=1, max_size=8), VALUES, max_size=8), big=st.booleans())
def test_any_metadata_comes_back(metadata, big, tmp_path_factory):
    metadata.pop("general.alignment", None)
    path = tmp_path_factory.mktemp("gguf") / "model"
    write_gguf(path, metadata, {"x": np.arange(3.0)}, byte_order="big" if big else "little")
    with open_gguf(path) as file:
        assert {k: plain(v) for k, v in file.metadata.items()} == {k: plain(v) for k, v in metadata.items()}
        assert file.tensors["x"].array().tolist() == [0, 1, 2]


def test_tensors_are_views_of_the_file(tmp_path):
    path = tmp_path / "model"
    write_gguf(path, {}, {"x": np.arange(1000, dtype=np.float32)})
    file = open_gguf(path)
    data, array = file.tensors["x"].data(), file.tensors["x"].array()
    assert np.shares_memory(data, array) and not array.flags.writeable and not data.flags.owndata
    file.close()
    assert not file.tensors
    assert array[999] == 999.0


def test_quantised_arrays_are_f32_and_numbers_keep_their_dtype(tmp_path):
    write_gguf(tmp_path / "m", {}, {**some_tensors(), "bf": np.ones((2, 2), ml_dtypes.bfloat16)})
    with open_gguf(tmp_path / "m") as file:
        assert file.tensors["bf"].array().dtype == ml_dtypes.bfloat16
        for tensor in file.tensors.values():
            assert tensor.array().dtype == (np.float32 if tensor.type.is_quantized else tensor.type.dtype)


def test_what_a_model_needs_is_asked_for_by_type(tmp_path):
    write_gguf(tmp_path / "m", METADATA, {})
    metadata = open_gguf(tmp_path / "m").metadata
    assert (metadata.text("text"), metadata.integer("u32"), metadata.number("u32"), metadata.flag("yes")) == (
        METADATA["text"],
        7,
        7.0,
        True,
    )
    assert metadata.texts("tokens") == ["a", "", "b c"] and metadata.numbers("scores").tolist() == [0.5, -1.5]
    assert metadata.integer("missing", 3) == 3 and metadata.length_of("tokens") == 3
    for call, message in [
        (lambda: metadata.text("missing"), "'missing' is missing; it must be a string"),
        (lambda: metadata.integer("text"), "'text' must be a whole number"),
        (lambda: metadata.integer("yes"), "'yes' must be a whole number, got True"),
        (lambda: metadata.number("yes"), "'yes' must be a number"),
        (lambda: metadata.texts("nested"), "'nested' must be a list of strings"),
        (lambda: metadata.length_of("u32"), "'u32' is a uint32, not an array"),
    ]:
        with pytest.raises(FormatError, match=message):
            call()


def write_part(folder, number, count, tensors, **more):
    metadata = {"split.no": np.uint16(number - 1), "split.count": np.uint16(count), **more}
    write_gguf(folder / f"m-{number:05d}-of-{count:05d}.gguf", metadata, tensors)


def test_models_in_several_files(tmp_path):
    total = {"split.tensors.count": np.int32(3)}
    write_part(tmp_path, 1, 3, {"a": np.arange(3.0)}, **total, **{"general.architecture": "test"})
    write_part(tmp_path, 2, 3, {"b": np.arange(4.0)}, **total)
    first = tmp_path / "m-00001-of-00003.gguf"
    with pytest.raises(FormatError, match=r"part m-00003-of-00003\.gguf is missing"):
        open_gguf(first)
    write_part(tmp_path, 3, 3, {"c": np.arange(5.0)}, **total)
    with open_gguf(first) as file:
        assert {name: tensor.array().size for name, tensor in file.tensors.items()} == {"a": 3, "b": 4, "c": 5}
        assert file.metadata["general.architecture"] == "test"
    with pytest.raises(FormatError, match=r"one of 3 files; open the first, whose name ends in -00001-of-00003\.gguf"):
        open_gguf(tmp_path / "m-00002-of-00003.gguf")
    write_part(tmp_path, 3, 3, {"a": np.arange(5.0)}, **total)
    with pytest.raises(FormatError, match="'a' is also in an earlier part"):
        open_gguf(first)
    write_part(tmp_path, 3, 3, {})
    with pytest.raises(FormatError, match="should have 3 tensors together, they have 2"):
        open_gguf(first)
    (tmp_path / "m-00003-of-00003.gguf").write_bytes((tmp_path / "m-00002-of-00003.gguf").read_bytes())
    with pytest.raises(FormatError, match="says it is another part"):
        open_gguf(first)
    write_gguf(tmp_path / "m.gguf", {"split.count": np.uint16(9), "split.no": np.uint16(0)}, {})
    with pytest.raises(FormatError, match="one of 9 files"):
        open_gguf(tmp_path / "m.gguf")


def test_threads_share_a_file(tmp_path):
    lists = {f"k{i}": [f"{i}-{j}" for j in range(200)] for i in range(30)}
    write_gguf(tmp_path / "m", lists, {})
    file = open_gguf(tmp_path / "m")
    wrong = []

    def read():
        wrong.extend(key for key, value in lists.items() if file.metadata[key] != value)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"k": []}, {}, "'k' is an empty list"),
        ({"k": [1, "a"]}, {}, "'k' mixes values"),
        ({"k": 2**70}, {}, "'k' needs more than 64 bits"),
        ({"k": object()}, {}, "'k' cannot be written: object"),
        ({"k": np.zeros((2, 2))}, {}, "'k' must be a list or an array with one axis"),
        ({"k": np.zeros(2, complex)}, {}, "'k' has dtype complex128"),
        ({"k": TypedValue(ValueType.UINT8, None, 300)}, {}, "'k': uint8 cannot hold 300"),
        ({"k": TypedValue(ValueType.UINT8, None, 0.5)}, {}, "'k' is a uint8, got 0.5"),
        ({"k": "\ud800"}, {}, "not text that UTF-8 can hold"),
        ({"general.alignment": 24}, {}, "power of two"),
        ({}, {"x": np.zeros(3, complex)}, "cannot store complex128"),
        ({}, {"x": np.zeros((1, 1, 1, 1, 1))}, "has 5 dims; GGUF allows 4"),
    ],
)
def test_what_cannot_be_written(metadata, tensors, message, tmp_path):
    with pytest.raises(FormatError, match=message):
        write_gguf(tmp_path / "m", metadata, tensors)
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "m"
    write_gguf(path, {}, {"x": np.arange(3.0)})
    before = path.read_bytes()

    class Breaks:
        name, shape, type = "x", (3,), tensor_type("F64")

        def data(self):
            raise RuntimeError("no bytes")

    with pytest.raises(RuntimeError, match="no bytes"):
        write_gguf(path, {}, [Breaks()])
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["m"]


def test_written_files_have_the_mode_of_new_files(tmp_path):
    (tmp_path / "plain").touch()
    write_gguf(tmp_path / "m", {}, {})
    assert (tmp_path / "m").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_quantize_gives_the_bytes_of_the_type():
    values = rng.standard_normal((4, 256)).astype(np.float32)
    for name, kind in TYPES.items():
        if not can_write(kind):
            assert name.startswith("IQ") or kind.dtype in (np.int8, np.int16, np.int32, np.int64, np.float64)
            with pytest.raises(FormatError, match=rf"{name} can be read but not written here; use one of: F32 .*Q4_K"):
                quantize(values, name)
            continue
        packed = quantize(values, name)
        assert packed.dtype == np.uint8 and packed.size == 4 * 256 // kind.elements * kind.bytes
        back = GgufTensor("x", (4, 256), kind, packed).array().astype(np.float32)
        cosine = (back * values).sum() / np.sqrt((back**2).sum() * (values**2).sum())
        assert cosine > {"TQ1_0": 0.6, "TQ2_0": 0.6, "Q2_0": 0.7, "Q1_0": 0.7, "Q2_K": 0.9}.get(name, 0.97), name


def test_bf16_rounds_to_even_and_keeps_nan():
    values = np.array([1.0, 1.00390625, 1.01171875, -0.0, np.inf, np.nan, 3.4e38], np.float32)
    bits = values.view(np.uint32)
    wanted = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    got = quantize(values, "BF16").view(np.uint16)
    assert (got[[0, 1, 2, 3, 4, 6]] == wanted[[0, 1, 2, 3, 4, 6]]).all()
    assert np.isnan(got.view(ml_dtypes.bfloat16)[5])


def test_quantize_refuses_rows_of_half_blocks():
    with pytest.raises(FormatError, match=r"rows of Q4_0 must be a multiple of 32 long, got shape \[2, 33\]"):
        quantize(np.zeros((2, 33)), "Q4_0")
    with pytest.raises(FormatError, match="no tensor type 'Q4_9'"):
        quantize(np.zeros(32), "Q4_9")


def test_quantize_file(tmp_path):
    weights = {
        "token_embd.weight": rng.standard_normal((40, 256)).astype(np.float32),
        "blk.0.attn_norm.weight": np.ones(256, np.float32),
        "blk.0.ffn_up.weight": rng.standard_normal((8, 96)).astype(np.float16),
        "blk.0.odd.weight": rng.standard_normal((8, 7)).astype(np.float32),
        "blk.0.ffn_gate_inp.weight": rng.standard_normal((4, 256)).astype(np.float32),
        "ids": np.arange(512, dtype=np.int32).reshape(2, 256),
    }
    write_gguf(tmp_path / "f", {"general.architecture": "test", "general.file_type": 0}, weights)
    seen = []
    types = quantize_file(tmp_path / "f", tmp_path / "q", "q4_k", lambda *state: seen.append(state))
    assert types == {"Q4_K": 1, "F32": 2, "Q5_0": 1, "F16": 1, "I32": 1}
    assert [name for name, _, _ in seen] == list(weights) and seen[-1][1] == seen[-1][2]
    with open_gguf(tmp_path / "q") as file:
        assert file.metadata["general.file_type"] == 14 and file.metadata["general.quantization_version"] == 2
        got = file.tensors["token_embd.weight"]
        assert got.data().tobytes() == quantize(weights["token_embd.weight"], "Q4_K").tobytes()
        for name in ("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "ids"):
            assert (file.tensors[name].array() == weights[name]).all()
    # From one quantised type to another, through the numbers.
    quantize_file(tmp_path / "q", tmp_path / "q8", "Q8_0")
    with open_gguf(tmp_path / "q") as file, open_gguf(tmp_path / "q8") as again:
        numbers = file.tensors["token_embd.weight"].array()
        assert again.tensors["token_embd.weight"].data().tobytes() == quantize(numbers, "Q8_0").tobytes()


def test_large_tensors_are_converted_in_pieces(tmp_path, monkeypatch):
    values = rng.standard_normal((70, 64)).astype(np.float32)
    write_gguf(tmp_path / "f", {}, {"w": values})
    monkeypatch.setattr("rlx.formats.gguf.quantizer._PIECE_ELEMENTS", 64 * 16)
    quantize_file(tmp_path / "f", tmp_path / "q", "Q5_1")
    with open_gguf(tmp_path / "q") as file:
        assert file.tensors["w"].data().tobytes() == quantize(values, "Q5_1").tobytes()


def test_every_block_type_has_a_code():
    assert {kind.name for kind in TYPES.values() if kind.is_quantized} == set(FORMATS)
