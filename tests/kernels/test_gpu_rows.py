"""Rows with GPU schedules in the interpreter: whole vectors, rows in registers, and partial results that meet."""

import numpy as np
import pytest

import rlx
from rlx import nn
from rlx.backends.cuda.executable import CudaExecutable
from rlx.compile.compiler import CompilePipeline
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named

rng = np.random.default_rng(0)


def softmax(width, dtype="f32"):
    graph = rlx.Graph("rows")
    with building(graph):
        graph.set_outputs([nn.softmax(graph.input("x", ("B", width), dtype), axis=-1)])
    return graph


@pytest.mark.parametrize("width", [1024, 2048, 12, 5])
def test_softmax(width):
    """Rows of whole vectors of all threads stay in registers; others are read again."""
    lir = CompilePipeline.new("cuda").compile(softmax(width)).lir
    (kernel,) = (k for k in lir.kernels if k.kind != "view")
    made = make_kernel("softmax", lir.as_graph(), kernel, machine_named("sm_90a"))
    verify(made.kernel)
    x = rng.standard_normal((2, width)).astype("f4")
    y = np.full_like(x, np.nan)
    buffers = [p.name for p in made.kernel.params if isinstance(p, Buffer)]
    sizes = {p.name: 2 for p in made.kernel.params if not isinstance(p, Buffer)}
    interpret(made.kernel, {**dict(zip(buffers, (x.reshape(-1), y.reshape(-1)), strict=True)), **sizes})
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    reads = made.kernel.text.count(f"load {buffers[0]}[")
    assert reads == {1024: 1, 2048: 2}.get(width, 3)


def test_code_loads_a_row_once():
    executable = CudaExecutable.of(CompilePipeline.new("cuda").compile(softmax(4096, "bf16")), arch="sm_90a")
    (step,) = executable.programs.main.steps
    assert step.code.ptx.count("ld.global.v4") == 2 and step.code.ptx.count("st.global.v4") == 2
