"""Object code by several threads at once.

    with_threads(llvm_machine, module)       # what llvm_machine.emit_object(module) gives

llvmlite lets one thread at a time into LLVM, whatever it does there. LLVM itself asks for less: that no two threads use
the same context of modules or the same target machine. Code generation, which takes most of the time, is therefore
called here by a handle of our own on the same library; a thread has target machines of its own (`llvm_codegen`), and
each kernel a context. All else goes llvmlite's way.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

_AS_OBJECT = 1


def with_threads(llvm_machine: Any, module: Any) -> bytes:
    """Relocatable object code of a module; other threads may be at theirs meanwhile."""
    from llvmlite.binding import ffi

    emit = _emitter()
    if emit is None:
        code: bytes = llvm_machine.emit_object(module)
        return code
    with ffi.OutputString() as problem:
        made = emit(llvm_machine, module, _AS_OBJECT, problem)
        if not made:
            raise RuntimeError(str(problem))
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(made), ffi.lib.LLVMPY_GetBufferSize(made))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(made)


@cache
def _emitter() -> Callable[..., Any] | None:
    """llvmlite's function without its lock; None for an llvmlite that has none of this name."""
    from llvmlite.binding import ffi

    try:
        guarded = ffi.lib.LLVMPY_TargetMachineEmitToMemory
        function: Any = ctypes.CDLL(ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
        function.argtypes, function.restype = guarded.argtypes, guarded.restype
    except (AttributeError, OSError):
        return None
    found: Callable[..., Any] = function
    return found
