"""Philox4x32-10 against the published known answers, and the stream built on it."""

import numpy as np
import pytest

from rlx.errors import OpError
from rlx.ir.rng import Philox4x32, bits_to_uniform, box_muller, philox4x32

# Random123's kat_vectors for philox4x32-10: counter, key, answer.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(w, 16) for w in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_published_vectors(counter, key, answer):
    assert [int(w) for w in philox4x32(tuple(words(counter)), tuple(words(key)))] == words(answer)


def test_vector_form_is_the_scalar_form_per_lane():
    counters, keys, answers = (np.array([words(row[i]) for row in KNOWN_ANSWERS], np.uint32) for i in range(3))
    got = philox4x32(tuple(counters.T), tuple(keys.T))
    assert all(w.dtype == np.uint32 for w in got)
    assert np.array_equal(np.stack(got, axis=-1), answers)


def test_operands_broadcast():
    block = np.arange(5, dtype=np.uint32)
    got = philox4x32((block, 0, 0, 0), (np.arange(3, dtype=np.uint32)[:, None], 0))
    assert got[0].shape == (3, 5)
    assert got[2][1, 4] == philox4x32((4, 0, 0, 0), (1, 0))[2]


@pytest.mark.parametrize(
    ("seed", "compat", "blocks"),
    [
        (0, False, ["6627e8d5 e169c58d bc57ac4c 9b00dbd8"]),
        (42, False, ["9ceaf053 77f5493b 12bf50ad 5742b3d7", "fcdb2127 53ba6cfd 838f5a6e 744e06fb"]),
        (0, True, ["ab45d93f 7d18eb7f 4ba0ff59 6af5bcc1"]),
        (42, True, ["6f7f8f0f 3aba8be4 e86385de 11f82253"]),
    ],
)
def test_stream_known_answers(seed, compat, blocks):
    rng = Philox4x32(seed, compat=compat)
    assert [rng.next_block() for _ in blocks] == [words(b) for b in blocks]


def test_high_half_of_the_seed_is_the_second_key_word():
    got = Philox4x32(0x1234_5678_9ABC_DEF0).next_block()
    assert got == [int(w) for w in philox4x32((0, 0, 0, 0), (0x9ABCDEF0, 0x12345678))]


def test_words_come_in_order_however_they_are_asked_for():
    one_by_one = Philox4x32(7)
    in_runs = Philox4x32(7)
    singles = [one_by_one.next_u32() for _ in range(23)]
    runs = np.concatenate([in_runs.next_words(n) for n in (3, 0, 1, 6, 13)])
    assert singles == runs.tolist()


def test_counter_carries_into_its_second_word():
    rng = Philox4x32(3)
    rng.position = 4 * (2**32 - 1)
    assert rng.next_block() == [int(w) for w in philox4x32((2**32 - 1, 0, 0, 0), (3, 0))]
    assert rng.next_block() == [int(w) for w in philox4x32((0, 1, 0, 0), (3, 0))]


def test_next_block_skips_the_rest_of_the_current_one():
    rng = Philox4x32(42)
    rng.next_u32()
    assert rng.next_block() == words("fcdb2127 53ba6cfd 838f5a6e 744e06fb")


def test_uniform_is_below_one_and_exact():
    values = bits_to_uniform(np.array([0, 0xFF, 0x100, 0xFFFFFFFF], np.uint32))
    assert values.dtype == np.float32
    assert values.tolist() == [0.0, 0.0, 2.0**-24, 1 - 2.0**-24]


def test_uniform_uses_one_word_and_normal_two():
    rng, bits = Philox4x32(5), Philox4x32(5).next_words(4)
    u = bits_to_uniform(bits)
    assert rng.uniform(-2, 6) == np.float32(-2) + u[0] * np.float32(8)
    assert rng.normal() == box_muller(u[1], u[2])
    assert rng.next_f32() == u[3]


def test_fill_is_a_run_of_single_draws():
    filled, single = Philox4x32(9), Philox4x32(9)
    out = filled.fill_normal(np.empty((2, 3), np.float32))
    assert out.reshape(-1).tolist() == [single.normal() for _ in range(6)]
    out = filled.fill_uniform(np.empty(5, np.float32), -1, 1)
    assert out.tolist() == [single.uniform(-1, 1) for _ in range(5)]


def test_distributions():
    rng = Philox4x32(2024)
    uniform = rng.fill_uniform(np.empty(200_000, np.float32)).astype(np.float64)
    normal = rng.fill_normal(np.empty(200_000, np.float32)).astype(np.float64)
    # Five standard errors of each statistic.
    assert abs(uniform.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 200_000)
    assert abs(normal.mean()) < 5 / np.sqrt(200_000)
    assert abs(normal.var() - 1) < 5 * np.sqrt(2 / 200_000)
    counts = np.histogram(uniform, bins=64, range=(0, 1))[0]
    chi_square = ((counts - 200_000 / 64) ** 2 / (200_000 / 64)).sum()
    assert chi_square < 63 + 5 * np.sqrt(2 * 63)


def test_box_muller_at_zero_is_finite():
    assert np.isfinite(box_muller(0.0, 0.25))
    assert box_muller(0.0, 0.0) == np.float32(np.sqrt(-2 * np.log(float(np.float32(1.1754944e-38)))))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(seed):
    with pytest.raises(OpError, match="seed must be in"):
        Philox4x32(seed)
