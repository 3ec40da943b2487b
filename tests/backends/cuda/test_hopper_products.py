"""Products for Hopper's tensor cores: which have such a form, its code, and what a launch of it is given. That it
computes the right thing is shown on a GPU (`gpu_suite.py`, products)."""

from dataclasses import replace

import pytest
from counted_code import CountedCode

import rlx
from rlx import nn, ops
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper import form as form_module
from rlx.backends.cuda.hopper.few_form import FewRowsForm, few_rows_refusal
from rlx.backends.cuda.hopper.form import HopperForm, tiling
from rlx.backends.cuda.hopper.launching import Surroundings
from rlx.backends.cuda.hopper.product import product_text
from rlx.backends.cuda.hopper.product_shape import ProductShape
from rlx.backends.cuda.hopper.stream_rows import MOST_STAGES, StreamShape
from rlx.compile.compiler import CompilePipeline
from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.kernels import tuning
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu.matmul import TensorTiles
from rlx.kernels.gpu.schedules import TABLE
from rlx.kernels.machines import machine_named
from rlx.kernels.specs.expr import apply, operand
from rlx.kernels.specs.products import ProductSpec
from rlx.kernels.tuning import key_of, trying

SM_90A = machine_named("sm_90a")


def kernel_of(function, *types, machine=SM_90A):
    """The loop kernel of a function that is one product."""
    graph = rlx.Graph("product")
    with building(graph):
        result = function(*(graph.input(f"x{i}", dims, dtype) for i, (dims, dtype) in enumerate(types)))
    graph.set_outputs([result])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind != "view")
    return make_kernel("matmul", lir.as_graph(), kernel, machine).kernel


def found(function, *types, machine=SM_90A):
    forms, refusal = tensor_forms(kernel_of(function, *types, machine=machine), machine)
    assert bool(forms) == (not refusal)
    return next((f for f in forms if isinstance(f, HopperForm)), None)


def layer(a, w, b):
    return nn.gelu(a @ w.T + b, approximate=True)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("columns", [256, 128, 64])
def test_code(dtype, columns):
    made = found(layer, (("B", 512), dtype), ((1024, 512), dtype), ((1024,), dtype))
    ptx = made.ptx(columns)
    assert f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype}" in ptx
    assert "cp.async.bulk.tensor.2d" in ptx and "mbarrier.try_wait" in ptx and "ex2.approx" in ptx
    # Pairs of neighbours are stored as one word, and nothing lives on the stack.
    assert "st.global.b32" in ptx and "st.global.b16" not in ptx and ".local" not in ptx
    shape = ProductShape(columns, 1, True, dtype)
    assert shape.shared_bytes <= 227 << 10 and shape.stages >= 4


@pytest.mark.parametrize("columns", [256, 64])
def test_code_for_bytes(columns):
    def scaled(a, w, s):
        return (ops.matmul(a.astype("bf16"), w.astype("bf16").T, out_dtype="f32") * s).astype("bf16")

    made = found(scaled, (("B", 512), "f8e5m2"), ((1024, 512), "f8e4m3"), ((), "f32"))
    ptx = made.ptx(columns)
    assert f"wgmma.mma_async.sync.aligned.m64n{columns}k32.f32.e5m2.e4m3" in ptx and "p, 1, 1;" in ptx
    assert "st.global.b32" in ptx and ".local" not in ptx
    # A row of a stage has as many bytes as with bf16, and so twice the elements.
    shapes = [ProductShape(columns, 1, True, element) for element in ("e4m3", "bf16")]
    assert [s.depth for s in shapes] == [128, 64] and len({s.stage_bytes for s in shapes}) == 1


