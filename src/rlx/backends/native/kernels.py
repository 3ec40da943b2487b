"""Kernels as functions of this process: compile or find in a cache, check, link, call.

>>> from rlx.kernels import native                                         # doctest: +SKIP
>>> add = native.load(kernel)                                              # doctest: +SKIP
>>> add(x, y, n)                                                           # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from rlx.backends.native.compile_ahead import CompileAhead
from rlx.backends.native.elf import ElfObject
from rlx.backends.native.kept_stamps import kept_stamp
from rlx.backends.native.linker import Linked, link, require_symbols
from rlx.backends.native.object_cache import ObjectCache
from rlx.errors import BackendError, BindingError
from rlx.kernels.ir.symbols import packed_symbol
from rlx.kernels.machines import Machine, host, runs_here
from rlx.knobs import knobs
from rlx.locks import fork_safe_lock

if TYPE_CHECKING:
    from rlx.kernels.ir.loop_ir import Kernel

# What generated code may call. LLVM makes these of plain loads and stores, and of many variables on Windows' stacks.
# Every process has them.
ALLOWED_SYMBOLS = frozenset({"memcpy", "memmove", "memset", "__chkstk"})

# What decides the code besides the kernel's text and the target.
CODEGEN = ("kernels/ir", "kernels/math", "kernels/emit", "kernels/legalize.py", "kernels/machines.py")

# packed(args, first, last); ctypes releases the GIL during the call.
_PACKED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

Argument = np.ndarray[Any, np.dtype[Any]] | int | float


def check_symbols(code: bytes, name: str = "object") -> None:
    """Refuse object code that calls anything outside `ALLOWED_SYMBOLS`."""
    require_symbols(ElfObject(code), f"kernel {name}", ALLOWED_SYMBOLS)


def cache_key(kernel: Kernel, machine: Machine) -> str:
    """The hash of everything that decides the object code."""
    return hashlib.sha256("\0".join((kernel.text, repr(machine), codegen_stamp())).encode()).hexdigest()


@cache
def codegen_stamp() -> str:
    """A hash of the code generator's sources and of LLVM's version, so that a change of either is a new key."""
    spec = importlib.util.find_spec("llvmlite")
    # Read, not imported: LLVM stays unloaded where all code is found on disk.
    version = Path(spec.origin).with_name("_version.py") if spec is not None and spec.origin else None
    llvm = version.read_text() if version is not None and version.exists() else "no llvmlite"
    return hashlib.sha256(f"{kept_stamp(*CODEGEN)} {llvm}".encode()).hexdigest()


class NativeCode:
    """The code of a kernel, linked into this process. `address` is its packed entry: `void (args, first, last)`, where
    args are 8-byte slots in parameter order, holding addresses and numbers; `key` is what the object cache calls it."""

    def __init__(self, name: str, key: str, linked: Linked) -> None:
        self.name, self.key = name, key
        self.address = linked.addresses[packed_symbol(name)]
        self._linked = linked  # keeps the code in memory


class NativeKernel:
    """A kernel with its code, which can be called from Python."""

    def __init__(self, kernel: Kernel, machine: Machine, code: NativeCode) -> None:
        self.kernel, self.machine, self.code = kernel, machine, code
        self._function = _PACKED(code.address)

    @property
    def address(self) -> int:
        return self.code.address

    def __call__(self, *args: Argument, first: int = 0, last: int | None = None) -> None:
        """Run iterations first..last-1 of the parallel loop, by default all, on checked arguments."""
        params = self.kernel.params
        if len(args) != len(params):
            raise BindingError(f"kernel {self.kernel.name} takes {[p.name for p in params]}, got {len(args)} arguments")
        slots = b"".join(_slot(self.kernel.name, param, arg) for param, arg in zip(params, args))
        if last is None:
            from rlx.kernels.ir.interpret import grid_size
            from rlx.kernels.ir.loop_ir import Buffer

            sizes = {p.name: a for p, a in zip(params, args) if not isinstance(p, Buffer)}
            last = grid_size(self.kernel, sizes)  # type: ignore[arg-type]
        self._function(slots, first, last)


def _slot(name: str, param: Any, arg: Argument) -> bytes:
    from rlx.kernels.ir.loop_ir import Buffer

    if not isinstance(param, Buffer):
        return np.asarray(arg, param.dtype.numpy).tobytes().ljust(8, b"\0")
    if not isinstance(arg, np.ndarray) or arg.dtype != param.dtype.numpy:
        got = f"{arg.dtype} array" if isinstance(arg, np.ndarray) else type(arg).__name__
        raise BindingError(f"kernel {name}: {param.name} needs a {param.dtype} array, got {got}")
    address = arg.ctypes.data
    if not arg.flags.c_contiguous or (param.writes and not arg.flags.writeable) or address % param.align:
        wanted = "contiguous, " + ("writable, " if param.writes else "") + f"aligned to {param.align} bytes"
        raise BindingError(f"kernel {name}: {param.name} must be {wanted}")
    return address.to_bytes(8, "little")


class Loader:
    """Loads kernels for one target, each once; safe to use from several threads.

    Code stays in memory for as long as somebody holds its kernel: every linked object takes maps of its own, of which
    a process has some ten thousands.
    """

    def __init__(self, machine: Machine | None = None, objects: ObjectCache | None = None) -> None:
        self.machine = machine or host()
        self.objects = objects
        self._kernels: WeakValueDictionary[str, NativeKernel] = WeakValueDictionary()
        self._linked: WeakValueDictionary[str, NativeCode] = WeakValueDictionary()
        self._lock = fork_safe_lock()
        self._ahead = CompileAhead(self._compiled)

    def load(self, kernel: Kernel) -> NativeKernel:
        """The kernel as native code: from memory, else from the object cache, else compiled."""
        if not runs_here(self.machine):
            raise BackendError(f"code for {self.machine.name} does not run on this machine ({host().name})")
        key = cache_key(kernel, self.machine)
        with self._lock:
            found = self._kernels.get(key)
        if found is not None:
            return found
        # Without the lock: others may load meanwhile what is there already.
        code = self._linked.get(key)
        made = self._object(kernel, key) if code is None else b""
        with self._lock:
            found = self._kernels.get(key)
            if found is None:
                code = self._linked.get(key)
                if code is None:
                    code = self._linked[key] = self._link(kernel.name, key, made or self._object(kernel, key))
                found = self._kernels[key] = NativeKernel(kernel, self.machine, code)
            return found

    def start(self, kernel: Kernel) -> None:
        """Compile a kernel that will be loaded soon in another thread, while the caller makes more of them."""
        key = cache_key(kernel, self.machine)
        if key not in self._linked and (self.objects is None or not self.objects.has(key)):
            self._ahead.add(key, kernel, len(kernel.text))

    def find(self, name: str, key: str) -> NativeCode | None:
        """The code of a kernel that was compiled before, if it is still there."""
        with self._lock:
            found = self._linked.get(key)
            if found is None:
                code = self.objects.get(key) if self.objects is not None else None
                if code is None:
                    return None
                found = self._linked[key] = self._link(name, key, code)
            return found

    def _object(self, kernel: Kernel, key: str) -> bytes:
        if knobs.debug >= 4:
            _print_code(kernel, self.machine)
        cached = self.objects.get(key) if self.objects is not None else None
        if cached is not None:
            return cached
        code = self._ahead.take(key) or self._compiled(kernel)
        if self.objects is not None:
            self.objects.put(key, code)
        return code

    def _compiled(self, kernel: Kernel) -> bytes:
        from rlx.kernels.emit.llvm_codegen import compile_object

        code = compile_object(kernel, self.machine)
        check_symbols(code, kernel.name)
        return code

    def _link(self, name: str, key: str, code: bytes) -> NativeCode:
        linked = link(code, f"kernel {name}", self.machine, [packed_symbol(name)], ALLOWED_SYMBOLS)
        return NativeCode(name, key, linked)


def _print_code(kernel: Kernel, machine: Machine) -> None:
    """The loops of a kernel and the LLVM IR that they become, on standard error."""
    from rlx.kernels.emit.llvm_emit import emit_llvm
    from rlx.kernels.legalize import legalize

    code = emit_llvm(legalize(kernel, machine), machine)
    print(f"rlx: kernel {kernel.name} for {machine.name}\n{kernel.text}\n{code}", file=sys.stderr)


@cache
def default_loader(machine: Machine) -> Loader:
    return Loader(machine)


def load(kernel: Kernel, machine: Machine | None = None) -> NativeKernel:
    """The kernel as native code."""
    return default_loader(machine or host()).load(kernel)
