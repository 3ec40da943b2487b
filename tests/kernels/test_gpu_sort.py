"""Short rows sorted by a block of a GPU, in the interpreter with few threads."""

import numpy as np
import pytest

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu import sort_blocks
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.ops.lowered.sort_order import SortOrder
from rlx.ops.reduction.sort import TopKWithValues

SM_90A = machine_named("sm_90a")


def graph_of(op, x):
    graph = rlx.Graph("order")
    result = graph.append_node(op, [graph.input("x", x.shape, str(rlx.DType.of(x.dtype)))])
    graph.set_outputs(list(result) if isinstance(result, tuple) else [result])
    return graph


def with_ties(length, dtype):
    x = np.random.default_rng(length).integers(-9, 9, (2, length)).astype(dtype)
    if dtype == np.float32:
        x[0, :4] = [np.nan, -np.inf, np.nan, np.inf]
    return x


@pytest.mark.parametrize(
    ("op", "length", "dtype"),
    [
        (SortOrder(), 20, np.float32),
        (SortOrder(True), 32, np.float32),
        (SortOrder(), 9, np.int64),
        (TopKWithValues(5), 20, np.float32),
    ],
    ids=str,
)
def test_rows(op, length, dtype, monkeypatch):
    monkeypatch.setattr(sort_blocks, "THREADS", 32)
    x = with_ties(length, dtype)
    lir = CompilePipeline.new("cuda").compile(graph_of(op, x)).lir
    (kernel,) = (k for k in lir.kernels if k.kind in ("sort", "top"))
    made = make_kernel("order", lir.as_graph(), kernel, SM_90A).kernel
    assert made.thread_count == 32
    verify(made)
    want = op.eval(x)
    found = [np.zeros(w.size, w.dtype) for w in want]
    interpret(made, dict(zip((p.name for p in made.params), (x.reshape(-1), *found), strict=True)))
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a.reshape(b.shape), b)
