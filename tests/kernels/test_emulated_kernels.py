"""Kernels for RISC-V with vectors and for AArch64, run by an emulator, give what this machine gives."""

import numpy as np
import pytest
from emulated_runs import needs_emulator, run_emulated
from test_int8_dot4 import dot_kernel, expected, operands

import rlx
from backends.op_kernel_checks import Program
from rlx.kernels.machines import NEON, NEON_DOT, NEON_I8MM, RISCV

pytestmark = pytest.mark.targets

MACHINES = [
    pytest.param(machine, id=machine.name, marks=needs_emulator(machine.triple.split("-")[0]))
    for machine in (RISCV, NEON, NEON_DOT, NEON_I8MM)
]
on_each_machine = pytest.mark.parametrize("machine", MACHINES)
F32 = np.float32


def normals(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape, F32)


# A function, and what it is called with.
PROGRAMS = {
    "map": (lambda x: rlx.tanh(x) * 0.5 + rlx.exp(-x * x), [normals(7, 33)]),
    "rows": (lambda x: rlx.softmax(x), [normals(5, 67)]),
    "product": (lambda x, w: rlx.relu(x @ w), [normals(13, 40), normals(40, 37)]),
    "one row": (lambda x, w: x @ w, [normals(1, 70), normals(70, 45)]),
    "running sums": (lambda x: rlx.cumsum(x), [normals(9, 130)]),
    "sort": (lambda x: rlx.sort(x), [normals(3, 50)]),
    "gelu of halves": (lambda x: rlx.gelu(x), [normals(4, 35).astype(np.float16)]),
}


@on_each_machine
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(machine, name):
    function, arrays = PROGRAMS[name]
    names = {np.dtype(F32): "f32", np.dtype(np.float16): "f16"}
    program = Program(function, *((a.shape, names[a.dtype]) for a in arrays))
    found = program.results(arrays, machine, lambda kernel, arguments: run_emulated(kernel, arguments, machine))
    tolerance = 1e-3 if arrays[0].dtype == np.float16 else 2e-6
    for mine, wanted in zip(found, program(*arrays), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance)


@on_each_machine
@pytest.mark.parametrize("lanes", [4, 16])
def test_byte_dot_products(machine, lanes):
    args = operands(lanes)
    extremes = {**operands(lanes), "total": np.zeros_like(args["total"])}
    extremes["a"][:], extremes["b"][:] = 255, -128
    for given in (args, extremes):
        result = {name: np.array(array) for name, array in given.items()}
        run_emulated(dot_kernel(lanes), result, machine)
        np.testing.assert_array_equal(result["y"], expected(given))
