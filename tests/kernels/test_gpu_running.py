"""Running sums by blocks of a GPU, in the interpreter with few threads."""

import numpy as np
import pytest

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu import running_rows
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
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
