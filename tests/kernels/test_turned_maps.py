"""Maps of operands that lie otherwise than their results: turned blocks, planes, every second or last element first."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from backends.op_kernel_checks import Program
from rlx.ir.dtype import DType
from rlx.kernels.cpu.maps import map_kernel
from rlx.kernels.machines import MACHINES
from rlx.kernels.specs.expr import operand
from rlx.kernels.specs.scopes import Access

TURNS = [
    ((301, 77), (1, 0), "f32"),
    ((17, 3, 2, 20), (3, 1, 2, 0), "f32"),
    ((2, 20, 20, 32), (0, 3, 1, 2), "f32"),
    ((70, 90), (1, 0), "f64"),
    ((65, 150), (1, 0), "i8"),
    ((3, 40, 24), (0, 2, 1), "f16"),
    ((9, 40, 24), (2, 0, 1), "i32"),
    ((9, 8), (1, 0), "f32"),
    ((2, 3, 10, 7), (0, 2, 3, 1), "f32"),
    ((3, 4, 33), (0, 2, 1), "f64"),
    ((2, 2, 70), (0, 2, 1), "u8"),
]


@pytest.mark.parametrize("shape, turn, dtype", TURNS)
def test_turned_operands(shape, turn, dtype):
    x = np.random.default_rng(1).integers(0, 100, shape).astype(DType(dtype).numpy)
    y = np.random.default_rng(2).integers(0, 27, [shape[t] for t in turn]).astype(x.dtype)
    program = Program(lambda x, y: x.transpose(turn) + y, (shape, dtype), (y.shape, dtype), kinds=["map"])
    assert (program(x, y)[0] == x.transpose(turn) + y).all()
    assert (program.interpreted(x, y)[0] == x.transpose(turn) + y).all()


def test_sizes_of_the_run():
    program = Program(lambda x: rlx.tanh(x.transpose(1, 0)) * 2.0, (("A", "B"), "f32"))
    for shape in ((1, 1), (3, 40), (16, 16), (50, 17), (65, 130), (0, 5)):
        x = np.random.default_rng(3).standard_normal(shape).astype("f4")
        np.testing.assert_allclose(program(x)[0], np.tanh(x.T) * 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("step", [-3, -2, -1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["f4", "f8", "u1"])
def test_elements_a_few_apart(step, dtype):
    x = np.random.default_rng(4).integers(0, 100, (3, 1003)).astype(dtype)
    found = rlx.jit(lambda x: x[:, ::step] + x[:, ::step])(x)
    assert (np.asarray(found) == x[:, ::step] + x[:, ::step]).all()


def test_nothing_is_read_behind_the_end():
    """The interpreter checks every access: the last of every third element is the last of the buffer."""
    program = Program(lambda x: x[:, ::3] * 2.0, ((2, 49 * 3 - 2), "f32"))
    x = np.random.default_rng(5).standard_normal((2, 49 * 3 - 2)).astype("f4")
    assert (program.interpreted(x)[0] == x[:, ::3] * 2).all()
    assert (program(x)[0] == x[:, ::3] * 2).all()


def test_blocks_are_turned_where_there_are_masks():
    x, y = Access("x", DType.F32, (1, 64)), Access("y", DType.F32, (48, 1))
    texts = {
        name: str(map_kernel("turn", MACHINES[name], (64, 48), [x], [y], [operand(0, DType.F32)]))
        for name in ("avx512", "avx2", "neon")
    }
    assert "turned0_f32" in texts["avx512"] and "turned0_f32" in texts["avx2"] and "turned0_f32" not in texts["neon"]


def test_several_parts_are_turned():
    """All parts of what is joined share the scratch, so that hundreds of them fit on the stack of a thread."""
    shapes = [((40, 20), "f32"), ((40, 33), "f32"), ((40, 17), "f32")]
    program = Program(lambda *xs: rlx.concat([x.transpose(1, 0) for x in xs], 0), *shapes, kinds=["map"])
    xs = [np.random.default_rng(6).standard_normal(dims).astype("f4") for dims, _ in shapes]
    assert (program(*xs)[0] == np.concatenate([x.T for x in xs])).all()
    assert (program.interpreted(*xs)[0] == np.concatenate([x.T for x in xs])).all()
    [kernel] = program.kernels(MACHINES["avx512"])
    assert len(kernel.kernel.arrays) == 1