def test_tiles_that_were_measured_are_used(monkeypatch):
    types = ((4096, 512), "bf16"), ((1024, 512), "bf16")
    kernel = kernel_of(lambda a, w: a @ w.T, *types)
    assert kernel.origin.tiles == TensorTiles()
    spec = ProductSpec(kernel.origin.product, DType.F32)
    (schedule, *_) = TABLE.candidates(SM_90A, spec)
    sets = schedule.sets(SM_90A, spec)
    assert sets[0] == TensorTiles() and {s.columns for s in sets} == {0, 64, 128, 256}
    choice = {key_of(SM_90A, schedule.name, spec.signature): {"columns": 64, "band": 8}}
    with trying(choice):
        tuned = kernel_of(lambda a, w: a @ w.T, *types)
    assert tuned.origin.tiles == TensorTiles(64)
    made = next(f for f in tensor_forms(tuned, SM_90A)[0] if isinstance(f, HopperForm))
    assert made.tiling_for(4096, 1024, 512, 132) == (64, 1) and made.tiling_for(100, 16384, 512, 132)[0] != 64
    # What came with rlx counts where nothing was measured here.
    came = {(schedule.name, spec.signature): {"columns": 128, "band": 8}}
    monkeypatch.setattr(tuning, "shipped", lambda machine: came)
    assert kernel_of(lambda a, w: a @ w.T, *types).origin.tiles == TensorTiles(128)
    few = replace(spec, product=replace(spec.product, m=16))
    assert schedule.sets(SM_90A, few) == [TensorTiles()]


def test_rows_of_b_side_by_side_are_read_transposed():
    plain = found(lambda a, w: a @ w, (("B", 512), "bf16"), ((512, 1024), "bf16"))
    assert "p, 1, 1, 0, 1;" in plain.ptx(256)
    turned = found(lambda a, w: a @ w.T, (("B", 512), "bf16"), ((1024, 512), "bf16"))
    assert "p, 1, 1, 0, 0;" in turned.ptx(256)


@pytest.mark.parametrize(
    ("function", "types"),
    [
        (lambda a, w: a @ w, [((64, 64), "f32"), ((64, 64), "f32")]),
        (lambda a, w: a @ w, [((1, 64), "bf16"), ((64, 64), "bf16")]),
        (lambda a, w: a @ w, [((2, 64, 64), "bf16"), ((2, 64, 64), "bf16")]),
    ],
    ids=["f32", "one row", "batches"],
)
def test_others_keep_their_loop_kernel(function, types):
    assert found(function, *types) is None


def test_other_chips_keep_their_loop_kernel():
    types = [((64, 64), "bf16"), ((64, 64), "bf16")]
    assert found(lambda a, w: a @ w, *types) is not None
    assert found(lambda a, w: a @ w, *types, machine=machine_named("sm_80")) is None


def hopper(load, *types):
    kernel = kernel_of(lambda a, w: a @ w.T, *types)
    product, acc, _ = kernel.origin
    made = form_module.hopper_form(product, acc, [p.name for p in kernel.params], SM_90A, load)
    assert isinstance(made, HopperForm)
    return made, [p.name for p in kernel.params]


def test_a_launch_gets_maps_tiles_and_the_rest(fake, gpu, launched):
    load = CountedCode()
    made, names = hopper(load, (("B", 512), "bf16"), ((14336, 512), "bf16"))
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    for rows, blocks, columns in ((2, 112, 128), (300, 132, 192), (4096, 132, 256)):
        fake.tensor_maps.clear()
        assert made.launch([addresses.get(n, rows) for n in names], gpu.stream)
        assert launched[-1].blocks == blocks and launched[-1].threads == 384
        pitch = 1024
        assert fake.tensor_maps == [
            (1 << 20, (512, rows), pitch, (64, 128)),
            (2 << 20, (512, 14336), pitch, (64, columns)),
        ]
    # The same arguments again need nothing of the driver.
    fake.tensor_maps.clear()
    assert made.launch([addresses.get(n, 4096) for n in names], gpu.stream)
    assert not fake.tensor_maps and len(load.entries) == 3


