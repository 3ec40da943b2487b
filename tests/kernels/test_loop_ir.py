"""The IR itself: building, checking, printing."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from kernel_runs import check_everywhere

from rlx.errors import DTypeError, OpError, VerificationError
from rlx.ir.dtype import DType
from rlx.kernels.cpu import maps as elementwise
from rlx.kernels.ir import builder, loop_ir
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import INDEX, Block, Buffer, For, Kernel, Let, LoopKind, Prefetch, Store, Value, ValueType
from rlx.kernels.ir.operations import infer, op_names
from rlx.kernels.ir.verify import verify
from rlx.kernels.specs import expr

F32, I64 = DType.F32, DType.I64


@pytest.mark.parametrize("module", [builder, loop_ir, expr, elementwise])
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


def dot_product() -> Kernel:
    k = KernelBuilder("dot")
    x, y, out, n = k.pointer("x", F32), k.pointer("y", F32), k.pointer("out", F32, write=True), k.index("n")
    with k.fold("i", 0, n, 8, init=[k.const(0.0, ValueType(F32, 8))]) as f:
        tail = k.lane_mask(n - f.index, 8)
        a, b = (k.load(buffer, f.index, lanes=8, mask=tail) for buffer in (x, y))
        f.next(k.fma(a, b, f.values[0]))
    k.store(out, 0, k.reduce("add", f.results[0]))
    return k.build()


def test_text_is_stable_and_complete():
    assert (
        dot_product().text
        == """\
kernel @dot(x: read f32, y: read f32, out: write f32, %n: i64) {
  %6: f32x8 = for %i = 0 to %n step 8 carry (%0: f32x8 = 0.0:f32x8) {
    %1: i64 = sub %n, %i
    %2: boolx8 = lane_mask %1 {8}
    %3: f32x8 = load x[%i] mask %2 else 0.0:f32x8
    %4: f32x8 = load y[%i] mask %2 else 0.0:f32x8
    %5: f32x8 = fma %3, %4, %0
    yield %5
  }
  %7: f32 = reduce_add %6
  store out[0], %7
}"""
    )


def test_a_prefetch_is_a_hint_that_changes_nothing():
    """It may point anywhere, outlives a rewriting pass, and is text, so part of a kernel's identity."""
    k = KernelBuilder("ahead")
    x, y, n = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True), k.index("n")
    with k.loop("i", 0, n) as i:
        k.prefetch(x, i + 1000)
        k.store(y, i, k.load(x, i) * 2.0)
    kernel = k.build()
    assert "prefetch x[" in kernel.text
    args = {"x": np.arange(5, dtype=np.float32), "y": np.zeros(5, np.float32), "n": 5}
    np.testing.assert_array_equal(check_everywhere(kernel, args)["y"], np.arange(5, dtype=np.float32) * 2)
    body = kernel.body.statements[0].body.statements
    hint = next(s for s in body if isinstance(s, Prefetch))
    hint.buffer = Buffer("other", DType.F32, hint.buffer.space)
    with pytest.raises(VerificationError, match="other is not declared"):
        verify(kernel)


def test_known_operations_are_reused_and_indices_folded():
    k = KernelBuilder("k")
    n = k.index("n")
    assert n + 0 is n and n * 1 is n and (n * 2) is (n * 2)
    assert (n * 0).literal == 0 and (k.as_index(7) // 2).literal == 3
    with k.loop("i", 0, n):
        assert n * 2 is n * 2
    inner = []
    for _ in range(2):
        with k.loop("i", 0, n):
            inner.append(n * 3)
    assert inner[0] is not inner[1], "a value of one loop body is not visible in another"
    verify(k.build())


def test_literals_are_rounded_to_their_type():
    k = KernelBuilder("k")
    assert k.const(0.1, F32).literal == 0.10000000149011612
    assert k.const(0.1, F32) is k.const(0.10000000149011612, F32)
    assert k.const(1, F32) is k.const(1.0, F32)
    with pytest.raises(DTypeError, match="300 does not fit into u8"):
        k.const(300, DType.U8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda k, x, n: k.load(x, 0) + k.load(x, 0, lanes=4) * k.cast(k.load(x, 0, lanes=8), F32), "f32x4 and f32x8"),
        (lambda k, x, n: k.load(x, 0) + n, "operands must have one type, got f32 and i64; cast or splat first"),
        (lambda k, x, n: n + 0.5, "the literal 0.5 is a float, but i64 is wanted"),
        (
            lambda k, x, n: k.cast(n, DType.BF16) + k.cast(n, DType.BF16),
            "add is not defined on bf16.*cast to f32 first",
        ),
        (lambda k, x, n: k.load(x, 0) % 2.0, "rem is not defined on f32"),
        (lambda k, x, n: k.store(x, 0, 1.0), "store to x, which is declared read only"),
        (lambda k, x, n: k.extract(k.load(x, 0, lanes=4), 4), "a lane below its lane count"),
        (lambda k, x, n: k.bitcast(k.load(x, 0), DType.F64), "f32 cannot be read as f64"),
        (lambda k, x, n: k.op("frobnicate", n), "kernel op 'frobnicate' is unknown"),
        (lambda k, x, n: k.load(x, 0, lanes=4, mask=k.lane_mask(n, 8)), "load of f32x4 at x under a mask of boolx8"),
        (lambda k, x, n: k.pointer("x", F32), "'x' is declared twice"),
        (lambda k, x, n: k.loop("i", 0, n, 0).__enter__(), "loop i needs a positive step"),
        (lambda k, x, n: k.otherwise().__enter__(), "must directly follow a when"),
        (lambda k, x, n: k.when(k.lane_mask(n, 4)).__enter__(), "a branch needs a scalar bool"),
        (lambda k, x, n: k.atomic("max", k.pointer("z", F32, write=True), 0, 1.0), "needs an integer buffer"),
    ],
)
def test_mistakes_are_told_when_building(make, message):
    k = KernelBuilder("k")
    x, n = k.pointer("x", F32), k.index("n")
    with pytest.raises((DTypeError, OpError), match=message):
        make(k, x, n)


