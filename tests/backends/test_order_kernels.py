"""Sorting, searching, running joins and random bits as native kernels: every size, ties and NaN, any number of
threads; against NumPy, Python's sort and published words."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest
from op_kernel_checks import Program

import rlx
from rlx import ops
from rlx.ir.rng import philox4x32
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.random.randomness import RandomBits
from rlx.ops.random.sampling import Sample
from rlx.ops.reduction.cumulative import Cumulative
from rlx.ops.reduction.reductions import ArgReduce
from rlx.ops.reduction.sort import SearchSorted, Sort, TopK, TopKWithValues

rng = np.random.default_rng(11)
DTYPES = ["f32", "f64", "bf16", "f16", "i8", "u8", "i16", "i32", "u32", "i64", "u64", "bool"]
LENGTHS = [0, 1, 2, 5, 16, 17, 63, 64, 65, 128, 129, 700]


def values(dims, dtype):
    """Few distinct values, so that there are ties; all extremes of the type; NaN and both zeros among floats."""
    kind = rlx.DType.of(dtype)
    if kind is rlx.DType.BOOL:
        return rng.integers(0, 2, dims).astype(bool)
    if kind.is_int:
        info = np.iinfo(kind.numpy)
        pool = np.array([info.min, info.max, 0, 1, 2, 3, info.max - 1], kind.numpy)
    else:
        pool = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, -1.5, 2.0, 1e-7, *rng.normal(size=9)]).astype(
            kind.numpy
        )
    return rng.choice(pool, dims)


def python_order(keys, descending):
    """The positions of one row in order, by Python's stable sort."""

    def rank(i):
        found = []
        for key in keys:
            number = float(key[i]) if key.dtype.kind not in "iub" else int(key[i])
            found.append((number != number, 0 if number != number else -number if descending else number))
        return found

    return sorted(range(len(keys[0])), key=rank)


@functools.cache
def sort_program(dtype, descending, keys=1):
    types = [(("B", "N"), dtype), (("B", "N"), "i32")][:keys]
    return Program(lambda *x: SortOrder(descending)(*x), *types, kinds=["sort"])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_orders_and_ranks(dtype, descending):
    program = sort_program(dtype, descending)
    for n in LENGTHS:
        x = values((3, n), dtype)
        order, rank = program(x)
        for row in range(3):
            assert order[row].tolist() == python_order([x[row]], descending)
            assert rank[row][order[row]].tolist() == list(range(n))


@pytest.mark.parametrize("descending", [False, True])
def test_orders_by_several_keys(descending):
    program = sort_program("f32", descending, 2)
    for n in (3, 40, 200):
        x, y = values((2, n), "f32"), values((2, n), "i32")
        order, _ = program(x, y)
        for row in range(2):
            assert order[row].tolist() == python_order([x[row], y[row]], descending)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sorts_along_any_axis(axis):
    program = Program(lambda x: Sort(axis)(x), (("A", "B", "C"), "f32"))
    for dims in [(3, 70, 2), (70, 2, 3), (2, 3, 70), (1, 1, 1), (0, 4, 5)]:
        x = rng.normal(size=dims).astype("f4")
        x.reshape(-1)[::7] = np.nan
        np.testing.assert_array_equal(program(x)[0], np.sort(x, axis=axis, kind="stable"))
    carried = Program(lambda x, y: Sort(axis)(x, y), (("A", "B", "C"), "i16"), (("A", "B", "C"), "bf16"))
    x, y = rng.integers(-4, 4, (4, 70, 3)).astype("i2"), rng.normal(size=(4, 70, 3)).astype(ml_dtypes.bfloat16)
    order = np.argsort(x, axis=axis, kind="stable")
    for found, wanted in zip(carried(x, y), (x, y), strict=True):
        np.testing.assert_array_equal(found, np.take_along_axis(wanted, order, axis))


