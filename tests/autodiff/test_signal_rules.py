"""Derivatives of transforms and audio features where the generated tests cannot follow: switches and cut-offs."""

import numpy as np
import pytest
from derivatives import difference, gradients, mapped_graph, tangent

from rlx import ops
from rlx.autodiff.graphs import grad_with_loss
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret

rng = np.random.default_rng(3)


@pytest.mark.parametrize("dtype", ["f64", "c128"])
@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
@pytest.mark.parametrize("inverse", [False, True])
def test_the_adjoint_of_a_transform_of_symbolic_size(inverse, norm, dtype):
    graph = Graph()
    x = graph.input("x", ("B", "2*N"), dtype)
    graph.set_outputs([ops.fft_norm(x, inverse, norm)])
    values, ct = (rng.standard_normal((3, 6)).astype(x.dtype.numpy) for _ in range(2))
    if dtype == "c128":
        values, ct = values + 1j * rng.standard_normal((3, 6)), ct + 1j * rng.standard_normal((3, 6))
    y, back = interpret(grad_with_loss(graph, ["x"]), {"x": values, "d_output": ct})
    # <ct, F x> = <Fᴴ ct, x>: the transform is linear, so its value is its own tangent.
    assert np.vdot(ct, y).real == pytest.approx(np.vdot(back, values).real, rel=1e-12)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_butterflies_are_differentiable_between_their_switches(stage):
    gate, rev = np.array([1.0, 0, 1, 1]), np.array([0.0, 0, 1, 0.5])
    state, re, im, ct = (rng.standard_normal(d) for d in [(2, 8, 2), 4, 4, (2, 8, 2)])
    operands, moving = [state, gate, rev, re, im], [0, 3, 4]
    directions = [rng.standard_normal(a.shape) if i in moving else None for i, a in enumerate(operands)]

    def function(*operands):
        return ops.fft_butterfly_stage(*operands, stage=stage, n_fft=8)

    expected = difference(function, operands, directions)
    np.testing.assert_allclose(tangent(function, operands, directions), expected, atol=1e-8)
    found = gradients(function, operands, ct)
    assert sum(np.sum(found[i] * directions[i]) for i in moving) == pytest.approx(np.sum(ct * expected), rel=1e-7)
    assert not found[1].any() and not found[2].any()


def test_log_mel_above_the_cut_off():
    operands, ct = [rng.standard_normal((2, 3, 16)), rng.uniform(0.2, 1, (4, 5))], rng.standard_normal((2, 3, 4))
    directions = [rng.standard_normal(a.shape) for a in operands]
    expected = difference(ops.log_mel, operands, directions)
    np.testing.assert_allclose(tangent(ops.log_mel, operands, directions), expected, atol=1e-7)
    found = gradients(ops.log_mel, operands, ct)
    assert sum(np.sum(g * d) for g, d in zip(found, directions)) == pytest.approx(np.sum(ct * expected), rel=1e-6)


def test_log_mel_bands_that_are_cut_off_or_silent_have_no_derivative():
    spectrum = rng.standard_normal((1, 16))
    filters = np.array([[1.0] * 5, [1e-12] * 5, [0.0] * 5])
    for band in (1, 2):
        dspectrum, dfilters = gradients(ops.log_mel, [spectrum, filters], np.eye(3)[band : band + 1])
        assert not dspectrum.any() and not dfilters.any()
    moved = tangent(ops.log_mel, [spectrum, filters], [np.ones_like(spectrum), np.ones_like(filters)])
    assert moved[0, 0] != 0 and not moved[0, 1:].any()


def test_log_mel_gradient_is_the_op_for_it():
    graph = Graph()
    spectrum, filters = graph.input("s", (2, 16), "f32"), graph.input("f", (3, 5), "f32")
    graph.set_outputs([ops.log_mel(spectrum, filters)])
    backward = grad_with_loss(graph, ["s"])
    assert [n.op.mnemonic for n in backward.nodes if n.id in backward.outputs] == ["log_mel", "log_mel_backward"]


def test_batches_of_frames_keep_the_op():
    def names(flags, *arrays):
        return {n.op.mnemonic for n in mapped_graph(ops.log_mel, arrays, flags).nodes}

    frames, filters = np.zeros((3, 2, 16)), np.ones((4, 5))
    assert "log_mel" in names([True, False], frames, filters)
    assert "log_mel" not in names([True, True], frames, np.stack([filters] * 3))
