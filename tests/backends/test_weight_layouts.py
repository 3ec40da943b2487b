"""Laying weights out natively: the bytes of `quant_panels`, `int8_panels` and `int16_panels` are those of their
definitions."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from op_kernel_checks import Program

from rlx import ops
from rlx.errors import InternalError
from rlx.kernels.cpu.block_bits import NOWHERE, block_bits
from rlx.kernels.machines import host
from rlx.ops.lowered.int8_products import Int8Panels
from rlx.ops.lowered.int16_products import Int16Panels, Int16Rows
from rlx.ops.lowered.quantized_panels import QuantPanels
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.schemes import QuantScheme

rng = np.random.default_rng(23)
CODEBOOKS = [name for name in PANEL_FORMATS if name.startswith(("IQ1", "IQ2", "IQ3"))]


def layout(name: str, k: int, n: int, count: int = 1) -> tuple[QuantPanels, np.ndarray]:
    """The op, and any bytes: scales may be anything, they are moved and not read."""
    scheme = QuantScheme.of_ggml(name)
    return QuantPanels(scheme, k, n, count), rng.integers(0, 256, count * scheme.packed_bytes(k, n)).astype(np.uint8)


def wanted(op: QuantPanels, blocks: np.ndarray) -> bytes:
    with np.errstate(all="ignore"):
        return op.eval(blocks).tobytes()


@pytest.mark.parametrize("name", PANEL_FORMATS)
def test_panels_are_those_of_the_definition(name):
    for k, n, count in ((256, 1, 1), (512, 16, 1), (768, 19, 1), (256, 33, 3), (1024, 64, 2)):
        op, blocks = layout(name, k, n, count)
        run = Program(op, (blocks.shape, "u8"), kinds=["layout"])
        assert [r.tobytes() for r in run(blocks)] == [wanted(op, blocks)]


# One of each kind: planes, headers, bytes that are turned, tables of bytes, codebooks of 8 and of 4.
KINDS = ["Q4_0", "Q5_1", "Q8_0", "Q3_K", "Q4_K", "Q6_K", "MXFP4", "TQ1_0", "Q1_0", "IQ1_M", "IQ3_XXS"]


@pytest.mark.parametrize("name", KINDS)
def test_every_target_and_the_interpreter_store_the_same(name):
    op, blocks = layout(name, 256, 18)
    Program(op, (blocks.shape, "u8")).check_everywhere(blocks)


def test_one_kernel_serves_all_sizes_of_a_type():
    texts = set()
    for k, n in ((256, 5), (512, 40), (1024, 16)):
        op, blocks = layout("Q4_K", k, n)
        (made,) = Program(op, (blocks.shape, "u8")).kernels(host())
        texts.add(str(made.kernel))
    assert len(texts) == 1


def test_elements_of_codebooks_do_not_come_from_bits():
    for name in CODEBOOKS:
        assert PANEL_FORMATS[name].book is not None
        with pytest.raises(InternalError, match="neither moves bits nor looks up bytes"):
            block_bits(PANEL_FORMATS[name], FORMATS[name].bytes)


def test_bits_of_a_known_block():
    """Q4_0: a half, then 16 bytes with element i in the low and element i + 16 in the high half of byte i."""
    found = block_bits(PANEL_FORMATS["Q4_0"], FORMATS["Q4_0"].bytes)
    assert found.minimums is None and found.headers is None
    low, high = sorted(found.codes.terms, key=lambda t: t.shift)
    assert (low.shift, low.mask, low.sources) == (0, 15, (*range(2, 18), *(NOWHERE,) * 16))
    assert (high.shift, high.mask, high.sources) == (4, 15, (*(NOWHERE,) * 16, *range(2, 18)))
    assert [t.sources for t in found.steps.terms] == [(0, 1)]


WEIGHTS = [(8, 5, 4), (64, 33, 16), (4, 1, 2), (12, 16, 16), (132, 130, 64), (8, 9, 3)]


@pytest.mark.parametrize(("k", "n", "width"), WEIGHTS)
def test_int8_panels_are_those_of_the_definition(k, n, width):
    w = rng.normal(size=(k, n)).astype(np.float32)
    w[:, n // 2] = 0
    w[1, 0] = 0.5 * np.abs(w[:, 0]).max()
    run = Program(Int8Panels(width), ((k, n), "f32"), kinds=["layout"])
    turned = Program(lambda x: Int8Panels(width)(ops.transpose(x, (1, 0))), ((n, k), "f32"), kinds=["layout"])
    special = w.copy()
    special[0, 0], special[-1, -1], special[2, n // 3] = np.nan, np.inf, -np.inf
    for values in (w, special):
        for found in (run(values), turned(np.ascontiguousarray(values.T))):
            for one, other in zip(found, Int8Panels(width).eval(values), strict=True):
                np.testing.assert_array_equal(one, other)
    run.check_everywhere(w)


def extreme(values: np.ndarray, dtype: str) -> np.ndarray:
    """Blocks of zeros, of one large number, and with what is no number; the smallest numbers of the type, too."""
    found = values.copy()
    found[:32, 0], found[32:, 0] = 0, 0
    found[5, 0] = 3e4
    found[1, -1], found[40, -1], found[63, 1] = np.nan, np.inf, -np.inf
    found[32:, 2] = ml_dtypes.finfo(as_numpy(dtype)).smallest_subnormal
    return found


def as_numpy(dtype: str) -> np.dtype:
    return np.dtype({"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("k", "n", "width"), [(64, 5, 4), (64, 33, 16), (96, 16, 16), (160, 130, 64), (64, 9, 3)])
def test_int16_panels_are_those_of_the_definition(k, n, width, dtype):
    w = rng.normal(size=(k, n)).astype(as_numpy(dtype))
    run = Program(Int16Panels(width), ((k, n), dtype), kinds=["layout"])
    turned = Program(lambda x: Int16Panels(width)(ops.transpose(x, (1, 0))), ((n, k), dtype), kinds=["layout"])
    for values in (w, extreme(w.astype(np.float32), dtype).astype(w.dtype)):
        wanted = Int16Panels(width).eval(values)
        for found in (run(values), turned(np.ascontiguousarray(values.T))):
            np.testing.assert_array_equal(found[0], wanted)
    run.check_everywhere(w)


def test_int16_rows_are_those_of_the_definition():
    x = rng.normal(size=(7, 96)).astype(np.float32) * rng.lognormal(0, 4, (7, 1)).astype(np.float32)
    run = Program(Int16Rows(), ((7, 96), "f32"), kinds=["quantize"])
    for values in (x, np.ascontiguousarray(extreme(x.T, "f32").T), x * np.float32(2.0**-140), x * np.float32(2.0**100)):
        np.testing.assert_array_equal(run(values)[0], Int16Rows().eval(values))
    run.check_everywhere(x)
