"""Maps that read along another axis than they write, by tiles of a GPU's shared memory, in the interpreter."""

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.compile.compiler import CompilePipeline
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu import turned_maps
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Space
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named

SM_90A = machine_named("sm_90a")


def made_of(function, dtype, *shapes):
    graph = rlx.Graph("turned")
    with building(graph):
        graph.set_outputs([function(*(graph.input(f"x{i}", dims, dtype) for i, dims in enumerate(shapes)))])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = lir.kernels
    return graph, make_kernel("turned", lir.as_graph(), kernel, SM_90A)


CASES = {
    "nhwc": ("f16", lambda x: ops.transpose(x, (0, 2, 3, 1)), lambda x: x.transpose(0, 2, 3, 1), [(2, 12, 5, 6)]),
    "odd": ("f16", lambda x: ops.transpose(x, (0, 2, 3, 1)), lambda x: x.transpose(0, 2, 3, 1), [(2, 9, 5, 7)]),
    "nchw": ("f32", lambda x: ops.transpose(x, (0, 3, 1, 2)), lambda x: x.transpose(0, 3, 1, 2), [(2, 5, 6, 11)]),
    "strided": (
        "f16",
        lambda x: ops.transpose(x[:, :, ::2, ::2], (0, 2, 3, 1)),
        lambda x: x[:, :, ::2, ::2].transpose(0, 2, 3, 1),
        [(1, 8, 12, 12)],
    ),
    "with others": (
        "f16",
        lambda x, b, y: ops.transpose(x + b, (1, 0)) * y,
        lambda x, b, y: (x.astype(np.float32) + b).T * y,
        [(20, 14), (20, 1), (14, 20)],
    ),
    "two turned": (
        "f32",
        lambda x, y: ops.transpose(x, (1, 0)) * ops.transpose(y, (1, 0)) + 1,
        lambda x, y: x.T * y.T + 1,
        [(7, 19), (7, 19)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_tiles(name, monkeypatch):
    # Small tiles and few threads: the interpreter is slow.
    for setting, value in (("THREADS", 32), ("TILE", 8), ("ELEMENTS", 64), ("FEWEST", 1)):
        monkeypatch.setattr(turned_maps, setting, value)
    dtype, function, meaning, shapes = CASES[name]
    graph, made = made_of(function, dtype, *shapes)
    kernel = made.kernel
    assert any(a.space is Space.SHARED for a in kernel.arrays)
    verify(kernel)
    rng = np.random.default_rng(3)
    given = [rng.standard_normal(s).astype(np.float16 if dtype == "f16" else np.float32) for s in shapes]
    want = meaning(*given)
    found = np.full(want.size, np.nan, given[0].dtype)
    by_node = {n.id: a.reshape(-1) for n, a in zip(graph.inputs, given)}
    arguments = [by_node.get(b, found) for b in made.buffers]
    interpret(kernel, dict(zip((p.name for p in kernel.params), arguments, strict=True)))
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=2e-3 if dtype == "f16" else 1e-6)


def test_others_have_threads_for_elements():
    """What lies as it is written, and what is small, has no tiles."""
    for function, shape in ((lambda x: x + 1, (512, 512)), (lambda x: ops.transpose(x, (1, 0)), (8, 8))):
        assert not made_of(function, "f16", shape)[1].kernel.arrays


def test_results_may_be_stored_over_an_operand(monkeypatch):
    """Each element is read once before it is stored, also where a tile has fewer elements than its threads take."""
    for setting, value in (("THREADS", 32), ("TILE", 8), ("ELEMENTS", 64), ("FEWEST", 1)):
        monkeypatch.setattr(turned_maps, setting, value)
    graph, made = made_of(lambda x, y: x + ops.transpose(y, (1, 0)), "f32", (7, 19), (19, 7))
    rng = np.random.default_rng(4)
    x, y = (rng.standard_normal(dims).astype(np.float32) for dims in ((7, 19), (19, 7)))
    want = x + y.T
    by_node = {graph.inputs[0].id: x.reshape(-1), graph.inputs[1].id: y.reshape(-1)}
    arguments = [by_node.get(b, x.reshape(-1)) for b in made.buffers]
    interpret(made.kernel, dict(zip((p.name for p in made.kernel.params), arguments, strict=True)))
    np.testing.assert_array_equal(x, want)
