"""The interpreter's checks; that its answers are right is shown by the other tests against NumPy and native code."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.errors import BindingError
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.interpret import KernelFault, grid_size, interpret

F32, I32 = DType.F32, DType.I32


def faulty(body):
    k = KernelBuilder("faulty")
    x, y, n = k.pointer("x", F32, align=16), k.pointer("y", F32, write=True), k.index("n")
    body(k, x, y, n)
    x_array, y_array = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    interpret(k.build(), {"x": x_array, "y": y_array, "n": 10})


def read_uninitialised(k, x, y, n):
    scratch = k.local("scratch", F32, 8)
    k.store(scratch, 0, 1.0)
    k.store(y, 0, k.load(scratch, 1))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            lambda k, x, y, n: k.store(y, 0, k.load(x, n - 2, lanes=4)),
            r"x\[10\] \(lane 2\) is outside its 10 elements\n  at: %1: f32x4 = load x\[%0\]",
        ),
        (lambda k, x, y, n: k.store(y, k.as_index(-1), 1.0), r"y\[-1\] \(lane 0\) is outside"),
        (lambda k, x, y, n: k.store(y, n, k.load(x, n)), r"x\[10\]"),
        (lambda k, x, y, n: k.load(x, 2, lanes=4, align=16), "byte 8 of x .align 16. is not aligned to 16"),
        (lambda k, x, y, n: k.store(y, k.iota(DType.I64, 4) * 0, 1.0), "lanes of a store to y collide"),
        (read_uninitialised, "scratch is read before it is written"),
        (lambda k, x, y, n: k.store(y, n // (n - 10), 1.0), "integer division of"),
        (lambda k, x, y, n: n << (n * 10), "a shift of int64 by"),
    ],
)
def test_what_the_ir_forbids_is_a_fault(body, message):
    with pytest.raises(KernelFault, match=message):
        faulty(body)


def test_masked_off_lanes_touch_no_memory():
    def body(k, x, y, n):
        tail = k.lane_mask(2, 8)
        k.store(y, n - 2, k.load(x, n - 2, lanes=8, mask=tail, other=7.0), mask=tail)

    faulty(body)


def test_threads_advance_from_barrier_to_barrier():
    """Each thread reads what its neighbour wrote before the barrier: a rotation in shared memory."""
    k = KernelBuilder("rotate")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    shared = k.shared("shared", F32, 4)
    with k.parallel("block", 3) as block, k.threads("t", 4) as t:
        k.store(shared, t, k.load(x, block * 4 + t))
        k.barrier()
        k.store(y, block * 4 + t, k.load(shared, (t + 1) % 4))
    x_array = np.arange(12, dtype=np.float32)
    y_array = np.zeros(12, np.float32)
    interpret(k.build(), {"x": x_array, "y": y_array})
    np.testing.assert_array_equal(y_array, np.roll(x_array.reshape(3, 4), -1, axis=1).ravel())


def test_without_the_barrier_the_same_kernel_faults():
    k = KernelBuilder("rotate")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    shared = k.shared("shared", F32, 4)
    with k.parallel("block", 3) as block, k.threads("t", 4) as t:
        k.store(shared, t, k.load(x, block * 4 + t))
        k.store(y, block * 4 + t, k.load(shared, (t + 1) % 4))
    with pytest.raises(KernelFault, match="shared is read before it is written"):
        interpret(k.build(), {"x": np.zeros(12, np.float32), "y": np.zeros(12, np.float32)})


def test_a_barrier_that_only_some_threads_reach_is_a_fault():
    k = KernelBuilder("divergent")
    y = k.pointer("y", I32, write=True)
    with k.threads("t", 4) as t:
        with k.when(t < 2):
            k.barrier()
        k.store(y, t, 1)
    with pytest.raises(KernelFault, match="2 of 4 threads wait at a barrier"):
        interpret(k.build(), {"y": np.zeros(4, np.int32)})


def test_atomics_of_all_blocks_and_threads_add_up():
    k = KernelBuilder("count")
    y, n = k.pointer("y", I32, write=True), k.index("n")
    with k.parallel("block", n) as block, k.threads("t", 8) as t:
        k.atomic("add", y, 0, 1)
        k.atomic("max", y, 1, k.cast(block * 8 + t, I32))
    y_array = np.zeros(2, np.int32)
    interpret(k.build(), {"y": y_array, "n": 5})
    assert y_array.tolist() == [40, 39]


def test_parallel_range_and_grid_size():
    k = KernelBuilder("mark")
    y, n = k.pointer("y", I32, write=True), k.index("n")
    with k.parallel("c", k.ceildiv(n, 4)) as c:
        k.store(y, c, 1)
    kernel = k.build()
    assert [grid_size(kernel, {"n": n}) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    y_array = np.zeros(5, np.int32)
    interpret(kernel, {"y": y_array, "n": 20}, first=1, last=3)
    assert y_array.tolist() == [0, 1, 1, 0, 0]


def test_arguments_are_checked():
    k = KernelBuilder("k")
    k.pointer("x", F32)
    with pytest.raises(BindingError, match=r"takes \['x'\], got \['y'\]"):
        interpret(k.build(), {"y": np.zeros(1, np.float32)})
    with pytest.raises(BindingError, match="x needs a contiguous f32 array, got float64 array"):
        interpret(k.build(), {"x": np.zeros(1)})
