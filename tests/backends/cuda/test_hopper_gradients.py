"""Gradients of attention on Hopper's tensor cores: which have such a form, its code, and what a launch of it is given.
That it computes the right thing is shown on a GPU (`gpu_suite.py`, gradients)."""

from dataclasses import replace

import pytest
from counted_code import CountedCode

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.cuda.hopper.attention_form import AttentionForm
from rlx.backends.cuda.hopper.gradient_form import GradientForm
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.compile.compiler import CompilePipeline
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.machines import machine_named
from rlx.ops.attn.gradients import AttentionBackward

SM_90A = machine_named("sm_90a")


def graph_of(dtype="bf16", width=128, heads=8, kv_heads=4, has_forward=True, mask=False, **options):
    graph = rlx.Graph("gradients")
    q, dy = (graph.input(n, ("B", "S", heads, width), dtype) for n in ("q", "dy"))
    k, v = (graph.input(n, ("B", "T", kv_heads, width), dtype) for n in ("k", "v"))
    if mask:
        options["mask"] = graph.input("m", ("B", "T"), "bool")
    with building(graph):
        gradients = ops.attention_backward_all(q, k, v, dy, layout="bshd", **options)
        results = [ops.attention(q, k, v, layout="bshd", **options)] if has_forward else []
    graph.set_outputs([*results, *gradients])
    return graph


def kernels_of(graph, machine=SM_90A):
    lir = replace(CompilePipeline.new("cuda"), machine=machine.name).compile(graph).lir
    return {
        k.kind: make_kernel(k.kind, lir.as_graph(), k, machine)
        for k in lir.kernels
        if k.kind in ("attention", "attention_gradients")
    }


@pytest.mark.parametrize("has_forward", [True, False])
def test_both_directions_share_logarithms(has_forward):
    graph = graph_of(has_forward=has_forward, mask_kind="causal")
    lir = CompilePipeline.new("cuda").compile(graph).lir
    # One attention, whether or not the program has one; dq is rounded by a map.
    kinds = [k.kind for k in lir.kernels if k.kind != "view"]
    assert sorted(kinds) == ["attention", "attention_gradients", "map"]
    assert not any(isinstance(n.op, AttentionBackward) for n in lir.as_graph().nodes)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"mask_kind": "causal"}, 64),
        ({"width": 64, "kv_heads": 8, "dtype": "f16"}, 128),
        ({"mask_kind": ("sliding_window", 100), "softcap": 30.0}, 64),
    ],
    ids=["causal", "narrow", "window"],
)
def test_code(options, rows):
    made = kernels_of(graph_of(**options))
    (forward,), _ = tensor_forms(made["attention"].kernel, SM_90A)
    (form,), refusal = tensor_forms(made["attention_gradients"].kernel, SM_90A)
    assert isinstance(forward, AttentionForm) and isinstance(form, GradientForm) and not refusal
    assert "lg2.approx" in forward.ptx()
    kind, width, ptx = options.get("dtype", "bf16"), options.get("width", 128), form.ptx()
    for columns in (rows, 64, width):
        assert f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}" in ptx
    # Both operands of dQ lie across; dQ is added in turns.
    assert "1, 1, 1, 1;" in ptx and "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add" in ptx
    assert "ld.acquire.gpu" in ptx and "st.release.gpu" in ptx and ".local" not in ptx
    assert form.shape.shared_bytes <= 227 << 10
    sums = form.sums.ptx()
    assert ".entry row_products" in sums and "ld.global.nc.v4.b32" in sums and ".local" not in sums


TIGHT = [
    {"width": width, "kv_heads": kv_heads, "mask_kind": kind}
    for width in (64, 128)
    for kv_heads in (4, 2, 1)
    for kind in ("none", "causal", ("sliding_window", 37))
]
TIGHT += [{"width": 64, "kv_heads": 2, "mask_kind": kind, "softcap": 3.0} for kind in ("none", "causal")]


