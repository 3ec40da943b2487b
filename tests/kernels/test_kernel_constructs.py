"""Every construct of the IR: the interpreter, the legalised kernel and native code on three x86 levels agree."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import NATIVE_TARGETS, check_everywhere, ran_natively

from rlx.errors import BackendError, DTypeError
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import FLOATS, HALVES, INTS, Kernel, ValueType
from rlx.kernels.ir.operations import ARITHMETIC, COMPARISONS
from rlx.kernels.machines import AVX512

F32, F64, I64 = DType.F32, DType.F64, DType.I64
rng = np.random.default_rng(7)

SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, 0.5, -0.5, 1e10, -1e19, 65520.0, 7.0]


def values(dtype: DType, count: int, low: int = -100, high: int = 100) -> np.ndarray:
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype in INTS:
        info = np.iinfo(dtype.numpy)
        return rng.integers(max(low, info.min), min(high, info.max), count).astype(dtype.numpy)
    with np.errstate(over="ignore"):
        mixed = np.concatenate([rng.normal(size=count) * 10, SPECIAL])
        return rng.permutation(mixed)[:count].astype(dtype.numpy)


def pointwise(op: str, dtypes: list[DType], result: DType, lanes: int, attr: object = None) -> Kernel:
    """result[i] = op(a[i], b[i], ..) over n elements, in vectors and then single elements."""
    k = KernelBuilder("pointwise")
    inputs = [k.pointer(f"x{i}", d) for i, d in enumerate(dtypes)]
    y, n = k.pointer("y", result, write=True), k.index("n")
    for start, stop, width in ((0, n // lanes * lanes, lanes), (n // lanes * lanes, n, 1)):
        with k.loop("i", start, stop, width) as i:
            k.store(y, i, k.pure(op, tuple(k.load(x, i, lanes=width) for x in inputs), attr))
    return k.build()


def run_pointwise(op: str, dtypes: list[DType], result: DType, arrays: list[np.ndarray], attr: object = None, rtol=0.0):
    kernel = pointwise(op, dtypes, result, 8, attr)
    args = {f"x{i}": a for i, a in enumerate(arrays)}
    args |= {"y": np.zeros(len(arrays[0]), result.numpy), "n": len(arrays[0])}
    return check_everywhere(kernel, args, rtol)["y"]


NUMPY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
}
NUMPY |= {"abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}
NUMPY |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


# Not for any two numbers: tested where its kind are, scale2 in test_vector_math.
@pytest.mark.parametrize("op", [op for op in ARITHMETIC if op not in ("fma", "scale2")])
def test_arithmetic(op):
    arity, domain = ARITHMETIC[op]
    for dtype in sorted(domain, key=str):
        arrays = [values(dtype, 37) for _ in range(arity)]
        if op in ("div", "rem") and dtype in INTS:
            arrays[1] = np.where(arrays[1] == 0, 3, np.where(arrays[1] == -1, 2, arrays[1])).astype(dtype.numpy)
        if op in ("shl", "shr"):
            arrays[1] = values(dtype, 37, 0, 8 * dtype.size_bytes)
        found = run_pointwise(op, [dtype] * arity, dtype, arrays)
        if op in NUMPY:
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, NUMPY[op](*arrays))


def test_negative_zero_survives_rounding():
    x = np.array([-0.0, -0.3, -0.5, 0.3, -0.7, 0.0, -0.2, 0.9], np.float32)
    for op in ("floor", "ceil", "trunc", "round"):
        found = run_pointwise(op, [F32], F32, [x])
        np.testing.assert_array_equal(np.signbit(found), np.signbit(NUMPY[op](x)), err_msg=op)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_fma_rounds_once_or_twice(dtype):
    a, b, c = (rng.normal(size=37).astype(dtype.numpy) for _ in range(3))
    found = run_pointwise("fma", [dtype] * 3, dtype, [a, b, c], rtol=1e-5 if dtype is F32 else 1e-13)
    np.testing.assert_allclose(found, a.astype(np.longdouble) * b + c, rtol=1e-4 if dtype is F32 else 1e-12)


@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons(op):
    for dtype in sorted(INTS | FLOATS, key=str):
        a, b = values(dtype, 37), values(dtype, 37)
        b[::3] = a[::3]
        found = run_pointwise(op, [dtype] * 2, DType.BOOL, [a, b])
        numpy_name = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
        compare = getattr(np, numpy_name.get(op, {"gt": "greater", "ge": "greater_equal"}.get(op, "")))
        np.testing.assert_array_equal(found, compare(a, b))


@pytest.mark.parametrize("source", sorted(INTS | FLOATS | {DType.BOOL}, key=str))
def test_casts_between_numbers(source):
    """Floats saturate and NaN gives 0; everything else is NumPy's conversion."""
    x = values(source, 45, -200, 300)
    for to in sorted(INTS | FLOATS | {DType.BOOL}, key=str):
        found = run_pointwise("cast", [source], to, [x], attr=to)
        if source in INTS or source is DType.BOOL or to not in INTS:
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(found, x.astype(to.numpy))
        else:
            info = np.iinfo(to.numpy)
            exact = [0 if v != v else max(info.min, min(info.max, int(np.clip(v, -1e30, 1e30)))) for v in x.tolist()]
            np.testing.assert_array_equal(found, np.array(exact, to.numpy))


