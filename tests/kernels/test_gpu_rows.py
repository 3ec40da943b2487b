"""Rows with GPU schedules in the interpreter: whole vectors, rows in registers, and partial results that meet."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
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


@pytest.mark.parametrize("width", [1024, 2048, 768, 12, 5])
def test_softmax(width):
    """Rows of whole vectors of all threads, or of fewer, stay in registers; others are read again."""
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
    assert reads == {1024: 1, 2048: 2, 768: 6}.get(width, 3)


def test_code_loads_a_row_once():
    executable = CudaExecutable.of(CompilePipeline.new("cuda").compile(softmax(4096, "bf16")), arch="sm_90a")
    (step,) = executable.programs.main.steps
    assert step.code.ptx.count("ld.global.v4") == 2 and step.code.ptx.count("st.global.v4") == 2


@pytest.mark.parametrize(("axis", "dims"), [(0, (6, 40)), (1, (6, 2048)), (1, (6, 20))])
def test_elements_that_wait_for_no_sum_are_stored_while_it_is_formed(axis, dims):
    graph = rlx.Graph("rows")
    with building(graph):
        y = rnp.exp(graph.input("x", dims, "f32"))
        graph.set_outputs([y, rnp.sum(y, axis=axis)])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind != "view")
    made = make_kernel("row", lir.as_graph(), kernel, machine_named("sm_90a")).kernel
    x = rng.standard_normal(dims).astype("f4")
    sums = np.full(dims[1 - axis], np.nan, "f4")
    y = np.full_like(x, np.nan)
    names = [p.name for p in made.params]
    interpret(made, dict(zip(names, (x.reshape(-1), y.reshape(-1), sums), strict=True)))
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(sums, np.exp(x.astype("f8")).sum(axis), rtol=1e-5)
    # A thread of long rows has two vectors.
    assert made.text.count(f"load {names[0]}[") == made.text.count(" = exp ") == (2 if dims[1] == 2048 else 1)