def test_tiles_of_64_rows(fake, gpu, launched, monkeypatch, assembled):
    """One group of warps multiplies what is brought for 64 rows, where a product has no more and somebody asks."""
    monkeypatch.setattr(HopperForm, "has_few_row_tiles", True)
    load = CountedCode()
    made, names = hopper(load, (("B", 4096), "bf16"), ((14336, 4096), "bf16"))
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    for rows, threads, box in ((17, 256, 64), (64, 256, 64), (65, 384, 128)):
        fake.tensor_maps.clear()
        assert made.launch([addresses.get(n, rows) for n in names], gpu.stream)
        assert (launched[-1].blocks, launched[-1].threads) == (112, threads)
        assert fake.tensor_maps[0] == (1 << 20, (4096, rows), 8192, (64, box))
    assert len(load.entries) == 2
    for columns in (128, 256):
        shape = made._shape(columns, rows=64)
        assert made.group_kernel(shape).thread_count == 256 and shape.shared_bytes <= 227 << 10
        said = assembled(made.ptx(columns, rows=64))
        assert " 0 bytes stack frame, 0 bytes spill" in said and "(C75" not in said


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("m", "n"), [(4, 24), (40, 24), (300, 504), (4096, 14336)])
def test_two_products_of_one_a_have_tiles_that_the_copy_engine_can_bring(fake, gpu, launched, m, n, turned):
    strides = (1, 512) if turned else (n, 1)
    bs = tuple(Matrix(f"b{i}", DType.BF16, *strides) for i in range(2))
    gated = Epilogue((apply("mul", operand(0, DType.F32), operand(1, DType.F32)),))
    product = Product(m, n, 512, Matrix("a", DType.BF16, 512), bs, Matrix("c", DType.F32, n), gated)
    names = ["a", "b0", "b1", "c"]
    made = form_module.hopper_form(product, DType.F32, names, SM_90A, CountedCode())
    assert made.launch([(i + 1) << 20 for i in range(4)], gpu.stream)
    columns = {box[1] for _, _, _, box in fake.tensor_maps[1:]}
    assert columns <= ({64, 128} if turned else {64})
    assert "wgmma" in made.ptx(64) and "wgmma" in made.ptx(128)
    with pytest.raises(InternalError, match="only multiples of 64 up to 256 exist"):
        made.ptx(32)


@pytest.mark.parametrize(("name", "address"), [("a", (1 << 20) + 2), ("b0", (2 << 20) + 8), ("c", (3 << 20) + 2)])
def test_what_the_copy_engine_cannot_read_is_left_to_the_loop_kernel(fake, gpu, launched, name, address):
    made, names = hopper(CountedCode(), (("B", 512), "bf16"), ((1024, 512), "bf16"))
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20, name: address}
    assert not made.launch([addresses.get(n, 64) for n in names], gpu.stream)
    assert not launched


# Few rows.


def few(*types):
    kernel = kernel_of(lambda a, w: a @ w.T, *types)
    names, load = [p.name for p in kernel.params], CountedCode()
    return FewRowsForm(kernel.origin.product, names, SM_90A, load), names, load


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_code_of_few_rows(dtype):
    forms, _ = tensor_forms(kernel_of(layer, (("B", 512), dtype), ((1024, 512), dtype), ((1024,), dtype)), SM_90A)
    assert [f.name for f in forms] == ["mma of few rows", "wgmma tiles"]
    for tiles in (1, 2):
        ptx = forms[0].ptx(tiles)
        # Four steps of 32 and what is left of K, two products for each and every eight rows of A.
        assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32") == 10 * tiles
        assert ptx.count("ld.global.nc.L1::no_allocate") == 10 and ".local" not in ptx and "ex2.approx" in ptx


