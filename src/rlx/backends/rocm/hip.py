"""libamdhip64 by ctypes, as the driver that streams, memory, modules and programs of `rlx.backends.cuda` call.

HIP has nearly the functions of CUDA's driver, with the same arguments and error codes: `NAMES` says what each is
called. The few that differ are written out. No AMD GPU has run this: it has been exercised with a library that stands
in for HIP and keeps books.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from ctypes import POINTER, c_char_p, c_int, c_void_p
from typing import Any, ClassVar

from rlx.backends.cuda.driver import Driver, Missing, Present, ProcessDriver
from rlx.backends.cuda.driver_types import FUNCTIONS, DeviceAttribute
from rlx.backends.cuda.errors import CODES, CudaError, ErrorCode
from rlx.errors import BackendError

# The first version whose loader takes code objects of version 5, as 10,000,000 and 100,000 times its numbers.
OLDEST = 60_000_000

_LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")

# CUDA's functions whose arguments are the same in HIP.
NAMES: Mapping[str, str] = {
    "cuInit": "hipInit",
    "cuDriverGetVersion": "hipDriverGetVersion",
    "cuDeviceGetCount": "hipGetDeviceCount",
    "cuDeviceGet": "hipDeviceGet",
    "cuDeviceGetName": "hipDeviceGetName",
    "cuDeviceTotalMem_v2": "hipDeviceTotalMem",
    "cuCtxSynchronize": "hipDeviceSynchronize",
    "cuMemGetInfo_v2": "hipMemGetInfo",
    "cuStreamCreateWithPriority": "hipStreamCreateWithPriority",
    "cuStreamDestroy_v2": "hipStreamDestroy",
    "cuStreamSynchronize": "hipStreamSynchronize",
    "cuStreamQuery": "hipStreamQuery",
    "cuStreamWaitEvent": "hipStreamWaitEvent",
    "cuEventCreate": "hipEventCreateWithFlags",
    "cuEventDestroy_v2": "hipEventDestroy",
    "cuEventRecord": "hipEventRecord",
    "cuEventSynchronize": "hipEventSynchronize",
    "cuEventQuery": "hipEventQuery",
    "cuEventElapsedTime": "hipEventElapsedTime",
    "cuModuleUnload": "hipModuleUnload",
    "cuModuleGetFunction": "hipModuleGetFunction",
    "cuFuncGetAttribute": "hipFuncGetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernel": "hipModuleLaunchKernel",
    "cuMemPoolCreate": "hipMemPoolCreate",
    "cuMemPoolDestroy": "hipMemPoolDestroy",
    "cuMemPoolSetAttribute": "hipMemPoolSetAttribute",
    "cuMemPoolGetAttribute": "hipMemPoolGetAttribute",
    "cuMemPoolTrimTo": "hipMemPoolTrimTo",
    "cuMemAllocFromPoolAsync": "hipMallocFromPoolAsync",
    "cuMemFreeAsync": "hipFreeAsync",
    "cuMemHostAlloc": "hipHostMalloc",
    "cuMemFreeHost": "hipHostFree",
    "cuMemcpyHtoDAsync_v2": "hipMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync_v2": "hipMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync_v2": "hipMemcpyDtoDAsync",
    "cuMemsetD8Async": "hipMemsetD8Async",
    "cuMemsetD32Async": "hipMemsetD32Async",
    "cuStreamBeginCapture_v2": "hipStreamBeginCapture",
    "cuStreamEndCapture": "hipStreamEndCapture",
    "cuGraphInstantiateWithFlags": "hipGraphInstantiateWithFlags",
    "cuGraphLaunch": "hipGraphLaunch",
    "cuGraphDestroy": "hipGraphDestroy",
    "cuGraphExecDestroy": "hipGraphExecDestroy",
    "cuGraphGetNodes": "hipGraphGetNodes",
}
# Attributes of a device by HIP's numbers. LDS cannot be asked for beyond what every block may have.
ATTRIBUTES: Mapping[int, int] = {
    DeviceAttribute.MAX_THREADS_PER_BLOCK: 56,
    DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK: 74,
    DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: 74,
    DeviceAttribute.WARP_SIZE: 87,
    DeviceAttribute.CLOCK_RATE: 5,
    DeviceAttribute.MULTIPROCESSOR_COUNT: 63,
    DeviceAttribute.MEMORY_CLOCK_RATE: 60,
    DeviceAttribute.GLOBAL_MEMORY_BUS_WIDTH: 59,
    DeviceAttribute.L2_CACHE_SIZE: 19,
    DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR: 57,
    DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: 23,
    DeviceAttribute.COMPUTE_CAPABILITY_MINOR: 61,
    DeviceAttribute.MEMORY_POOLS_SUPPORTED: 88,
}
_NO_SUCH = 1  # hipErrorInvalidValue

_ADVICE = {
    100: ("NO_DEVICE", "the driver finds no GPU", "look at rocminfo and HIP_VISIBLE_DEVICES"),
    101: ("INVALID_DEVICE", "there is no GPU of that number", "look at rocminfo for the numbers"),
    209: ("NO_BINARY_FOR_GPU", "the code is for another GPU", "compile for the architecture of this GPU"),
    218: ("INVALID_KERNEL_FILE", "the loader does not take the code", "this is a fault of rlx: please report it"),
    304: ("OPERATING_SYSTEM", "a call of the system failed", "look at the permissions of /dev/kfd and /dev/dri"),
    999: ("UNKNOWN", "the driver does not say what went wrong", "look at dmesg for messages of amdgpu"),
}


class HipError(CudaError):
    """A call of HIP that failed."""

    device: ClassVar[str] = "rocm"
    codes: ClassVar[Mapping[int, ErrorCode]] = CODES | {code: ErrorCode(*words) for code, words in _ADVICE.items()}


class HipDriver(Driver):
    """HIP's functions under the names of CUDA's."""

    device: ClassVar[str] = "rocm"
    dlpack_kinds: ClassVar[tuple[int, ...]] = (10,)
    no_gpu: ClassVar[str] = "rocm: HIP finds no GPU; look at rocminfo and at HIP_VISIBLE_DEVICES"

    def check_version(self) -> None:
        if self.version < OLDEST:
            raise BackendError(
                f"rocm: {self.version_name} is too old, HIP 6.0 or later is needed; install a newer ROCm"
            )

    @property
    def version_name(self) -> str:
        return f"HIP {self.version // 10_000_000}.{self.version // 100_000 % 100}"

    def error(self, code: int, what: str, detail: str = "") -> HipError:
        return HipError(code, NAMES.get(what, _OTHERS.get(what, what)), detail)

    def bound(self, name: str) -> Any:
        if name in NAMES:
            return self.typed(NAMES[name], FUNCTIONS[name])
        written: Callable[[], Any] | None = getattr(self, f"_{name}", None)
        return None if written is None else written()

    def arch(self, device: int) -> str:
        """The chip's name for code generators, such as gfx942."""
        name = "hipGetDevicePropertiesR0600"
        function = self.typed(name, (c_void_p, c_int))
        if function is None:
            raise BackendError(f"rocm: this driver ({self.version_name}) lacks {name}; install a newer one")
        # The description has grown with each version; the name of the chip stands somewhere in it, with its modes.
        description = ctypes.create_string_buffer(16 << 10)
        code = function(ctypes.addressof(description), device)
        if code:
            raise self.error(code, name)
        found = re.search(rb"\0(gfx[0-9a-f]{3,5})[:\0]", b"\0" + description.raw)
        if found is None:
            raise BackendError("rocm: HIP does not say which chip the GPU has; install a newer ROCm")
        return found[1].decode()

    # Functions that take other arguments.

    def _cuDeviceGetAttribute(self) -> Any:
        function = self.typed("hipDeviceGetAttribute", FUNCTIONS["cuDeviceGetAttribute"])

        def called(out: Any, which: int, device: int) -> int:
            return int(function(out, ATTRIBUTES[which], device)) if which in ATTRIBUTES else _NO_SUCH

        return function and called

    def _cuDevicePrimaryCtxRetain(self) -> Any:
        """HIP has no contexts of its own: a device is chosen by its number, of which 1 more stands for a handle."""

        def called(out: Any, device: int) -> int:
            out._obj.value = device + 1
            return 0

        return called

    def _cuCtxSetCurrent(self) -> Any:
        function = self.typed("hipSetDevice", (c_int,))
        return function and (lambda context: int(function(context.value - 1)))

    def _cuModuleLoadDataEx(self) -> Any:
        """Nothing is assembled, so that there is nothing to choose."""
        function = self.typed("hipModuleLoadData", (POINTER(c_void_p), c_char_p))
        return function and (lambda out, image, *options: int(function(out, image)))

    def _cuGraphExecUpdate_v2(self) -> Any:
        function = self.typed("hipGraphExecUpdate", (c_void_p, c_void_p, POINTER(c_void_p), POINTER(c_int)))

        def called(graph_exec: Any, graph: Any, info: Any) -> int:
            node, result = c_void_p(), c_int()
            code = int(function(graph_exec, graph, ctypes.byref(node), ctypes.byref(result)))
            info._obj.result, info._obj.error_node = result.value, node.value
            return code

        return function and called


_OTHERS = {
    "cuDeviceGetAttribute": "hipDeviceGetAttribute",
    "cuCtxSetCurrent": "hipSetDevice",
    "cuModuleLoadDataEx": "hipModuleLoadData",
    "cuGraphExecUpdate_v2": "hipGraphExecUpdate",
}


def _load() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BackendError(
        f"rocm: there is no ROCm on this machine ({_LIBRARIES[0]} is not found); install it, or use the device 'cpu'. "
        "Code can be made without: rlx.backends.rocm.compile_to_code_object"
    )


PROCESS = ProcessDriver(HipDriver, _load)


def probe() -> Present | Missing:
    """Whether there is an AMD GPU here, and HIP for it."""
    return PROCESS.probe()


def using(library: Any) -> AbstractContextManager[Driver]:
    """Inside the block HIP is `library`: an object with its functions."""
    return PROCESS.using(library)
