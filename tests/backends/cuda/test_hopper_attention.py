"""Attention on Hopper's tensor cores: which has such a form, its code, and what a launch of it is given. That it
computes the right thing is shown on a GPU (`gpu_suite.py`, attention)."""

import pytest
from counted_code import CountedCode

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.backends.cuda.code import GpuCode, tensor_forms
from rlx.backends.cuda.executable import CudaExecutable
from rlx.backends.cuda.hopper.attention_form import AttentionForm, DecodeForm
from rlx.backends.options_to_pipeline import compile_with_options
from rlx.compile.compiler import CompilePipeline
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu.attention import AttentionOrigin, gradient_refusal
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.machines import machine_named
from rlx.ops.attn.gradients import AttentionBackward

SM_90A = machine_named("sm_90a")


def graph_of(
    dtype="bf16",
    width=128,
    heads=16,
    kv_heads=4,
    cache=False,
    mask=False,
    turned=False,
    rows="",
    sinks=False,
    **options,
):
    """Attention of symbolic lengths; with a `cache` as a model has it, with the heads of q behind its positions. `rows`
    is the type of q, if it is another one."""
    graph = rlx.Graph("attention")
    q_dims = ("B", "S", heads, width) if turned else ("B", heads, "S", width)
    kv_dims = ("B", kv_heads, "T", width)
    q, k, v = (
        graph.input(n, dims, kind)
        for n, dims, kind in (("q", q_dims, rows or dtype), *((n, kv_dims, dtype) for n in "kv"))
    )
    if cache:
        options["kv_len"], options["positions"] = graph.input("n", ("B",), "i32"), graph.input("p", ("B", "S"), "i64")
    if mask and options["mask_kind"] == "bias":
        options["mask"] = graph.input("m", (1, heads, "S", "T"), "bf16")
    elif mask:
        options["mask"] = graph.input("m", ("B", "T"), "bool")
    if sinks:
        options["sinks"] = graph.input("s", (heads,), "f32")
    with building(graph):
        q = ops.transpose(q, (0, 2, 1, 3)) if turned else q
        y = ops.attention(q, k, v, layout="bhsd", **options)
        y = ops.transpose(y, (0, 2, 1, 3)) if turned else y
    graph.set_outputs([y])
    return graph


def kernel_of(graph, machine=SM_90A):
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind in ("attention", "attention_with_sinks"))
    return make_kernel("attention", lir.as_graph(), kernel, machine)


def forms_of(machine=SM_90A, **options):
    return tensor_forms(kernel_of(graph_of(**options), machine).kernel, machine)


@pytest.mark.parametrize(
    ("options", "keys", "shares"),
    [
        ({"mask_kind": "causal"}, 128, False),
        ({"mask_kind": "causal", "cache": True, "turned": True, "dtype": "f16", "width": 64}, 128, False),
        ({"mask_kind": ("sliding_window", 100), "cache": True, "softcap": 30.0, "width": 256}, 64, True),
    ],
    ids=["causal", "cache", "window"],
)
def test_code(options, keys, shares):
    (decode, many), refusal = forms_of(**options)
    assert not refusal and isinstance(decode, DecodeForm) and isinstance(many, AttentionForm)
    kind, width = options.get("dtype", "bf16"), options.get("width", 128)
    ptx = many.ptx()
    # Scores, and sums of values, whose operand lies the other way.
    assert f"wgmma.mma_async.sync.aligned.m64n{keys}k16.f32.{kind}.{kind}" in ptx
    assert f"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind}" in ptx
    assert "cp.async.bulk.tensor.4d" in ptx and "ex2.approx" in ptx and ".local" not in ptx
    assert ("redux.sync" in ptx) == ("cache" in options)
    assert many.shape.shares_memory is shares and many.shape.shared_bytes <= 227 << 10
    few = decode.ptx(1)
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" in few and "atom.add" in few
    assert ".local" not in few and ".local" not in decode.ptx(2)


