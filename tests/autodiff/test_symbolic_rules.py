"""Rules on graphs with symbolic sizes: transforming first and binding afterwards gives what binding first gives."""

from __future__ import annotations

import numpy as np
import pytest
from test_rules import differentiable, random_like, seed_of, widened

from op_samples import LEAVES, sample_graph, samples_of
from rlx.autodiff.derive import no_rule
from rlx.autodiff.graphs import GradWithLossOptions, grad_with_loss_opts, jvp, vmap
from rlx.errors import OpError
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES


def symbolic_samples(*rules):
    for name, cls in OP_CLASSES.items():
        if name in LEAVES or cls.is_block or cls.effect:
            continue
        for index, sample in enumerate(samples_of(name)):
            if sample.binding and all(no_rule(sample.op, rule) is None for rule in rules):
                yield pytest.param(sample, id=f"{name}-{sample.op.mnemonic}-{index}")


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a.astype(np.complex128), b.astype(np.complex128), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sample", list(symbolic_samples("jvp", "vjp")))
def test_derivatives(sample):
    dtype = widened(sample)
    if dtype is None:
        pytest.skip("no float operand in this sample")
    bound, floats_in, floats_out = differentiable(sample, dtype)
    if not floats_in or not floats_out:
        pytest.skip("no path from a float operand to a float result")
    graph = sample_graph(sample, dtype)
    arrays = dict(zip((n.op.key for n in graph.inputs), sample.arrays(dtype)))
    rng = np.random.default_rng(seed_of(sample))
    tangents = {f"tangent_{k}": random_like(rng, arrays[k]) for k in floats_in}
    values = interpret(jvp(graph, floats_in), arrays | tangents, sample.binding)
    assert_same(values, interpret(jvp(bound, floats_in), arrays | tangents))
    for g in (graph, bound):
        g.set_outputs([g.outputs[floats_out[0]]])
    backward = [grad_with_loss_opts(g, floats_in, GradWithLossOptions.TRAINING) for g in (graph, bound)]
    seed = {"d_output": random_like(rng, values[floats_out[0]])}
    assert_same(interpret(backward[0], arrays | seed, sample.binding), interpret(backward[1], arrays | seed))


@pytest.mark.parametrize("sample", list(symbolic_samples("batch")))
def test_batches_of_unknown_size(sample):
    dtype = widened(sample) or sample.dtypes[0]
    graph, bound = sample_graph(sample, dtype), differentiable(sample, dtype)[0]
    keys = [n.op.key for n in graph.inputs]
    stacks = [sample.arrays(dtype, seed) for seed in range(2)]
    for chosen in [keys, *([k] for k in keys[:4] if len(keys) > 1)]:
        arrays = {k: np.stack([s[i] for s in stacks]) if k in chosen else stacks[0][i] for i, k in enumerate(keys)}
        try:
            batched = vmap(graph, chosen, "EXAMPLES")
        except OpError as refusal:
            # Stored weights of quantised formats have sizes that an attribute must hold; the op says so.
            assert "bind it first" in str(refusal)
            continue
        got = interpret(batched, arrays, sample.binding | {"EXAMPLES": 2})
        assert_same(got, interpret(vmap(bound, chosen, 2), arrays))
