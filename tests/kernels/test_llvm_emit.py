"""One kernel object for every target: text is produced, and shows what it should."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlx.errors import BackendError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.maps import Access, map_kernel
from rlx.kernels.cpu.matmul.matmul import Epilogue, Matrix, Product, matmul_kernel
from rlx.kernels.emit.llvm_codegen import compile_assembly, compile_object
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import FLOATS, HALVES, Kernel, LoopKind
from rlx.kernels.ir.operations import MATH
from rlx.kernels.ir.verify import verify
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import AVX512, CORTEX_M4, GFX942, MACHINES, NEON, RISCV, SM_90A, WASM, Machine, machine_named
from rlx.kernels.specs.expr import apply, operand

F32 = DType.F32


def gelu_map(machine: Machine) -> Kernel:
    x = operand(0, F32)
    return map_kernel(
        "gelu_map", machine, ("n",), [Access("x", F32, (1,))], [Access("y", F32, (1,))], [apply("gelu", x)]
    )


def linear(machine: Machine) -> Kernel:
    expr = apply("relu", apply("add", operand(0, F32), operand(1, F32)))
    bias = Matrix("bias", F32, 0)
    a, b, c = Matrix("a", F32, 64), Matrix("b", F32, 48), Matrix("c", F32, 48)
    return matmul_kernel("linear", machine, Product("m", 48, 64, a, b, c, Epilogue((expr,), (bias,))))


def test_a_kernel_without_anything_to_replace_is_legal_as_it_is():
    machine = AVX512
    product, gelu = linear(machine), gelu_map(machine)
    assert legalize(product, machine) is product
    assert legalize(gelu, machine) is not gelu
    k = KernelBuilder("walks")
    y, n = k.pointer("y", F32, write=True), k.index("n")
    with k.parallel("block", 4), k.loop_of(LoopKind.WALK, "i", 0, n) as walk_over:
        k.store(y, walk_over.index, k.const(1.0, F32))
        walk_over.next()
    kernel = k.build()
    assert legalize(kernel, machine) is not kernel


def block_sum() -> Kernel:
    """A sum over a block of 128 threads by a tree in shared memory, added up over blocks by an atomic."""
    k = KernelBuilder("block_sum")
    x, total, n = k.pointer("x", F32), k.pointer("total", F32, write=True), k.index("n")
    shared = k.shared("partial", F32, 128)
    with k.parallel("block", k.ceildiv(n, 128)) as block, k.threads("t", 128) as t:
        i = block * 128 + t
        k.store(shared, t, k.load(x, i, mask=i < n))
        width = 64
        while width:
            k.barrier()
            with k.when(t < width):
                k.store(shared, t, k.load(shared, t) + k.load(shared, t + width))
            width //= 2
        k.barrier()
        with k.when(k.eq(t, 0)):
            k.atomic("add", total, 0, k.load(shared, 0))
    return k.build()


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
@pytest.mark.parametrize("make", [gelu_map, linear], ids=["map", "matmul"])
def test_every_target_gives_assembly_and_an_object(machine, make):
    kernel = make(machine)
    verify(kernel)
    verify(legalize(kernel, machine))
    text = compile_assembly(kernel, machine)
    assert kernel.name in text
    if machine.gpu != "nvptx":
        assert compile_object(kernel, machine)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (AVX512, ["vfmadd", "zmm"]),
        (NEON, ["fmla", ".4s"]),
        (RISCV, ["vfm", "vsetivli"]),
        (WASM, ["f32x4.mul", "f32x4.add"]),
        (CORTEX_M4, ["vmul.f32", "vadd.f32"]),
        (SM_90A, [".visible .entry linear", "fma.rn.f32", "ld.global", "%ctaid.x"]),
        (GFX942, ["v_pk_fma_f32", "global_store_dwordx4", ".amdhsa_kernel linear"]),
    ],
    ids=lambda value: value.name if isinstance(value, Machine) else "",
)
def test_matmul_uses_the_instructions_of_the_machine(machine, words):
    text = compile_assembly(linear(machine), machine)
    missing = [word for word in words if word not in text]
    assert not missing, text[:2000]


def test_one_kernel_object_serves_several_targets():
    kernel = gelu_map(AVX512)
    before = kernel.text
    texts = {machine.name: compile_assembly(kernel, machine) for machine in MACHINES.values()}
    assert len(set(texts.values())) == len(texts) and kernel.text == before


def test_gpu_blocks_threads_shared_memory_and_barriers():
    ptx = compile_assembly(block_sum(), SM_90A)
    assert ".visible .entry block_sum" in ptx and ".maxntid 128" in ptx
    assert ".shared" in ptx and ptx.count("bar.sync") + ptx.count("barrier.sync") == 8
    assert "%tid.x" in ptx and "%ctaid.x" in ptx and ".add.f32" in ptx
    gcn = compile_assembly(block_sum(), GFX942)
    assert "s_barrier" in gcn and "ds_" in gcn


def test_gpu_map_is_coalesced_threads():
    ptx = compile_assembly(gelu_map(SM_90A), SM_90A)
    assert ".maxntid 256" in ptx and "%tid.x" in ptx and "fma.rn.f32" in ptx and "call" not in ptx


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_legal_kernels_emit_the_same_text_twice(machine):
    first, second = (emit_llvm(legalize(gelu_map(machine), machine), machine) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["generic", "avx2", "avx512", "neon", "riscv64"])
def test_no_operation_becomes_a_library_call(name):
    """Every op on every dtype, on 64-bit CPUs down to the plainest: nothing undefined in the object."""
    from rlx.backends.native.elf import undefined_symbols

    machine = MACHINES[name]
    k = KernelBuilder("everything")
    halves = {d: k.pointer(f"h{i}", d, write=True, read=True) for i, d in enumerate(sorted(HALVES, key=str))}
    for lanes in (1, 4):
        for dtype in sorted(FLOATS, key=str):
            x = k.pointer(f"x_{dtype}_{lanes}", dtype, write=True, read=True)
            v = k.load(x, 0, lanes=lanes)
            for op, arity in MATH.items():
                k.store(x, 0, k.op(op, *[v] * arity))
            for op in ("floor", "ceil", "trunc", "round", "sqrt", "abs", "neg"):
                k.store(x, 0, k.op(op, v))
            for op in ("min", "max", "div"):
                k.store(x, 0, k.op(op, v, v + 1.0))
            k.store(x, 0, k.fma(v, v, v))
            for to in (DType.I8, DType.U8, DType.I32, DType.U32, DType.I64, DType.U64):
                k.store(x, 0, k.cast(k.cast(v, to), dtype))
            for half, buffer in halves.items():
                k.store(buffer, 0, k.cast(v, half))
                k.store(x, 0, k.cast(k.load(buffer, 0, lanes=lanes), dtype))
    assert undefined_symbols(compile_object(k.build(), machine)) == set()


def test_targets_are_found_by_name():
    assert (
        machine_named("sm_80").cpu == "sm_80"
        and machine_named("gfx90a").cpu == "gfx90a"
        and machine_named("neon") is NEON
    )
    with pytest.raises(BackendError, match="unknown machine 'z80'"):
        machine_named("z80")


def test_importing_kernels_does_not_load_llvm():
    modules = ["kernels.cpu.matmul.matmul", "kernels.cpu.maps", "kernels.emit.llvm_emit", "kernels.emit.llvm_codegen"]
    modules += ["backends.native.kernels"]
    imports = "; ".join(f"import rlx.{module}" for module in modules)
    code = f"import sys; {imports}; sys.exit('llvmlite' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
