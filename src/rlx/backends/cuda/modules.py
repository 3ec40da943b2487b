"""Code on the GPU: modules that the driver assembles from PTX, the functions in them, and their launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_size_t, c_void_p
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from rlx.backends.cuda.driver_types import (
    JIT_INPUT_PTX,
    FunctionAttribute,
    JitOption,
    LaunchAttribute,
    LaunchAttributeId,
    LaunchConfig,
)
from rlx.backends.cuda.errors import SUCCESS

if TYPE_CHECKING:
    from rlx.backends.cuda.device import Gpu
    from rlx.backends.cuda.streams import Stream

_LOG_BYTES = 16 << 10
# What a block has of shared memory without asking.
_PLAIN_SHARED = 48 << 10


class _Options:
    """Options of the driver's assembler: where it writes what it has to say, and limits."""

    def __init__(self, max_registers: int) -> None:
        self._info, self._error = (ctypes.create_string_buffer(_LOG_BYTES) for _ in range(2))
        options: dict[JitOption, int] = {
            JitOption.INFO_LOG_BUFFER: ctypes.addressof(self._info),
            JitOption.INFO_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
            JitOption.ERROR_LOG_BUFFER: ctypes.addressof(self._error),
            JitOption.ERROR_LOG_BUFFER_SIZE_BYTES: _LOG_BYTES,
            JitOption.LOG_VERBOSE: 1,
        }
        if max_registers:
            options[JitOption.MAX_REGISTERS] = max_registers
        self.count = len(options)
        self.keys = (c_int * self.count)(*(int(o) for o in options))
        self.values = (c_void_p * self.count)(*options.values())

    @property
    def info(self) -> str:
        return self._info.value.decode(errors="replace").strip()

    @property
    def error(self) -> str:
        return self._error.value.decode(errors="replace").strip()


class Assembled(NamedTuple):
    """Machine code for one chip, and what the assembler says of it: registers, spills, serialized wgmma."""

    cubin: bytes
    log: str


def assemble(gpu: Gpu, ptx: str, what: str = "kernel", max_registers: int = 0) -> Assembled:
    """PTX as machine code of this GPU, by the assembler that is part of the driver. Several threads may call it at the
    same time."""
    gpu.use()
    driver, options, state = gpu.driver, _Options(max_registers), c_void_p()
    driver.cuLinkCreate_v2(options.count, options.keys, options.values, ctypes.byref(state))
    try:
        # The text ends with a zero, which counts.
        text = ptx.encode() + b"\0"
        code = driver.raw("cuLinkAddData_v2")(state, JIT_INPUT_PTX, text, len(text), what.encode(), 0, None, None)
        cubin, size = c_void_p(), c_size_t()
        if code == SUCCESS:
            code = driver.raw("cuLinkComplete")(state, ctypes.byref(cubin), ctypes.byref(size))
        if code != SUCCESS:
            raise driver.error(code, f"{what} could not be assembled", options.error)
        return Assembled(ctypes.string_at(cubin.value or 0, size.value), options.info)
    finally:
        driver.cuLinkDestroy(state)


class Module:
    """Machine code in the memory of a GPU."""

    def __init__(self, gpu: Gpu, image: bytes, what: str = "kernel") -> None:
        """`image` is a cubin, or PTX text, which is then assembled."""
        self.gpu, self._driver = gpu, gpu.driver
        gpu.use()
        options = _Options(0)
        self.handle = c_void_p()
        code = self._driver.raw("cuModuleLoadDataEx")(
            ctypes.byref(self.handle), image + b"\0", options.count, options.keys, options.values
        )
        self.log = options.info
        if code != SUCCESS:
            raise self._driver.error(code, f"{what} could not be loaded", options.error)
        self._functions: dict[str, Function] = {}

    def function(self, name: str) -> Function:
        if name not in self._functions:
            self._functions[name] = Function(self, name)
        return self._functions[name]

    def __del__(self) -> None:
        if getattr(self, "handle", None) and self._driver.is_usable:
            self._driver.raw("cuModuleUnload")(self.handle)


