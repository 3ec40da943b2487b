"""LLVM IR text -> object code or assembly, by llvmlite. The only file that compiles, and the first use loads LLVM.

No optimisation pipeline runs before code generation: kernels come unrolled, vectorised and free of repeated work, and
the O3 pipeline doubled the compile time (45 -> 100 ms for a fused matmul) for 0 to 4 % of speed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rlx.errors import InternalError
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.ir.verify import verify
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import Machine, host
from rlx.knobs import knobs


def compile_object(kernel: Kernel, machine: Machine) -> bytes:
    """Relocatable object code."""
    code: bytes = _llvm_machine(machine).emit_object(_kernel_module(kernel, machine))
    return code


def compile_assembly(kernel: Kernel, machine: Machine) -> str:
    """Assembly text; for an NVIDIA target that is PTX."""
    text: str = _llvm_machine(machine).emit_assembly(_kernel_module(kernel, machine))
    return text


def compile_optimized_assembly(text: str, machine: Machine, what: str) -> str:
    """Assembly of LLVM IR that was written with variables on the stack and functions to be inlined: LLVM's own passes
    come first. `what` names it in errors."""
    assembly: str = _llvm_machine(machine).emit_assembly(_optimized(text, machine, what, 3))
    return assembly


def compile_optimized_object(text: str, machine: Machine, what: str) -> bytes:
    """Object code of the same, for chips on which code takes memory: little is unrolled."""
    code: bytes = _llvm_machine(machine).emit_object(_optimized(text, machine, what, 2))
    return code


def _optimized(text: str, machine: Machine, what: str, level: int) -> Any:
    from llvmlite import binding

    module = _module(text, machine, what)
    options = binding.create_pipeline_tuning_options(speed_level=level)
    passes = binding.create_pass_builder(_llvm_machine(machine), options)
    passes.getModulePassManager().run(module, passes)
    return module


def compile_text(text: str, machine: Machine, what: str) -> bytes:
    """Relocatable object code of LLVM IR that is no kernel; `what` names it in errors."""
    code: bytes = _llvm_machine(machine).emit_object(_module(text, machine, what))
    return code


def _kernel_module(kernel: Kernel, machine: Machine) -> Any:
    if knobs.verify >= 1:
        verify(kernel)
    legal = legalize(kernel, machine)
    if knobs.verify >= 2:
        verify(legal)
    return _module(emit_llvm(legal, machine), machine, f"kernel {kernel.name}")


def _module(text: str, machine: Machine, what: str) -> Any:
    from llvmlite import binding

    llvm_machine = _llvm_machine(machine)
    try:
        module = binding.parse_assembly(text, binding.create_context())
    except RuntimeError as error:
        raise InternalError(f"{what}: LLVM refused the module for {machine.name}: {error}\n{text}") from None
    module.data_layout = str(llvm_machine.target_data)
    return module


@cache
def _llvm_machine(machine: Machine) -> Any:
    from llvmlite import binding

    _initialize(is_native=machine.triple == host().triple)
    # Position-independent and small: a kernel reaches its constants by relative addresses, wherever it is placed. In
    # WebAssembly memory begins at 0, so that addresses are numbers which the linker knows.
    reloc = "static" if machine.triple.startswith("wasm") else "pic"
    options = {} if machine.is_gpu else {"reloc": reloc, "codemodel": "small"}
    return binding.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, **options
    )


def create_jit(machine: Machine) -> Any:
    """A linker for object code of this process."""
    from llvmlite import binding

    _initialize(is_native=True)
    llvm_machine = binding.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, jit=True
    )
    return binding.create_lljit_compiler(llvm_machine)


@cache
def _initialize(is_native: bool) -> None:
    """Make LLVM ready for this machine, or for all: the tables of the others are a tenth of a small process."""
    from llvmlite import binding

    if is_native:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        return
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    # The order of a kernel keeps few values alive. LLVM's own order for WebAssembly takes no heed of registers, which
    # the browser then lacks; it already leaves the order of other chips alone.
    binding.set_option("rlx", "-pre-RA-sched=source")
