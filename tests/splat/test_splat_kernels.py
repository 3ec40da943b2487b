"""The kernels of splatting, native and in the interpreter, against the definitions of their ops."""

import numpy as np
import pytest

from backends.op_kernel_checks import Program
from rlx.ir.op import OP_CLASSES

STEPS = ("SplatBoxes", "SplatTileCounts", "SplatTileLists", "SplatBlend", "SplatPulls", "SplatGather")
WHOLE = ("GaussianSplatPrepare", "GaussianSplatRasterize", "GaussianSplatRenderBackward")


def programs(names):
    for name in names:
        for number, sample in enumerate(OP_CLASSES[name].samples()):
            if "f32" in sample.dtypes:
                yield pytest.param(sample, id=f"{name}-{number}")


def assert_near(got, wanted):
    """Equal up to rounding in f32; marks for empty tiles are far larger than all that is measured."""
    for a, b in zip(got, wanted, strict=True):
        scale = np.abs(b).max(initial=1.0, where=np.abs(b) < 1e9)
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6 * scale)


def checked(sample):
    program = Program(sample.op, *((s.dims, s.dtype) for s in sample.shapes("f32")))
    arrays = sample.arrays("f32")
    got = program(*arrays)
    wanted = sample.op.eval(*arrays)
    assert_near(got, wanted if isinstance(wanted, tuple) else (wanted,))
    return program, arrays, got


@pytest.mark.parametrize("sample", [*programs(STEPS)])
def test_steps(sample):
    program, arrays, got = checked(sample)
    assert program.kinds == ["splat"]
    # The interpreter checks every access; products and sums are rounded once or twice.
    assert_near(program.interpreted(*arrays), got)


@pytest.mark.parametrize("sample", [*programs(WHOLE)])
def test_whole_ops_are_made_of_steps(sample):
    program, _, _ = checked(sample)
    assert "splat" in program.kinds and "call" not in program.kinds


def test_a_prepared_scene_that_lies_is_not_trusted():
    """Ids, ranges and counts from outside never lead out of the buffers."""
    sample = next(iter(OP_CLASSES["SplatPulls"].samples()))
    rng = np.random.default_rng(0)
    arrays = sample.arrays("f32")
    for name in ("SplatBlend", "SplatPulls"):
        cls = OP_CLASSES[name]
        operands = arrays[: 2 if name == "SplatBlend" else 4]
        program = Program(cls(**sample.op.attributes), *((a.shape, "f32") for a in operands))
        for _ in range(5):
            wild = operands[0].copy()
            places = rng.integers(0, len(wild), 40)
            wild[places] = rng.choice([np.nan, np.inf, -np.inf, -7.0, 3e9, 1e30, 12.5], 40)
            program.interpreted(wild, *operands[1:])
