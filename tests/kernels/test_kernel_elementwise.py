"""`map_kernel`: index spaces, strides, chunks and remainders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_runs import NATIVE_TARGETS, check_everywhere, interpreted, ran_natively

import rlx
from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.maps import CHUNK, LONG_CHUNK, Access, MapPart, Move, map_kernel, merge_axes, piecewise_kernel
from rlx.kernels.cpu.narrow_axes import NARROW
from rlx.kernels.ir.interpret import grid_size
from rlx.kernels.machines import AVX512, SM_90A
from rlx.kernels.specs.expr import apply, gather, index, literal, operand

F32 = DType.F32
rng = np.random.default_rng(23)


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize for s in array.strides)


@pytest.mark.parametrize("shape", [(32 * LONG_CHUNK,), (33 * LONG_CHUNK + 5,), (1025, 1031)])
def test_long_maps_have_longer_pieces(shape):
    """Down to the last element of the last piece."""
    x = rng.standard_normal(shape).astype("f4")
    double = rlx.jit(lambda x, y: (x + y, x[..., ::-1] - y))
    for found, wanted in zip(double(x, x.T.copy().T), (x + x, x[..., ::-1] - x), strict=True):
        np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100, CHUNK - 1, CHUNK, CHUNK + 5, 3 * CHUNK])
def test_one_compiled_kernel_serves_every_length(n):
    expr = apply("add", apply("mul", operand(0, F32), operand(1, F32)), literal(0.5, F32))
    x, y = rng.normal(size=n).astype(np.float32), rng.normal(size=n).astype(np.float32)
    for target in NATIVE_TARGETS:
        inputs = [Access("x", F32, (1,)), Access("y", F32, (1,))]
        kernel = map_kernel("axpb", target, ("n",), inputs, [Access("z", F32, (1,))], [expr])
        z = ran_natively(kernel, {"x": x, "y": y, "z": np.full(n, np.nan, np.float32), "n": n}, target)["z"]
        np.testing.assert_array_equal(z, x * y + np.float32(0.5))
        assert grid_size(kernel, {"n": n}) == -(-n // CHUNK)


def test_broadcast_transposed_and_narrowed_operands_with_run_time_sizes():
    """z[b, i, j] = x[b, i, j] + bias[j] * w[j, i] - row[b], two outputs, every size and stride a parameter."""
    x, bias, w, row = (operand(i, F32) for i in range(4))
    total = apply("sub", apply("add", x, apply("mul", bias, w)), row)
    inputs = [
        Access("x", F32, ("xb", "xi", 1), "xo"),
        Access("bias", F32, (0, 0, 1)),
        Access("w", F32, (0, 1, "I")),
        Access("row", F32, (1, 0, 0)),
    ]
    outputs = [Access("z", F32, ("zb", "J", 1)), Access("sign", DType.BOOL, ("zb", "J", 1))]
    kernel = map_kernel(
        "views", AVX512, ("B", "I", "J"), inputs, outputs, [total, apply("lt", total, literal(0.0, F32))]
    )
    for b, i, j in ((2, 3, 21), (1, 1, 1), (3, 2, 0), (0, 4, 5), (2, 5, 16)):
        stored = rng.normal(size=(b, i + 1, j + 2)).astype(np.float32)
        view = stored[:, 1:, 2:]
        args = {"x": stored, "bias": rng.normal(size=j).astype(np.float32)}
        args |= {"w": rng.normal(size=(j, i)).astype(np.float32), "row": rng.normal(size=b).astype(np.float32)}
        args |= {"z": np.zeros((b, i, j), np.float32), "sign": np.zeros((b, i, j), bool)}
        xb, xi, _ = strides_of(stored)
        args |= {"B": b, "I": i, "J": j, "xb": xb, "xi": xi, "xo": xi + 2, "zb": i * j}
        found = check_everywhere(kernel, args)
        wanted = view + args["bias"] * args["w"].T[None] - args["row"][:, None, None]
        np.testing.assert_allclose(found["z"], wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found["sign"], found["z"] < 0)


@settings(max_examples=25)
@given(
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=3).map(tuple),
    permutation=st.randoms(use_true_random=False),
    broadcast=st.sets(st.integers(0, 2)),
    dtype=st.sampled_from([F32, DType.F64, DType.BF16, DType.I8]),
)
def test_any_fixed_layout(shape, permutation, broadcast, dtype):
    axes = list(range(len(shape)))
    permutation.shuffle(axes)
    source = (
        np.arange(int(np.prod(shape)) or 1).astype(dtype.numpy)[: int(np.prod(shape))].reshape([shape[a] for a in axes])
    )
    view = source.transpose(np.argsort(axes))
    other = np.arange(200).astype(dtype.numpy)
    other_strides = tuple(0 if a in broadcast else 7 for a in range(len(shape)))
    inputs = [Access("x", dtype, strides_of(view)), Access("y", dtype, other_strides, 3)]
    out = np.zeros(shape, dtype.numpy)
    expr = apply("max", operand(0, dtype), operand(1, dtype))
    kernel = map_kernel("layout", AVX512, shape, inputs, [Access("z", dtype, strides_of(out))], [expr])
    args = {"x": source, "y": other, "z": out}
    found = interpreted(kernel, args)["z"]
    picked = other[3 + sum((i * s for i, s in zip(np.indices(shape), other_strides)), np.zeros(shape, int))]
    np.testing.assert_array_equal(found.astype(float), np.maximum(view.astype(float), picked.astype(float)))
    np.testing.assert_array_equal(
        ran_natively(kernel, args, NATIVE_TARGETS[-1])["z"].astype(float), found.astype(float)
    )


@pytest.mark.parametrize("size", NARROW)
@pytest.mark.parametrize("dtype", [F32, DType.F64, DType.BF16, DType.I8], ids=str)
def test_an_axis_shorter_than_a_vector(size, dtype):
    """z[b, n, i] = max(x[b, n, i], step[b, n]) - last[i]·one[b]: lanes cover the last axis and steps of that before."""
    x, step, last, one = (operand(i, dtype) for i in range(4))
    expr = apply("sub", apply("max", x, step), apply("mul", last, one))
    inputs = [
        Access("x", dtype, ("xb", size, 1), size),
        Access("step", dtype, ("N", 1, 0)),
        Access("last", dtype, (0, 0, 1)),
        Access("one", dtype, (1, 0, 0)),
    ]
    outputs = [Access("z", dtype, ("zb", size, 1))]
    for target in NATIVE_TARGETS:
        kernel = map_kernel("narrow", target, ("B", "N", size), inputs, outputs, [expr])
        assert "shuffle" in kernel.text or target.vector_bytes < AVX512.vector_bytes
        for b, n in ((2, 1), (1, 37), (3, 0), (2, CHUNK // size + 21)):
            whole = [rng.integers(-9, 9, s).astype(dtype.numpy) for s in ((b, n + 1, size), (b, n), (size,), (b,))]
            args = dict(zip(("x", "step", "last", "one"), whole))
            args |= {"z": np.zeros((b, n, size), dtype.numpy), "B": b, "N": n}
            args |= {"xb": (n + 1) * size, "zb": n * size}
            x, step, last, one = (v.astype(float) for v in whole)
            wanted = np.maximum(x[:, 1:], step[..., None]) - last * one[:, None, None]
            found = [ran_natively(kernel, args, target)["z"]]
            if n < CHUNK // size:
                found.append(interpreted(kernel, args)["z"])
            for z in found:
                np.testing.assert_array_equal(z.astype(float), wanted)


def test_indices_of_the_index_space():
    """A causal mask by comparing two indices, with an axis of size 1 between; and the plain iota."""
    row, column = index(0), index(2)
    masked = apply("where", apply("le", column, row), operand(0, F32), literal(-np.inf, F32))
    strides = ("C", "C", 1)
    outputs = [Access("y", F32, strides), Access("ids", DType.I64, strides)]
    for target in (AVX512, SM_90A):
        shape = ("R", 1, "C")
        kernel = map_kernel("causal", target, shape, [Access("x", F32, strides)], outputs, [masked, column])
        for r, c in ((3, 20), (18, 18), (2, 0)):
            x = rng.normal(size=(r, 1, c)).astype(np.float32)
            args = {"x": x, "y": np.zeros_like(x), "ids": np.zeros((r, 1, c), np.int64), "R": r, "C": c}
            found = check_everywhere(kernel, args)
            wanted = np.where(np.tri(r, c, dtype=bool)[:, None], x, -np.inf)
            np.testing.assert_array_equal(found["y"], wanted)
            np.testing.assert_array_equal(found["ids"], np.broadcast_to(np.arange(c), (r, 1, c)))


def test_in_place():
    kernel = map_kernel(
        "square", AVX512, ("n",), [Access("x", F32, (1,))], [Access("y", F32, (1,))], [apply("square", operand(0, F32))]
    )
    x = rng.normal(size=1000).astype(np.float32)
    wanted = x * x
    from rlx.backends.native import kernels as native

    native.load(kernel, NATIVE_TARGETS[0])(x, x, 1000)
    np.testing.assert_array_equal(x, wanted)


def test_chunks_do_not_change_the_answer():
    """Any division of the parallel iterations over workers gives the same bits."""
    from rlx.backends.native import kernels as native

    kernel = map_kernel(
        "rows",
        AVX512,
        ("R", "C"),
        [Access("x", F32, ("C", 1))],
        [Access("y", F32, ("C", 1))],
        [apply("exp", operand(0, F32))],
    )
    x = rng.normal(size=(40, 777)).astype(np.float32)
    whole, parts = np.zeros_like(x), np.zeros_like(x)
    f = native.load(kernel, NATIVE_TARGETS[0])
    f(x, whole, 40, 777)
    count = grid_size(kernel, {"R": 40, "C": 777})
    assert count == 4
    for part in reversed(range(count)):
        f(x, parts, 40, 777, first=part, last=part + 1)
    np.testing.assert_array_equal(whole, parts)


def test_gpu_form_in_the_interpreter():
    """The kernel made for a GPU, its blocks and threads run one by one, on a transposed operand."""
    inputs = [Access("x", F32, (1, "R"))]
    expr = apply("relu", operand(0, F32))
    kernel = map_kernel("t", SM_90A, ("R", "C"), inputs, [Access("y", F32, ("C", 1))], [expr])
    assert kernel.thread_count == 256
    for r, c in ((3, 5), (0, 4), (30, 37)):
        x = rng.normal(size=(c, r)).astype(np.float32)
        args = {"x": x, "y": np.zeros((r, c), np.float32), "R": r, "C": c}
        np.testing.assert_array_equal(interpreted(kernel, args)["y"], np.maximum(x.T, 0))


def test_what_is_the_same_along_a_row_is_computed_once_per_row():
    """y[i, j] = x[i, j] * exp(s[i]): the exp is a scalar before the loop over j."""
    expr = apply("mul", operand(0, F32), apply("exp", operand(1, F32)))
    inputs = [Access("x", F32, ("C", 1)), Access("s", F32, (1, 0))]
    kernel = map_kernel("scaled", AVX512, ("R", "C"), inputs, [Access("y", F32, ("C", 1))], [expr])
    before, _ = kernel.text.split("for %i =")[:2]
    assert ": f32 = exp" in before and kernel.text.count("exp") == 1
    x, scale = rng.normal(size=(5, 33)).astype("f4"), rng.normal(size=5).astype("f4")
    args = {"x": x, "s": scale, "y": np.zeros_like(x), "R": 5, "C": 33}
    found = check_everywhere(kernel, args, rtol=1e-6)["y"]
    np.testing.assert_allclose(found, x * np.exp(scale.astype("f8"))[:, None], rtol=1e-6)


def test_parts_with_index_spaces_of_their_own():
    """[-x | 2*w] joined along the last axis, two maps in one kernel that share the output."""
    row, first = ("A", 1), ("N", 1)
    negated = MapPart(
        ("R", "A"), (Access("x", F32, row),), (Access("y", F32, first),), (apply("neg", operand(0, F32)),)
    )
    doubled = MapPart(
        ("R", "B"),
        (Access("w", F32, ("B", 1)),),
        (Access("y", F32, first, "A"),),
        (apply("mul", operand(0, F32), literal(2.0, F32)),),
    )
    for target in (AVX512, SM_90A):
        kernel = piecewise_kernel("joined", target, [negated, doubled])
        assert [p.name for p in kernel.params] == ["x", "w", "y", "R", "A", "N", "B"]
        for r, a, b in ((3, 5, 20), (0, 2, 3), (2, 0, 7), (2, 7, 0), (40, 300, 33)):
            if target is SM_90A and r > 3:
                continue
            x, w = rng.normal(size=(r, a)).astype("f4"), rng.normal(size=(r, b)).astype("f4")
            args = {"x": x, "w": w, "y": np.full((r, a + b), np.nan, "f4"), "R": r, "A": a, "N": a + b, "B": b}
            found = interpreted(kernel, args) if target is SM_90A else check_everywhere(kernel, args)
            np.testing.assert_array_equal(found["y"], np.concatenate([-x, 2 * w], axis=1))


def test_rows_that_go_where_ids_say():
    """y[h, ids[i], :] = -x[i, h, :] for ids below the limit, in the order of i: the last of equal ids wins."""
    ids = operand(1, DType.I64)
    move = Move(apply("mul", ids, literal(9, DType.I64)), apply("lt", ids, literal(4, DType.I64)))
    part = MapPart(
        ("N", 3, 9),
        (Access("x", F32, (27, 9, 1)), Access("ids", DType.I64, (1, 0, 0))),
        (Access("y", F32, (0, 36, 1)),),
        (apply("neg", operand(0, F32)),),
        move,
    )
    for target in (AVX512, SM_90A):
        kernel = piecewise_kernel("put", target, [part])
        for places in ([], [2], [3, 0, 3, 9, 3, 1]):
            x = rng.normal(size=(len(places), 3, 9)).astype("f4")
            wanted = np.zeros((3, 4, 9), "f4")
            for row, place in zip(x, places):
                if place < 4:
                    wanted[:, place] = -row
            args = {"x": x, "ids": np.array(places, "i8"), "y": np.zeros((3, 4, 9), "f4"), "N": len(places)}
            found = interpreted(kernel, args) if target is SM_90A else check_everywhere(kernel, args)
            np.testing.assert_array_equal(found["y"], wanted)
    assert grid_size(piecewise_kernel("put", AVX512, [part]), {"N": 10**6}) == 3, "rows of one place are one iteration"


@pytest.mark.parametrize("contiguous", [True, False])
def test_lookups_of_rows_and_of_single_elements(contiguous):
    """y[i, j] = table[ids[i], j] by one load per vector, and table[ids[j], i] by a gather."""
    offset = apply("mul", operand(0, DType.I64), literal(9, DType.I64))
    ids_strides, table = ((1, 0), (0, 1)) if contiguous else ((0, 1), (1, 0))
    inputs = [Access("ids", DType.I64, ids_strides), Access("table", F32, table)]
    expr = gather(1, F32, offset)
    kernel = map_kernel("rows", AVX512, ("R", "C"), inputs, [Access("y", F32, ("C", 1))], [expr])
    source = rng.normal(size=(6, 9)).astype("f4")
    r, c = (7, 9) if contiguous else (9, 20)
    ids = rng.integers(0, 6, r if contiguous else c)
    args = {"ids": ids, "table": source, "y": np.zeros((r, c), "f4"), "R": r, "C": c}
    wanted = source[ids] if contiguous else source[ids].T
    np.testing.assert_array_equal(check_everywhere(kernel, args)["y"], wanted)


def test_parameters_do_not_depend_on_which_axes_merge():
    for size in (1, 7):
        inputs = [Access("x", F32, ("s", 1), "o")]
        kernel = map_kernel("f", AVX512, (size, "n"), inputs, [Access("y", F32, ("n", 1))], [operand(0, F32)])
        assert [p.name for p in kernel.params] == ["x", "y", "n", "s", "o"]


def test_axes_merge():
    assert merge_axes((2, 3, 4), [(12, 4, 1)]) == [(24, (1,))]
    assert merge_axes((2, 1, 4), [(4, 99, 1), (0, 5, 1)]) == [(2, (4, 0)), (4, (1, 1))]
    assert merge_axes(("B", 3, 4), [(12, 4, 1)]) == [("B", (12,)), (12, (1,))]
    assert merge_axes((), [()]) == []


def test_mistakes():
    access = Access("x", F32, (1,))
    with pytest.raises(OpError, match="map f: x has 1 strides for 2 axes"):
        map_kernel("f", AVX512, (2, 3), [access], [Access("y", F32, (3, 1))], [operand(0, F32)])
    with pytest.raises(OpError, match="1 outputs for 2 expressions"):
        map_kernel("f", AVX512, (2,), [access], [Access("y", F32, (1,))], [operand(0, F32)] * 2)
