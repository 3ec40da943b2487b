"""Running sums by blocks of a GPU, in the interpreter with few threads."""

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import CpuBackend
from rlx.compile.compiler import CompilePipeline
from rlx.compile.lower.lower import kernel_forms
from rlx.kernels.from_lir import generator, make_kernel
from rlx.kernels.gpu import running_rows
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.ops.lowered.running_from import RunningFrom
from rlx.ops.reduction.cumulative import Cumulative

SM_90A = machine_named("sm_90a")


@pytest.mark.parametrize(
    ("kind", "exclusive", "reverse", "length"),
    [("sum", False, False, 300), ("sum", True, True, 64), ("max", False, True, 70), ("logsumexp", True, False, 270)],
)
def test_rows(kind, exclusive, reverse, length, monkeypatch):
    # Two warps instead of eight: the interpreter is slow.
    monkeypatch.setattr(running_rows, "THREADS", 64)
    op = Cumulative(kind, axis=-1, exclusive=exclusive, reverse=reverse)
    graph = rlx.Graph("running")
    graph.set_outputs([graph.append_node(op, [graph.input("x", (1, length), "f32")])])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    made = make_kernel("running", lir.as_graph(), lir.kernels[0], SM_90A).kernel
    assert made.thread_count == 64
    verify(made)
    x = np.random.default_rng(length).standard_normal((1, length)).astype(np.float32)
    found = np.full(x.size, np.nan, np.float32)
    interpret(made, dict(zip((p.name for p in made.params), (x.reshape(-1), found), strict=True)))
    np.testing.assert_allclose(found.reshape(x.shape), op.eval(x), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("kind", "exclusive", "reverse"), [("sum", False, True), ("max", True, False)])
@pytest.mark.parametrize("shape", [(2, 38, 40), (1, 140)])
def test_parts_begin_with_what_is_before_them(kind, exclusive, reverse, shape, monkeypatch):
    for name in ("THREADS", "COLUMNS"):
        monkeypatch.setattr(running_rows, name, 32)
    op = RunningFrom(kind, 1, shape[1] // 2, exclusive, reverse)
    rng = np.random.default_rng(7)
    x = rng.standard_normal(shape).astype(np.float32)
    before = rng.standard_normal((shape[0], 2, *shape[2:])).astype(np.float32)
    graph = rlx.Graph("running")
    given = [graph.input("x", x.shape, "f32"), graph.input("before", before.shape, "f32")]
    graph.set_outputs([graph.append_node(op, given)])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    made = make_kernel("running", lir.as_graph(), lir.kernels[0], SM_90A).kernel
    assert made.thread_count == 32
    verify(made)
    found = np.full(x.size, np.nan, np.float32)
    arrays = (x.reshape(-1), before.reshape(-1), found)
    interpret(made, dict(zip((p.name for p in made.params), arrays, strict=True)))
    np.testing.assert_allclose(found.reshape(shape), op.eval(x, before), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("shape", "axis", "parts"), [((1 << 17,), 0, 16), ((8192, 64), 0, 256), ((3, 40_000), 1, 5), ((4096, 8192), 1, 0)]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_long_axes_are_cut(shape, axis, parts, reverse):
    """The form for GPUs, run on the host, and how many parts it has."""
    graph = rlx.Graph("running")
    op = Cumulative("sum", axis=axis, reverse=reverse)
    x = graph.input("x", shape, "f32")
    graph.set_outputs([graph.append_node(op, [x])])
    form = kernel_forms(graph, generator(SM_90A))
    cut = [n for n in form.nodes if isinstance(n.op, RunningFrom)]
    assert bool(cut) == bool(parts)
    if not parts:
        return
    assert form.shape(cut[-1].inputs[1]).dims[axis] == parts
    x = np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)
    (found,) = CpuBackend().compile(form, None).run({"x": x}, {})
    np.testing.assert_array_equal(np.asarray(found), op.eval(x))
