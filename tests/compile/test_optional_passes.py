"""Any choice of optional passes and switches leaves a random program what it is, at any size and number of threads."""

import functools
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import random_graphs
import rlx
from random_graphs import STEPS, graphs, inputs_for
from rlx import ops
from rlx.backends.cpu import CpuExecutable
from rlx.backends.program import command_table
from rlx.compile import pipeline
from rlx.compile.claims.fusion.fusion_pipeline import FusionOptions, fusion_passes_for_supported
from rlx.compile.claims.legalize_broadcast import LegalizeBroadcast
from rlx.compile.compiler import CompilePipeline
from rlx.fusion import FusionTarget
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.passes import run_passes
from rlx.ir.tensor import building
from rlx.ir.verify import verify_all

relaxed = functools.partial(settings, deadline=None, suppress_health_check=list(HealthCheck))
BOUNDS = {"float64": 1e-9, "float32": 1e-4}


# A rounding difference must not become a jump, so comparisons and casts are left out.
SMOOTH = tuple((step, fits) for step, fits in STEPS if step.__name__ not in ("compare", "cast"))
WIDTH = 4


def weight(x, *dims):
    return x.graph.param(f"w{len(x.graph)}", dims, x.dtype)


def projected(x, width, bias=True):
    y = x @ weight(x, x.shape[-1], width)
    return y + weight(x, width) if bias else y


def linear(draw, x, leak):
    y = leak(projected(x, WIDTH, draw(st.booleans())))
    return ops.activation(draw(st.sampled_from(["relu", "gelu", "silu", "sin"])), y) if draw(st.booleans()) else y


def norm(draw, x, leak):
    total = leak(x + ops.tanh(x)) if draw(st.booleans()) else x
    function = draw(st.sampled_from([ops.layer_norm, ops.rms_norm]))
    y = leak(function(total, weight(x, WIDTH), weight(x, WIDTH), eps=0.1))
    # A flat view of a norm, as products of rows read it.
    return (y.reshape(-1, WIDTH) @ weight(x, WIDTH, WIDTH)).reshape(x.shape) if draw(st.booleans()) else y


def gated(draw, x, leak):
    if draw(st.booleans()):
        both = projected(x, 6, bias=False)
        up, gate = ops.narrow(both, -1, 0, 3), ops.narrow(both, -1, 3, 3)
    else:
        up, gate = (projected(x, 3, bias=False) for _ in range(2))
    y = leak(ops.silu(gate)) * up if draw(st.booleans()) else up * ops.silu(gate)
    return projected(y, WIDTH, bias=False)


def shared(draw, x, leak):
    first, second = (projected(x, WIDTH, bias=False) for _ in range(2))
    return ops.sin(leak(first)) + second


def attended(draw, x, leak):
    q, k, v = (projected(x, WIDTH) for _ in range(3))
    mask = x.graph.input(f"mask{len(x.graph)}", x.shape[:2], "bool")
    y = leak(ops.attention(q, k, v, mask, num_heads=2, head_dim=2, layout="bsm"))
    return projected(y, WIDTH)


def pointwise(draw, x, leak):
    return leak(ops.exp(-ops.abs_(x)) * 0.5 + 1.0) * x - ops.sin(x)


@st.composite
def networks(draw, dtypes=("f64",)):
    """A chain of what passes look for, in which anything on the way may also be returned."""
    graph = Graph("network")
    outputs = []

    def leak(value):
        if draw(st.integers(0, 5)) == 0:
            outputs.append(value)
        return value

    with building(graph):
        dims = draw(st.sampled_from([("B", "S", WIDTH), (2, 3, WIDTH), ("B", 3, WIDTH)]))
        x = graph.input("x", dims, draw(st.sampled_from(dtypes)))
        for part in draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4)):
            x = leak(part(draw, x, leak))
            x = x + 0.0 if draw(st.booleans()) else x
        outputs.append(x)
    graph.set_outputs(outputs)
    return graph


