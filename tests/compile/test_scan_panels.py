"""Weights that all steps of a scan share lie in panels before it, and every result stays what it was."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.compile.generators import generator_for
from rlx.compile.lower.scan_panels import scan_panels
from rlx.ir.interpret import interpret
from rlx.ir.verify import verify_all
from rlx.ops.control.scans import Scan

rng = np.random.default_rng(11)


def recurrence(steps: int, rows: int, size: int, turned: bool) -> rlx.Graph:
    def step(h, x, w):
        return rlx.tanh(x + h @ (rlx.transpose(w, (1, 0)) if turned else w))

    graph = rlx.Graph("recurrence")
    h, w = graph.input("h", (rows, size)), graph.input("w", (size, size))
    xs = graph.input("xs", (steps, rows, size))

    def body(h, x):
        after = step(h, x, w)
        return after, after * 2.0

    last, ys = rlx.scan(body, h, xs)
    graph.set_outputs([last, ys])
    return graph


def operands(graph: rlx.Graph) -> dict[str, np.ndarray]:
    return {str(n.name): rng.normal(size=n.shape.static_dims).astype("f4") * 0.05 for n in graph.inputs}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [128, 250])
def test_results_stay_what_they_are(size, turned):
    graph = recurrence(6, 3, size, turned)
    after = scan_panels(graph, generator_for("cpu"))
    scans = [n for n in after.nodes if isinstance(n.op, Scan)]
    assert [len(n.inputs) for n in scans] == [4] and verify_all(after) == []
    inputs = operands(graph)
    wanted = interpret(graph, inputs)
    for a, b in zip(interpret(after, inputs), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for a, b in zip(rlx.Session("cpu").compile(graph).run(inputs), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_few_steps_and_narrow_weights_are_left_alone():
    for graph in (recurrence(3, 3, 128, False), recurrence(6, 3, 8, False)):
        assert scan_panels(graph, generator_for("cpu")) == graph
