"""Weights in GGUF panels and rows of f32 as operands of tensor cores, in the interpreter and by their code."""

import sys
from pathlib import Path

import numpy as np
import pytest

from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.gpu.expand_codes import USUAL_SHAPE, ExpandShape, expand_kernel, pitch_of, split_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.panels import unpack_rows

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from random_panels import random_panels

SM_90A = machine_named("sm_90a")
BF16 = DType.BF16.numpy


def parts_of(x, parts=2):
    """What NumPy rounds numbers of f32 to, and what that leaves."""
    rounded = np.clip(x, -3.3895313892515355e38, 3.3895313892515355e38).astype(BF16)
    return [rounded, (x - rounded.astype("f4")).astype(BF16)][:parts]


def expanded(name, k, n, dtype=DType.BF16, parts=2, shape=USUAL_SHAPE):
    layout = PANEL_FORMATS[name]
    panels = random_panels(layout, n, k, 5)
    lines = np.full((n, parts, pitch_of(k)), np.nan, dtype.numpy)
    kernel = expand_kernel("expand", SM_90A, layout, k, n, dtype, parts, shape)
    verify(kernel)
    interpret(kernel, {"panels": panels.reshape(-1), "lines": lines.reshape(-1)})
    return lines, unpack_rows(layout, panels, n, k)


@pytest.mark.parametrize("name", PANEL_FORMATS)
def test_every_format(name):
    lines, weights = expanded(name, 256, 3, parts=1 if PANEL_FORMATS[name].is_short else 2)
    if PANEL_FORMATS[name].is_short:
        np.testing.assert_array_equal(lines[:, 0].astype("f4"), weights)
        return
    for part, wanted in zip(lines.swapaxes(0, 1), parts_of(weights)):
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize("shape", [ExpandShape(4, 1), ExpandShape(8, 2), ExpandShape(16, 4)])
@pytest.mark.parametrize("k", [64, 320, 512])
def test_blocks_of_any_shape(shape, k):
    lines, weights = expanded("Q5_1", k, 17, shape=shape)
    for part, wanted in zip(lines.swapaxes(0, 1), parts_of(weights)):
        np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_one_number_and_lines_that_are_filled_up(dtype):
    dtype = DType.of(dtype)
    lines, weights = expanded("Q8_0", 96, 18, dtype, 1)
    np.testing.assert_array_equal(lines[:, 0, :96], weights.astype(dtype.numpy))
    assert lines.shape[2] == 128 and not lines[:, 0, 96:].any()


def test_rows_are_split():
    rng = np.random.default_rng(3)
    k, m, stride = 96, 5, 100
    rows = (rng.standard_normal((m, stride)) * np.exp(5 * rng.standard_normal((m, stride)))).astype("f4")
    rows[0, :6] = [np.inf, -np.inf, np.nan, 3.4e38, -0.0, 1e-40]
    lines = np.full((m, 2, pitch_of(k)), np.nan, BF16)
    kernel = split_kernel("split", k)
    verify(kernel)
    interpret(kernel, {"rows": rows.reshape(-1), "lines": lines.reshape(-1), "m": m, "row_stride": stride})
    with np.errstate(invalid="ignore"):
        rounded, rest = parts_of(rows[:, :k])
    np.testing.assert_array_equal(lines[:, 1, :k].astype("f4"), rounded.astype("f4"))
    np.testing.assert_array_equal(lines[:, 0, :k].astype("f4"), rest.astype("f4"))
    assert not lines[..., k:].any()
    # What is infinite stays so: the first part is a number.
    assert np.isfinite(rounded[0, :2].astype("f4")).all() and np.isinf(rest[0, :2].astype("f4")).all()
    ordinary = rows[1:, :k].astype("f8")
    both = lines[1:, 0, :k].astype("f8") + lines[1:, 1, :k].astype("f8")
    assert (np.abs(both - ordinary) <= 2.0**-17 * np.abs(ordinary)).all()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0", "IQ4_NL"])
def test_code_stores_whole_vectors(name):
    ptx = compile_assembly(expand_kernel("expand", SM_90A, PANEL_FORMATS[name], 4096, 64, DType.BF16, 2), SM_90A)
    assert ptx.count("st.global.v4.b32") == 2 * USUAL_SHAPE.turns and "st.global.b16" not in ptx
    assert "cvt.rn.bf16x2.f32" in ptx and ".local" not in ptx
    # Words of codes are read as words.
    assert "ld.global.nc.b32" in ptx