@pytest.mark.parametrize("dtype", sorted(HALVES, key=str))
def test_half_conversions_for_every_bit_pattern(dtype):
    """All 65,536 halves widen as ml_dtypes widens them, and narrow back to themselves."""
    every = np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    wide = every.astype(np.float32)
    for target in NATIVE_TARGETS:
        out = ran_natively(
            pointwise("cast", [dtype], F32, 16, F32),
            {"x0": every, "y": np.zeros(65536, np.float32), "n": 65536},
            target,
        )["y"]
        np.testing.assert_array_equal(out, wide)
        back = ran_natively(
            pointwise("cast", [F32], dtype, 16, dtype),
            {"x0": wide, "y": np.zeros(65536, dtype.numpy), "n": 65536},
            target,
        )["y"]
        nan = np.isnan(wide)
        np.testing.assert_array_equal(back.view(np.uint16)[~nan], every.view(np.uint16)[~nan])
        assert np.isnan(back[nan].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", sorted(HALVES, key=str))
def test_narrowing_rounds_to_nearest_even(dtype):
    """Floats half way between two halves and right beside, over the whole exponent range, and NaN payloads."""
    every = np.arange(0, 0x8000, dtype=np.uint16).view(dtype.numpy).astype(np.float32)
    finite = every[np.isfinite(every)]
    with np.errstate(over="ignore", invalid="ignore"):
        middle = (finite[:-1].astype(np.float64) + finite[1:]).astype(np.float64) / 2
        middle = middle.astype(np.float32)
        beside = np.concatenate([np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(0)), middle])
        x = np.concatenate([beside, -beside, np.array(SPECIAL, np.float32)])
        payloads = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0x7FC00000], np.uint32).view(np.float32)
        x = np.concatenate([x, payloads])
        wanted = x.astype(dtype.numpy)
    for target in NATIVE_TARGETS:
        args = {"x0": x, "y": np.zeros(len(x), dtype.numpy), "n": len(x)}
        found = ran_natively(pointwise("cast", [F32], dtype, 16, dtype), args, target)["y"]
        np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
    assert ml_dtypes.finfo(dtype.numpy).bits == 16


