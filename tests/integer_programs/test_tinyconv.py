"""TinyConv-MNIST and its weight file: the layout to the byte, the same program back, hostile files refused."""

import contextlib
import struct

import numpy as np
import pytest

from integer_programs import integer_oracle
from rlx.errors import FormatError
from rlx.quantized import QuantizedError, Weights, pack
from rlx.quantized.tinyconv import read_rlxm, tinyconv, write_rlxm

SHAPES = {"conv1": (8, 3, 3, 1), "conv2": (16, 3, 3, 8), "fc": (10, 400)}


def network(bits=8, seed=0):
    rng = np.random.default_rng(seed)
    weights = {k: Weights.of(rng.standard_normal(s).astype("f4") / np.sqrt(s[-1] * 9), bits) for k, s in SHAPES.items()}
    biases = {k: rng.integers(-500, 500, s[0]).astype("i4") for k, s in SHAPES.items()}
    return tinyconv(weights, biases, {"input": 1 / 127, "conv1": 0.02, "conv2": 0.03, "fc": 0.05})


def codes(n, seed=1):
    return np.random.default_rng(seed).integers(-127, 128, (n, 28, 28, 1)).astype("i1")


@pytest.mark.parametrize("bits, total", [(8, 6456), (4, 3844), (2, 2538)])
def test_the_layout_is_that_of_the_format(bits, total, tmp_path):
    path, program, image = tmp_path / "net.rlxm", network(bits), codes(1)[0]
    write_rlxm(program, path, 0.97, image)
    data = path.read_bytes()
    assert len(data) == total and data[:4] == b"RLXM" and struct.unpack_from("<HHfHH", data, 4)[3] == 10
    table = [struct.unpack_from("<HBBIII", data, 16 + 16 * i) for i in range(10)]
    assert [t[0] for t in table] == list(range(10))
    assert [t[4] for t in table] == [72, 8, 1152, 16, 4000, 10, 8, 16, 10, 784]
    kind = {8: 0, 4: 3, 2: 4}[bits]
    assert [t[1] for t in table] == [kind, 1, kind, 1, kind, 1, 2, 2, 2, 0]
    if bits == 8:
        assert sorted(t[3] for t in table) == [176, 208, 272, 312, 344, 408, 448, 520, 1672, 5672]
    first, second = (
        data[t[3] : t[3] + len(pack(program.steps[n].weights.codes, bits))] for t, n in ((table[0], 0), (table[2], 2))
    )
    assert first == pack(program.steps[0].weights.codes, bits) and second == pack(program.steps[2].weights.codes, bits)
    factors = np.frombuffer(data, "<f4", 8, table[6][3])
    assert factors.tolist() == (np.float32(1 / 127) * program.steps[0].weights.scales / np.float32(0.02)).tolist()
    assert data[-784:] == image.tobytes()


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_program_comes_back_with_the_same_codes(bits, tmp_path):
    program, x = network(bits), codes(20)
    write_rlxm(program, tmp_path / "net.rlxm", 0.96995, x[0])
    read = read_rlxm(tmp_path / "net.rlxm")
    assert read.accuracy == pytest.approx(0.96995) and read.image.tolist() == x[0].tolist()
    for one, other in zip(program.run_all(x), read.program.run_all(x)):
        assert one.tolist() == other.tolist()
    # Written again, it is the same file: the ratios of scales are kept.
    write_rlxm(read.program, tmp_path / "again.rlxm", read.accuracy, read.image)
    assert (tmp_path / "again.rlxm").read_bytes() == (tmp_path / "net.rlxm").read_bytes()


def test_the_first_layer_against_plain_loops():
    program, x = network(), codes(1)
    wanted = integer_oracle.conv2d(program.steps[0], program.input, x[0])
    assert program.run_all(x)[1].reshape(-1).tolist() == wanted


def test_multipliers_as_floats_change_codes_by_one_at_most():
    """The Rust RLX multiplies sums in f32 and rounds once; programs round twice, in integers."""
    program, x = network(), codes(40)
    step = program.steps[0]
    factors = np.float32(1 / 127) * step.weights.scales / np.float32(step.out.scale)
    sums = (
        np.einsum(
            "nhwcij,oijc->nhwo",
            np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), (3, 3), (1, 2)),
            step.weights.codes.astype(np.int64),
        )
        + step.bias
    )
    scaled = sums.astype(np.float32) * factors
    rounded = np.trunc(scaled + np.where(scaled >= 0, np.float32(0.5), np.float32(-0.5))).astype(np.int64)
    apart = np.abs(np.clip(rounded, 0, 127) - program.run_all(x)[1])
    assert apart.max() <= 1 and np.mean(apart > 0) < 0.01


def test_files_that_are_none(tmp_path):
    path = tmp_path / "net.rlxm"
    write_rlxm(network(), path)
    whole = path.read_bytes()
    for cut in (0, 3, 15, 100, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(FormatError, match=r"RLXM|ends inside|bytes at|is empty"):
            read_rlxm(path)
    rng = np.random.default_rng(0)
    for _ in range(200):
        changed = bytearray(whole)
        changed[int(rng.integers(0, 176))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(bytes(changed))
        with contextlib.suppress(FormatError):
            read_rlxm(path)


def test_programs_that_are_not_this_network(tmp_path):
    from rlx.quantized import load

    with pytest.raises(QuantizedError, match="mnist is not TinyConv"):
        write_rlxm(load("mnist"), tmp_path / "x.rlxm")
    with pytest.raises(QuantizedError, match="784 codes i8"):
        write_rlxm(network(), tmp_path / "x.rlxm", image=np.zeros(3, "i1"))
    assert list(tmp_path.iterdir()) == []
