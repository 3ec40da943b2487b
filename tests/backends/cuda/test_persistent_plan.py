"""The decode step in one kernel, as data: found in programs, shared out, and run on the host in any order."""

import numpy as np
import pytest
from decoder_cases import BLOCK_SIZES, SHARED, decoder, decoder_case, distance, stored_all

from rlx.backends.cuda.persistent.interpret import Exchange, Hazard, run_plan
from rlx.backends.cuda.persistent.matching import decode_step
from rlx.backends.cuda.persistent.plan import STAGE_BYTES, Plan
from rlx.backends.cuda.persistent.step import Layer, Norm, Rope, Rows, Step, Unfit
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.models.config import RopeConfig
from rlx.models.language_model import compile_options
from rlx.ops.nn.rotary import RopeStyle
from rlx.ops.pointwise.unary import ActivationKind
from rlx.quant.schemes import QuantScheme

# Rounding of operands to bf16, over two layers.
BOUND = 1e-2

FAMILIES = {
    "llama, 3 sequences": {"batch": 3},
    "llama, one head of k": {"heads": 3, "kv_heads": 1, "ffn": 40},
    "llama, each its own": {"heads": 2, "kv_heads": 2, "tied": False},
    "qwen2": {"family": "qwen2", "biases": ("q", "k", "v"), "batch": 2},
    "qwen3": {"family": "qwen3", "qk_norm": True},
    "windows": {"family": "mistral", "windows": (9, None)},
    "softcaps": {"attention_softcap": 2.0, "final_softcap": 3.0, "activation": ActivationKind.GeluApprox},
    "f16": {"element": "f16"},
    "neighbours turn": {"rope": RopeConfig(1e4, 16, RopeStyle.GptJ)},
    "norms behind halves": {"family": "gemma2", "post_norms": True, "batch": 2},
    "half of a head turns": {"rope": RopeConfig(1e4, 8)},
    "Q8_0, norms behind halves": BLOCK_SIZES
    | {"stored": stored_all("Q8_0"), "family": "gemma2", "post_norms": True, "batch": 2},
    "Q3_K, no gate": BLOCK_SIZES | {"stored": stored_all("Q3_K"), "gated": False},
}


@pytest.fixture(scope="module")
def llama():
    return decoder_case()


def test_a_plan_gives_the_logits_of_the_cpu_engine(llama):
    check(llama, llama.plan(7))


@pytest.mark.targets
@pytest.mark.parametrize("name", FAMILIES)
def test_plans_of_families_give_the_logits_of_the_cpu_engine(name):
    options = FAMILIES[name]
    case = decoder_case(**options)
    check(case, case.plan(7, options.get("batch", 1)))


@pytest.fixture(scope="module")
def mixed():
    """Layers of different forms, as in files called Q4_K_M; a head and embeddings of two types."""
    stored = stored_all("Q4_K", **{"v.1": "Q6_K", "down.0": "Q6_K"}, head="Q6_K")
    return decoder_case(**BLOCK_SIZES | {"stored": stored, "tied": False, "layers": 2})


def test_a_plan_of_stored_blocks_gives_the_logits_of_the_cpu_engine(mixed):
    plan = mixed.plan(5)
    assert [len(p.schemes) for p in plan.products] == [2, 1, 1, 2, 1]
    assert all(p.unit == 16 for p in plan.products)
    check(mixed, plan)


def test_blocks_own_whole_panels_where_they_lie(mixed):
    """A row of the fused q, k and v begins at a panel; forms of a layer are numbers of the table."""
    plan = mixed.plan(5)
    first, second = mixed.step.layers
    assert second.v.scheme != first.v.scheme and first.k.first == 256
    words = dict(plan._layer_words(first))
    assert words["k"].offset == first.k.first // 16 * plan.products[0].formats[0].chunk_bytes
    assert [dict(plan._layer_words(layer))["v_form"].offset for layer in (first, second)] == [0, 1]
    assert "out_form" not in words


def check(case, plan):
    arrays = {key: np.array(a) for key, a in case.arrays.items()}
    got = run_plan(plan, arrays, 0, Exchange(plan), seed=1)
    assert distance(got, case.wanted) < BOUND
    for key, wanted in case.after.items():
        assert distance(arrays[key].astype("f4"), wanted.astype("f4")) < BOUND


