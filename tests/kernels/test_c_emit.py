"""The C emitter: its text, and that C computes the very bits of LLVM's code."""

from __future__ import annotations

import subprocess
from itertools import product

import numpy as np
import pytest
from c_cases import op_cases
from c_runs import Case, c_compiler, c_differences, compile_c
from kernel_runs import NATIVE_TARGETS, Arguments, ran_natively

from conformance.backends_here import OTHER_LAYOUTS
from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.emit.c_emit import c_source
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import FLOATS, INTS, Kernel
from rlx.kernels.machines import AVX512, CORTEX_M4, MACHINES, host

F32, I32, I64 = DType.F32, DType.I32, DType.I64

# One kernel of each: maps, rows, products in several forms, quantised products, and ops with kernels of their own.
SAMPLED = ["Activation", "Softmax", "LayerNorm", "MatMul", "DotGeneral", "PanelMatMul", "Int8BlockMatMul", "Attention"]
SAMPLED += ["Sort", "ScatterNd", "Conv", "Pool", "Cumulative", "ArgReduce"]
SAMPLED += [] if "Int8MatMul" in OTHER_LAYOUTS.get("cpu", ()) else ["Int8MatMul"]


def body(text: str) -> str:
    """The kernels of a file, without what every file begins with."""
    return text.split("#define LANES")[1].split("\n", 1)[1]


def copy_kernel(**options: object) -> Kernel:
    k = KernelBuilder("copy")
    x, y, n = k.pointer("x", F32, **options), k.pointer("y", F32, write=True, **options), k.index("n")
    with k.parallel("i", n) as i:
        k.store(y, i, k.load(x, i))
    return k.build()


def test_scalar_kernels_read_like_c():
    k = KernelBuilder("total")
    x, y, n = k.pointer("x", F32), k.pointer("y", F32, write=True), k.index("n")
    with k.fold("i", 0, n, step=2, init=[k.const(0.0, F32)]) as f:
        value = k.load(x, f.index)
        f.next(f.values[0] + k.select(value > 0.0, value, -value))
    k.store(y, 0, f.results[0])
    assert (
        body(c_source([k.build()], CORTEX_M4))
        == """
void rlx_total(const float *restrict x, float *restrict y, int64_t n, int64_t first, int64_t last) {
    (void)first;
    (void)last;
    float v0;
    v0 = 0x0p+0f;
    for (int64_t i = INT64_C(0); i < n; i += INT64_C(2)) {
        float v1 = x[i];
        bool v2 = v1 > 0x0p+0f;
        float v3 = -v1;
        float v4 = v2 ? v1 : v3;
        float v5 = v0 + v4;
        v0 = v5;
    }
    y[INT64_C(0)] = v0;
}

void rlx_total_packed(const void *args, int64_t first, int64_t last) {
    const float *x;
    memcpy(&x, (const char *)args + 0, sizeof x);
    float *y;
    memcpy(&y, (const char *)args + 8, sizeof y);
    int64_t n;
    memcpy(&n, (const char *)args + 16, sizeof n);
    rlx_total(x, y, n, first, last);
}
"""
    )


def test_vectors_are_loops_over_lanes():
    k = KernelBuilder("tail")
    x, y, n = k.pointer("x", F32), k.pointer("y", F32, write=True), k.index("n")
    mask = k.lane_mask(n, 4)
    k.store(y, 0, k.load(x, 0, lanes=4, mask=mask, other=1.0) * 2.0, mask=mask)
    text = c_source([k.build()], AVX512)
    assert "bool v0[4]; LANES(4) v0[l] = l < n;" in text
    assert "float v1[4]; LANES(4) v1[l] = v0[l] ? x[INT64_C(0) + l] : 0x1p+0f;" in text
    assert "LANES(4) if (v0[l]) y[INT64_C(0) + l] = v2[l];" in text


def test_buffers_that_may_overlap_are_not_restricted():
    assert "restrict" in c_source([copy_kernel()], CORTEX_M4)
    assert "restrict" not in c_source([copy_kernel(noalias=False)], CORTEX_M4)


def test_memory_seen_as_two_types_goes_through_memcpy():
    k = KernelBuilder("convert")
    x, y = k.pointer("x", F32, noalias=False), k.pointer("y", I32, write=True, noalias=False)
    k.store(y, 0, k.cast(k.load(x, 0), I32))
    text = c_source([k.build()], CORTEX_M4)
    assert "fetch_f32(&x[INT64_C(0)])" in text and "put_i32(&y[INT64_C(0)], v1)" in text