def test_an_argsort_moves_nothing():
    program = Program(lambda x: ops.argsort(x), (("N",), "f32"), kinds=["sort"])
    x = rng.normal(size=5000).astype("f4")
    np.testing.assert_array_equal(program(x)[0], np.argsort(x, kind="stable"))


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("count", [1, 5, 64])
def test_the_first_few(dtype, count):
    program = Program(lambda x: TopKWithValues(count)(x), (("B", "N"), dtype), kinds=["top"])
    for n in (count, count + 1, count + 16, 300):
        x = values((4, n), dtype)
        top, ids = program(x)
        for row in range(4):
            wanted = python_order([x[row]], descending=True)[:count]
            assert ids[row].tolist() == wanted
            assert top[row].tobytes() == x[row][wanted].tobytes()


def test_many_of_the_first_are_sorted():
    program = Program(lambda x: TopK(100)(x), (("B", "N"), "f32"))
    x = values((2, 300), "f32")
    for row, ids in zip(x, program(x)[0], strict=True):
        assert ids.tolist() == python_order([row], descending=True)[:100]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_positions_of_extremes(kind, dtype):
    search = np.argmax if kind == "argmax" else np.argmin
    for axis in (0, 1, 2):
        program = Program(lambda x, axis=axis: ArgReduce(kind, axis)(x), (("A", "B", "C"), dtype), kinds=["search"])
        for dims in [(2, 3, 700), (1, 1, 1), (5, 33, 4), (3, 17, 64), (40, 2, 1), (2, 9, 15)]:
            x = values(dims, dtype)
            wide = x.astype("f8") if x.dtype.kind not in "iub" else x
            np.testing.assert_array_equal(program(x)[0], search(wide, axis=axis))


def test_extremes_where_nothing_is_larger_than_the_smallest():
    for dtype in ("i8", "u8", "i32", "i64", "f32"):
        kind = rlx.DType.of(dtype)
        lowest = np.iinfo(kind.numpy).min if kind.is_int else -np.inf
        for n in (1, 5, 16, 40):
            x = np.full((2, n), lowest, kind.numpy)
            program = Program(lambda x: ArgReduce("argmax", 1)(x), (("B", "N"), dtype))
            assert program(x)[0].tolist() == [0, 0]


JOINS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "logsumexp": np.logaddexp}


def running(kind, x, axis, exclusive, reverse):
    wide = x if x.dtype.kind in "iu" else x.astype("f8")
    wide = np.flip(wide, axis) if reverse else wide
    with np.errstate(all="ignore"):
        result = JOINS[kind].accumulate(wide, axis=axis, dtype=wide.dtype)
    if exclusive and result.shape[axis]:
        lowest, highest = (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max) if x.dtype.kind in "iu" else (-np.inf, np.inf)
        identity = {"sum": 0, "prod": 1, "max": lowest, "min": highest, "logsumexp": -np.inf}[kind]
        first = np.full_like(np.take(result, [0], axis), identity)
        result = np.concatenate([first, np.delete(result, -1, axis)], axis)
    return np.flip(result, axis) if reverse else result


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", JOINS)
def test_running_joins(kind, exclusive, reverse):
    for dtype in ["f32", "f64", "bf16", *(["i8", "u16", "i32", "i64"] if kind != "logsumexp" else [])]:
        for axis in (0, 1):
            function = functools.partial(Cumulative(kind, axis, exclusive, reverse))
            program = Program(function, (("A", "B"), dtype), kinds=["running"])
            for dims in [(3, 50), (50, 3), (1, 1), (2, 16), (16, 33), (0, 3), (3, 0)]:
                x = rng.uniform(-2, 2, dims) * (1 if kind != "prod" else 0.9)
                x = (x * 10 if dtype[0] in "iu" else x).astype(rlx.DType.of(dtype).numpy)
                x = np.abs(x) if dtype[0] == "u" else x
                wanted = running(kind, x, axis, exclusive, reverse)
                limit = {"f32": 2e-6, "f64": 1e-14, "bf16": 8e-3}.get(dtype, 0)
                size = max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1) if limit else 1
                found = program(x)[0]
                np.testing.assert_allclose(found.astype(wanted.dtype), wanted, rtol=limit, atol=limit * size)


