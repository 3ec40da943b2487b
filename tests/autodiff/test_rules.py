"""Derivative and batching rules, generated from the registry: every op, every sample.

The oracles are not rules of ours: central differences of `eval` in f64 for forward mode, the adjoint identity for
reverse mode, the same two applied to the gradient for second order, and a Python loop for batching.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from op_samples import LEAVES, sample_graph, samples_of
from rlx.autodiff.derive import no_rule
from rlx.autodiff.graphs import GradWithLossOptions, grad_with_loss_opts, jvp, vmap
from rlx.errors import NoJvpRule
from rlx.ir.binding import bind_graph
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES
from rlx.ir.verify import verify_all

TOLERANCES = {
    "f64": 1e-6,
    "c128": 1e-6,
    "f32": 2e-2,
    "c64": 2e-2,
    "f16": 0.3,
    "bf16": 0.5,
    "f8e4m3": 0.5,
    "f8e5m2": 0.5,
}


def widened(sample):
    """The dtype in which the sample is differentiated: the widest that it sweeps, or None when it has no floats."""
    for dtype in ("f64", "c128"):
        if dtype in sample.dtypes:
            return dtype
    return sample.dtypes[0] if sample.dtypes[0] in ("f32", "c64", "f16", "bf16") else None


def bound_graph(sample, dtype):
    return bind_graph(sample_graph(sample, dtype), sample.binding)


def seed_of(sample):
    return zlib.crc32(str(sample).encode())


def inexact(array):
    return array.dtype.kind in "fcV" and array.dtype.kind != "i" and array.dtype != bool


def wide(array):
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def differentiable(sample, dtype):
    graph = bound_graph(sample, dtype)
    floats_in = [n.op.key for n in graph.inputs if n.shape.dtype.is_inexact and not n.shape.dtype.is_storage]
    floats_out = [i for i, o in enumerate(graph.outputs) if graph.shape(o).dtype.is_inexact]
    return graph, floats_in, floats_out


def parameters(rule):
    for name, cls in OP_CLASSES.items():
        if name in LEAVES or cls.is_block:
            continue
        for index, sample in enumerate(samples_of(name)):
            if no_rule(sample.op, rule) is None:
                yield pytest.param(sample, id=f"{name}-{sample.op.mnemonic}-{index}")


def random_like(rng, array):
    values = rng.normal(size=array.shape)
    if array.dtype.kind == "c":
        values = values + 1j * rng.normal(size=array.shape)
    return values.astype(array.dtype)


def eligible(sample):
    """(dtype, graph, float inputs, float outputs), or a skip with its reason."""
    dtype = widened(sample)
    if dtype is None:
        pytest.skip("no float operand in this sample")
    graph, floats_in, floats_out = differentiable(sample, dtype)
    if not floats_in or not floats_out:
        pytest.skip("no path from a float operand to a float result")
    if sample.op.effect:
        pytest.skip("effects are not repeated for differences")
    if no_rule(sample.op, "jvp") is None:
        skip_if_refused(sample, graph, floats_in)
    return dtype, graph, floats_in, floats_out


def skip_if_refused(sample, graph, floats_in):
    """Skip samples whose shapes or attributes leave the op itself without a derivative (qr with full_matrices, say)."""
    try:
        jvp(graph, floats_in)
    except NoJvpRule as refusal:
        if refusal.op != sample.op.mnemonic:
            raise
        pytest.skip(str(refusal))


def straight_through(op):
    """Ops whose derivative is by definition not that of their value: straight-through estimators, blocked gradients."""
    return getattr(op, "derivative_is_defined", False)


def require_differences(sample):
    if straight_through(sample.op):
        pytest.skip("the derivative is defined, not that of the value; tested beside the op")
    if not sample.smooth:
        pytest.skip("the sample lies on a kink")


@pytest.mark.parametrize("sample", list(parameters("jvp")))
def test_jvp_is_the_directional_derivative(sample):
    dtype, graph, floats_in, floats_out = eligible(sample)
    require_differences(sample)
    arrays = dict(zip([n.op.key for n in graph.inputs], sample.arrays(dtype)))
    rng = np.random.default_rng(seed_of(sample))
    directions = {k: random_like(rng, arrays[k]) for k in floats_in}
    forward = jvp(graph, floats_in)
    assert verify_all(forward) == []
    results = interpret(forward, arrays | {f"tangent_{k}": t for k, t in directions.items()})
    tangents = results[len(graph.outputs) :]
    for i in floats_out:
        assert_slopes(tangents[i], central_difference(graph, arrays, directions, i), dtype)


def central_difference(graph, arrays, directions, output):
    """Richardson-extrapolated central differences; NaN where the value is not finite."""

    def at(step):
        moved = {k: (a + step * directions[k]).astype(a.dtype) if k in directions else a for k, a in arrays.items()}
        return wide(interpret(graph, moved)[output])

    # Far enough that the digits of a type show a difference: bf16 has eight.
    fewest = min(a.dtype.itemsize for k, a in arrays.items() if k in directions)
    h = {2: 2.0**-2, 4: 2.0**-6}.get(fewest, 2.0**-10)
    with np.errstate(invalid="ignore"):
        coarse, fine = (at(h) - at(-h)) / (2 * h), (at(h / 2) - at(-h / 2)) / h
        return (4 * fine - coarse) / 3


@pytest.mark.parametrize("sample", list(parameters("vjp")))
def test_vjp_is_the_adjoint_of_jvp(sample):
    dtype, graph, floats_in, floats_out = eligible(sample)
    if no_rule(sample.op, "jvp") is not None:
        pytest.skip("the op has a gradient but no forward derivative")
    if getattr(sample.op, "axis_size", 1) != 1:
        pytest.skip("a collective has an adjoint only with all its participants; tested beside the op")
    values = sample.arrays(dtype)
    arrays = dict(zip([n.op.key for n in graph.inputs], values))
    rng = np.random.default_rng(seed_of(sample))
    directions = {k: random_like(rng, arrays[k]) for k in floats_in}
    tangents = interpret(jvp(graph, floats_in), arrays | {f"tangent_{k}": t for k, t in directions.items()})
    tangents = tangents[len(graph.outputs) :]
    for i in floats_out:
        single = graph.copy()
        single.set_outputs([graph.outputs[i]])
        backward = grad_with_loss_opts(single, floats_in, GradWithLossOptions.TRAINING)
        assert verify_all(backward) == []
        # The tangent of a value that is not finite says nothing.
        finite = np.isfinite(wide(tangents[i]))
        tangent = np.where(finite, tangents[i], 0)
        ct = np.where(finite, random_like(rng, tangents[i]), 0).astype(tangents[i].dtype)
        gradients = interpret(backward, arrays | {"d_output": ct})[1:]
        for k, g in zip(floats_in, gradients, strict=True):
            assert g.shape == arrays[k].shape
            assert g.dtype == arrays[k].dtype
        right = sum(inner(directions[k], g) for k, g in zip(floats_in, gradients))
        coarse = coarser(dtype, graph.shape(graph.outputs[i]).dtype)
        assert_close(np.asarray(inner(tangent, ct)), np.asarray(right), coarse, scale=magnitude(tangent, ct))


def inner(a, b):
    """What a cotangent b makes of a tangent a: Σ a·b; cotangents of complex values are ∂L/∂z̄, so dL = 2·Re Σ a·conj(b).

    Where real and complex numbers meet in one op (real, make_complex, |z|², singular values) the factor 2 matters.
    """
    weight = 2.0 if a.dtype.kind == "c" else 1.0
    return weight * float(np.real(np.sum(wide(a) * np.conj(wide(b)))))


def magnitude(a, b):
    return float(np.sum(np.abs(wide(a)) * np.abs(wide(b))))


@pytest.mark.parametrize("sample", list(parameters("vjp")))
def test_second_order(sample):
    """The gradient, as a function, has the right directional derivative too."""
    dtype, graph, floats_in, floats_out = eligible(sample)
    require_differences(sample)
    if dtype != "f64":
        pytest.skip("second differences need f64")
    arrays = dict(zip([n.op.key for n in graph.inputs], sample.arrays(dtype)))
    rng = np.random.default_rng(seed_of(sample))
    directions = {k: random_like(rng, arrays[k]) for k in floats_in}
    single = graph.copy()
    single.set_outputs([graph.outputs[floats_out[0]]])
    backward = grad_with_loss_opts(single, floats_in, GradWithLossOptions.TRAINING)
    loss = single.shape(single.outputs[0])
    ct = random_like(rng, np.empty(loss.static_dims, loss.dtype.numpy))
    backward.set_outputs(backward.outputs[1:])
    arrays["d_output"] = ct
    second = jvp(backward, floats_in)
    results = interpret(second, arrays | {f"tangent_{k}": t for k, t in directions.items()})
    for i in range(len(floats_in)):
        assert_slopes(results[len(floats_in) + i], central_difference(backward, arrays, directions, i), dtype)


def symbolic_parameters(rule):
    return [p for p in parameters(rule) if p.values[0].binding and not p.values[0].op.effect]


def assert_binding_commutes(transform, sample, dtype, inputs):
    """Transforming with symbols and binding them gives what transforming the bound graph gives."""
    late = interpret(bind_graph(transform(sample_graph(sample, dtype)), sample.binding), inputs)
    early = interpret(transform(bound_graph(sample, dtype)), inputs)
    for a, b in zip(late, early, strict=True):
        assert_close(a, b, dtype, factor=64)


@pytest.mark.parametrize("sample", symbolic_parameters("jvp"))
def test_jvp_keeps_symbols(sample):
    dtype, graph, floats_in, _ = eligible(sample)
    arrays = dict(zip([n.op.key for n in graph.inputs], sample.arrays(dtype)))
    inputs = arrays | {f"tangent_{k}": arrays[k] for k in floats_in}
    assert_binding_commutes(lambda g: jvp(g, floats_in), sample, dtype, inputs)


@pytest.mark.parametrize("sample", symbolic_parameters("vjp"))
def test_vjp_keeps_symbols(sample):
    dtype, graph, floats_in, floats_out = eligible(sample)
    arrays = dict(zip([n.op.key for n in graph.inputs], sample.arrays(dtype)))

    def transform(g):
        single = g.copy()
        single.set_outputs([g.outputs[floats_out[0]]])
        return grad_with_loss_opts(single, floats_in, GradWithLossOptions.TRAINING, seed=None)

    assert_binding_commutes(transform, sample, dtype, arrays)


@pytest.mark.parametrize("sample", symbolic_parameters("batch"))
def test_batch_keeps_symbols(sample):
    dtype = widened(sample) or sample.dtypes[0]
    keys = [n.op.key for n in bound_graph(sample, dtype).inputs]
    if not keys:
        pytest.skip("no operands")
    inputs = {k: np.stack([a, a]) for k, a in zip(keys, sample.arrays(dtype))}
    assert_binding_commutes(lambda g: vmap(g, keys, 2), sample, dtype, inputs)


@pytest.mark.parametrize("sample", list(parameters("batch")))
def test_batch_is_a_loop(sample):
    dtype = widened(sample) or sample.dtypes[0]
    graph = bound_graph(sample, dtype)
    keys = [n.op.key for n in graph.inputs]
    if not keys:
        pytest.skip("no operands")
    if sample.op.effect:
        pytest.skip("effects are tested beside the op")
    for chosen, size in batch_cases(keys):
        stacks = [sample.arrays(dtype, seed=s) for s in range(max(size, 1))]
        inputs = {
            k: np.stack([stacks[s][i] for s in range(size)])
            if k in chosen and size
            else np.empty((0, *stacks[0][i].shape), stacks[0][i].dtype)
            if k in chosen
            else stacks[0][i]
            for i, k in enumerate(keys)
        }
        batched = vmap(graph, list(chosen), size)
        assert verify_all(batched) == []
        results = interpret(batched, inputs)
        rows = [interpret(graph, {k: inputs[k][s] if k in chosen else inputs[k] for k in keys}) for s in range(size)]
        for o, result in enumerate(results):
            assert result.shape[0] == size
            for s in range(size):
                assert_close(result[s], rows[s][o], dtype, factor=64)


def batch_cases(keys):
    """All operands, each alone, and the sizes 1 and 0."""
    yield tuple(keys), 3
    if len(keys) > 1:
        for k in keys[:4]:
            yield (k,), 2
    yield tuple(keys), 1
    yield tuple(keys), 0


def assert_slopes(got, expected, dtype):
    """Derivatives agree with differences wherever these are finite."""
    known = np.isfinite(expected)
    assert got.shape == expected.shape
    assert_close(np.where(known, wide(got), 0), np.where(known, expected, 0), dtype)


def coarser(dtype, other):
    """The dtype with fewer digits, as a name; results may have fewer than operands."""
    return str(other) if TOLERANCES.get(str(other), 0.0) > TOLERANCES.get(dtype, 0.0) else dtype


def assert_close(got, expected, dtype, scale=None, factor=None):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    if expected.dtype.kind in "iub" and got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
        return
    g, e = wide(got), wide(expected)
    if scale is None:
        scale = max(1.0, np.abs(e[np.isfinite(e)]).max(initial=0.0))
    tolerance = TOLERANCES.get(dtype, 1e-6)
    if factor is not None:
        epsilon = {
            "f64": 2.0**-52,
            "c128": 2.0**-52,
            "f32": 2.0**-23,
            "c64": 2.0**-23,
            "f16": 2.0**-10,
            "bf16": 2.0**-7,
        }
        tolerance = factor * epsilon.get(dtype, 2.0**-23)
    np.testing.assert_allclose(g, e, rtol=tolerance, atol=tolerance * scale)
