"""Kernels of single ops for machines that are not this one: their assembly, and narrower vectors run here."""

import re

import numpy as np
import pytest

import rlx
from rlx.backends.native.kernels import Loader
from rlx.ir.graph import Graph
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.machines import MACHINES, runs_here
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.pooling import MaxPool2dBackward
from rlx.ops.nn.ssm import SelectiveScan
from rlx.ops.reduction.window_reductions import ReduceWindow

OPS = {
    "conv": (Conv((3, 3), (1, 1), (1, 1), (1, 1)), ((1, 4, 6, 19), (6, 4, 3, 3))),
    "pool": (ReduceWindow("max", (1, 1, 2, 2), (1, 1, 2, 2), (0,) * 4, (0,) * 4, (1,) * 4), ((2, 3, 8, 22),)),
    "pool_gradient": (MaxPool2dBackward((2, 2), (2, 2), (0, 0)), ((1, 2, 4, 6), (1, 2, 2, 3))),
    "recurrence": (SelectiveScan(4), ((2, 5, 9), (2, 5, 9), (9, 4), (2, 5, 4), (2, 5, 4))),
}
# An instruction of each machine that works on vectors of floats.
VECTOR_CODE = {
    "avx2": r"vfmadd\w+ps\s.*ymm|v(add|mul|max)ps\s.*ymm",
    "neon": r"fml[as]\s+v\d+\.4s|f(add|mul|max)\w*\s+v\d+\.4s",
    "riscv64": r"vf(macc|madd|add|mul|max)\.v[vf]",
}


def compiled(name):
    op, shapes = OPS[name]
    graph = Graph(name)
    graph.set_outputs([op(*(graph.input(f"x{i}", dims) for i, dims in enumerate(shapes)))])
    return rlx.Session("cpu").compile(graph), shapes


def made_for(program, target):
    [kernel] = program._executable.lir.kernels
    return make_kernel(kernel.kind, program._executable.lir.as_graph(), kernel, MACHINES[target]).kernel


@pytest.mark.parametrize("target", VECTOR_CODE)
@pytest.mark.parametrize("name", [n for n in OPS if n != "pool_gradient"])
def test_other_machines_get_vector_code(name, target):
    program, _ = compiled(name)
    assert re.search(VECTOR_CODE[target], compile_assembly(made_for(program, target), MACHINES[target]))


@pytest.mark.parametrize("target", ["avx512", "avx2", "generic"])
@pytest.mark.parametrize("name", OPS)
def test_every_vector_width_gives_the_same(name, target):
    if not runs_here(MACHINES[target]):
        pytest.skip(f"this machine does not run {target}")
    program, shapes = compiled(name)
    rng = np.random.default_rng(0)
    arrays = [abs(rng.normal(size=dims)).astype("f4") for dims in shapes]
    wanted = np.asarray(program.run({f"x{i}": a for i, a in enumerate(arrays)})[0])
    result = np.full(wanted.shape, np.nan, "f4")
    Loader(MACHINES[target]).load(made_for(program, target))(*arrays, result)
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
