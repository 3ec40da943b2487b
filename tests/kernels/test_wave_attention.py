"""Attention by instructions for whole matrices: against the definition of the op in the interpreter, and what LLVM
makes of it for AMD's chips."""

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
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.gpu.attention_waves import is_wave_attention, wave_attention_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import AMD_CHIPS, GFX942, GFX1030, GFX1100, GFX1201
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


def check(chip, op, dtype, extras=(), lengths=(5, 19), widths=(16, 32)):
    """One wave, 16 or 32 keys at a time: rows and keys end in the middle of both."""
    (queries, keys), (depth, width) = lengths, widths
    q, k, v = heads(op.num_heads, queries, depth, dtype), *(heads(op.kv_heads, keys, w, dtype) for w in (depth, width))
    operands = [q, k, v, *extras]
    kernel = wave_attention_kernel(chip, site_of(op, operands, chip), waves=1, keys=32)
    verify(kernel)
    out = np.full((2, op.num_heads, queries, width), np.nan, dtype.numpy)
    interpret(kernel, {**{f"x{i}": x.ravel() for i, x in enumerate(operands)}, "y0": out.reshape(-1)})
    exact = op.eval(*(x.astype("f4") for x in (q, k, v)), *extras)
    # Weights are rounded to the type of the values before they are multiplied by them.
    step = 2.0**-10 if dtype is DType.F16 else 2.0**-7
    np.testing.assert_allclose(out.astype("f4"), exact, rtol=2 * step, atol=2 * step)


@pytest.mark.parametrize(
    "chip",
    [chip if chip in (GFX942, GFX1100) else pytest.param(chip, marks=pytest.mark.targets) for chip in MATRIX_CHIPS],
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
@pytest.mark.parametrize("name", CASES)
def test_masks_lengths_and_positions(name):
    chip, op, extras = CASES[name]
    check(chip, op, DType.BF16, extras)


@pytest.mark.targets
def test_what_lies_behind_the_length_of_a_cache_is_not_read():
    op = Attention(2, 16, has_kv_len=True)
    q, k, v = heads(2, 3, 16, DType.F16), heads(2, 20, 16, DType.F16), heads(2, 20, 16, DType.F16)
    k[:, :, 6:], v[:, :, 6:] = np.nan, np.nan
    lengths = np.array([6, 0], "i4")
    kernel = wave_attention_kernel(GFX942, site_of(op, [q, k, v, lengths], GFX942), waves=1, keys=16)
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
