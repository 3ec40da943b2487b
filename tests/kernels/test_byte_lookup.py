"""`byte_lookup`: 16 bytes picked by the low bits of others, by the machine's instruction or by comparing."""

import numpy as np
import pytest
from kernel_runs import check_everywhere

from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import DType
from rlx.kernels.emit.c_emit import c_source
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import ValueType
from rlx.kernels.ir.operations import infer
from rlx.kernels.machines import AVX2, AVX512, CORTEX_M4, NEON, RISCV, SSE2, SSE4, WASM

TABLE = (1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 255)


def lookup_kernel(lanes):
    k = KernelBuilder("looked_up")
    x, y = k.pointer("x", DType.U8), k.pointer("y", DType.U8, write=True)
    k.store(y, 0, k.byte_lookup(TABLE, k.load(x, 0, lanes=lanes)))
    return k.build()


@pytest.mark.parametrize("lanes", [1, 4, 16, 32, 64])
def test_every_byte_picks_one(lanes):
    for start in (0, 100, 192):
        x = np.arange(start, start + lanes).astype(np.uint8)
        found = check_everywhere(lookup_kernel(lanes), {"x": x, "y": np.zeros(lanes, np.uint8)})
        np.testing.assert_array_equal(found["y"], np.array(TABLE, np.uint8)[x & 15])


@pytest.mark.parametrize(
    ("machine", "lanes", "word"),
    [(AVX512, 64, "vpshufb"), (AVX2, 32, "vpshufb"), (SSE4, 16, "pshufb"), (SSE2, 16, "pcmpeqb"), (NEON, 16, "tbl")],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_instructions(machine, lanes, word):
    assert word in compile_assembly(lookup_kernel(lanes), machine)


@pytest.mark.parametrize("machine", [RISCV, WASM, CORTEX_M4], ids=lambda machine: machine.name)
def test_machines_without_one_compare(machine):
    assert compile_assembly(lookup_kernel(16), machine)


def test_c_has_it():
    assert "217, 255" in c_source([lookup_kernel(64)], AVX512)


def test_what_it_takes():
    assert infer("byte_lookup", [ValueType(DType.U8, 8)], TABLE) == ValueType(DType.U8, 8)
    with pytest.raises(DTypeError, match="byte_lookup takes bytes"):
        infer("byte_lookup", [ValueType(DType.I8, 8)], TABLE)
    for wrong in (TABLE[:15], (*TABLE[:15], 256), None):
        with pytest.raises(OpError, match="the table has 16 bytes"):
            infer("byte_lookup", [ValueType(DType.U8, 8)], wrong)