def test_names_that_c_has_taken_are_changed():
    k = KernelBuilder("main")
    x, y, n = k.pointer("float", F32), k.pointer("v0", F32, write=True), k.index("last")
    with k.loop("int", 0, n) as i:
        k.store(y, i, k.load(x, i))
    text = c_source([k.build()], CORTEX_M4)
    assert (
        "rlx_main(const float *restrict float_, float *restrict v0_, int64_t last_, int64_t first, int64_t last)"
        in text
    )


def test_what_c_cannot_do_is_refused():
    k = KernelBuilder("blocks")
    y = k.pointer("y", I32, write=True)
    with k.threads("t", 4) as t:
        k.barrier()
        k.store(y, t, 1)
    with pytest.raises(BackendError, match="kernel blocks has barriers between threads; C has none"):
        c_source([k.build()], CORTEX_M4)
    with pytest.raises(BackendError, match=r"need different names, got \['copy', 'copy'\]"):
        c_source([copy_kernel(), copy_kernel()], CORTEX_M4)


def test_a_file_of_scalars_is_strict_c99(tmp_path):
    """Nothing beyond the standard, where a compiler can tell."""
    source = tmp_path / "copy.c"
    source.write_text(c_source([copy_kernel()], CORTEX_M4))
    command = [
        *c_compiler(),
        "-std=c99",
        "-pedantic-errors",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-c",
        str(source),
        "-o",
        str(tmp_path / "copy.o"),
    ]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def case(kernel: Kernel, args: Arguments) -> Case:
    return Case(kernel, args, ran_natively(kernel, args, host()))


def integer_cases() -> list[Case]:
    """Overflow, shifts, division and conversions at the ends of every integer type; lanes and scalars."""
    cases = []
    for dtype, lanes in product(sorted(INTS, key=str), (1, 4)):
        info = np.iinfo(dtype.numpy)
        ends = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 5, 7, 100, info.max // 3]
        a = np.array([x for x in ends for _ in ends], dtype.numpy)
        b = np.array([x for _ in ends for x in ends], dtype.numpy)
        k = KernelBuilder(f"ends_{dtype}_{lanes}")
        x, y = k.pointer("a", dtype), k.pointer("b", dtype)
        out = {
            op: k.pointer(f"out_{op}", dtype, write=True) for op in ("add", "sub", "mul", "min", "max", "and", "xor")
        }
        rest = {
            op: k.pointer(f"out_{op}", dtype, write=True) for op in ("div", "rem", "shl", "shr", "abs", "neg", "not")
        }
        floats = {d: k.pointer(f"as_{d}", d, write=True) for d in sorted(FLOATS, key=str)}
        ints = {d: k.pointer(f"to_{d}", d, write=True) for d in sorted(INTS - {dtype}, key=str)}
        less = k.pointer("less", DType.BOOL, write=True)
        with k.loop("i", 0, len(a), step=lanes) as i:
            p, q = k.load(x, i, lanes=lanes), k.load(y, i, lanes=lanes)
            for op, buffer in out.items():
                k.store(buffer, i, k.op(op, p, q))
            shift = q & (8 * dtype.size_bytes - 1)
            divisor = k.select(k.eq(q, 0), 1, q)
            if dtype.is_signed:
                divisor = k.select(k.eq(q, -1), 3, divisor)
                k.store(rest["abs"], i, k.abs(p))
                k.store(rest["neg"], i, -p)
            k.store(rest["not"], i, ~p)
            for op, right in (("div", divisor), ("rem", divisor), ("shl", shift), ("shr", shift)):
                k.store(rest[op], i, k.op(op, p, right))
            for d, buffer in (floats | ints).items():
                k.store(buffer, i, k.cast(p, d))
            k.store(less, i, p < q)
        kernel = k.build()
        args: Arguments = {p.name: np.zeros(len(a), p.dtype.numpy) for p in kernel.params}
        cases.append(case(kernel, args | {"a": a, "b": b}))
    return cases


