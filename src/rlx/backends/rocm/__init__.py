"""AMD GPUs: the kernels of the GPU makers as code objects, and HIP behind the layer that CUDA's driver has. No toolkit
is needed: LLVM makes objects, `link` makes what the loader takes.

    link (message_pack)     objects of kernels -> a loadable code object     code_object   the same read and checked
    code                    kernels as code objects, kept on disk            hip           libamdhip64 as a driver
    device, executable, backend    a GPU, a program for it, `Session("rocm")`

Code has been assembled and inspected for five chips, and launches went through a library that stands in for HIP; no
AMD GPU has run any of it.
"""

from __future__ import annotations

from typing import Any


def compile_to_code_object(program: Any, arch: str = "gfx942") -> bytes:
    """One code object (`.hsaco`) with every kernel of a program, of loops too; an op without a kernel is an error that
    names it. `rlx.backends.rocm.code_object.read_code_object` says what is in it."""
    from rlx.backends.program.program import build_program
    from rlx.backends.rocm.code import amd_loading, joined_code_object
    from rlx.compile.pipeline import lower_to_lir
    from rlx.kernels.from_lir import generator

    loading = amd_loading(arch)
    return joined_code_object([build_program(lower_to_lir(program, generator(loading.machine)), loading=loading)])
