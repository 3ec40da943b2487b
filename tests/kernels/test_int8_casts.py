"""Floats to narrow integers: saturating, NaN to 0, and whole vectors at a time on x86."""

import math

import numpy as np
import pytest
from kernel_runs import check_everywhere

from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import AVX2, AVX512

NARROW = [DType.I8, DType.U8, DType.I16, DType.U16, DType.I32]


def cast_kernel(source: DType, to: DType, lanes: int) -> Kernel:
    k = KernelBuilder("cast")
    x, y = k.pointer("x", source), k.pointer("y", to, write=True)
    k.store(y, 0, k.cast(k.load(x, 0, lanes=lanes), to))
    return k.build()


@pytest.mark.parametrize("to", NARROW, ids=str)
@pytest.mark.parametrize("source", [DType.F32, DType.F64], ids=str)
def test_edges(source: DType, to: DType):
    info = np.iinfo(to.numpy)
    ends = [float(e + d) for e in (info.min, info.max) for d in (-1, -0.5, 0, 0.5, 1)]
    values = [*ends, 0.0, -0.0, 0.99, -0.99, 1e30, -1e30, math.inf, -math.inf, math.nan, 2.0**31, -(2.0**31) - 257, 7.5]
    x = np.resize(np.array(values, source.numpy), 32)
    found = check_everywhere(cast_kernel(source, to, 32), {"x": x, "y": np.zeros(32, to.numpy)})["y"]
    wanted = [0 if math.isnan(v) else int(min(max(v, info.min), info.max)) for v in x.tolist()]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("machine", [AVX512, AVX2], ids=lambda t: t.name)
@pytest.mark.parametrize("to", NARROW, ids=str)
def test_vectors_stay_vectors(machine, to: DType):
    text = compile_assembly(cast_kernel(DType.F32, to, 16), machine)
    assert "vcvttps2dq" in text and "cvttss2si" not in text
