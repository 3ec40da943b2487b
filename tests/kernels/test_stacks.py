"""What kernels keep on the stack of a thread, on machines that give a thread little of it."""

from __future__ import annotations

import pytest

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.int8_blocks import int8_block_kernel
from rlx.kernels.cpu.matmul.matmul import Matrix, Product, matmul_kernel
from rlx.kernels.cpu.matmul.quant import quant_matmul_kernel
from rlx.kernels.ir.loop_ir import Kernel, Space
from rlx.kernels.machines import CORTEX_M4, GFX942, METAL, OPENCL, SM_90A, WGSL
from rlx.quant.fields import PANEL_FORMATS

F32, U8 = DType.F32, DType.U8
# Copies of operands have the scratch; sums and what comes out of codes lie beside them, and are no larger.
MOST = 3


def stack_bytes(kernel: Kernel) -> int:
    return sum((a.size or 0) * a.dtype.size_bytes for a in kernel.arrays if a.space is Space.LOCAL)


@pytest.mark.parametrize("machine", [CORTEX_M4, GFX942, METAL, OPENCL, SM_90A, WGSL], ids=lambda m: m.name)
@pytest.mark.parametrize(("n", "k"), [(3, 256), (512, 4096)])
def test_products_stay_within_the_scratch(machine, n, k):
    a, c, layout = Matrix("a", F32, k), Matrix("c", F32, n), PANEL_FORMATS["Q4_K"]
    made = {
        "floats": matmul_kernel("product", machine, Product("m", n, k, a, Matrix("b", F32, n), c)),
        "codes": quant_matmul_kernel("product", machine, layout, Product("m", n, k, a, Matrix("b", U8, 0), c)),
        "8 bits": int8_block_kernel(
            "product", machine, layout, Product("m", n, k, Matrix("a", U8, 0), Matrix("b", U8, 0), c)
        ),
    }
    found = {what: stack_bytes(kernel) for what, kernel in made.items()}
    assert max(found.values()) <= MOST * machine.scratch_bytes, found