def test_the_order_of_blocks_does_not_matter(llama):
    plan = llama.plan(5)
    memory = Exchange(plan)
    found = [
        run_plan(plan, {k: np.array(a) for k, a in llama.arrays.items()}, launch, memory, seed=launch).tobytes()
        for launch in range(6)
    ]
    assert len(set(found)) == 1


@pytest.mark.parametrize("blocks", [5, 12])
def test_steps_follow_each_other_in_any_order(llama, blocks):
    """Words and logits as of one step at a time; nobody writes over what others may not have read, also where some
    blocks have no rows of most weights."""
    arrays, wanted = {key: np.array(a) for key, a in llama.arrays.items()}, None
    plain = llama.plan(blocks)
    memory = Exchange(plain)
    for number in range(3):
        wanted = run_plan(plain, arrays, number, memory)
        arrays["tokens"] = wanted.argmax(-1).astype("i4")[:, None]
        arrays["positions"], arrays["kv_len"] = arrays["positions"] + 1, arrays["kv_len"] + 1
    plan = Plan(llama.step, 1, blocks, SHARED, chooses=True)
    for seed in range(4):
        fresh = {key: np.array(a) for key, a in llama.arrays.items()}
        assert np.array_equal(run_plan(plan, fresh, 0, Exchange(plan), seed, steps=3), wanted)
    with pytest.raises(Hazard, match=r"not of version|may not have read|written over"):
        run_plan(plan, llama.arrays, 0, Exchange(plan), unawaited=frozenset(["best"]), steps=3)


@pytest.mark.parametrize("vector", ["x", "qkv", "part", "att", "mid", "h"])
def test_a_missing_wait_is_found(llama, vector):
    plan = llama.plan(5)
    assert plan.splits > 1
    with pytest.raises(Hazard, match="not of version"):
        run_plan(plan, llama.arrays, 0, Exchange(plan), unawaited=frozenset([vector]))


@pytest.mark.parametrize("seed", range(8))
def test_a_vector_that_is_written_over_too_early_is_found_in_every_order(llama, seed):
    plan = llama.plan(5)
    # Blocks write the middle of a layer over what others read for it.
    plan.vectors["h"] = plan.vectors["h"]._replace(at=plan.vectors["mid"].at)
    with pytest.raises(Hazard, match=r"written over before|may not have read"):
        run_plan(plan, llama.arrays, 0, Exchange(plan), seed=seed)


