"""Tests generated from the registry: every op, every sample, every dtype it names.

Each op's own samples are the only input; what is checked is that its parts agree with each other: infer with eval,
symbolic with bound, decomposition with eval, text and files with the graph.
"""

from __future__ import annotations

import numpy as np
import pytest

from op_samples import LEAVES, sample_graph, samples_of
from rlx.ir.binding import bind_graph, infer_binding
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.serialize import from_bytes, from_json, to_bytes, to_json
from rlx.ir.text.graph_text import large_constants, parse, show
from rlx.ir.verify import verify_all


def all_samples():
    for name in OP_CLASSES:
        if name in LEAVES:
            continue
        for index, sample in enumerate(samples_of(name)):
            yield pytest.param(sample, id=f"{name}-{sample.op.mnemonic}-{index}")


SAMPLES = list(all_samples())


def not_contiguous(array):
    """The same values with strides that no op may assume."""
    return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array


def test_every_op_has_samples():
    assert [n for n in OP_CLASSES if n not in LEAVES and not samples_of(n)] == []


@pytest.mark.parametrize("sample", SAMPLES)
def test_infer_agrees_with_eval(sample):
    for dtype in sample.dtypes:
        graph = sample_graph(sample, dtype)
        arrays = sample.arrays(dtype)
        # interpret checks every result against the inferred type.
        results = interpret(graph, arrays, sample.binding)
        if not sample.op.effect:
            again = interpret(graph, [not_contiguous(a) for a in arrays], sample.binding)
            for a, b in zip(results, again, strict=True):
                assert_same(a, b)


@pytest.mark.parametrize("sample", [p for p in SAMPLES if p.values[0].binding])
def test_symbolic_agrees_with_bound(sample):
    dtype = sample.dtypes[0]
    graph = sample_graph(sample, dtype)
    arrays = sample.arrays(dtype)
    found = infer_binding([(n.op.key, n.shape, a.shape) for n, a in zip(graph.inputs, arrays, strict=True)])
    assert {k: found[k] for k in found} == {k: sample.binding[k] for k in found}
    bound = bind_graph(graph, sample.binding)
    assert not bound.has_dynamic_dims()
    assert [n.shapes for n in bound.nodes] == [tuple(s.bind(sample.binding) for s in n.shapes) for n in graph.nodes]
    assert verify_all(bound) == []


@pytest.mark.parametrize("sample", SAMPLES)
def test_text_and_files_round_trip(sample):
    graph = sample_graph(sample, sample.dtypes[0])
    assert verify_all(graph) == []
    text = show(graph)
    allowed = {"allow_lowered": sample.op.lowered}
    parsed = parse(text, large_constants(graph), **allowed)
    assert parsed == graph
    assert show(parsed) == text
    assert from_json(to_json(graph), **allowed) == graph
    assert from_bytes(to_bytes(graph), **allowed) == graph


def decomposable(sample):
    return not sample.op.is_primitive and not sample.op.is_block


@pytest.mark.parametrize("sample", [p for p in SAMPLES if decomposable(p.values[0])])
def test_decomposition_agrees_with_eval(sample):
    for dtype in sample.dtypes:
        graph = sample_graph(sample, dtype)
        arrays = sample.arrays(dtype)
        rewritten = rebuild(graph, lambda n, xs: n.op.decompose(*xs) if n.op == sample.op else None).graph
        assert all(n.op != sample.op for n in rewritten.nodes), "the decomposition contains the op itself"
        assert verify_all(rewritten) == []
        expected_results = interpret(graph, arrays, sample.binding)
        results = interpret(rewritten, arrays, sample.binding)
        for expected, got in zip(expected_results, results, strict=True):
            assert_close(expected, got)


def assert_same(a, b):
    """Equal up to a reordering of sums."""
    assert_close(a, b, factor=4)


# Roundings that a short chain of primitive ops may add, in units of the dtype's epsilon.
def assert_close(expected, got, factor=64):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    dtype = DType.of(expected.dtype)
    if not dtype.is_inexact:
        np.testing.assert_array_equal(got, expected)
        return
    wide = np.complex128 if dtype.is_complex else np.float64
    e, g = expected.astype(wide), got.astype(wide)
    epsilon = {"f64": 2.0**-52, "c128": 2.0**-52, "f32": 2.0**-23, "c64": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
    tolerance = factor * epsilon.get(dtype.value, 2.0**-2)
    if dtype.value in ("f16", "bf16"):
        tolerance = min(tolerance, 16 * epsilon[dtype.value])
    finite = np.isfinite(e)
    scale = np.abs(e[finite]).max(initial=1.0)
    np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance * scale)
