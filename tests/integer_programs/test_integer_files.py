"""Integer programs as files: the same program, the same bytes, and no damage goes unseen."""

import hashlib
import json
import struct

import numpy as np
import pytest

from integer_programs.float_networks import CONVNET_DIMS, convnet, images, traced
from integer_programs.random_steps import KINDS, codes_for, random_program
from rlx.errors import FormatError, RlxError
from rlx.quantized import from_bytes, load, pack, quantize, save, to_bytes, unpack


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind, tmp_path):
    rng = np.random.default_rng(9)
    for _ in range(5):
        program = random_program(kind, rng)
        path = tmp_path / "one.rlxq"
        save(program, path)
        again = load(path)
        assert to_bytes(again) == path.read_bytes() == to_bytes(program)
        codes = codes_for(rng, program.input, 4)
        assert again.run(codes).tolist() == program.run(codes).tolist()


def small_file():
    return to_bytes(random_program("conv2d", np.random.default_rng(2)))


def test_every_flipped_bit_is_an_error():
    data = bytearray(small_file())
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            with pytest.raises(RlxError):
                from_bytes(bytes(data))
            data[at] ^= 1 << bit
    from_bytes(bytes(data))


def test_every_cut_is_an_error():
    data = small_file()
    for end in range(len(data)):
        with pytest.raises(FormatError):
            from_bytes(data[:end])
    with pytest.raises(FormatError):
        from_bytes(data + b"\0")


def resealed(change, data=None):
    """A file with a changed text and a checksum that fits it."""
    data = small_file() if data is None else data
    magic, version, length = struct.unpack_from("<8sIQ", data)
    document, arrays = json.loads(data[20 : 20 + length]), data[20 + length + -(20 + length) % 16 : -32]
    changed = change(document)
    document = document if changed is None else changed
    text = json.dumps(document).encode()
    body = struct.pack("<8sIQ", magic, version, len(text)) + text
    body += bytes(-len(body) % 16) + arrays
    return body + hashlib.sha256(body).digest()


def setting(*path, to):
    def change(document):
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        setting("steps", to=[]),
        setting("steps", 0, 0, to="magic"),
        setting("steps", 0, 1, "inputs", to=[1]),
        setting("steps", 0, 1, "inputs", to=["x"]),
        setting("steps", 0, 1, "stride", to=[0, 1]),
        setting("steps", 0, 1, "stride", to="ab"),
        setting("steps", 0, 1, "groups", to=0),
        setting("steps", 0, 1, "groups", to=1.5),
        setting("steps", 0, 1, "low", to=-1000),
        setting("steps", 0, 1, "weights", "at", to=-1),
        setting("steps", 0, 1, "weights", "at", to=10**9),
        setting("steps", 0, 1, "weights", "bits", to=7),
        setting("steps", 0, 1, "weights", "dims", to=[10**6, 10**6, 10**6, 3]),
        setting("steps", 0, 1, "bias", "dtype", to="f32"),
        setting("steps", 0, 1, "extra", to=1),
        setting("steps", 0, 1, "out", "dims", to=[1, 1, 1]),
        setting("input", "dims", to=[]),
        setting("input", "scale", "hex", to="nan"),
        setting("input", "dtype", "name", to="i33"),
        setting("input", "zero_point", to=99999),
        setting("input_axes", to=[0, 0, 1]),
        lambda document: {"name": "x"},
        lambda document: [],
        lambda document: document["steps"][0][1].pop("bias") and None,
    ],
)
def test_programs_that_cannot_be_are_refused(change):
    with pytest.raises(FormatError):
        from_bytes(resealed(change))
    from_bytes(resealed(lambda document: None))


def test_versions_and_files_of_other_kinds(tmp_path):
    data = bytearray(small_file())
    data[8] = 9
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    with pytest.raises(FormatError, match="version 9 of the format is not known"):
        from_bytes(bytes(data))
    with pytest.raises(FormatError, match="this is no integer program"):
        from_bytes(b"GGUF" + bytes(100))
    with pytest.raises(FormatError, match="there is no such file; programs that come with rlx"):
        load(tmp_path / "absent.rlxq")


def test_the_same_program_has_the_same_bytes():
    graph, x = traced(convnet, CONVNET_DIMS), images(30, CONVNET_DIMS)
    first, second = (to_bytes(quantize(graph, {}, [{"x": x}], bits=4)) for _ in range(2))
    assert first == second


def test_narrow_weights_make_small_files():
    graph, x = traced(convnet, CONVNET_DIMS), images(30, CONVNET_DIMS)
    sizes = [len(to_bytes(quantize(graph, {}, [{"x": x}], bits=bits))) for bits in (8, 4, 2)]
    weights = 6 * 27 + 4 * 36 + 240
    assert sizes[0] - sizes[1] == pytest.approx(weights / 2, abs=32)
    assert sizes[1] - sizes[2] == pytest.approx(weights / 4, abs=32)


@pytest.mark.parametrize(
    "codes, bits, data", [([1, 0, -1, 1, -1, 0], 2, "71 03"), ([7, -7, 1, -1, 3], 4, "97 f1 03"), ([-1, 5], 8, "ff 05")]
)
def test_packing_of_the_golden_vectors(codes, bits, data):
    assert pack(codes, bits) == bytes.fromhex(data)
    assert unpack(bytes.fromhex(data), len(codes), bits).tolist() == codes


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing_round_trips(bits):
    rng = np.random.default_rng(bits)
    for count in range(40):
        codes = rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), count)
        assert unpack(pack(codes, bits), count, bits).tolist() == codes.tolist()
    with pytest.raises(RlxError, match="codes lie in"):
        pack([2 ** (bits - 1)], bits)
    with pytest.raises(RlxError, match="codes of"):
        unpack(b"\0\0\0\0", 1, bits)


def mutated(value, rng):
    """A document in which one thing is another."""
    if rng.random() < 0.15 or not isinstance(value, list | dict) or not value:
        odd = [None, True, -1, 0, 1, 3, 2**31, 10**30, "", "i8", "nan", [], {}, [0], {"is": "array"}, {"is": "value"}]
        return odd[rng.integers(len(odd))]
    if isinstance(value, list):
        at = int(rng.integers(len(value)))
        return [mutated(v, rng) if n == at else v for n, v in enumerate(value)]
    key = sorted(value)[int(rng.integers(len(value)))]
    if rng.random() < 0.1:
        return {k: v for k, v in value.items() if k != key}
    return {k: mutated(v, rng) if k == key else v for k, v in value.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_malformed_texts_with_right_checksums_are_errors_of_rlx(kind):
    """Whatever the text says, a file is a program that runs or an error that says what is wrong."""
    rng = np.random.default_rng(6)
    data = to_bytes(random_program(kind, rng))
    refused = 0
    for _ in range(200):
        try:
            program = from_bytes(resealed(lambda document: mutated(document, rng), data))
        except FormatError:
            refused += 1
            continue
        if program.input.size < 10**6 and max(s.out.size for s in program.steps) < 10**6:
            program.run(np.zeros((1, *program.input.dims), program.input.dtype.numpy))
    assert refused > 50