def shape(layers, hidden, heads, kv_heads, dim, ffn, vocab):
    """A Llama of these sizes, with names alone."""

    def layer(i):
        rows = lambda n, count, depth: Rows(f"{n}.{i}", 0, count, depth)  # noqa: E731
        norms = [Norm(f"{n}.{i}", 1e-5) for n in ("attention_norm", "ffn_norm")]
        q, kv = heads * dim, kv_heads * dim
        return Layer(
            norms[0], rows("q", q, hidden), rows("k", kv, hidden), rows("v", kv, hidden), f"keys.{i}", f"values.{i}",
            rows("out", hidden, q), norms[1], rows("up", ffn, hidden), rows("down", hidden, ffn),
            gate=rows("gate", ffn, hidden), rope=Rope("cos", "sin", dim // 2),
        )  # fmt: skip

    return Step(
        "bf16", "tokens", "positions", "kv_len", "embed", hidden, heads, kv_heads, dim,
        tuple(layer(i) for i in range(layers)), Norm("norm", 1e-5), Rows("embed", 0, vocab, hidden), dim**-0.5,
    )  # fmt: skip


LLAMA_1B = shape(16, 2048, 32, 8, 64, 8192, 128256)
LLAMA_8B = shape(32, 4096, 32, 8, 128, 14336, 128256)


@pytest.mark.parametrize(("step", "batch", "stages"), [(LLAMA_1B, 1, 12), (LLAMA_1B, 8, 5), (LLAMA_8B, 1, 10)])
def test_large_models_leave_room_for_a_ring(step, batch, stages):
    plan = Plan(step, batch, 132, SHARED)
    assert plan.stages >= stages and plan.shared_bytes <= SHARED
    assert plan.shared["ring"] + plan.stages * STAGE_BYTES == plan.shared_bytes and plan.stage_bytes == STAGE_BYTES
    for product in plan.products:
        for layer in range(len(step.layers) + 1):
            first, count = plan.owned_by(product.owner, layer)
            assert sum(count) == product.units and max(count) - min(count) <= 1
            assert [f + c for f, c in zip(first, count)][:-1] == list(first[1:])
    assert len(set(plan.owners["x"])) == 1
    # A step takes as long as the block with the most bytes.
    layers = range(len(step.layers))
    each = [
        sum(
            plan.owned_by(p.owner, i).units[b] * p.depth * p.parts
            for p in plan.products
            for i in (layers if p.writes else [len(layers)])
        )
        for b in range(132)
    ]
    assert max(each) <= 1.01 * np.mean(each)


def stored_shape(step, name, **others):
    """The same with panels of a GGUF type, and others for some matrices."""
    schemes = {n: QuantScheme.of_ggml(others.get(n, name)) for n in ("q", "k", "v", "out", "gate", "up", "down")}
    layers = [
        layer._replace(**{n: getattr(layer, n)._replace(scheme=scheme) for n, scheme in schemes.items()})
        for layer in step.layers
    ]
    return step._replace(layers=tuple(layers), head=step.head._replace(scheme=QuantScheme.of_ggml(name)))


@pytest.mark.parametrize(("name", "batch", "stages"), [("Q4_K", 1, 9), ("Q4_K", 4, 4), ("Q4_K", 5, 4), ("Q8_0", 1, 5)])
def test_stored_blocks_of_large_models_leave_room_for_a_ring(name, batch, stages):
    plan = Plan(stored_shape(LLAMA_8B, name), batch, 132, SHARED)
    assert plan.stages == stages and plan.shared_bytes <= SHARED
    assert plan.stage_chunks == (8 if batch < 5 else 4)


def test_what_does_not_fit_says_why():
    with pytest.raises(Unfit, match="9 sequences; up to 8"):
        Plan(LLAMA_1B, 9, 132, SHARED)
    with pytest.raises(Unfit, match="no room for 4 stages"):
        Plan(LLAMA_8B, 8, 132, SHARED)
    with pytest.raises(Unfit, match="heads of 72 elements"):
        Plan(LLAMA_1B._replace(head_dim=72), 1, 132, SHARED)
    with pytest.raises(Unfit, match="layer 1 has another form"):
        odd = LLAMA_1B.layers[1]._replace(gate=None)
        Plan(LLAMA_1B._replace(layers=(LLAMA_1B.layers[0], odd)), 1, 132, SHARED)
    with pytest.raises(Unfit, match="qkv with stored blocks whose codes come in different orders"):
        Plan(stored_shape(LLAMA_1B, "Q4_K", v="Q8_0"), 1, 132, SHARED)
    with pytest.raises(Unfit, match="beside weights of numbers"):
        stored = stored_shape(LLAMA_1B, "Q4_K").layers[0]
        Plan(LLAMA_1B._replace(layers=(stored._replace(down=LLAMA_1B.layers[0].down),)), 1, 132, SHARED)
    with pytest.raises(Unfit, match="rows of 640 elements; multiples of 256"):
        Plan(stored_shape(shape(1, 640, 8, 8, 80, 1024, 320), "Q8_0"), 1, 132, SHARED)


@pytest.mark.parametrize(
    ("activations", "options", "reason"),
    [
        ("f32", {}, "activations='bf16'"),
        ("bf16", {"activation": ActivationKind.Gelu}, "where a gate is read"),
        ("bf16", {"parallel_residual": True}, "does not read the value"),
    ],
)
def test_programs_of_another_form_say_what_they_have(activations, options, reason):
    _, built, _ = decoder(layers=1, **options)
    compiled = compile_with_options(built.graph, "cuda", compile_options(None, activations))
    with pytest.raises(Unfit, match=reason):
        decode_step(compiled.lir.as_graph())
