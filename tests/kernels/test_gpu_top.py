"""The largest few of rows by blocks of a GPU, in the interpreter with few threads, and of long rows by parts."""

import numpy as np
import pytest
from test_gpu_radix import check, numbers

import rlx
from rlx.backends.cpu import CpuBackend
from rlx.compile.lower import top_parts
from rlx.kernels.gpu import top_blocks
from rlx.ops.lowered.top_of_parts import TopOfParts
from rlx.ops.reduction.sort import TopK, TopKWithValues


@pytest.fixture
def few_threads(monkeypatch):
    for name, value in (("THREADS", 64), ("LEAST_THREADS", 32), ("FEW_ITEMS", 2), ("SHORT", 8), ("MOST_ITEMS", 4)):
        monkeypatch.setattr(top_blocks, name, value)


@pytest.mark.parametrize(
    ("op", "length", "dtype"),
    [
        (TopKWithValues(5), 70, "f4"),
        (TopK(20), 200, "f4"),  # elements that reach the limit may be more than threads
        (TopK(1), 64, "i2"),
        (TopOfParts(3, 4), 131, "f2"),
        (TopOfParts(2, 3), 100, "u1"),
    ],
    ids=str,
)
def test_rows(few_threads, op, length, dtype):
    check(op, numbers((1, length), dtype), kinds=("top",), seed=1)


def test_many_reach_the_limit(few_threads):
    """All elements of 19 threads are better than the best one of the 20th: 77 of them for 64 threads."""
    thread, item = np.arange(256) % 64, np.arange(256) // 64
    x = np.where(thread < 19, 2 + item, thread == 19).astype(np.float32).reshape(1, 256)
    check(TopK(20), x, kinds=("top",))


def graph_of(op, shape, dtype="f32"):
    graph = rlx.Graph("order")
    result = graph.append_node(op, [graph.input("x", shape, dtype)])
    graph.set_outputs(list(result) if isinstance(result, tuple) else [result])
    return graph


@pytest.mark.parametrize("width", [4099, 6000])
def test_long_rows_are_looked_through_in_parts(width, monkeypatch):
    monkeypatch.setattr(top_parts, "LONGEST", 1024)
    monkeypatch.setattr(top_parts, "SHORTER", 512)
    x = numbers((2, width), "f4")
    form = top_parts.top_parts(graph_of(TopKWithValues(7), x.shape))
    names = [n.op.mnemonic for n in form.nodes]
    assert names.count("top_of_parts") == 1 and names.count("top_k") == 1
    found = CpuBackend().compile(form, None).run({"x": x}, {})
    for a, b in zip(found, TopKWithValues(7).eval(x), strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)


def test_rows_of_unknown_length_are_sorted():
    form = top_parts.top_parts(graph_of(TopKWithValues(7), (2, "N")))
    assert "sort" in [n.op.mnemonic for n in form.nodes]
    short = graph_of(TopK(7), (2, 100))
    assert top_parts.top_parts(short) is short
