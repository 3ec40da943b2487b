"""Ten families of models through the whole pipeline, forward and for training, in three precisions, against f64."""

import functools
import itertools

import numpy as np
import pytest
from family_programs import FAMILIES, forward, training, values_for
from programs import llama

from rlx.autodiff.graphs import grad_with_loss
from rlx.backends.cpu import CpuExecutable
from rlx.compile.compiler import CompilePipeline
from rlx.compile.memory.lir_liveness import lives_of
from rlx.compile.memory.packing import Packed, Tenant, overlaps, peak
from rlx.ir.interpret import interpret
from rlx.ops import reduce_sum

WAYS = {"forward": forward, "training": training}
# How far results may be from those of f64: the length of the difference, as a part of the length of the result.
BOUNDS = {"AlwaysF32": 1e-5, "AutoMixed": 1e-2, "AutoMixedBf16": 5e-2}
HALVES = {"AutoMixed": "f16", "AutoMixedBf16": "bf16"}


@functools.cache
def exact(name, way):
    graph = WAYS[way](FAMILIES[name], "f64")
    return interpret(graph, values_for(FAMILIES[name], graph))


def assert_close(expected, got, bound):
    assert all(np.isfinite(want).all() for want in expected)
    assert any(want.any() for want in expected)
    for i, (want, have) in enumerate(zip(expected, got, strict=True)):
        assert have.shape == want.shape
        error, scale = np.linalg.norm(have.astype("f8") - want), np.linalg.norm(want)
        assert error <= bound * scale, f"result {i} is off by {error / scale:.2g}"


def dtypes(lir):
    return {shape.dtype.value for node in lir.as_graph().nodes for shape in node.shapes}


# f16 goes the way of bf16: of training, which takes longest, some families are enough in `make test`.
TRAINED_IN_F16 = ("bert_block", "mobilenet", "scan_rnn")


def cases():
    for name, way, policy in itertools.product(FAMILIES, WAYS, BOUNDS):
        is_repeated = (way, policy) == ("training", "AutoMixed") and name not in TRAINED_IN_F16
        yield pytest.param(name, way, policy, marks=[pytest.mark.long] if is_repeated else [])


@pytest.mark.parametrize(("name", "way", "policy"), list(cases()))
def test_family(name, way, policy):
    graph = WAYS[way](FAMILIES[name], "f32")
    values = values_for(FAMILIES[name], graph)
    result = CompilePipeline.new("cpu").with_precision(policy).compile(graph)
    # First in NumPy inside the planned memory, where reading what was overwritten is an error; then as machine code.
    assert_close(exact(name, way), result.interpret(values, check=True), BOUNDS[policy])
    inputs, params = ({n.op.key: values[n.op.key] for n in leaves} for leaves in (graph.inputs, graph.params))
    assert_close(exact(name, way), CpuExecutable.of(result).run(inputs, params), BOUNDS[policy])
    # Splatting stays as it is; of everything else a policy changes something.
    if policy in HALVES and (name, way) != ("gaussian_splat", "forward"):
        assert HALVES[policy] in dtypes(result.lir)


def test_there_are_ten():
    assert len(FAMILIES) == 10


def llama_training():
    graph = llama(2).into_graph()
    weights = [n.op.key for n in graph.params]
    y = graph.tensor(graph.outputs[0])
    graph.set_outputs([reduce_sum(y * y, (0, 1, 2))])
    return grad_with_loss(graph, weights)


TRANSFORMERS = {
    "bert forward": (lambda: forward(FAMILIES["bert_block"], "f32"), {"B": 16}),
    "bert training": (lambda: training(FAMILIES["bert_block"], "f32"), {"B": 16}),
    "gpt forward": (lambda: forward(FAMILIES["gpt_loss"], "f32"), {"B": 16}),
    "gpt training": (lambda: training(FAMILIES["gpt_loss"], "f32"), {"B": 16}),
    "llama forward": (lambda: llama(2).into_graph(), {"B": 4, "S": 128}),
    "llama training": (llama_training, {"B": 4, "S": 128}),
}


@pytest.mark.parametrize("bound_first", [False, True], ids=["symbolic", "bound"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_arena_of_a_transformer_is_close_to_the_lower_bound(name, bound_first):
    """No plan can do with less than what is alive at once; ours needs at most a tenth more, with sizes known or not."""
    build, binding = TRANSFORMERS[name]
    graph = build()
    lir = CompilePipeline.new("cpu").compile(graph.bind(binding) if bound_first else graph).lir
    if not bound_first:
        lir = lir.bind(binding)
    lives, slots = lives_of(lir), lir.buffers.assignments
    tenants = [Tenant(slot.size, lives[n].birth, lives[n].death) for n, slot in slots.items()]
    assert overlaps(tenants, Packed([slot.offset for slot in slots.values()], lir.arena_size)) == []
    assert 0 < lir.arena_size <= 1.1 * peak(tenants)