def test_a_loop_with_carried_values_must_say_the_next_ones():
    k = KernelBuilder("k")
    with pytest.raises(OpError, match=r"must call next"), k.fold("i", 0, 3, init=[k.const(0.0, F32)]):
        pass
    with (
        pytest.raises(DTypeError, match=r"carries \(f32\), got \(i64\)"),
        k.fold("i", 0, 3, init=[k.const(0.0, F32)]) as f,
    ):
        f.next(f.index)


@pytest.mark.parametrize("op", sorted(op_names()))
def test_no_op_accepts_a_wrong_operand_count(op):
    with pytest.raises((OpError, DTypeError), match=op if not op.startswith("reduce") else "reduce"):
        infer(op, [ValueType(F32, 4)] * 4)


def broken(change) -> Kernel:
    k = KernelBuilder("broken")
    y, n = k.pointer("y", F32, write=True), k.index("n")
    with k.parallel("c", n) as c:
        k.store(y, c, 1.0)
    kernel = k.build()
    change(k, kernel, y, n)
    return kernel


def undefined_value(k, kernel, y, n):
    kernel.body.statements[0].body.statements.append(Store(y, n, Value(k, ValueType(F32)), None, 4))


def wrong_type(k, kernel, y, n):
    kernel.body.statements.insert(0, Let(Value(k, ValueType(F32)), "add", (n, n)))


def second_parallel_loop(k, kernel, y, n):
    loop = kernel.body.statements[0]
    one, zero = k.const(1, INDEX), k.const(0, INDEX)
    inner = For(LoopKind.PARALLEL, Value(k, INDEX, "d"), zero, n, one, (), (), Block(), ())
    loop.body.statements.append(inner)


def effect_beside_parallel_loop(k, kernel, y, n):
    kernel.body.statements.append(Store(y, n, k.const(1.0, F32), None, 4))


def value_escapes_its_loop(k, kernel, y, n):
    index = kernel.body.statements[0].index
    kernel.body.statements.append(Let(Value(k, INDEX), "add", (index, index)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (undefined_value, "is used where it is not defined"),
        (wrong_type, "add gives i64, not f32"),
        (second_parallel_loop, "a parallel loop must be the only one"),
        (effect_beside_parallel_loop, "beside pure operations"),
        (value_escapes_its_loop, "is used where it is not defined"),
    ],
)
def test_verify_finds_what_a_pass_might_break(change, message):
    with pytest.raises(VerificationError, match=message):
        verify(broken(change))


def test_barriers_and_writes_belong_into_thread_loops():
    k = KernelBuilder("k")
    y = k.pointer("y", F32, write=True)
    k.barrier()
    with pytest.raises(VerificationError, match="a barrier stands inside a thread loop"):
        verify(k.build())
    k = KernelBuilder("k")
    y = k.pointer("y", F32, write=True)
    with k.parallel("c", 2) as c:
        with k.threads("t", 4) as t:
            k.store(y, t, 1.0)
        k.store(y, c, 2.0)
    with pytest.raises(VerificationError, match="memory is written inside the thread loops"):
        verify(k.build())