def test_running_joins_pass_nan_and_infinities_on():
    x = np.array([1.0, np.inf, 2.0, np.nan, 3.0, *[1.0] * 20, -np.inf], "f4")
    for kind in JOINS:
        program = Program(functools.partial(Cumulative(kind, 0)), (("N",), "f32"))
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(program(x)[0], JOINS[kind].accumulate(x.astype("f8")), rtol=1e-5)
    log_sum = Program(functools.partial(Cumulative("logsumexp", 0)), (("N",), "f32"))
    assert np.isneginf(log_sum(np.full(40, -np.inf, "f4"))[0]).all()


@pytest.mark.parametrize("kind", JOINS)
@pytest.mark.parametrize("reverse", [False, True])
def test_long_rows_are_joined_in_parts(kind, reverse):
    n = 40_001
    x = rng.uniform(-1, 1, (2, n)).astype("f4") * np.float32(1e-3 if kind == "prod" else 1) + np.float32(kind == "prod")
    for exclusive in (False, True):
        program = Program(functools.partial(Cumulative(kind, 1, exclusive, reverse)), ((2, n), "f32"))
        assert program.kinds.count("running") == 2
        wanted = running(kind, x, 1, exclusive, reverse)
        size = np.abs(wanted[np.isfinite(wanted)]).max()
        np.testing.assert_allclose(program(x)[0], wanted, rtol=1e-4, atol=2e-6 * size)


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", DTYPES[:-1])
def test_places_in_sorted_sequences(dtype, right):
    side = "right" if right else "left"
    program = Program(lambda s, v: SearchSorted(right)(s, v), (("N",), dtype), (("M",), dtype), kinds=["search"])

    def wide(x):
        return x.astype("f8") if x.dtype.kind not in "iub" else x

    for n, m in [(0, 3), (1, 5), (7, 0), (64, 100), (1000, 33)]:
        sequence, found = np.sort(wide(values(n, dtype))).astype(rlx.DType.of(dtype).numpy), values(m, dtype)
        np.testing.assert_array_equal(program(sequence, found)[0], np.searchsorted(wide(sequence), wide(found), side))
    rows = Program(lambda s, v: SearchSorted(right)(s, v), (("B", "N"), dtype), (("B", "M"), dtype))
    sequence, found = np.sort(wide(values((3, 20), dtype))).astype(rlx.DType.of(dtype).numpy), values((3, 9), dtype)
    wanted = [np.searchsorted(wide(s), wide(v), side) for s, v in zip(sequence, found)]
    np.testing.assert_array_equal(rows(sequence, found)[0], wanted)


KEYED = ((("B", 2), "u32"), (("B",), "u64"), (("N",), "f32"))


