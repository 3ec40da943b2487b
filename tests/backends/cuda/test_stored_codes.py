"""Products with GGUF panels by `mma` of bytes: what kernels compute, run warp by warp without a GPU, and their code.
On a GPU: `gpu_suite.py --only products --match codes`."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
from backends.cuda.warp_text import GLOBAL, run_block
from rlx.backends.cuda.code import tensor_forms
from rlx.backends.cuda.hopper.code_form import CodeRowsForm
from rlx.backends.cuda.hopper.code_rows import CodeShape, code_rows_text
from rlx.backends.cuda.hopper.epilogue import finish_of
from rlx.backends.cuda.hopper.launching import block_shared_bytes
from rlx.backends.cuda.hopper.stored_codes import StoredFormat
from rlx.compile.compiler import CompilePipeline
from rlx.ir.dtype import DType
from rlx.ir.tensor import building
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.machines import machine_named
from rlx.ops.lowered.quantized_panels import PanelMatMul
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.panels import RECORD, unpack_rows
from rlx.quant.schemes import QuantScheme

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
from random_panels import random_panels

SM_90A = machine_named("sm_90a")


def kernel_of(name, k, n, dtype="f32", rows="B", machine=SM_90A, then=lambda y: y):
    """The loop kernel of a product with panels."""
    graph = rlx.Graph("product")
    op = PanelMatMul(QuantScheme.of_ggml(name), n)
    with building(graph):
        x = graph.input("x", (rows, k), dtype)
        result = then(op(x, graph.input("w", op.panels(k, n).static_dims, "u8")))
    graph.set_outputs([result])
    lir = CompilePipeline.new("cuda").compile(graph).lir
    (kernel,) = (found for found in lir.kernels if found.kind != "view")
    return make_kernel("product", lir.as_graph(), kernel, machine).kernel


def form_of(name, k, n, dtype="f32", machine=SM_90A, then=lambda y: y):
    forms, refusal = tensor_forms(kernel_of(name, k, n, dtype, machine=machine, then=then), machine)
    # Where many rows have a form of their own, it is asked first.
    assert isinstance(forms[-1], CodeRowsForm) and len(forms) == 2 and not refusal
    return forms[-1]


def run(name, m, k, n, dtype="f32", panel=0, **changes):
    """The sums of all rows and the columns of one panel, and what they should be in f64."""
    form, layout = form_of(name, k, n, dtype), PANEL_FORMATS[name]
    shape = form.shape(m, 2)._replace(**changes)
    text = code_rows_text("product", shape, finish_of(form.product, form._finish, SM_90A), SM_90A.triple)
    rng = np.random.default_rng(7)
    # Some are much larger than others.
    a = rng.standard_normal((m, k)) * np.exp(rng.standard_normal((m, k)))
    a = a.astype("f4").astype(DType.of(dtype).numpy)
    panels = random_panels(layout, n, k, 5)
    memory = np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(-1) for part in (a, panels)])
    row_blocks = -(-m // shape.rows)
    shares = 2
    arguments = [GLOBAL, a[0].nbytes, GLOBAL + a.nbytes, m, row_blocks, -(-n // 16), shares]
    found = {}
    for block in range((shares - 1) * row_blocks, shares * row_blocks):
        found |= run_block(text, arguments, memory, block, 32 * shape.warps, shape.shared_bytes)
    columns = range(panel * 16, panel * 16 + 16, 2)
    got = np.array([[value for c in columns for value in found[row, c]] for row in range(m)])
    weights = unpack_rows(layout, panels, -(-n // 16) * 16, k)[panel * 16 : panel * 16 + 16]
    return got, a.astype("f8") @ weights.astype("f8").T


@pytest.mark.parametrize("name", PANEL_FORMATS)
def test_every_format(name):
    got, want = run(name, 1, 512, 48, panel=2, phases=1)
    assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want)


@pytest.mark.parametrize(
    ("name", "m", "k", "dtype", "bound"),
    [
        ("Q4_K", 2, 2304, "f32", 2e-6),
        ("Q8_0", 3, 288, "f32", 2e-6),
        ("Q6_K", 8, 256, "f32", 2e-6),
        ("Q4_0", 5, 96, "f32", 2e-6),
        ("Q5_K", 4, 256, "bf16", 1e-4),
        ("IQ4_XS", 9, 256, "f16", 2**-11),
    ],
)
def test_rows_and_types(name, m, k, dtype, bound):
    """Chunks that are not whole, more chunks than stages, more rows than a block has."""
    got, want = run(name, m, k, 32, dtype, panel=1, phases=2 if m == 3 else 1)
    assert np.linalg.norm(got - want) <= bound * np.linalg.norm(want)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_stays_none(bad):
    form = form_of("Q4_0", 256, 16)
    shape = form.shape(1)._replace(phases=1)
    text = code_rows_text("product", shape, finish_of(form.product, form._finish, SM_90A), SM_90A.triple)
    a = np.ones((1, 256), "f4")
    a[0, 100] = bad
    panels = random_panels(PANEL_FORMATS["Q4_0"], 16, 256, 5)
    memory = np.concatenate([a.view(np.uint8).reshape(-1), panels.reshape(-1)])
    found = run_block(text, [GLOBAL, 0, GLOBAL + a.nbytes, 1, 1, 1, 1], memory, 0, 32 * shape.warps, shape.shared_bytes)
    assert all(np.isnan(value) for values in found.values() for value in values)
    # Numbers that are almost none, and zeros.
    for size in (1e-30, 0.0):
        memory[: a.nbytes] = np.full(256, size, "f4").view(np.uint8)
        found = run_block(
            text, [GLOBAL, 0, GLOBAL + a.nbytes, 1, 1, 1, 1], memory, 0, 32 * shape.warps, shape.shared_bytes
        )
        want = unpack_rows(PANEL_FORMATS["Q4_0"], panels, 16, 256).astype("f8").sum(1) * size
        got = np.array([value for column in range(0, 16, 2) for value in found[0, column]])
        np.testing.assert_allclose(got, want, atol=1e-5 * abs(want).max())


def test_gated_products_of_one_a():
    """Two products whose columns meet in the epilogue: both are read beside each other."""
    gated = form_of("Q4_K", 256, 64, then=lambda y: y[:, :32] * y[:, 32:])
    shape = gated.shape(1, 2)
    assert shape.parts == 2 and gated.product.bs[1].offset
    ptx = gated.ptx(shape)
    # Two chunks, each in rounds of 512 bytes for every stage and in the loop.
    assert ptx.count("cp.async.cg.shared.global") == 2 * 5 * (shape.stages + 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100", "sm_120"])
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "IQ2_XS"])
def test_code(arch, name):
    form = form_of(name, 1024, 4096, machine=machine_named(arch))
    for rows in (1, 8):
        shape = form.shape(rows)
        assert shape.shared_bytes <= {"sm_80": 163, "sm_120": 99}.get(arch, 227) << 10
        assert shape.warps <= 16 and shape.stages >= 2 and shape.batch >= 1
    ptx = form.ptx(form.shape(1))
    depth = 16 if name == "IQ2_XS" else 32
    assert f".target {arch}" in ptx and f"mma.sync.aligned.m16n8k{depth}.row.col.s32.s8.s8.s32" in ptx
    assert "cp.async.cg.shared.global.L2::128B" in ptx and "redux.sync.max.s32" in ptx and ".local" not in ptx
    # Eight records, with one or two products each.
    assert ptx.count("mma.sync") == 8 * 32 // depth


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_every_shape_has_room(arch):
    """Whatever K and the number of rows are: chunks of all warps, and the sums of a panel at least."""
    room = block_shared_bytes(machine_named(arch))
    for layout in PANEL_FORMATS.values():
        for k, parts, rows in itertools.product((256, 768, 2048, 4096, 14336), (1, 2), (1, 2, 5, 8, 10)):
            if rows * 3 > 32 // (RECORD // layout.group * parts):
                continue
            shape = CodeShape(StoredFormat.of(layout), parts, rows, k, "f32").for_panels(7, room)
            assert shape.shared_bytes <= room and 1 <= shape.batch <= 7 and shape.stages >= 2
            assert 1 <= shape.slots <= shape.chunks and shape.warps <= 16


def test_others_keep_their_loops():
    old = machine_named("sm_75")
    forms, refusal = tensor_forms(kernel_of("Q4_0", 64, 32, machine=old), old)
    assert forms == () and refusal == "sm_75 has no mma of bytes"
    forms, refusal = tensor_forms(kernel_of("Q4_0", 64, 32, "f64"), SM_90A)
    assert forms == () and refusal == "f64 @ codes"