def test_bitcast_select_splat_extract_shuffle_iota():
    k = KernelBuilder("lanes")
    x, y, z = k.pointer("x", F32), k.pointer("y", F32, write=True), k.pointer("z", DType.U8, write=True)
    v = k.load(x, 0, lanes=8)
    bits = k.bitcast(v, DType.U32)
    k.store(z, 0, k.bitcast(bits, ValueType(DType.U8, 32)))
    k.store(y, 0, k.select(k.bitcast(bits, DType.I32) < 0, 0.0, v))
    k.store(y, 8, k.splat(k.extract(v, 3), 8))
    k.store(y, 16, k.shuffle(v, [7, 8, 0, 15], k.load(x, 8, lanes=8)))
    k.store(y, 20, k.cast(k.iota(DType.I32, 5), F32))
    k.store(y, 25, k.select(k.load(x, 0) < 100.0, k.load(x, 0, lanes=3), k.load(x, 1, lanes=3)))
    x_array = values(F32, 16, -5, 5)
    x_array[0] = 1.25
    y_array = check_everywhere(k.build(), {"x": x_array, "y": np.zeros(28, np.float32), "z": np.zeros(32, np.uint8)})[
        "y"
    ]
    np.testing.assert_array_equal(y_array[8:16], np.repeat(x_array[3], 8))
    np.testing.assert_array_equal(y_array[16:20], x_array[[7, 8, 0, 15]])
    np.testing.assert_array_equal(y_array[20:28], [0, 1, 2, 3, 4, *x_array[:3]])


