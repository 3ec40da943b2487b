"""The functions of the OpenCL loader that are used, by ctypes. Every call that fails raises an error with its name."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

from rlx.errors import BackendError, NotInstalled, OutOfMemory

# The loader's file on Linux, macOS and Windows.
LIBRARIES = ("libOpenCL.so.1", "/System/Library/Frameworks/OpenCL.framework/OpenCL", "OpenCL.dll")
REMEDY = "install a driver and its loader (on Debian pocl-opencl-icd and ocl-icd-libopencl1, which need no GPU)"

# Numbers of OpenCL's headers.
ALL_DEVICES = 0xFFFFFFFF
PLATFORM_NAME, DEVICE_NAME, DEVICE_TYPE, DEVICE_EXTENSIONS = 0x0902, 0x102B, 0x1000, 0x1030
DEVICE_MEMORY, DEVICE_LARGEST, DEVICE_LOCAL, DEVICE_THREADS = 0x101F, 0x1010, 0x1023, 0x1004
DEVICE_DOUBLES, DEVICE_SINGLES, BUILD_LOG = 0x1032, 0x101B, 0x1183
KINDS = {4: "GPU", 8: "accelerator", 2: "CPU", 16: "custom"}
ROUNDED_DIVISION = 1 << 7
READ_WRITE = 1
_NOTHING_FOUND = (-1, -1001)
_NO_MEMORY = (-4, -5, -6)
_ERRORS = {
    -2: "DEVICE_NOT_AVAILABLE",
    -4: "MEM_OBJECT_ALLOCATION_FAILURE",
    -5: "OUT_OF_RESOURCES",
    -6: "OUT_OF_HOST_MEMORY",
    -8: "MEM_COPY_OVERLAP",
    -11: "BUILD_PROGRAM_FAILURE",
    -30: "INVALID_VALUE",
    -38: "INVALID_MEM_OBJECT",
    -50: "INVALID_ARG_VALUE",
    -52: "INVALID_KERNEL_ARGS",
    -54: "INVALID_WORK_GROUP_SIZE",
    -61: "INVALID_BUFFER_SIZE",
}

_P, _N, _U = c_void_p, c_size_t, c_uint32
# Functions that give a status, by their arguments.
_CALLS: dict[str, list[Any]] = {
    "clGetPlatformIDs": [_U, POINTER(_P), POINTER(_U)],
    "clGetPlatformInfo": [_P, _U, _N, _P, POINTER(_N)],
    "clGetDeviceIDs": [_P, c_uint64, _U, POINTER(_P), POINTER(_U)],
    "clGetDeviceInfo": [_P, _U, _N, _P, POINTER(_N)],
    "clBuildProgram": [_P, _U, POINTER(_P), c_char_p, _P, _P],
    "clGetProgramBuildInfo": [_P, _P, _U, _N, _P, POINTER(_N)],
    "clSetKernelArg": [_P, _U, _N, _P],
    "clEnqueueNDRangeKernel": [_P, _P, _U, POINTER(_N), POINTER(_N), POINTER(_N), _U, _P, _P],
    "clEnqueueReadBuffer": [_P, _P, _U, _N, _N, _P, _U, _P, _P],
    "clEnqueueWriteBuffer": [_P, _P, _U, _N, _N, _P, _U, _P, _P],
    "clEnqueueCopyBuffer": [_P, _P, _P, _N, _N, _N, _U, _P, _P],
    "clFlush": [_P],
    "clFinish": [_P],
    "clReleaseMemObject": [_P],
    "clReleaseProgram": [_P],
}
# Functions that give an object, and the status through their last argument.
_MAKERS: dict[str, list[Any]] = {
    "clCreateContext": [_P, _U, POINTER(_P), _P, _P],
    "clCreateCommandQueue": [_P, _P, c_uint64],
    "clCreateBuffer": [_P, c_uint64, _N, _P],
    "clCreateProgramWithSource": [_P, _U, POINTER(c_char_p), POINTER(_N)],
    "clCreateKernel": [_P, c_char_p],
}


class Driver:
    """The loader's functions; `call` and `make` raise what the driver reports."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, arguments in _CALLS.items():
            function = self._functions[name] = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int32
        for name, arguments in _MAKERS.items():
            function = self._functions[name] = getattr(library, name)
            function.argtypes, function.restype = [*arguments, POINTER(c_int32)], c_void_p
        # Called once for each argument of each kernel.
        self.set_argument = self._functions["clSetKernelArg"]

    def call(self, name: str, *arguments: Any, what: str = "") -> None:
        status = self._functions[name](*arguments)
        if status:
            raise failure(name, status, what)

    def make(self, name: str, *arguments: Any, what: str = "") -> int:
        status = c_int32()
        made: int = self._functions[name](*arguments, byref(status))
        if status.value:
            raise failure(name, status.value, what)
        return made

    def platforms(self) -> list[int]:
        return self._listed("clGetPlatformIDs", "platforms")

    def devices(self, platform: int) -> list[int]:
        return self._listed("clGetDeviceIDs", "devices", platform, ALL_DEVICES)

    def _listed(self, name: str, what: str, *first: int) -> list[int]:
        function, count = self._functions[name], c_uint32()
        status = function(*first, 0, None, byref(count))
        if status in _NOTHING_FOUND or (not status and not count.value):
            return []
        if status:
            raise failure(name, status, what)
        found = (c_void_p * count.value)()
        self.call(name, *first, count.value, found, None)
        return [handle for handle in found if handle]

    def text(self, name: str, *which: int) -> str:
        """What an information function says in words."""
        size = c_size_t()
        self.call(name, *which, 0, None, byref(size))
        buffer = ctypes.create_string_buffer(size.value + 1)
        self.call(name, *which, size.value, buffer, None)
        return buffer.value.decode(errors="replace").strip()

    def number(self, device: int, which: int) -> int:
        """What is known of a device as a number of at most 64 bits."""
        found = c_int64()
        self.call("clGetDeviceInfo", device, which, 8, byref(found), None)
        return found.value


def failure(name: str, status: int, what: str) -> BackendError:
    """The error for a status."""
    told = f"opencl: {name} failed with {_ERRORS.get(status, 'error')} ({status})" + (f" for {what}" if what else "")
    if status in _NO_MEMORY:
        return OutOfMemory(f"{told}; use smaller inputs, or another device")
    return BackendError(told)


@cache
def driver() -> Driver | None:
    """The loader of this machine; None if there is none."""
    for name in (*LIBRARIES, ctypes.util.find_library("OpenCL")):
        if name is None:
            continue
        try:
            return Driver(ctypes.CDLL(name))
        except (OSError, AttributeError):  # no such file, or one without what is used here
            continue
    return None


def required() -> Driver:
    found = driver()
    if found is None:
        raise NotInstalled(f"opencl: this machine has no OpenCL loader (libOpenCL); {REMEDY}")
    return found
