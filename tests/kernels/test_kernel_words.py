"""Kernels in 32-bit words compute what they computed before, bit by bit: the interpreter runs both."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Atomic, Buffer, Let, Load, Store, ValueType, walk
from rlx.kernels.legalize import KernelRefused, legalize
from rlx.kernels.machines import WGSL
from rlx.kernels.words.ranges import wide_values
from rlx.kernels.words.rounds import in_long_rounds, rounds_of
from rlx.kernels.words.words import in_words

COUNT = 37
INTS = [DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.U32, DType.I64, DType.U64]
WORDS = {DType.BOOL, DType.I32, DType.U32, DType.F32, DType.I64}


def as_words(array):
    raw = array.tobytes()
    return np.frombuffer(raw + b"\0" * (-len(raw) % 4 + 8), np.uint32).copy()


def run_both(kernel, arrays, **sizes):
    """The arrays after a kernel, as it is and in words; buffers begin some elements into their words."""
    legal = legalize(kernel, WGSL)
    plain = {name: a.copy() for name, a in arrays.items()}
    words = in_words(legal)
    start = 3
    given = {n: as_words(np.concatenate([np.zeros(start, a.dtype), a])) for n, a in arrays.items()}
    starts = {f"{name}_at": start for name in arrays}
    with np.errstate(all="ignore"):
        interpret(legal, {**plain, **sizes})
        interpret(in_words(legal, trusts_alignment=False), {**given, **starts, **sizes})
    found = {}
    for name, a in plain.items():
        size = a.dtype.itemsize
        found[name] = np.frombuffer(given[name].tobytes()[start * size : start * size + a.nbytes], a.dtype)
    return plain, found, words


def only_words(kernel):
    """All values are scalars of 32 bits, or positions that are never data."""
    for statement in walk(kernel.body):
        for value in statement.args if isinstance(statement, Let) else ():
            assert value.lanes == 1 and value.dtype in WORDS
        if isinstance(statement, Load | Store | Atomic):
            assert statement.buffer.dtype in WORDS - {DType.I64}
    assert all(p.dtype is DType.U32 for p in kernel.params if isinstance(p, Buffer))


def numbers(dtype, rng, count=COUNT):
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        wild = rng.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
        wild[:8] = np.array([0, 1, info.min, info.max, info.max - 1, 7, info.min + 1, 100], dtype.numpy)
        return wild
    values = rng.standard_normal(count) * np.exp(rng.uniform(-20, 20, count))
    values[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e9]
    with np.errstate(over="ignore"):
        return values.astype(dtype.numpy)


def binary(op, dtype, lanes=1):
    k = KernelBuilder("binary")
    a, b, n = k.pointer("a", dtype), k.pointer("b", dtype), k.index("n")
    result = DType.BOOL if op in ("lt", "ge", "eq") else dtype
    y = k.pointer("y", result, write=True)
    with k.parallel("i", k.ceildiv(n, lanes)) as block:
        i = block * lanes
        mask = k.lane_mask(n - i, lanes) if lanes > 1 else None
        x = [k.load(p, i, lanes=lanes, mask=mask, other=1) for p in (a, b)]
        k.store(y, i, k.op(op, *x), mask=mask)
    return k.build()


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "rem", "min", "max", "and", "xor", "lt", "ge", "eq"])
def test_integers_of_all_sizes(op, dtype, lanes):
    rng = np.random.default_rng(1)
    a, b = numbers(dtype, rng), numbers(dtype, rng)[::-1].copy()
    b[10:14] = a[10:14]
    if op in ("div", "rem"):
        b[b == 0] = 3
        b[b == -1] = 5  # the smallest number has no positive
    y = np.zeros(COUNT, bool if op in ("lt", "ge", "eq") else dtype.numpy)
    plain, found, words = run_both(binary(op, dtype, lanes), {"a": a, "b": b, "y": y}, n=COUNT)
    np.testing.assert_array_equal(found["y"], plain["y"])
    assert plain["y"].any()
    only_words(words)


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("op", ["shl", "shr"])
def test_shifts(op, dtype):
    rng = np.random.default_rng(2)
    counts = rng.integers(0, 8 * dtype.size_bytes, COUNT).astype(dtype.numpy)
    arrays = {"a": numbers(dtype, rng), "b": counts, "y": np.zeros(COUNT, dtype.numpy)}
    plain, found, _ = run_both(binary(op, dtype), arrays, n=COUNT)
    np.testing.assert_array_equal(found["y"], plain["y"])


@pytest.mark.parametrize("to", [*INTS, DType.BOOL, DType.F32, DType.F16, DType.BF16], ids=str)
@pytest.mark.parametrize("source", [*INTS, DType.BOOL, DType.F32, DType.F16, DType.BF16], ids=str)
def test_casts_between_all_types(source, to):
    k = KernelBuilder("convert")
    x, y = k.pointer("x", source), k.pointer("y", to, write=True)
    with k.parallel("i", COUNT) as i:
        k.store(y, i, k.cast(k.load(x, i), to))
    arrays = {"x": numbers(source, np.random.default_rng(3)), "y": np.zeros(COUNT, to.numpy)}
    plain, found, words = run_both(k.build(), arrays)
    np.testing.assert_array_equal(found["y"].view(np.uint8), plain["y"].view(np.uint8))
    only_words(words)


def test_bits_of_other_sizes():
    k = KernelBuilder("bits")
    x, y, z = k.pointer("x", DType.U64), k.pointer("y", DType.I16, write=True), k.pointer("z", DType.F32, write=True)
    with k.parallel("i", COUNT) as i:
        value = k.load(x, i)
        k.store(y, i * 4, k.bitcast(value, ValueType(DType.I16, 4)))
        k.store(z, i * 2, k.bitcast(k.bitcast(value, ValueType(DType.U8, 8)), ValueType(DType.F32, 2)))
    x = numbers(DType.U64, np.random.default_rng(4))
    arrays = {"x": x, "y": np.zeros(4 * COUNT, np.int16), "z": np.zeros(2 * COUNT, np.float32)}
    plain, found, _ = run_both(k.build(), arrays)
    np.testing.assert_array_equal(found["y"], x.view(np.int16))
    np.testing.assert_array_equal(found["z"].view(np.uint32), plain["z"].view(np.uint32))


def test_neighbours_in_a_word_are_left_alone():
    k = KernelBuilder("odd")
    y = k.pointer("y", DType.U8, write=True)
    with k.parallel("i", COUNT // 2) as i:
        k.store(y, i * 2, k.cast(i, DType.U8))
    before = np.full(COUNT, 255, np.uint8)
    plain, found, words = run_both(k.build(), {"y": before})
    np.testing.assert_array_equal(found["y"], plain["y"])
    assert (found["y"][1::2] == 255).all()
    # Threads that share a word must not store it whole.
    assert {s.op for s in walk(words.body) if isinstance(s, Atomic)} == {"and", "or"}
    assert not any(isinstance(s, Store) for s in walk(words.body))


def test_whole_words_need_no_atomics():
    k = KernelBuilder("whole")
    x, y = k.pointer("x", DType.F16, align=16), k.pointer("y", DType.F16, write=True, align=16)
    with k.parallel("i", 4) as i:
        k.store(y, i * 8, k.load(x, i * 8, lanes=8, align=16), align=16)
    legal = legalize(k.build(), WGSL)
    words = in_words(legal)
    assert not any(isinstance(s, Atomic) for s in walk(words.body))
    assert sum(isinstance(s, Load) for s in walk(words.body)) == 4
    assert any(isinstance(s, Atomic) for s in walk(in_words(legal, trusts_alignment=False).body))


def test_positions_have_one_word_and_data_two():
    k = KernelBuilder("ids")
    ids, x, y = k.pointer("ids", DType.I64), k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True)
    n, stride = k.index("n"), k.index("stride")
    with k.parallel("i", n) as i:
        chosen = k.load(ids, i)
        k.store(y, i, k.load(x, chosen * stride))
    kernel = legalize(k.build(), WGSL)
    wide = wide_values(kernel)
    loads = [s for s in walk(kernel.body) if isinstance(s, Load)]
    assert loads[0].result in wide
    assert kernel.parallel_loop.index not in wide
    arrays = {"ids": np.array([2, 0, 4]), "x": np.arange(15, dtype=np.float32), "y": np.zeros(3, np.float32)}
    _plain, found, _ = run_both(k.build(), arrays, n=3, stride=3)
    np.testing.assert_array_equal(found["y"], [6, 0, 12])


def test_positions_that_become_data_are_exact():
    k = KernelBuilder("squares")
    y, n = k.pointer("y", DType.I64, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, (i + 100_000) * (i + 100_000))
    _plain, found, _ = run_both(k.build(), {"y": np.zeros(4, np.int64)}, n=4)
    np.testing.assert_array_equal(found["y"], (np.arange(4) + 100_000) ** 2)


def test_f64_is_refused_by_name():
    k = KernelBuilder("double")
    x, y = k.pointer("x", DType.F64), k.pointer("y", DType.F64, write=True)
    k.store(y, 0, k.load(x, 0))
    with pytest.raises(KernelRefused, match=r"kernel double: its x is f64, .* use f32, or the device cpu"):
        in_words(k.build())


def test_pow_without_f64():
    """To a few units in the last place, where the exponent is large as well."""
    k = KernelBuilder("powers")
    count = 2048
    x, y, z = k.pointer("x", DType.F32), k.pointer("y", DType.F32), k.pointer("z", DType.F32, write=True)
    k.store(z, 0, k.op("pow", k.load(x, 0, lanes=count), k.load(y, 0, lanes=count)))
    kernel = legalize(k.build(), WGSL)
    assert all(s.result.dtype is not DType.F64 for s in walk(kernel.body) if isinstance(s, Let))
    rng = np.random.default_rng(5)
    a = np.exp(rng.uniform(-60, 60, count)).astype(np.float32)
    a[::2] = 1 + rng.uniform(-0.3, 0.4, count // 2)
    b = (rng.uniform(-80, 80, count) / np.log(a.astype(np.float64))).astype(np.float32)
    got = np.zeros(count, np.float32)
    with np.errstate(all="ignore"):
        interpret(kernel, {"x": a, "y": b, "z": got})
    wanted = a.astype(np.float64) ** b
    assert np.abs(got / wanted - 1).max() < 2 * 2.0**-23


def triangle():
    """y[i] = Σ x[j]·j for j below i + 1, in steps of 3, counted on the way; then a search that ends early."""
    k = KernelBuilder("triangle")
    x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
    with k.parallel("i", n) as i:
        with k.fold("j", 0, i + 1, 3, [k.const(0.0, DType.F32), k.const(0, DType.I32)]) as fold:
            total, count = fold.values
            fold.next(total + k.load(x, fold.index) * k.cast(fold.index, DType.F32), count + 1)
        with k.fold("found", 0, 1000, init=[k.const(0.0, DType.F32)]) as search:
            search.next(search.values[0] + 1.0, again=search.index < 4)
        k.store(y, i, fold.results[0] + k.cast(fold.results[1], DType.F32) + search.results[0])
    return k.build()


def test_rounds_of_loops_are_counted_from_sizes():
    kernel = triangle()
    # Two loops are left; the second one ends early.
    assert rounds_of(kernel, [7]) == 3 + 4
    assert rounds_of(kernel, [300_000]) == 100_000 + 4
    assert rounds_of(in_long_rounds(kernel), [300_000]) == 6250 + 4


def test_rounds_from_a_start_to_a_little_behind_it():
    k = KernelBuilder("blocks")
    y, n = k.pointer("y", DType.F32, write=True), k.index("n")
    with k.loop("block", 0, n, 64) as start, k.loop("i", start, k.min(start + 64, n)) as i:
        k.store(y, i, k.const(1.0, DType.F32))
    # Where the inner loop begins depends on the rounds of the outer one.
    assert rounds_of(k.build(), [640]) == 10 * (1 + 2) + 2


def test_a_distance_from_a_thread_to_a_little_behind_it_is_sure():
    k = KernelBuilder("blocks")
    y, n = k.pointer("y", DType.F32, write=True), k.index("n")
    with k.parallel("block", n) as block, k.loop("i", block, k.min(block + 64, n)) as i:
        k.store(y, i, k.const(1.0, DType.F32))
    assert rounds_of(k.build(), [640]) == 64 + 2 and rounds_of(k.build(), [9]) == 9 + 2


@pytest.mark.parametrize("count", [1, 3, 46, 48, 49, 100])
def test_long_rounds_do_the_same(count):
    x = np.random.default_rng(count).standard_normal(count).astype("f4")
    plain, joined = ({"x": x, "y": np.zeros(count, "f4"), "n": count} for _ in range(2))
    interpret(triangle(), plain)
    interpret(in_long_rounds(triangle()), joined)
    np.testing.assert_array_equal(plain["y"], joined["y"])
    assert plain["y"][0] == 6.0