@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5, 7, 8, 16, 19])
def test_lane_reductions_combine_halves_first(lanes):
    for op, dtype in (
        ("add", F32),
        ("max", F64),
        ("min", DType.I32),
        ("mul", I64),
        ("or", DType.U8),
        ("and", DType.BOOL),
    ):
        k = KernelBuilder("reduce")
        x, y = k.pointer("x", dtype), k.pointer("y", dtype, write=True)
        k.store(y, 0, k.reduce(op, k.load(x, 0, lanes=lanes)))
        data = values(dtype, lanes, 1, 4) if op != "max" else rng.normal(size=lanes)
        data = np.nan_to_num(data, posinf=1, neginf=2).astype(dtype.numpy)
        found = check_everywhere(k.build(), {"x": data, "y": np.zeros(1, dtype.numpy)})["y"]
        numpy_op = {**NUMPY, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[op]
        np.testing.assert_allclose(found[0].astype(float), numpy_op.reduce(data).astype(float), rtol=1e-5)


@pytest.mark.parametrize("dtype", [F32, F64, DType.I8, DType.BF16, DType.BOOL, DType.U16])
@pytest.mark.parametrize("n", [0, 1, 7, 16, 33])
def test_masked_strided_and_scattered_access(dtype, n):
    k = KernelBuilder("access")
    x, y, size = k.pointer("x", dtype), k.pointer("y", dtype, write=True), k.index("n")
    z, stride = k.pointer("z", dtype, write=True), k.index("stride")
    with k.loop("i", 0, size, 8) as i:
        tail = k.lane_mask(size - i, 8)
        k.store(y, i, k.load(x, i * 3, lanes=8, stride=3, mask=tail), mask=tail)
        everywhere = k.load(x, i, lanes=8, mask=tail, other=1)
        k.store(z, i * stride, everywhere, stride=stride, mask=tail)
    with k.when(size > 0):
        k.store(z, 1, k.load(x, 0, lanes=4, stride=0), stride=stride)
    x_array = values(dtype, 3 * n + 1)
    args = {"x": x_array, "y": np.zeros(n, dtype.numpy), "z": np.zeros(2 * max(n, 8), dtype.numpy)}
    found = check_everywhere(k.build(), {**args, "n": n, "stride": 2})
    bits, x_bits = (
        {name: found[name].view(f"u{dtype.size_bytes}") for name in "yz"},
        x_array.view(f"u{dtype.size_bytes}"),
    )
    np.testing.assert_array_equal(bits["y"], x_bits[: 3 * n : 3])
    np.testing.assert_array_equal(bits["z"][0 : 2 * n : 2], x_bits[:n])
    if n:
        np.testing.assert_array_equal(bits["z"][1:8:2], np.repeat(x_bits[0], 4))


@pytest.mark.parametrize("mask", [-3, 0, 1, 5, 16, 99])
def test_scalar_and_vector_masks(mask):
    k = KernelBuilder("masks")
    x, y, n = k.pointer("x", F32), k.pointer("y", F32, write=True), k.index("n")
    for at, lanes in ((0, 16), (16, 1), (17, 3)):
        live = k.lane_mask(n, lanes)
        k.store(y, at, k.load(x, at, lanes=lanes, mask=live, other=9.0), mask=live)
    x_array = np.arange(20, dtype=np.float32)
    found = check_everywhere(k.build(), {"x": x_array, "y": np.full(20, -1, np.float32), "n": mask})["y"]
    live = np.concatenate([np.arange(16), [0], np.arange(3)]) < mask
    np.testing.assert_array_equal(found, np.where(live, x_array, -1))


def test_nested_loops_with_carried_values_and_branches():
    """Row-wise maximum and argmax by loops, branches and several carried values; empty rows too."""
    k = KernelBuilder("argmax")
    x, best, where = k.pointer("x", F32), k.pointer("best", F32, write=True), k.pointer("where", I64, write=True)
    rows, cols = k.index("rows"), k.index("cols")
    with k.parallel("row", rows) as row:
        lowest, first = k.const(-np.inf, F32), k.as_index(-1)
        with k.fold("c", 0, cols, init=[lowest, first]) as f:
            value = k.load(x, row * cols + f.index)
            is_new = (value > f.values[0]) | (f.values[1] < 0)
            f.next(*k.choose(is_new, lambda: (value, f.index), lambda: f.values))
        k.store(best, row, f.results[0])
        with k.when(cols > 0):
            k.store(where, row, f.results[1])
        with k.otherwise():
            k.store(where, row, k.as_index(-7))
    kernel = k.build()
    for r, c in ((3, 5), (4, 1), (2, 0), (0, 3)):
        x_array = rng.normal(size=(r, c)).astype(np.float32)
        args = {"x": x_array, "best": np.zeros(r, np.float32), "where": np.zeros(r, np.int64), "rows": r, "cols": c}
        found = check_everywhere(kernel, args)
        np.testing.assert_array_equal(found["where"], x_array.argmax(1) if c else np.full(r, -7))
        np.testing.assert_array_equal(found["best"], x_array.max(1, initial=-np.inf))


def test_loops_of_no_iteration_and_negative_ranges():
    k = KernelBuilder("empty")
    y, start, stop = k.pointer("y", I64, write=True), k.index("start"), k.index("stop")
    with k.fold("i", start, stop, 3, init=[k.as_index(100)]) as f:
        f.next(f.values[0] + f.index)
    k.store(y, 0, f.results[0])
    for a, b in ((0, 0), (5, 1), (-7, 2), (-3, -9), (0, 10)):
        found = check_everywhere(k.build(), {"y": np.zeros(1, np.int64), "start": a, "stop": b})["y"]
        assert found[0] == 100 + sum(range(a, b, 3))


def test_tables_locals_and_scalar_parameters():
    k = KernelBuilder("lookup")
    ids, y, n = k.pointer("ids", DType.U8), k.pointer("y", F32, write=True), k.index("n")
    scale = k.scalar("scale", F32)
    table = k.table("levels", F32, [-1.0, -0.5, 0.0, 0.25, 1.5])
    flags = k.table("flags", DType.BOOL, [1, 0, 1, 1, 0])
    scratch = k.local("scratch", F32, 8)
    with k.loop("i", 0, n, 8) as i:
        tail = k.lane_mask(n - i, 8)
        index = k.cast(k.load(ids, i, lanes=8, mask=tail), I64)
        level = k.select(k.load(flags, index), k.load(table, index), 9.0)
        k.store(scratch, 0, level * scale)
        reversed_lanes = k.load(scratch, k.as_index(7) - k.iota(I64, 8))
        k.store(y, i, k.shuffle(reversed_lanes, range(7, -1, -1)), mask=tail)
    id_array = rng.integers(0, 5, 21).astype(np.uint8)
    args = {"ids": id_array, "y": np.zeros(21, np.float32), "n": 21, "scale": 2.5}
    found = check_everywhere(k.build(), args)["y"]
    levels = np.where([1, 0, 1, 1, 0], np.array([-1.0, -0.5, 0.0, 0.25, 1.5]), 9.0)
    np.testing.assert_array_equal(found, (levels[id_array] * 2.5).astype(np.float32))


def test_atomics():
    k = KernelBuilder("histogram")
    ids, ints, floats, n = (
        k.pointer("ids", I64),
        k.pointer("ints", DType.I32, write=True),
        k.pointer("floats", F32, write=True),
        k.index("n"),
    )
    low, high = k.pointer("low", DType.U8, write=True), k.pointer("high", DType.I32, write=True)
    with k.parallel("i", n) as i:
        index = k.load(ids, i)
        k.atomic("add", ints, index, 1)
        k.atomic("add", floats, index, 0.5)
        k.atomic("min", low, 0, k.cast(index + 250, DType.U8))
        k.atomic("max", high, 0, k.cast(index - 9, DType.I32))
    id_array = rng.integers(0, 4, 50)
    args = {"ids": id_array, "ints": np.zeros(4, np.int32), "floats": np.zeros(4, np.float32), "n": 50}
    args |= {"low": np.full(1, 255, np.uint8), "high": np.full(1, -100, np.int32)}
    found = check_everywhere(k.build(), args)
    np.testing.assert_array_equal(found["ints"], np.bincount(id_array, minlength=4))
    np.testing.assert_array_equal(found["floats"], 0.5 * np.bincount(id_array, minlength=4))
    assert found["low"][0] == 250 and found["high"][0] == id_array.max() - 9


def test_thread_loops_without_barriers_run_on_a_cpu():
    k = KernelBuilder("threads")
    y, n = k.pointer("y", I64, write=True), k.index("n")
    with k.parallel("block", n) as block, k.threads("t", 4) as t:
        k.store(y, block * 4 + t, block * 100 + t)
    found = check_everywhere(k.build(), {"y": np.zeros(12, np.int64), "n": 3})["y"]
    np.testing.assert_array_equal(found, [b * 100 + t for b in range(3) for t in range(4)])


def test_barriers_need_a_gpu():
    k = KernelBuilder("threads")
    with k.threads("t", 4):
        k.barrier()
    with pytest.raises(BackendError, match="kernel threads has barriers between threads; avx512 has none"):
        compile_object(k.build(), AVX512)


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_lookup_takes_lanes_by_their_number(lanes: int):
    """Of the numbers only the low bits count, so that packed fields need no mask."""
    k = KernelBuilder("pick")
    table, index, y = k.pointer("table", F32), k.pointer("index", DType.I32), k.pointer("y", F32, write=True)
    k.store(y, 0, k.lookup(k.load(table, 0, lanes=lanes), k.load(index, 0, lanes=lanes)))
    numbers = np.random.default_rng(3).integers(-(2**31), 2**31, lanes).astype(np.int32)
    args = {"table": np.linspace(-3, 9, lanes, dtype=np.float32), "index": numbers, "y": np.zeros(lanes, np.float32)}
    found = check_everywhere(k.build(), args)["y"]
    np.testing.assert_array_equal(found, args["table"][numbers % lanes])
    with pytest.raises(DTypeError, match="lookup takes a vector of f32 and as many i32"):
        k.lookup(k.load(table, 0, lanes=4), k.load(index, 0, lanes=2))