@pytest.mark.targets
@pytest.mark.parametrize("options", TIGHT, ids=lambda options: " ".join(map(str, options.values())))
def test_sums_and_scores_stay_in_registers(options, assembled):
    made = kernels_of(graph_of(heads=4, **options))
    (form,), _ = tensor_forms(made["attention_gradients"].kernel, SM_90A)
    said = assembled(form.ptx())
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said and "(C75" not in said


@pytest.mark.parametrize("options", [{"width": 80}, {"mask_kind": "custom", "mask": True}], ids=["width", "mask"])
def test_others_go_by_tiles_without_tensor_cores(options):
    forms, _ = tensor_forms(kernels_of(graph_of(**options))["attention_gradients"].kernel, SM_90A)
    assert not forms


def test_wide_heads_stay_as_they_are():
    assert "attention_gradients" not in kernels_of(graph_of(width=256))


def test_the_report_names_the_way_or_the_reason():
    texts = []
    for options in ({"mask_kind": "causal"}, {"dtype": "f32"}):
        made = compile_with_options(graph_of(**options), "cuda", CompileOptions())
        texts.append(str(CudaExecutable.of(made, None, "sm_90a").report))
    assert "native sm_90a (wgmma gradients)" in texts[0]
    assert "attention_gradients native sm_90a (loops: f32 queries of f32 keys)" in texts[1]


# Launches.


def form_and_words(**options):
    made = kernels_of(graph_of(**options))["attention_gradients"]
    names = [p.name for p in made.kernel.params]
    load = CountedCode()

    def words(b, s, t, crooked=-1):
        sizes = [int(e.bind({"B": b, "S": s, "T": t})) if not isinstance(e, int) else e for e in made.extents]
        pointers = len(names) - len(sizes)
        return [((i + 1) << 24) + (8 if i == crooked else 0) for i in range(pointers)] + sizes

    return GradientForm(made.kernel.origin, names, SM_90A, load), words, load


def test_a_launch(fake, gpu, launched):
    form, words, load = form_and_words(mask_kind="causal")
    for b, s, t in ((1, 300, 300), (2, 1000, 2048)):
        fake.tensor_maps.clear()
        assert form.launch(words(b, s, t), gpu.stream)
        # The sums of all queries, then a block for 128 keys of every head.
        sums, gradients = launched[-2:]
        assert sums.blocks == -(-b * 8 * s // 16) and gradients.threads == 384
        assert gradients.blocks == b * 4 * -(-t // 128)
        boxes = [(sizes, box) for _, sizes, _, box in fake.tensor_maps]
        rows, keys = (128, s, 8, b), (128, t, 4, b)
        assert boxes == [
            (rows, (64, 64, 1, 1)),
            (keys, (64, 128, 1, 1)),
            (keys, (64, 128, 1, 1)),
            (rows, (64, 64, 1, 1)),
            (rows, (32, 64, 1, 1)),
            (keys, (64, 64, 1, 1)),
            (keys, (64, 64, 1, 1)),
        ]
    # Counters begin at 0, and so do those of the larger launch.
    assert fake.log.count("cuMemsetD8Async") >= 2
    assert load.entries == ["row_products", "gradients"] and len(load.keys) == 2


def test_what_cannot_be_read_in_whole_vectors_is_left_to_the_loop_kernel(fake, gpu, launched):
    form, words, _ = form_and_words(mask_kind="causal")
    for crooked in range(5):
        assert not form.launch(words(1, 64, 64, crooked), gpu.stream)
    assert not form.launch(words(1, 0, 64), gpu.stream) and not form.launch(words(1, 64, 0), gpu.stream)


def test_windows_need_as_many_queries_as_keys(fake, gpu, launched):
    form, words, _ = form_and_words(mask_kind=("sliding_window", 16))
    assert form.launch(words(1, 300, 300), gpu.stream) and not form.launch(words(1, 200, 300), gpu.stream)
