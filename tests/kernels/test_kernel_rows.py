"""`row_kernel`: softmax, norms and sums against NumPy, natively and in the interpreter, along rows and across them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_runs import NATIVE_TARGETS, check_everywhere, interpreted, ran_natively

from rlx.backends.native import kernels as native
from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.rows import row_kernel
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.machines import AVX512, GFX942, NEON, RISCV, SM_90A, SSE2, WASM, host
from rlx.kernels.specs.expr import apply, compute_dtype, gather, index, literal, operand, reduce, size
from rlx.kernels.specs.scopes import Access

F32, F64, BF16, F16, I32, BOOL = DType.F32, DType.F64, DType.BF16, DType.F16, DType.I32, DType.BOOL
rng = np.random.default_rng(29)
LENGTHS = [0, 1, 15, 16, 17, 63, 64, 65, 130]


def softmax_exprs():
    x = operand(0, F32)
    highest = reduce("max", x)
    powers = apply("exp", apply("sub", x, highest))
    return [apply("div", powers, reduce("sum", powers)), highest]


def softmax(x, axis=-1):
    powers = np.exp(x.astype("f8") - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=axis, keepdims=True)


def softmax_kernel(target, rows="R", length="L"):
    strides = (length, 1)
    outputs = [Access("y", F32, strides), Access("m", F32, (1, 0))]
    return row_kernel("softmax", target, (rows,), (length,), [Access("x", F32, strides)], outputs, softmax_exprs())


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_one_compiled_kernel_serves_every_row(target):
    kernel = softmax_kernel(target)
    for rows, length in [(3, n) for n in LENGTHS] + [(0, 7), (300, 40)]:
        x = rng.normal(size=(rows, length)).astype("f4") * 30
        args = {"x": x, "y": np.full_like(x, np.nan), "m": np.zeros(rows, "f4"), "R": rows, "L": length}
        found = ran_natively(kernel, args, target)
        np.testing.assert_allclose(found["y"], softmax(x), rtol=3e-6, atol=1e-30)
        np.testing.assert_array_equal(found["m"], x.max(axis=1, initial=-np.inf))


@pytest.mark.parametrize("length", [n for n in LENGTHS if n])
def test_rows_of_a_fixed_length(length):
    kernel = softmax_kernel(AVX512, length=length)
    x = rng.normal(size=(5, length)).astype("f4")
    args = {"x": x, "y": np.zeros_like(x), "m": np.zeros(5, "f4"), "R": 5}
    np.testing.assert_allclose(check_everywhere(kernel, args, rtol=3e-6)["y"], softmax(x), rtol=3e-6)


def test_interpreter_and_native_agree_to_the_bit_where_nothing_is_approximated():
    """Layer statistics with a column vector: the order of every sum is part of the kernel."""
    x, w = operand(0, F32), operand(1, F32)
    mean = apply("div", reduce("sum", x), apply("cast", size("L"), to=F32))
    centred = apply("sub", x, mean)
    variance = reduce("sum", apply("mul", centred, centred))
    exprs = [apply("mul", apply("div", centred, apply("sqrt", variance)), w), mean]
    inputs = [Access("x", F32, ("L", 1)), Access("w", F32, (0, 1))]
    outputs = [Access("y", F32, ("L", 1)), Access("mean", F32, (1, 0))]
    for target in (AVX512, SSE2):
        kernel = row_kernel("norm", target, ("R",), ("L",), inputs, outputs, exprs)
        for length in LENGTHS[1:]:
            x = rng.normal(size=(4, length)).astype("f4")
            args = {"x": x, "w": rng.normal(size=length).astype("f4"), "y": np.zeros_like(x)}
            args |= {"mean": np.zeros(4, "f4"), "R": 4, "L": length}
            found = check_everywhere(kernel, args)
            np.testing.assert_allclose(found["mean"], x.mean(axis=1, dtype="f8"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", NATIVE_TARGETS, ids=lambda t: t.name)
def test_lanes_across_rows_where_memory_runs_that_way(target):
    """Softmax and maximum over the first axis: strides swapped, contiguous loads all the same."""
    inputs, outputs = [Access("x", F32, (1, "C"))], [Access("y", F32, (1, "C")), Access("m", F32, (1, 0))]
    kernel = row_kernel("columns", target, ("C",), ("R",), inputs, outputs, softmax_exprs())
    for rows, columns in ((4, 1), (3, 17), (1, 64), (7, 130), (0, 3), (2, 0), (40, 257)):
        x = rng.normal(size=(rows, columns)).astype("f4")
        args = {"x": x, "y": np.zeros_like(x), "m": np.zeros(columns, "f4"), "R": rows, "C": columns}
        found = ran_natively(kernel, args, target)
        np.testing.assert_allclose(found["y"], softmax(x, 0), rtol=3e-6)
        np.testing.assert_array_equal(found["m"], x.max(axis=0, initial=-np.inf))
    assert "load x[" in kernel.text and "iota" not in kernel.text


@pytest.mark.parametrize("columns", [1, 5, 8, 33, 36, 63, 65, 100, 127, 250])
@pytest.mark.parametrize("dtype", [F32, F64, DType.I8], ids=str)
def test_columns_of_a_fixed_number_have_narrower_vectors_at_their_end(columns, dtype):
    """Every column is summed from its first element to its last, in whichever vector it is."""
    x = (rng.normal(size=(6, 7, columns)) * 50).astype(dtype.numpy)
    access = Access("x", dtype, (7 * columns, 1, columns))
    wanted = x[:, 0].copy()
    for row in range(1, 7):
        wanted += x[:, row]
    for target in (*NATIVE_TARGETS, NEON, RISCV):
        outputs, total = [Access("y", dtype, (columns, 1, 0))], reduce("sum", operand(0, dtype))
        kernel = row_kernel("columns", target, (6, columns), (7,), [access], outputs, [total])
        args = {"x": x, "y": np.zeros((6, columns), x.dtype)}
        found = [interpreted(kernel, args)["y"]]
        if target in NATIVE_TARGETS:
            found.append(ran_natively(kernel, args, target)["y"])
        for y in found:
            np.testing.assert_array_equal(y, wanted)


JOINED = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("kind", JOINED)
@pytest.mark.parametrize("dtype", [F32, F64, I32, DType.I8, DType.U16], ids=str)
def test_every_way_to_join_along_any_axes(kind, dtype):
    """x[B, R, C, D] over (R, D), over C, and over everything; integers wrap."""
    shape = (3, 2, 5, 9)
    values = rng.integers(1, 9, shape) if dtype not in (F32, F64) else rng.uniform(0.5, 1.5, shape)
    x = values.astype(dtype.numpy)
    strides = tuple(s // x.itemsize for s in x.strides)
    for axes in ((1, 3), (2,), (0, 1, 2, 3), (0,)):
        rows = [a for a in range(4) if a not in axes]
        out = np.zeros([shape[a] for a in rows], x.dtype)
        order = [*rows, *axes]
        contiguous = [s // x.itemsize for s in out.strides]
        kernel = row_kernel(
            "joined",
            AVX512,
            [shape[a] for a in rows],
            [shape[a] for a in axes],
            [Access("x", dtype, tuple(strides[a] for a in order))],
            [Access("y", dtype, (*contiguous, *(0 for _ in axes)))],
            [reduce(kind, operand(0, dtype))],
        )
        exact = x.astype("f8") if x.dtype.kind == "f" else x
        with np.errstate(over="ignore"):
            wanted = JOINED[kind].reduce(exact, axes, dtype=exact.dtype)
        found = check_everywhere(kernel, {"x": x, "y": out})["y"]
        np.testing.assert_allclose(found.astype("f8"), wanted.astype("f8"), rtol=1e-5 if dtype is F32 else 1e-13)


def test_numbers_of_each_row_do_not_turn_the_lanes():
    """The gradient of a bias and its optimiser: many numbers for each row, which are few beside its elements."""
    rows, length, count = 4, 64, 8
    total = reduce("sum", operand(0, F32))
    inputs = [Access("x", F32, (length, 1)), *(Access(f"m{i}", F32, (1, 0)) for i in range(count))]
    outputs = [Access(f"y{i}", F32, (1, 0)) for i in range(count)]
    exprs = [apply("add", total, operand(1 + i, F32)) for i in range(count)]
    kernel = row_kernel("f", AVX512, (rows,), (length,), inputs, outputs, exprs)
    assert "f32x64 = load x[" in kernel.text, "lanes lie along the row"
    x, m = (rng.normal(size=s).astype("f4") for s in ((rows, length), (count, rows)))
    args = {"x": x} | {f"m{i}": m[i] for i in range(count)} | {f"y{i}": np.zeros(rows, "f4") for i in range(count)}
    found = check_everywhere(kernel, args, rtol=2e-5)
    np.testing.assert_allclose([found[f"y{i}"] for i in range(count)], x.sum(1) + m, rtol=2e-5, atol=1e-5)


def test_any_and_all():
    x = operand(0, BOOL)
    inputs = [Access("x", BOOL, ("L", 1))]
    outputs = [Access("any", BOOL, (1, 0)), Access("all", BOOL, (1, 0))]
    kernel = row_kernel("truth", AVX512, ("R",), ("L",), inputs, outputs, [reduce("any", x), reduce("all", x)])
    for length in (0, 1, 40, 300):
        given = rng.random((6, length)) < np.array([0, 0.01, 0.5, 0.99, 1, 1])[:, None]
        args = {"x": given, "any": np.zeros(6, bool), "all": np.zeros(6, bool), "R": 6, "L": length}
        found = check_everywhere(kernel, args)
        np.testing.assert_array_equal(found["any"], given.any(axis=1))
        np.testing.assert_array_equal(found["all"], given.all(axis=1))


def test_nan_and_infinities():
    kernel = softmax_kernel(host())
    x = np.array([[1, np.nan, 2, 3], [np.inf, 1, 2, 3], [-np.inf, 0, 0, 0], [-np.inf] * 4], "f4")
    args = {"x": x, "y": np.zeros_like(x), "m": np.zeros(4, "f4"), "R": 4, "L": 4}
    found = ran_natively(kernel, args, host())
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found["y"], softmax(x), rtol=1e-6)
    np.testing.assert_array_equal(found["m"], [np.nan, np.inf, 0, -np.inf])


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_halves_are_summed_in_f32(dtype):
    """4097 times 1/256: in 8 or 11 bits the sum would stop growing long before 16."""
    inputs, outputs = [Access("x", dtype, ("L", 1))], [Access("y", dtype, (1, 0)), Access("wide", F32, (1, 0))]
    total = reduce("sum", operand(0, dtype))
    kernel = row_kernel("total", AVX512, ("R",), ("L",), inputs, outputs, [total, apply("cast", total, to=F32)])
    x = np.full((2, 4097), 1 / 256).astype(dtype.numpy)
    args = {"x": x, "y": np.zeros(2, dtype.numpy), "wide": np.zeros(2, "f4"), "R": 2, "L": 4097}
    found = check_everywhere(kernel, args)
    np.testing.assert_array_equal(found["y"].astype("f8"), np.full(2, 4097 / 256).astype(dtype.numpy).astype("f8"))


def test_values_per_row_positions_and_lookups():
    """Cross-entropy: the label of a row is compared with positions, and looked up as well."""
    x, label = operand(0, F32), operand(1, I32)
    total = reduce("sum", apply("exp", x))
    hot = apply("eq", index(1, I32), label)
    chosen = reduce("sum", apply("where", hot, x, literal(0.0, F32)))
    place = apply("cast", label, to=DType.I64)
    exprs = [apply("sub", apply("log", total), chosen), apply("sub", chosen, gather(2, F32, place))]
    inputs = [Access("x", F32, ("L", 1)), Access("label", I32, (1, 0)), Access("x", F32, ("L", 0))]
    outputs = [Access("loss", F32, (1, 0)), Access("zero", F32, (1, 0))]
    kernel = row_kernel("loss", AVX512, ("R",), ("L",), inputs, outputs, exprs)
    for rows, length in ((5, 3), (2, 100), (0, 4), (3, 64)):
        x = rng.normal(size=(rows, length)).astype("f4")
        labels = rng.integers(0, length, rows).astype("i4")
        args = {"x": x, "label": labels, "loss": np.zeros(rows, "f4"), "zero": np.ones(rows, "f4")}
        found = check_everywhere(kernel, args | {"R": rows, "L": length}, rtol=2e-6)
        wanted = np.log(np.exp(x.astype("f8")).sum(axis=1)) - x[np.arange(rows), labels]
        np.testing.assert_allclose(found["loss"], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found["zero"], 0)


def test_a_lookup_that_has_nothing_to_read_touches_no_memory():
    exists = apply("lt", operand(0, DType.I64), size("n"))
    found = gather(1, F32, operand(0, DType.I64), exists)
    inputs = [Access("ids", DType.I64, (1, 0)), Access("table", F32, (0, 1))]
    kernel = row_kernel("lookup", AVX512, ("R",), (4,), inputs, [Access("y", F32, (1, 0))], [reduce("sum", found)])
    table = np.arange(12, dtype="f4")
    args = {"ids": np.array([0, 8, 1 << 40]), "table": table, "y": np.zeros(3, "f4"), "R": 3, "n": 9}
    np.testing.assert_array_equal(check_everywhere(kernel, args)["y"], [6, 38, 0])


def test_what_costs_much_is_computed_once():
    """The exp of softmax is kept: in the result for rows of any length, in memory of the thread for short ones."""
    anywhere, short = softmax_kernel(AVX512), softmax_kernel(AVX512, length=100)
    assert anywhere.text.count(" = exp_negative ") == 2 and not anywhere.arrays  # whole vectors, and the last one
    assert short.text.count(" = exp_negative ") == 2 and [a.name for a in short.arrays] == ["kept0"]
    long = softmax_kernel(AVX512, length=1 << 16)
    assert long.text.count(" = exp_negative ") == 1 and not long.arrays
    assert softmax_kernel(SM_90A).text.count(" = exp_negative ") == 2  # a GPU computes it again


def test_nothing_is_kept_in_a_result_while_operands_are_still_read():
    """y = x * softmax(x): with y in the place of x, keeping exp there would destroy x."""
    share, _ = softmax_exprs()
    (root,) = [apply("mul", share, share.args[0].args[0].args[0])]
    strides = ("L", 1)
    kernel = row_kernel("f", AVX512, ("R",), ("L",), [Access("x", F32, strides)], [Access("y", F32, strides)], [root])
    assert kernel.text.count(" = exp_negative ") == 4
    x = rng.normal(size=(6, 77)).astype("f4")
    wanted = x * softmax(x)
    native.load(kernel, NATIVE_TARGETS[0])(x, x, 6, 77)
    np.testing.assert_allclose(x, wanted, rtol=3e-6)


@pytest.mark.parametrize("length", ["L", 77])
def test_in_place(length):
    outputs = [Access("y", F32, (length, 1))]
    kernel = row_kernel("s", AVX512, ("R",), (length,), [Access("x", F32, (length, 1))], outputs, softmax_exprs()[:1])
    x = rng.normal(size=(50, 77)).astype("f4")
    wanted = softmax(x)
    native.load(kernel, NATIVE_TARGETS[0])(x, x, 50, *([77] if length == "L" else []))
    np.testing.assert_allclose(x, wanted, rtol=3e-6)


@pytest.mark.parametrize("across", [False, True], ids=["along", "across"])
def test_chunks_do_not_change_the_answer(across):
    """Any division of the parallel iterations over workers gives the same bits."""
    strides = (1, "R") if across else ("L", 1)
    outputs = [Access("y", F32, strides), Access("m", F32, (1, 0))]
    kernel = row_kernel("s", AVX512, ("R",), ("L",), [Access("x", F32, strides)], outputs, softmax_exprs())
    x = rng.normal(size=500 * 300).astype("f4")
    whole, parts, m = np.zeros_like(x), np.zeros_like(x), np.zeros(500, "f4")
    f = native.load(kernel, NATIVE_TARGETS[0])
    f(x, whole, m, 500, 300)
    count = grid_size(kernel, {"R": 500, "L": 300})
    assert count > 5
    for part in reversed(range(count)):
        f(x, parts, m, 500, 300, first=part, last=part + 1)
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("across", [False, True], ids=["block_per_row", "thread_per_row"])
def test_gpu_form_in_the_interpreter(across):
    strides = (1, "R") if across else ("L", 1)
    outputs = [Access("y", F32, strides), Access("m", F32, (1, 0))]
    kernel = row_kernel("s", SM_90A, ("R",), ("L",), [Access("x", F32, strides)], outputs, softmax_exprs())
    assert kernel.thread_count == 256
    assert ("barrier" in kernel.text) is not across
    for rows, length in ((2, 5), (1, 300), (0, 3), (3, 1)):
        x = rng.normal(size=(length, rows) if across else (rows, length)).astype("f4")
        args = {"x": x, "y": np.zeros_like(x), "m": np.zeros(rows, "f4"), "R": rows, "L": length}
        found = interpreted(kernel, args)
        np.testing.assert_allclose(found["y"], softmax(x, 0 if across else -1), rtol=1e-6)


@pytest.mark.parametrize("target", [NEON, RISCV, WASM, SM_90A, GFX942], ids=lambda t: t.name)
def test_code_for_other_machines(target):
    assembly = compile_assembly(softmax_kernel(target), target)
    vector = {"neon": "fadd\tv", "riscv64": "vfadd.vv", "wasm32": "f32x4.add", "sm_90a": "bar", "gfx942": "s_barrier"}
    assert vector[target.name] in assembly


@settings(max_examples=40)
@given(
    dims=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    joined=st.sets(st.integers(0, 3), min_size=1),
    order=st.randoms(use_true_random=False),
    dtype=st.sampled_from([F32, F64, BF16, I32]),
)
def test_any_layout(dims, joined, order, dtype):
    """Sums over any axes of an operand stored in any order, plus the operand less its sum, in row-major order."""
    axes = [a for a in range(len(dims)) if a in joined] or [len(dims) - 1]
    rows = [a for a in range(len(dims)) if a not in axes]
    stored = list(range(len(dims)))
    order.shuffle(stored)
    values = np.arange(int(np.prod(dims)) or 1).astype("f8")[: int(np.prod(dims))] % 7
    source = np.ascontiguousarray(values.reshape(dims).transpose(stored)).astype(dtype.numpy)
    view = source.transpose(np.argsort(stored))
    nest = [*rows, *axes]
    y, total = np.zeros(dims, dtype.numpy), np.zeros([dims[a] for a in rows], dtype.numpy)

    def strides(array, order):
        """NumPy gives axes of empty arrays any stride; here one of 0 would mean that there is an element."""
        return tuple(array.strides[a] // array.itemsize or 1 for a in order)

    x = operand(0, dtype)
    sum_ = reduce("sum", x)
    kernel = row_kernel(
        "layout",
        AVX512,
        [dims[a] for a in rows],
        [dims[a] for a in axes],
        [Access("x", dtype, strides(view, nest))],
        [
            Access("y", dtype, strides(y, nest)),
            Access("t", dtype, (*strides(total, range(len(rows))), *[0] * len(axes))),
        ],
        [apply("sub", x, sum_), sum_],
    )
    args = {"x": source, "y": y, "t": total}
    wide = view.astype("f8")
    wanted = wide.sum(axis=tuple(axes), keepdims=True)
    for found in (interpreted(kernel, args), ran_natively(kernel, args, NATIVE_TARGETS[-1])):
        limit = 4e-3 if compute_dtype(dtype) is not dtype else 1e-6
        np.testing.assert_allclose(found["t"].astype("f8").reshape(wanted.shape), wanted, rtol=limit)
        np.testing.assert_allclose(found["y"].astype("f8"), wide - wanted, rtol=limit, atol=limit)


def test_mistakes():
    x = Access("x", F32, (1,))
    with pytest.raises(OpError, match="row f: a row needs at least one axis"):
        row_kernel("f", AVX512, (2,), (), [x], [x], [operand(0, F32)])
    with pytest.raises(OpError, match=r"row f: x has 1 strides for 1 \+ 1 axes"):
        row_kernel("f", AVX512, (2,), (3,), [x], [Access("y", F32, (1, 0))], [operand(0, F32)])
    with pytest.raises(OpError, match="1 outputs for 2 expressions"):
        row_kernel("f", AVX512, (), (3,), [x], [x], [operand(0, F32)] * 2)
    with pytest.raises(OpError, match="reduce by any of f32 has no lowering"):
        reduce("any", operand(0, F32))
    with pytest.raises(DTypeError, match="gather: an i64 offset and a bool are needed, got f32"):
        gather(0, F32, operand(0, F32))