PARTS = (linear, norm, gated, shared, attended, pointwise)


def programs(dtypes):
    return networks([d for d in dtypes if d[0] == "f"]) | graphs(steps=SMOOTH, dtypes=dtypes)


sizes = st.integers(1, 6)

OPTIONAL = (
    *pipeline.SIMPLIFY,
    *fusion_passes_for_supported(()),
    LegalizeBroadcast(),
)


def leaves_at(graph, binding):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_graphs, "BINDING", binding)
        return inputs_for(graph)


def assert_same_values(expected, got):
    for want, have in zip(expected, got, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        bound = BOUNDS.get(want.dtype.name, 0)
        scale = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0))
        np.testing.assert_allclose(have, want, rtol=bound, atol=bound * scale)


@relaxed(max_examples=150)
@given(programs(("f64", "i32", "bool")), st.data(), sizes, sizes)
def test_any_subset_of_passes_in_order(graph, data, b, s):
    chosen = [p for p in OPTIONAL if data.draw(st.booleans(), label=p.name)]
    after = run_passes(graph, chosen)
    assert verify_all(after) == []
    binding = {"B": b, "S": s}
    values = leaves_at(graph, binding)
    assert_same_values(interpret(graph, values, binding), interpret(after, values, binding))


FLAGS = [f.name for f in fields(FusionOptions) if f.type == "bool"]
SWITCHES = ["enable_fuse_transformer_layer", "disable_matmul_bias_fusion", "disable_residual_ln_fusion"]
SWITCHES += ["no_weight_concat_fusion", "no_shared_input_matmul"]


def switched(data, names):
    return {name: data.draw(st.booleans(), label=name) for name in names}


@pytest.mark.parametrize("target", [FusionTarget.Metal, FusionTarget.Wgpu, FusionTarget.Tpu])
@relaxed(max_examples=40)
@given(graph=programs(("f64", "f32", "i32")), data=st.data(), b=sizes, s=sizes)
def test_any_switch_of_fusion(target, graph, data, b, s):
    options = FusionOptions(**switched(data, FLAGS))
    with rlx.knobs(**switched(data, SWITCHES)):
        settings = {"opts": options, "prepare_params": data.draw(st.booleans(), label="prepare_params")}
        result = CompilePipeline(target, **settings).compile(graph)
    binding = {"B": b, "S": s}
    values = leaves_at(graph, binding)
    assert_same_values(interpret(graph, values, binding), result.interpret(values, binding))


def bound_where_it_must_be(graph, binding):
    """Sizes that no leaf tells are given when compiling."""
    known = {name for n in graph.nodes if n.is_leaf for name in n.shape.dynamic_symbols()}
    return graph if set(graph.dynamic_symbols()) <= known else graph.bind(binding)


@relaxed(max_examples=20)
@given(programs(("f64", "f32", "i32")), st.data(), st.integers(0, 40), st.integers(0, 20))
def test_native_code_without_passes_and_on_any_number_of_threads(graph, data, b, s):
    """The generator does not rely on a pass; the bits do not depend on the number of threads."""
    binding = {"B": b, "S": s}
    program = bound_where_it_must_be(graph, binding)
    values = leaves_at(graph, binding)
    inputs, params = ({n.op.key: values[n.op.key] for n in kind} for kind in (graph.inputs, graph.params))
    skipped = [p.name for p in pipeline.SIMPLIFY if data.draw(st.booleans(), p.name)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_table, "WORTH_SHARING", 0)
        with pipeline.without_passes(skipped):
            executable = CpuExecutable.of(CompilePipeline.new("cpu").compile(program))
        runs = []
        for count in (1, 2, 3):
            with rlx.threads(count):
                runs.append(executable.run(inputs, params))
    assert_same_values(interpret(graph.bind(binding), values), runs[0])
    for other in runs[1:]:
        for a, c in zip(runs[0], other, strict=True):
            assert a.tobytes() == c.tobytes()