class Resources(NamedTuple):
    """What a function needs: registers and stack bytes of a thread, shared bytes of a block."""

    registers: int
    local_bytes: int
    shared_bytes: int
    threads: int


class Function:
    """An entry point of a module."""

    def __init__(self, module: Module, name: str) -> None:
        # The module is unloaded with the last of its functions.
        self.module, self.name, self._driver = module, name, module.gpu.driver
        self.handle = c_void_p()
        self._driver.cuModuleGetFunction(ctypes.byref(self.handle), module.handle, name.encode())

    @property
    def resources(self) -> Resources:
        which = (
            FunctionAttribute.NUM_REGS,
            FunctionAttribute.LOCAL_SIZE_BYTES,
            FunctionAttribute.SHARED_SIZE_BYTES,
            FunctionAttribute.MAX_THREADS_PER_BLOCK,
        )
        return Resources(*map(self._attribute, which))

    def _attribute(self, which: FunctionAttribute) -> int:
        value = c_int()
        self._driver.cuFuncGetAttribute(ctypes.byref(value), int(which), self.handle)
        return value.value

    def allow_shared(self, size: int) -> None:
        """Let launches ask for that much dynamic shared memory."""
        if size > _PLAIN_SHARED:
            self._driver.cuFuncSetAttribute(self.handle, int(FunctionAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES), size)

    def blocks_per_multiprocessor(self, threads: int, shared_bytes: int = 0) -> int:
        count = c_int()
        self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            ctypes.byref(count), self.handle, threads, shared_bytes
        )
        return count.value


class Launch(NamedTuple):
    """How a function is launched. With `dependent` it may begin before the kernel in front of it has ended, and waits
    for it where its code says so (programmatic dependent launch). With `cooperative` all blocks run at the same
    time, or the launch fails."""

    blocks: int
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    dependent: bool = False
    cooperative: bool = False


def launch(function: Function, shape: Launch, arguments: int, stream: Stream) -> None:
    """Launch with the pointers to arguments that lie at the address `arguments`."""
    driver = function.module.gpu.driver
    if shape.cluster == 1 and not shape.dependent and not shape.cooperative:
        blocks, threads, shared = shape.blocks, shape.threads, shape.shared_bytes
        driver.cuLaunchKernel(function.handle, blocks, 1, 1, threads, 1, 1, shared, stream.handle, arguments, None)
        return
    attributes = _attributes(shape)
    config = LaunchConfig(
        shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes, stream.handle, attributes, len(attributes)
    )
    driver.cuLaunchKernelEx(ctypes.byref(config), function.handle, arguments, None)


@lru_cache(256)
def _attributes(shape: Launch) -> ctypes.Array[LaunchAttribute]:
    """What the driver is told of a launch besides its sizes; it reads this and changes nothing."""
    found = []
    if shape.cluster > 1:
        attribute = LaunchAttribute(id=LaunchAttributeId.CLUSTER_DIMENSION)
        attribute.value.cluster.x, attribute.value.cluster.y, attribute.value.cluster.z = shape.cluster, 1, 1
        found.append(attribute)
    if shape.dependent:
        attribute = LaunchAttribute(id=LaunchAttributeId.PROGRAMMATIC_STREAM_SERIALIZATION)
        attribute.value.flag = 1
        found.append(attribute)
    if shape.cooperative:
        attribute = LaunchAttribute(id=LaunchAttributeId.COOPERATIVE)
        attribute.value.flag = 1
        found.append(attribute)
    return (LaunchAttribute * len(found))(*found)


class Arguments:
    """The arguments of a launch: 8 bytes each, and the pointers to them that the driver reads."""

    def __init__(self, values: Sequence[int]) -> None:
        count = max(1, len(values))
        self._words = (ctypes.c_int64 * count)(*values)
        start = ctypes.addressof(self._words)
        self._pointers = (c_void_p * count)(*(start + 8 * i for i in range(count)))
        self.address = ctypes.addressof(self._pointers)