@pytest.mark.parametrize(("width", "parts", "keys"), [(64, 3, 64), (128, 3, 64), (256, 2, 32)])
def test_rows_of_f32_are_cut_into_parts(width, parts, keys):
    (decode, many), refusal = forms_of(rows="f32", width=width, cache=True, mask_kind="causal")
    assert not refusal and many.shape.is_split and many.shape.shared_bytes <= 227 << 10
    ptx = many.ptx()
    # Loops of tiles that some rows see, and of those that all do, and the first tile.
    of_keys, of_values = 3 * parts * width // 16, 3 * 2 * keys // 16
    assert ptx.count(f"m64n{keys}k16.f32.bf16.bf16") == of_keys + (of_values if keys == width else 0)
    assert ptx.count(f"m64n{width}k16.f32.bf16.bf16") == of_values + (of_keys if keys == width else 0)
    assert ".local" not in ptx and "st.global.v2.f32" in ptx and "cp.async.bulk.tensor.4d.global" not in ptx
    assert all(".local" not in decode.ptx(tiles) for tiles in (1, 2))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "f32"}, "f32 queries of f32 keys"),
        ({"dtype": "f16", "rows": "f32"}, "f32 queries of f16 keys"),
        ({"width": 84}, "heads of 84 and 84"),
        ({"width": 80, "rows": "f32"}, "heads of 80 and 80"),
        ({"score_scale": -1.0}, "a scale of -1.0"),
    ],
    ids=["f32", "halves", "width", "split", "scale"],
)
def test_others_keep_their_loop_kernel_and_say_why(options, reason):
    forms, refusal = forms_of(**options)
    assert not forms and refusal.startswith(reason)


def test_gradients_of_narrow_heads_go_through_tiles():
    shapes = [Shape((2, 4, 300, 96), "bf16")] * 3
    assert gradient_refusal(SM_90A, AttentionBackward(4, 96, wrt="all"), shapes) == "gradients of heads of 96 and 96"


def test_keys_are_cut_into_parts_only_where_the_kernel_does_not():
    kinds = []
    for options in ({}, {"mask_kind": "custom", "mask": True, "width": 320}):
        lir = CompilePipeline.new("cuda").compile(graph_of(**options)).lir
        kinds.append([k.kind for k in lir.kernels if k.kind != "view"])
    assert kinds == [["attention"], ["attention", "attention_join"]]


def test_views_of_a_model_need_no_copy():
    origin = kernel_of(graph_of(cache=True, turned=True, mask_kind="causal")).kernel.origin
    assert isinstance(origin, AttentionOrigin)
    # q lies [batch, position, head, element], and is read [batch, head, position, element]; so does the result.
    assert origin.q.strides[1:] == origin.out.strides[1:] == (128, 16 * 128, 1)
    assert origin.k.strides[2:] == (128, 1) and origin.positions.strides[1] == 1


def test_the_report_names_the_way():
    compiled = {}
    for name, options in (("tensor", {"mask_kind": "causal"}), ("loops", {"dtype": "f32"})):
        made = compile_with_options(graph_of(**options), "cuda", CompileOptions())
        compiled[name] = str(CudaExecutable.of(made, None, "sm_90a").report)
    assert "native sm_90a (mma attention of few rows or wgmma attention)" in compiled["tensor"]
    assert "native sm_90a (loops: f32 queries of f32 keys)" in compiled["loops"]


# Launches.


def hopper(form, **options):
    made = kernel_of(graph_of(**options))
    names = [p.name for p in made.kernel.params]
    load = CountedCode()

    def words(b, s, t, addresses=None):
        sizes = [int(e.bind({"B": b, "S": s, "T": t})) if not isinstance(e, int) else e for e in made.extents]
        pointers = len(names) - len(sizes)
        return (addresses or [(i + 1) << 24 for i in range(pointers)]) + sizes

    return form(made.kernel.origin, names, SM_90A, load), words, load


@pytest.mark.parametrize(("width", "of_kernel"), [(40, 64), (96, 128), (160, 192)])
def test_heads_are_filled_up_with_zeros_that_the_copy_engine_reads(fake, gpu, launched, width, of_kernel):
    """Maps have the width of heads, boxes that of the kernel."""
    forms, refusal = forms_of(width=width, mask_kind="causal", cache=True)
    assert not refusal and [type(f) for f in forms] == [AttentionForm]
    many, words, _ = hopper(AttentionForm, width=width, mask_kind="causal", cache=True)
    assert many.shape.depth == many.shape.width == of_kernel
    assert many.launch(words(2, 300, 500), gpu.stream)
    assert [dims for _, dims, _, _ in fake.tensor_maps] == [
        (width, rows, heads, 2) for rows, heads in ((300, 16), (500, 4), (500, 4), (300, 16))
    ]
    assert all(box[0] == 64 for _, _, _, box in fake.tensor_maps)


