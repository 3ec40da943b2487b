"""Attention by instructions for whole matrices: against the definition of the op in the interpreter, what LLVM makes
of it for AMD's chips, and its text for Apple's GPUs, which tests/backends/metal_backend runs."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (NumPy's bf16)
import numpy as np
import pytest

import rlx
from rlx.backends.rocm.code import code_object
from rlx.backends.rocm.code_object import read_code_object
from rlx.backends.rocm.instruction_mix import inner_loop
from rlx.compile.compiler import CompilePipeline
from rlx.ir.dtype import DType
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite
from rlx.kernels.emit.gpu_c_emit import GpuKernel, legal_for_text
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.emit.msl_emit import msl_module
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu.attention_fragments import block_shape
from rlx.kernels.gpu.attention_waves import is_wave_attention, wave_attention_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import Space
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import AMD_CHIPS, GFX942, GFX1030, GFX1100, GFX1201, METAL, METAL_MATRICES
from rlx.ops.attn.attention import Attention

MATRIX_CHIPS = [chip for chip in AMD_CHIPS if chip.matrix is not None]
rng = np.random.default_rng(3)


def module_of(op, operands):
    """The program of one attention, and the place of its kernel."""
    graph = rlx.Graph("attention")
    graph.set_outputs([op(*(graph.input(f"a{i}", Shape(x.shape, DType.of(x.dtype))) for i, x in enumerate(operands)))])
    module = CompilePipeline("rocm").run(graph).lir
    [kernel] = module.kernels
    return module.as_graph(), kernel


def site_of(op, operands, chip):
    graph, kernel = module_of(op, operands)
    return OpSite("attention", graph, kernel, chip, lambda size: size, str)


def heads(count, length, width, dtype):
    return rng.standard_normal((2, count, length, width)).astype(dtype.numpy)


def check(chip, op, dtype, extras=(), lengths=(5, 19), widths=(16, 32), waves=1, step_keys=32):
    """One wave, 32 keys at a time: rows and keys end in the middle of both."""
    (queries, keys), (depth, width) = lengths, widths
    q, k, v = heads(op.num_heads, queries, depth, dtype), *(heads(op.kv_heads, keys, w, dtype) for w in (depth, width))
    operands = [q, k, v, *extras]
    kernel = wave_attention_kernel(chip, site_of(op, operands, chip), waves, step_keys)
    verify(kernel)
    out = np.full((2, op.num_heads, queries, width), np.nan, dtype.numpy)
    interpret(kernel, {**{f"x{i}": x.ravel() for i, x in enumerate(operands)}, "y0": out.reshape(-1)})
    exact = op.eval(*(x.astype("f4") for x in (q, k, v)), *extras)
    # Weights are rounded to the type of the values before they are multiplied by them.
    step = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-20}[dtype]
    np.testing.assert_allclose(out.astype("f4"), exact, rtol=2 * step, atol=2 * step)


@pytest.mark.parametrize(
    "chip",
    [
        chip if chip in (GFX942, GFX1100, METAL_MATRICES) else pytest.param(chip, marks=pytest.mark.targets)
        for chip in (*MATRIX_CHIPS, METAL_MATRICES)
    ],
    ids=lambda chip: chip.name,
)
def test_attention_is_that_of_its_definition(chip):
    """Queries of two heads share keys; the last query sees all of them."""
    check(chip, Attention(4, 16, num_kv_heads=2, mask_kind="causal"), DType.F16)


LENGTHS = np.array([19, 7], "i4")
PLACES = np.array([[3, 0, 18, 9, 4]], "i4").repeat(2, 0)
CASES = {
    "none": (GFX1201, Attention(2, 16), ()),
    "window": (GFX942, Attention(2, 16, mask_kind="sliding_window", window=3), ()),
    "softcap": (GFX1201, Attention(2, 16, mask_kind="causal", softcap=2.0), ()),
    "length": (GFX1100, Attention(2, 16, mask_kind="causal", has_kv_len=True), (LENGTHS,)),
    "positions": (GFX942, Attention(2, 16, mask_kind="causal", has_positions=True), (PLACES,)),
    "bias": (GFX1201, Attention(2, 16, mask_kind="bias"), (rng.standard_normal((2, 2, 5, 19)).astype("f4"),)),
    "custom": (GFX1100, Attention(2, 16, mask_kind="custom"), (rng.random((2, 1, 5, 19)) < 0.5,)),
}


@pytest.mark.targets
@pytest.mark.parametrize("is_metal", [False, True], ids=["amd", "metal"])
@pytest.mark.parametrize("name", CASES)
def test_masks_lengths_and_positions(name, is_metal):
    chip, op, extras = CASES[name]
    check(METAL_MATRICES if is_metal else chip, op, DType.BF16, extras)


# Wide heads leave room for fewer keys, or for fewer waves.
@pytest.mark.targets
@pytest.mark.parametrize(
    ("dtype", "widths"),
    [(DType.F16, (8, 24)), (DType.BF16, (24, 8)), (DType.F16, (96, 64)), (DType.F32, (128, 128))],
    ids=str,
)
def test_blocks_of_apples_gpus_as_they_are_chosen(dtype, widths):
    """With as many waves and keys as the memory allows, more rows than a block has, and two steps of keys."""
    op = Attention(2, widths[0], num_kv_heads=1, mask_kind="causal")
    shape = block_shape(METAL_MATRICES, dtype, *widths)
    check(METAL_MATRICES, op, dtype, (), (19, shape.keys + 9), widths, *shape)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32], ids=str)
@pytest.mark.parametrize("width", [8, 16, 40, 64, 80, 96, 128])
def test_blocks_of_apples_gpus_fit_their_memory(dtype, width):
    op = Attention(2, width)
    operands = [heads(2, n, width, dtype) for n in (16, 16, 16)]
    kernel = wave_attention_kernel(METAL_MATRICES, site_of(op, operands, METAL_MATRICES))
    shared = sum(a.size * a.dtype.size_bytes for a in kernel.arrays if a.space is Space.SHARED)
    assert shared <= METAL_MATRICES.shared_bytes and kernel.thread_count in (64, 128)


def test_the_text_for_apples_gpus():
    """Both products by matrices of the type of the operands, with the family of GPUs that has them."""
    op = Attention(2, 64)
    graph, place = module_of(op, [heads(2, 40, 64, DType.F16) for _ in range(3)])
    for machine, has_matrices in ((METAL, False), (METAL_MATRICES, True)):
        kernel = legal_for_text(make_kernel("attention", graph, place, machine).kernel, machine, "Metal")
        text = msl_module([GpuKernel("k0", kernel)])
        # Of 64 keys each: eight by eight matrices of queries and keys, and of powers and values.
        assert text.count("simdgroup_multiply_accumulate") == 128 * has_matrices
        assert ("simdgroup_matrix<half, 8, 8>" in text) == ("simd_shuffle_xor" in text) == has_matrices


@pytest.mark.targets
@pytest.mark.parametrize("chip", [GFX942, METAL_MATRICES], ids=lambda chip: chip.name)
def test_what_lies_behind_the_length_of_a_cache_is_not_read(chip):
    op = Attention(2, 16, has_kv_len=True)
    q, k, v = heads(2, 3, 16, DType.F16), heads(2, 20, 16, DType.F16), heads(2, 20, 16, DType.F16)
    k[:, :, 6:], v[:, :, 6:] = np.nan, np.nan
    lengths = np.array([6, 0], "i4")
    kernel = wave_attention_kernel(chip, site_of(op, [q, k, v, lengths], chip), waves=1, keys=16)
    out = np.full(q.shape, np.nan, "f2")
    interpret(kernel, {"x0": q.ravel(), "x1": k.ravel(), "x2": v.ravel(), "x3": lengths, "y0": out.reshape(-1)})
    exact = Attention(2, 16).eval(*(x[:1].astype("f4") for x in (q, k[:, :, :6], v[:, :, :6])))
    np.testing.assert_allclose(out[:1].astype("f4"), exact, rtol=2e-3, atol=2e-3)
    assert (out[1] == 0).all()


def test_who_gets_waves():
    """Chips with instructions for matrices, two types, heads in whole matrices, rows enough."""

    def has_waves(chip, op=None, dtype=DType.F16, queries=32):
        op = op or Attention(2, 64)
        q, *others = heads(2, queries, op.head_dim, dtype), *(heads(2, 40, op.head_dim, dtype) for _ in range(2))
        return is_wave_attention(chip, site_of(op, [q, *others], chip))

    assert all(has_waves(chip) for chip in MATRIX_CHIPS) and not has_waves(GFX1030)
    assert has_waves(GFX942, dtype=DType.BF16) and not has_waves(GFX942, dtype=DType.F32)
    assert not has_waves(GFX942, Attention(2, 24)) and not has_waves(GFX942, Attention(2, 144))
    assert has_waves(GFX942, queries=9) and not has_waves(GFX942, queries=8)
    assert not has_waves(METAL) and all(has_waves(METAL_MATRICES, dtype=d) for d in (DType.BF16, DType.F32))
    assert has_waves(METAL_MATRICES, Attention(2, 24)) and not has_waves(METAL_MATRICES, Attention(2, 20))


@pytest.mark.targets
@pytest.mark.parametrize("chip", MATRIX_CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("width", [64, 128])
def test_code_for_chips_multiplies_matrices_and_spills_nothing(chip, width):
    op = Attention(8, width, num_kv_heads=2, mask_kind="causal")
    shapes = [rng.standard_normal((1, n, 256, width)).astype("f2") for n in (8, 2, 2)]
    graph, place = module_of(op, shapes)
    kernel = make_kernel("attention", graph, place, chip).kernel
    # Both products of a step of keys, 16 x 16 x 16 each; beginnings of sums are products of nothing.
    keys = 32 if chip is GFX1100 and width == 128 else 64
    products = 2 * (keys // 16) * (width // 16)
    mix = inner_loop(compile_assembly(kernel, chip))
    assert products <= mix.matrix <= products + keys // 16
    [found] = read_code_object(code_object(kernel, chip)).kernels.values()
    assert found.spilled == found.scratch_bytes == 0 and found.lds_bytes <= chip.shared_bytes