def test_random_words_are_those_of_philox():
    program = Program(RandomBits((4,)), ((2,), "u32"), kinds=["random"])
    # Known answers of the Random123 distribution for a counter and a key of zeros.
    assert [f"{w:08x}" for w in program(np.zeros(2, "u4"))[0]] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    for stream in (0, 2**32 - 1):
        # The number of words is that of the third operand, whatever its size.
        bits = RandomBits(("N",), stream)
        program = Program(lambda key, start, n, b=bits: (b(key, start), n + 1.0), *KEYED, kinds=["random", "map"])
        for count in (0, 1, 3, 4, 5, 31, 32, 33, 10_000):
            key = rng.integers(0, 2**32, (2, 2), dtype=np.uint32)
            start = np.array([2**32 - 2, 2**64 - 3], "u8")
            found, _ = program(key, start, np.zeros(count, "f4"))
            for row in range(2):
                with np.errstate(over="ignore"):
                    block = np.arange(-(-count // 4), dtype=np.uint64) + start[row]
                counter = (block & np.uint64(2**32 - 1), block >> np.uint64(32), stream, 0)
                wanted = np.stack(philox4x32(counter, tuple(key[row])), -1).reshape(-1)[:count]
                np.testing.assert_array_equal(found[row], wanted)


def test_sampling_is_native_and_follows_its_probabilities():
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], "f4"))
    rows = 4000
    many = np.broadcast_to(logits, (rows, 5)).copy()
    key = np.array([3, 4], "u4")
    for op, allowed in ((Sample(), [0, 1, 2, 3, 4]), (Sample(top_k=2), [0, 1]), (Sample(top_p=0.8), [0, 1, 2])):
        program = Program(lambda x, key, op=op: op(x, key), ((rows, 5), "f32"), ((2,), "u32"))
        [ids] = program(many, key)
        share = np.bincount(ids, minlength=5) / rows
        wanted = np.exp(logits) * np.isin(np.arange(5), allowed)
        np.testing.assert_allclose(share, wanted / wanted.sum(), atol=4 * np.sqrt(0.25 / rows))
        np.testing.assert_array_equal(ids, op.eval(many, key))


SMALL = {
    "ArgReduce": (lambda x: ArgReduce("argmax", -1)(x), ((3, 37), "f32")),
    "ArgReduce columns": (lambda x: ArgReduce("argmin", 0)(x), ((5, 19), "bf16")),
    "sort short": (lambda x: SortOrder()(x), ((2, 19), "f32")),
    "sort side by side": (lambda x: SortOrder()(x), ((11, 37), "f32")),
    "sort long": (lambda x: SortOrder(True)(x), ((1, 70), "i8")),
    "top": (lambda x: TopKWithValues(3)(x), ((2, 40), "f32")),
    "sum": (lambda x: Cumulative("sum", 1, True, True)(x), ((2, 40), "i32")),
    "sum of halves": (lambda x: Cumulative("sum", 0)(x), ((4, 19), "f16")),
    "sort halves": (lambda x: SortOrder()(x), ((2, 70), "bf16")),
    "top of bytes": (lambda x: TopKWithValues(5)(x), ((2, 40), "u8")),
    "search bools": (lambda x: ArgReduce("argmax", 1)(x), ((3, 70), "bool")),
    "max columns": (lambda x: Cumulative("max", 0)(x), ((4, 19), "f32")),
    "search": (lambda x: SearchSorted()(ops.reshape(x, (19,)), ops.reshape(x, (19,))), ((1, 19), "i32")),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_interpreter_and_all_targets_agree(name):
    function, (dims, dtype) = SMALL[name]
    Program(function, (dims, dtype)).check_everywhere(values(dims, dtype))


def test_the_interpreter_and_all_targets_agree_on_random_words():
    Program(RandomBits((2, 19)), ((3, 2), "u32")).check_everywhere(rng.integers(0, 2**32, (3, 2), dtype=np.uint32))


def test_the_interpreter_and_all_targets_agree_on_updates():
    table, rows = rng.normal(size=(5, 21)).astype("f4"), rng.normal(size=(3, 21)).astype("f4")
    types = (table.shape, "f32"), (rows.shape, "f32")
    window = Program(lambda x, u, i: ops.dynamic_update_slice(x, u, [i, 0]), *types, ((), "i32"))
    window.check_everywhere(table, rows, np.array(1, "i4"))
    scatter = Program(lambda x, u, i: ops.scatter_nd(x, i, u, "add", mode="drop"), *types, ((3, 1), "i32"))
    scatter.check_everywhere(table, rows, np.array([[4], [9], [4]], "i4"))
    taken = Program(lambda x, i: ops.dynamic_slice(ops.transpose(x, (1, 0)), [i, i], (3, 2)), types[0], ((), "i8"))
    taken.check_everywhere(table, np.array(-4, "i1"))