def test_a_launch_of_many_rows(fake, gpu, launched):
    form, words, load = hopper(AttentionForm, mask_kind="causal", cache=True)
    for b, s, t, blocks in ((1, 300, 300, 32), (2, 4096, 8192, 132)):
        fake.tensor_maps.clear()
        assert form.launch(words(b, s, t), gpu.stream)
        # Pairs of tiles of queries of all heads, or one block for each multiprocessor.
        assert launched[-1].blocks == blocks and launched[-1].threads == 384
        boxes = [(sizes, box) for _, sizes, _, box in fake.tensor_maps]
        assert boxes == [
            ((128, s, 16, b), (64, 128, 1, 1)),
            ((128, t, 4, b), (64, 128, 1, 1)),
            ((128, t, 4, b), (64, 128, 1, 1)),
            ((128, s, 16, b), (64, 64, 1, 1)),
        ]
    assert load.entries == ["attention"]


def test_a_launch_of_rows_of_f32(fake, gpu, launched):
    form, words, _ = hopper(AttentionForm, rows="f32", mask_kind="causal", cache=True)
    assert form.launch(words(2, 300, 500), gpu.stream)
    # Threads read queries and write results themselves.
    boxes = [(sizes, box) for _, sizes, _, box in fake.tensor_maps]
    assert boxes == [((128, 500, 4, 2), (64, 64, 1, 1))] * 2
    assert launched[-1].blocks == 2 * 16 * 2 and launched[-1].shared_bytes == form.shape.shared_bytes
    for crooked in (0, 5):
        addresses = [(i + 1) << 24 for i in range(6)]
        addresses[crooked] += 8
        assert not form.launch(words(2, 300, 500, addresses), gpu.stream)
    few, words, _ = hopper(DecodeForm, rows="f32", mask_kind="causal", cache=True, width=256)
    # Eight rows to a tile where heads are wide, so two tiles of four rows of four heads each.
    assert few.launch(words(1, 4, 4096), gpu.stream) and launched[-1].blocks == 4 * 2 * (132 // 8)


@pytest.mark.parametrize(("b", "s", "t", "blocks"), [(1, 1, 4096, 4 * 32), (1, 1, 64, 4), (8, 4, 4096, 8 * 4 * 4)])
def test_a_launch_of_few_rows(fake, gpu, launched, b, s, t, blocks):
    form, words, load = hopper(DecodeForm, mask_kind="causal", cache=True)
    assert form.launch(words(b, s, t), gpu.stream)
    assert launched[-1].blocks == blocks and launched[-1].threads == 256
    # Counters are 0 before the first launch, where blocks share keys.
    assert fake.log.count("cuMemsetD8Async") == (blocks > b * 4)
    assert form.launch(words(b, s, t), gpu.stream) and load.entries == ["decode"]
    assert not form.launch(words(b, 9, t), gpu.stream)


@pytest.mark.parametrize("form", [AttentionForm, DecodeForm])
def test_what_cannot_be_read_in_whole_vectors_is_left_to_the_loop_kernel(fake, gpu, launched, form):
    made, words, _ = hopper(form, mask_kind="causal")
    for crooked in range(4):
        addresses = [(i + 1) << 24 for i in range(4)]
        addresses[crooked] += 8
        assert not made.launch(words(1, 4, 512, addresses), gpu.stream)
    assert not made.launch(words(1, 0, 512), gpu.stream) and not made.launch(words(1, 4, 0), gpu.stream)
    assert not launched


def test_code_that_shares_out_registers_is_loaded_as_ptx(fake, gpu):
    """The driver's linker would ignore it; see `GpuCode`."""
    k = KernelBuilder("copy")
    y = k.pointer("y", rlx.DType.F32, write=True)
    with k.parallel("i", 4) as i:
        k.store(y, i, k.const(1.0, rlx.DType.F32))
    for text, links in (("plain", 1), ("with setmaxnreg.inc", 0)):
        fake.kernels[text] = k.build() if text == "plain" else fake.kernels["plain"]
        fake.log.clear()
        GpuCode("copy", text, lambda text=text: text, 1).function(gpu)
        assert fake.log.count("cuLinkCreate_v2") == links and fake.log.count("cuModuleLoadDataEx") == 1
