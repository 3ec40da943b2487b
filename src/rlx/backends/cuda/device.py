"""`Gpu`: one device with what it is, its context, its memory and its streams.

gpu = open_gpu(0)
print(gpu.info)          # NVIDIA H200, sm_90a, 132 multiprocessors, 139.8 GiB, CUDA 13.0
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from rlx.backends.cuda.driver import PROCESS, Driver, Missing, ProcessDriver, version_text
from rlx.backends.cuda.driver_types import DeviceAttribute
from rlx.errors import BackendError

if TYPE_CHECKING:
    from rlx.backends.cuda.memory import DeviceBuffer, Pool, Staging
    from rlx.backends.cuda.streams import Stream

# Chips with instructions that only code for exactly this chip may use.
_SPECIFIC = {(9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)}
# The oldest that the kernels are written for.
OLDEST_CAPABILITY = (7, 5)


@dataclass(frozen=True)
class GpuInfo:
    """What a GPU is, as its driver says."""

    index: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    l2_bytes: int
    shared_bytes: int  # that one block may have
    threads_per_multiprocessor: int
    driver_version: int

    @property
    def arch(self) -> str:
        """The name of the chip for code generators.

        >>> GpuInfo(0, "NVIDIA H200", (9, 0), 1, 132, 1, 1, 2048, 13000).arch
        'sm_90a'
        """
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if self.capability in _SPECIFIC else ''}"

    def __str__(self) -> str:
        return (
            f"{self.name}, {self.arch}, {self.multiprocessors} multiprocessors, {self.memory_bytes / 2**30:.1f} GiB, "
            f"CUDA {version_text(self.driver_version)}"
        )


class Gpu:
    """A device that is in use. All programs of a process share it, and with it the context that other libraries of the
    process have: the primary one."""

    def __init__(self, started: Driver, index: int) -> None:
        self.driver = started
        handle = c_int()
        started.cuDeviceGet(ctypes.byref(handle), index)
        self._device = handle.value
        self.info = self.described(started, self._device, index)
        self.check_chip()
        context = c_void_p()
        started.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device)
        self.context = context
        self._scratch: DeviceBuffer | None = None

    @staticmethod
    def described(started: Driver, device: int, index: int) -> GpuInfo:
        """What a device is, by the handle that the driver has for it."""
        return _describe(started, device, index)

    def check_chip(self) -> None:
        """Refuse a chip that kernels are not written for."""
        index = self.info.index
        if self.info.capability < OLDEST_CAPABILITY:
            oldest = ".".join(map(str, OLDEST_CAPABILITY))
            own = ".".join(map(str, self.info.capability))
            raise BackendError(
                f"cuda: {self.info.name} (cuda:{index}) has compute capability {own}, kernels need {oldest} or later; "
                "use another GPU, or the device 'cpu'"
            )

    def use(self) -> None:
        """Make this device the one that calls of this thread mean."""
        self.driver.check_process()
        self.driver.cuCtxSetCurrent(self.context)

    @cached_property
    def pool(self) -> Pool:
        from rlx.backends.cuda.memory import Pool

        self.use()
        return Pool(self)

    @cached_property
    def staging(self) -> Staging:
        from rlx.backends.cuda.memory import Staging

        self.use()
        return Staging(self)

    @cached_property
    def stream(self) -> Stream:
        """The stream that programs run on unless they are given another one."""
        from rlx.backends.cuda.streams import Stream

        self.use()
        return Stream(self)

    def scratch(self, size: int) -> DeviceBuffer:
        """Memory of at least so many bytes that all programs share: work on `stream` uses it one after the other. What
        has been given stays what it is while somebody holds it, also when others need more."""
        found = self._scratch
        if found is None or found.size < size:
            # What was there goes first, so that both need not fit.
            self._scratch = found = None
            found = self._scratch = self.pool.allocate(size, self.stream, "operands of products that are written out")
        return found

    def free_memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""
        self.use()
        free, total = c_size_t(), c_size_t()
        self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        self.use()
        self.driver.cuCtxSynchronize()


class Gpus:
    """The GPUs that a driver has; each is opened once."""

    def __init__(self, process: ProcessDriver, make: type[Gpu]) -> None:
        self._process, self._make, self._lock = process, make, threading.Lock()
        self._open: dict[tuple[int, int], Gpu] = {}

    def open(self, index: int) -> Gpu:
        found = self._process.probe()
        if isinstance(found, Missing):
            raise BackendError(found.reason)
        started = self._process.get()
        if not 0 <= index < found.devices:
            known = ", ".join(f"{started.device}:{i}" for i in range(found.devices))
            raise BackendError(f"{started.device}: there is no GPU number {index}; this machine has {known}")
        key = (id(started), index)
        with self._lock:
            gpu = self._open.get(key)
            if gpu is None or gpu.driver is not started:
                gpu = self._open[key] = self._make(started, index)
            return gpu

    def infos(self) -> list[GpuInfo]:
        found = self._process.probe()
        if isinstance(found, Missing):
            return []
        started, infos = self._process.get(), []
        for index in range(found.devices):
            handle = c_int()
            started.cuDeviceGet(ctypes.byref(handle), index)
            infos.append(self._make.described(started, handle.value, index))
        return infos


_GPUS = Gpus(PROCESS, Gpu)


def open_gpu(index: int = 0) -> Gpu:
    """The GPU of that number; `BackendError` where it does not exist, with the reason."""
    return _GPUS.open(index)


def gpu_infos() -> list[GpuInfo]:
    """All GPUs of this machine; none where there is no driver."""
    return _GPUS.infos()


def _describe(started: Driver, device: int, index: int) -> GpuInfo:
    name = ctypes.create_string_buffer(256)
    started.cuDeviceGetName(name, len(name), device)
    total = c_size_t()
    started.cuDeviceTotalMem_v2(ctypes.byref(total), device)

    def attribute(which: DeviceAttribute) -> int:
        value = c_int()
        started.cuDeviceGetAttribute(ctypes.byref(value), int(which), device)
        return value.value

    return GpuInfo(
        index=index,
        name=name.value.decode(errors="replace"),
        capability=(
            attribute(DeviceAttribute.COMPUTE_CAPABILITY_MAJOR),
            attribute(DeviceAttribute.COMPUTE_CAPABILITY_MINOR),
        ),
        memory_bytes=total.value,
        multiprocessors=attribute(DeviceAttribute.MULTIPROCESSOR_COUNT),
        l2_bytes=attribute(DeviceAttribute.L2_CACHE_SIZE),
        shared_bytes=attribute(DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        threads_per_multiprocessor=attribute(DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR),
        driver_version=started.version,
    )
