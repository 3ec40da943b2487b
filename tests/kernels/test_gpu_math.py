"""exp from the instruction for powers of two that GPUs have: right to a few units of the last place."""

import numpy as np
import pytest

from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import machine_named


def applied(op, dtype=DType.F32, lanes=4):
    k = KernelBuilder("function")
    x, y = k.pointer("x", DType.F32), k.pointer("y", dtype, write=True)
    value = k.load(x, 0, lanes=lanes)
    k.store(y, 0, k.cast(k.op(op, value) if op else value, dtype))
    return k.build()


@pytest.mark.parametrize(("op", "low", "high"), [("exp", -110.0, 95.0), ("exp_negative", -110.0, 0.0)])
def test_exp(op, low, high):
    x = np.linspace(low, high, 4096).astype("f4")
    x = np.concatenate([x, np.array([0.0, -0.0, -np.inf, np.nan], "f4")])
    if op == "exp":
        x = np.concatenate([x, np.array([np.inf, 88.72, 1e-30, 1.0], "f4")])
    y = np.empty_like(x)
    interpret(legalize(applied(op, lanes=len(x)), machine_named("sm_90a")), {"x": x, "y": y})
    with np.errstate(over="ignore"):
        wanted = np.exp(x.astype("f8")).astype("f4")
    np.testing.assert_allclose(y, wanted, rtol=4e-7, atol=3e-45)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_code_has_the_instructions(arch):
    assert "ex2.approx.f32" in compile_assembly(applied("exp"), machine_named(arch))
    assert "cvt.rn.bf16" in compile_assembly(applied("", DType.BF16), machine_named(arch))