def test_a_launch_of_few_rows(fake, gpu, launched):
    made, names, load = few((("B", 512), "bf16"), ((1000, 512), "bf16"))
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    for rows, is_few in ((1, True), (2, True), (8, True), (9, True), (16, True), (17, False)):
        assert made.launch([addresses.get(n, rows) for n in names], gpu.stream) is is_few
    assert {(shape.blocks, shape.threads) for shape in launched} == {(63, 256)}
    assert load.entries == ["few_rows"] * 2 and not fake.tensor_maps
    for crooked in ("a", "b0"):
        moved = {**addresses, crooked: addresses[crooked] + 2}
        assert not made.launch([moved.get(n, 4) for n in names], gpu.stream)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_code_of_streamed_weights(dtype):
    forms, _ = tensor_forms(kernel_of(layer, (("B", 2048), dtype), ((1024, 2048), dtype), ((1024,), dtype)), SM_90A)
    ptx = forms[0].stream_ptx()
    # A share of a stage is four steps of 32, two products for each; one warp brings the weights of all.
    assert ptx.count(f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32") == 8
    assert "cp.async.bulk.shared::cluster.global" in ptx and ".local" not in ptx
    # Weights are asked for before others have ended, if they are not computed; rows of A are not.
    waits = [line for line in ptx.splitlines() if "griddepcontrol.wait" in line]
    assert "griddepcontrol.launch_dependents" in ptx and len(waits) == 2
    two = StreamShape(2, dtype)
    assert two.shared_bytes(MOST_STAGES) <= 227 << 10
    # Of a block with little to do there is room beside the next.
    assert two.shared_bytes(MOST_STAGES) + StreamShape(1, dtype).shared_bytes(4) <= 226 << 10
    assert two.stages(1, 2048, 227 << 10) == 4 and two.stages(3, 8192, 227 << 10) == MOST_STAGES
    # GeForce chips.
    assert two.shared_bytes(two.stages(3, 8192, 99 << 10)) <= 99 << 10


def test_a_launch_of_streamed_weights(fake, gpu, launched):
    made, names, load = few((("B", 2048), "bf16"), ((1000, 2048), "bf16"))
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    for rows in (1, 8):
        assert made.launch([addresses.get(n, rows) for n in names], gpu.stream)
    # 125 units of eight columns; two stages of 1024 elements of K are all that a block ever fills.
    assert {(s.blocks, s.threads, s.shared_bytes) for s in launched} == {
        (125, 288, StreamShape(1, "bf16").shared_bytes(2))
    }
    assert made.launch([addresses.get(n, 9) for n in names], gpu.stream) and launched[-1].threads == 256
    assert load.entries == ["few_rows"] * 2


def test_only_code_that_waits_begins_early(fake, gpu, launched):
    made, names, _ = few((("B", 2048), "bf16"), ((1000, 2048), "bf16"))
    words = [{"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}.get(n, 1) for n in names]
    for waits in (True, False):
        made.waits = waits
        assert made.launch(words, gpu.stream, Surroundings(begins_early=True)) and launched[-1].dependent is waits


def test_whether_weights_are_computed_decides_when_they_are_read(fake, gpu, launched):
    made, names, _ = few((("B", 2048), "bf16"), ((1000, 2048), "bf16"))
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    words = [addresses.get(n, 1) for n in names]
    at = names.index("b0")
    fixed, computed = (
        made.prepared_with(words, gpu, Surroundings(fixed=f)) for f in (frozenset({at}), frozenset({0, 2} - {at}))
    )
    # Behind the addresses and pitches of both, and four sizes.
    assert [b.block._words[8] for b in (fixed, computed)] == [1, 0]


def test_rows_of_f32_are_cut_into_three_numbers_where_weights_are_bf16():
    def product(a, w):
        return a @ ops.transpose(ops.cast(w, DType.F32), (1, 0))

    graph = rlx.Graph("wide")
    with building(graph):
        graph.set_outputs([product(graph.input("a", ("B", 2048), "f32"), graph.param("w", (64, 2048), "bf16"))])
    done = CompilePipeline.new("cuda").compile(graph)
    (kernel,) = (k for k in done.lir.kernels if k.kind != "view")
    loop = make_kernel("matmul", done.lir.as_graph(), kernel, SM_90A).kernel
    (form,), _ = tensor_forms(loop, SM_90A)
    ptx = form.stream_ptx()
    # Two parts in one instruction, the third in another.
    assert ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 16 and ".local" not in ptx
    # Older chips have no copy engine: there the loop kernel runs.
    old = machine_named("sm_80")
    assert not tensor_forms(make_kernel("matmul", done.lir.as_graph(), kernel, old).kernel, old)[0]


def test_kernels_wait_for_others_on_chips_that_let_them_begin_early():
    kernel = kernel_of(lambda a, w: a + w, ((64,), "f32"), ((64,), "f32"))
    for name, has_wait in (("sm_80", False), ("sm_90a", True), ("sm_100", True)):
        machine = machine_named(name)
        assert ("griddepcontrol.wait" in compile_assembly(kernel, machine)) is has_wait


@pytest.mark.parametrize(
    ("function", "types", "reason"),
    [
        (lambda a, w: a @ w, [((4, 64), "bf16"), ((64, 64), "bf16")], "weights that are not [n, k]"),
        (lambda a, w: a @ w.T, [((4, 64), "f32"), ((64, 64), "f32")], "f32 @ f32"),
        (lambda a, w: a @ w.T, [((64, 64), "bf16"), ((64, 64), "bf16")], "many rows"),
    ],
    ids=["turned", "f32", "many"],
)
def test_products_without_a_form_for_few_rows(function, types, reason):
    product, acc, _ = kernel_of(function, *types).origin
    assert few_rows_refusal(product, acc, SM_90A) == reason
    assert few_rows_refusal(product, acc, machine_named("sm_75")) == "sm_75 has no mma of bf16"


def test_rows_of_odd_length_are_left_to_the_loop_kernel(fake, gpu, launched):
    made, names = hopper(CountedCode(), (("B", 100), "bf16"), ((1024, 100), "bf16"))
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    assert not made.launch([addresses.get(n, 64) for n in names], gpu.stream)
    assert not made.launch([addresses.get(n, 1) for n in names], gpu.stream)


def test_a_that_lies_along_its_rows_is_read_across():
    form = found(lambda a, w: a.T @ w, ((64, 64), "bf16"), ((64, 64), "bf16"))
    plain = found(lambda a, w: a @ w, ((64, 64), "bf16"), ((64, 64), "bf16"))
    # The bit that turns A comes before that of B, which lies across in both.
    assert "1, 1, 1, 1;" in form.ptx(64) and "1, 1, 0, 1;" in plain.ptx(64)


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ((8192, 768, 768), (192, 1)),  # two turns of tiles either way: narrow ones fill the second
        ((8192, 8192, 8192), (256, 1)),
        ((768, 768, 8192), (128, 3)),  # 36 tiles
        ((64, 64, 128), (64, 1)),  # too short to be shared
    ],
)
def test_tiles_fill_the_multiprocessors(sizes, wanted):
    assert tiling(*sizes, 1, 132) == wanted


def test_blocks_share_tiles_where_there_are_few(fake, gpu, launched):
    kernel = kernel_of(lambda a, w: a.T @ w, ((8192, 768), "bf16"), ((8192, 768), "bf16"))
    product, acc, _ = kernel.origin
    names = [p.name for p in kernel.params]
    made = form_module.hopper_form(product, acc, names, SM_90A, CountedCode())
    addresses = {"a": 1 << 20, "b0": 2 << 20, "c": 3 << 20}
    assert made.launch([addresses[n] for n in names], gpu.stream)
    assert launched[-1].blocks == 108 and launched[-1].cluster == 3
    ptx = made.ptx(192, 5)
    assert ptx.count("barrier.cluster.arrive.release") == 4 and "ld.shared::cluster.v2.f32" in ptx
    assert ".local" not in ptx
    # Sums of a tile take the place of its stages.
    shape = ProductShape(256, 1, True, "bf16", True, 8)
    assert shape.stages * shape.stage_bytes >= 128 * 256 * 4 and shape.shared_bytes <= 227 << 10


def test_blocks_that_share_have_one_product():
    with pytest.raises(InternalError, match="one product"):
        product_text("p", ProductShape(128, 2, True, "bf16", False, 2), None, SM_90A.triple)


@pytest.mark.targets
@pytest.mark.parametrize(("columns", "sharing"), [(192, 1), (192, 5), (128, 3), (256, 8)])
def test_sums_stay_in_registers(columns, sharing, assembled):
    made = found(layer, (("B", 512), "bf16"), ((1024, 512), "bf16"), ((1024,), "bf16"))
    said = assembled(made.ptx(columns, sharing))
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said and "(C75" not in said
