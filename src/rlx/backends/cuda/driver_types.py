"""The C types of the CUDA driver's interface: structures, the numbers of its enumerations, and every function's
arguments. Facts only; `driver` calls them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from enum import IntEnum
from typing import Any


class DeviceAttribute(IntEnum):
    MAX_THREADS_PER_BLOCK = 1
    MAX_SHARED_MEMORY_PER_BLOCK = 8
    WARP_SIZE = 10
    CLOCK_RATE = 13
    MULTIPROCESSOR_COUNT = 16
    MEMORY_CLOCK_RATE = 36
    GLOBAL_MEMORY_BUS_WIDTH = 37
    L2_CACHE_SIZE = 38
    MAX_THREADS_PER_MULTIPROCESSOR = 39
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97
    MEMORY_POOLS_SUPPORTED = 115


class FunctionAttribute(IntEnum):
    MAX_THREADS_PER_BLOCK = 0
    SHARED_SIZE_BYTES = 1
    LOCAL_SIZE_BYTES = 3
    NUM_REGS = 4
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class JitOption(IntEnum):
    MAX_REGISTERS = 0
    INFO_LOG_BUFFER = 3
    INFO_LOG_BUFFER_SIZE_BYTES = 4
    ERROR_LOG_BUFFER = 5
    ERROR_LOG_BUFFER_SIZE_BYTES = 6
    LOG_VERBOSE = 12


class LaunchAttributeId(IntEnum):
    COOPERATIVE = 2
    CLUSTER_DIMENSION = 4
    PROGRAMMATIC_STREAM_SERIALIZATION = 6


class PoolAttribute(IntEnum):
    RELEASE_THRESHOLD = 4
    USED_MEM_CURRENT = 7
    USED_MEM_HIGH = 8


STREAM_NON_BLOCKING = 1
EVENT_DEFAULT = 0
EVENT_DISABLE_TIMING = 2
CAPTURE_THREAD_LOCAL = 1
HOST_ALLOC_PORTABLE = 1
MEM_ALLOCATION_PINNED = 1
MEM_LOCATION_DEVICE = 1
JIT_INPUT_PTX = 1


class Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class LaunchAttributeValue(ctypes.Union):
    _fields_ = (("pad", ctypes.c_char * 64), ("cluster", Dim3), ("flag", c_int))


class LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", c_int), ("pad", ctypes.c_char * 4), ("value", LaunchAttributeValue))


class LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid_x", c_uint),
        ("grid_y", c_uint),
        ("grid_z", c_uint),
        ("block_x", c_uint),
        ("block_y", c_uint),
        ("block_z", c_uint),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("attribute_count", c_uint),
    )


class MemLocation(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class MemPoolProps(ctypes.Structure):
    _fields_ = (
        ("allocation_type", c_int),
        ("handle_types", c_int),
        ("location", MemLocation),
        ("win32_security_attributes", c_void_p),
        ("max_size", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class GraphExecUpdateResultInfo(ctypes.Structure):
    _fields_ = (("result", c_int), ("error_node", c_void_p), ("error_from_node", c_void_p))


_out = c_void_p  # a handle, returned through a pointer
_address = c_ulonglong

# Every function that is used, with its arguments; all return a code.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(_out), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxGetCurrent": (POINTER(_out),),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuStreamCreateWithPriority": (POINTER(_out), c_uint, c_int),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(_out), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventQuery": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuModuleLoadDataEx": (POINTER(_out), c_char_p, c_uint, POINTER(c_int), POINTER(c_void_p)),
    "cuModuleUnload": (c_void_p,),
    "cuLinkCreate_v2": (c_uint, POINTER(c_int), POINTER(c_void_p), POINTER(_out)),
    "cuLinkAddData_v2": (
        c_void_p,
        c_int,
        c_char_p,
        c_size_t,
        c_char_p,
        c_uint,
        POINTER(c_int),
        POINTER(c_void_p),
    ),
    "cuLinkComplete": (c_void_p, POINTER(c_void_p), POINTER(c_size_t)),
    "cuLinkDestroy": (c_void_p,),
    "cuModuleGetFunction": (POINTER(_out), c_void_p, c_char_p),
    "cuTensorMapEncodeTiled": (c_void_p, c_int, c_uint, _address, *[c_void_p] * 4, *[c_int] * 4),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (POINTER(LaunchConfig), c_void_p, c_void_p, c_void_p),
    "cuMemPoolCreate": (POINTER(_out), POINTER(MemPoolProps)),
    "cuMemPoolDestroy": (c_void_p,),
    "cuMemPoolSetAttribute": (c_void_p, c_int, c_void_p),
    "cuMemPoolGetAttribute": (c_void_p, c_int, c_void_p),
    "cuMemPoolTrimTo": (c_void_p, c_size_t),
    "cuMemAllocFromPoolAsync": (POINTER(_address), c_size_t, c_void_p, c_void_p),
    "cuMemFreeAsync": (_address, c_void_p),
    "cuMemHostAlloc": (POINTER(_out), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (_address, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _address, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (_address, _address, c_size_t, c_void_p),
    "cuMemsetD8Async": (_address, ctypes.c_ubyte, c_size_t, c_void_p),
    "cuMemsetD32Async": (_address, c_uint, c_size_t, c_void_p),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(_out)),
    "cuGraphInstantiateWithFlags": (POINTER(_out), c_void_p, c_ulonglong),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecUpdate_v2": (c_void_p, c_void_p, POINTER(GraphExecUpdateResultInfo)),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphGetNodes": (c_void_p, c_void_p, POINTER(c_size_t)),
}