def float_cases() -> list[Case]:
    """Every operation on special values, conversions to all integers and halves; lanes and scalars."""
    cases = []
    for dtype, lanes in product(sorted(FLOATS, key=str), (1, 4)):
        info = np.finfo(dtype.numpy)
        special = [
            0.0,
            -0.0,
            1.0,
            -1.5,
            0.5,
            2.5,
            np.inf,
            -np.inf,
            np.nan,
            info.max,
            info.tiny,
            -info.smallest_subnormal,
        ]
        special += [127.5, -128.9, 255.0, 256.0, 2.0**31, -(2.0**31), 2.0**63, 2.0**64, 65519.0, 65520.0, 1e-8, 3.0]
        a = np.array([x for x in special for _ in special]).astype(dtype.numpy)
        b = np.array([x for _ in special for x in special]).astype(dtype.numpy)
        k = KernelBuilder(f"special_{dtype}_{lanes}")
        x, y = k.pointer("a", dtype), k.pointer("b", dtype)
        binary = {op: k.pointer(f"out_{op}", dtype, write=True) for op in ("add", "sub", "mul", "div", "min", "max")}
        unary = {op: k.pointer(f"out_{op}", dtype, write=True) for op in ("sqrt", "floor", "ceil", "trunc", "round")}
        unary |= {op: k.pointer(f"out_{op}", dtype, write=True) for op in ("abs", "neg")}
        compared = {op: k.pointer(f"is_{op}", DType.BOOL, write=True) for op in ("eq", "ne", "lt", "le", "gt", "ge")}
        fused = k.pointer("fused", dtype, write=True)
        others = [*sorted(INTS, key=str), *sorted(FLOATS - {dtype}, key=str), DType.F16, DType.BF16, DType.BOOL]
        casts = {d: k.pointer(f"to_{d}", d, write=True) for d in others}
        with k.loop("i", 0, len(a), step=lanes) as i:
            p, q = k.load(x, i, lanes=lanes), k.load(y, i, lanes=lanes)
            for op, buffer in (binary | compared).items():
                k.store(buffer, i, k.op(op, p, q))
            for op, buffer in unary.items():
                k.store(buffer, i, k.op(op, p))
            for d, buffer in casts.items():
                k.store(buffer, i, k.cast(p, d))
            k.store(fused, i, k.fma(p, q, p))
        kernel = k.build()
        args: Arguments = {p.name: np.zeros(len(a), p.dtype.numpy) for p in kernel.params}
        cases.append(case(kernel, args | {"a": a, "b": b}))
    return cases


def carried_case() -> Case:
    """Two carried values change places each time round, one of them a vector's lane, and a branch yields."""
    k = KernelBuilder("fibonacci")
    y, n = k.pointer("y", I64, write=True), k.index("n")
    with k.fold("i", 0, n, init=[k.as_index(0), k.as_index(1), k.as_index(7)]) as f:
        a, b = f.values[:2]
        f.next(b, a + b, a)
    (picked,) = k.choose(f.results[0] > 10, lambda: [f.results[1]], lambda: [f.results[2]])
    for place, value in enumerate((*f.results, picked)):
        k.store(y, place, value)
    return case(k.build(), {"y": np.zeros(4, np.int64), "n": 9})


def test_c_gives_the_bits_of_llvm(tmp_path):
    """Small kernels with the ends of every type, and kernels of 14 ops."""
    cases = [*integer_cases(), *float_cases(), carried_case()]
    cases += [c for name in SAMPLED for c in op_cases(name, most=2)[:1]]
    assert len(cases) >= 20
    assert c_differences(cases, tmp_path) == []


def test_a_range_of_the_parallel_loop(tmp_path):
    (call,) = compile_c([copy_kernel()], tmp_path)
    x, y = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    call(x, y, 10, first=3, last=5)
    assert y.tolist() == [0, 0, 0, 3, 4, 0, 0, 0, 0, 0]
    call(x, y, 10, first=-4, last=99)
    assert y.tolist() == x.tolist()


def test_atomics(tmp_path):
    k = KernelBuilder("count")
    y, z, n = k.pointer("y", I32, read=True, write=True), k.pointer("z", F32, read=True, write=True), k.index("n")
    with k.parallel("i", n) as i:
        k.atomic("add", y, 0, 3)
        k.atomic("max", y, 1, k.cast(i, I32))
        k.atomic("min", y, 2, -k.cast(i, I32))
        k.atomic("add", z, 0, 0.5)
    (call,) = compile_c([k.build()], tmp_path)
    y_array, z_array = np.zeros(3, np.int32), np.zeros(1, np.float32)
    call(y_array, z_array, 9)
    assert y_array.tolist() == [27, 8, -8] and z_array.tolist() == [4.5]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_every_machine_gives_c(machine):
    assert "rlx_copy(" in c_source([copy_kernel()], machine, fused=machine in NATIVE_TARGETS)
