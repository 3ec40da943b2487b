"""Kernels of the same form are made once: layers of a model cost little after the first."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.compile.compiler import CompilePipeline
from rlx.compile.fuse.can_join import KernelFits
from rlx.ir.tensor import building
from rlx.kernels import reuse as kernel_maker
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.machines import host
from rlx.kernels.reuse import KernelMaker


def blocks(layers, width=32):
    graph = rlx.Graph("blocks")
    x = graph.input("x", ("B", "S", width))
    with building(graph):
        for i in range(layers):
            weight = lambda name, *dims, i=i: graph.param(f"{i}.{name}", dims)  # noqa: E731
            inner = ops.layer_norm(x, weight("g", width), weight("b", width)) @ weight("up", width, 2 * width)
            x = x + ops.gelu(inner + weight("c", 2 * width)) @ weight("down", 2 * width, width)
    graph.set_outputs([ops.softmax(x, -1)])
    return graph


def test_equal_layers_are_made_once(monkeypatch):
    made, asked = [], []
    monkeypatch.setattr(kernel_maker, "make_kernel", lambda *args: made.append(args) or make_kernel(*args))
    ask = KernelFits._map_barrier

    def _map_barrier(*args):
        asked.append(args)
        return ask(*args)

    monkeypatch.setattr(KernelFits, "_map_barrier", _map_barrier)
    counts = []
    for layers in (2, 6):
        made.clear(), asked.clear()
        lir = CompilePipeline(target="cpu").compile(blocks(layers)).lir
        maker = KernelMaker(lir.as_graph(), host())
        found = [maker.make(k) for k in lir.kernels if k.kind != "view"]
        counts.append((len(made), len(asked)))
    assert len(found) > 6 * 3 and counts[0] == counts[1], "what is new in six layers was there in two"


def test_a_made_kernel_is_what_make_kernel_gives():
    lir = CompilePipeline(target="cpu").compile(blocks(3)).lir
    maker = KernelMaker(lir.as_graph(), host())
    for kernel in (k for k in lir.kernels if k.kind != "view"):
        wanted = make_kernel(kernel.kind, lir.as_graph(), kernel, host())
        found = maker.make(kernel)
        assert (found.kernel.text, found.buffers, found.extents) == (wanted.kernel.text, wanted.buffers, wanted.extents)


@pytest.mark.parametrize("numbers", [(2.0, 3.0), (0.0, -0.0)])
def test_numbers_are_part_of_the_code(numbers):
    graph = rlx.Graph("g")
    x = graph.input("x", (4, 8))
    with building(graph):
        graph.set_outputs([ops.softmax(x, -1) / a for a in numbers])
    values = np.linspace(-1, 1, 32, dtype="f4").reshape(4, 8)
    shares = np.exp(values) / np.exp(values).sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        wanted = [shares / np.float32(a) for a in numbers]
    for found, right in zip(rlx.Session("cpu").compile(graph).run({"x": values}), wanted, strict=True):
        np.testing.assert_allclose(np.asarray(found), right, rtol=1e-5)
