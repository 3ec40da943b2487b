"""`OpenClGpu`: one device of OpenCL at work. Commands go to one queue, which runs them in order."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import byref, c_char_p, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.opencl import driver as cl
from rlx.backends.opencl.devices import Listed, choose
from rlx.backends.text_gpu.code import TextCode, TextLoader
from rlx.backends.text_gpu.device import TextGpu
from rlx.backends.text_gpu.memory import Array, Place, Pool
from rlx.errors import BackendError, InternalError
from rlx.kernels.emit.gpu_c_emit import GpuKernel, legal_for_text
from rlx.kernels.emit.opencl_emit import opencl_module
from rlx.kernels.ir.loop_ir import Kernel, Space
from rlx.kernels.legalize import KernelRefused
from rlx.kernels.machines import OPENCL, OPENCL_F32, Machine


def machine_of(device: Listed) -> Machine:
    return OPENCL if device.has_f64 else OPENCL_F32


class OpenClGpu(TextGpu):
    """A device of OpenCL."""

    name = "opencl"

    def __init__(self, device: Listed) -> None:
        super().__init__()
        self.device, self.about, self.machine = device, str(device), machine_of(device)
        self.driver = cl.required()
        handle = c_void_p(device.handle)
        self._context = self.driver.make("clCreateContext", None, 1, byref(handle), None, None, what=self.about)
        self.queue = self.driver.make("clCreateCommandQueue", self._context, device.handle, 0, what=self.about)
        self.pool = Pool(self.name, device.largest_buffer, self._create, self._release)
        self.loader = TextLoader(self.machine, self._code)
        self.commands = _Queue(self)
        self.kernels: dict[str, int] = {}

    def _create(self, size: int, what: str) -> int:
        return self.driver.make("clCreateBuffer", self._context, cl.READ_WRITE, size, None, what=what)

    def _release(self, handle: int) -> None:
        """The driver keeps it until queued work no longer needs it."""
        self.driver.call("clReleaseMemObject", handle)

    # Code.

    def _code(self, kernel: Kernel, key: str) -> OpenClCode:
        code = OpenClCode(kernel, key, self.machine)
        device = self.device
        if code.threads > device.most_threads or code.shared_bytes > device.shared_bytes:
            raise KernelRefused(
                f"kernel {code.name}: {code.threads} threads with {code.shared_bytes} bytes between them; {self.about} "
                f"has {device.most_threads} and {device.shared_bytes}; use smaller sizes, or the device cpu"
            )
        return code

    def load(self, codes: Iterable[TextCode]) -> None:
        missing = {c.key: c for c in codes if c.key not in self.kernels}
        if not missing:
            return
        named = [(f"k{number}", code) for number, code in enumerate(missing.values())]
        text = opencl_module([GpuKernel(entry, code.legal) for entry, code in named if isinstance(code, OpenClCode)])
        program = self._built(text, ", ".join(code.name for _, code in named))
        for entry, code in named:
            self.kernels[code.key] = self.driver.make("clCreateKernel", program, entry.encode(), what=code.name)
        # Its kernels keep it.
        self.driver.call("clReleaseProgram", program)

    def _built(self, text: str, names: str) -> int:
        source = text.encode()
        strings, lengths = (c_char_p * 1)(source), (c_size_t * 1)(len(source))
        program = self.driver.make("clCreateProgramWithSource", self._context, 1, strings, lengths)
        handle = c_void_p(self.device.handle)
        options = b"-cl-fp32-correctly-rounded-divide-sqrt" if self.device.rounds_division else b""
        try:
            self.driver.call("clBuildProgram", program, 1, byref(handle), options, None, None)
        except BackendError as error:
            log = self.driver.text("clGetProgramBuildInfo", program, self.device.handle, cl.BUILD_LOG)
            raise InternalError(f"opencl: the text of {names} is refused: {error}: {log[:2000]}") from None
        return program

    # Memory.

    def write(self, address: int, array: Array) -> None:
        if array.nbytes:
            place, data = Place.of(address), np.ascontiguousarray(array)
            with self.lock:
                handle = self.pool.handles[place.number]
                self.driver.call(
                    "clEnqueueWriteBuffer",
                    self.queue,
                    handle,
                    1,
                    place.offset,
                    data.nbytes,
                    data.ctypes.data,
                    0,
                    None,
                    None,
                )

    def read(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        found = np.empty(dims, dtype)
        if found.nbytes:
            place = Place.of(address)
            with self.lock:
                handle = self.pool.handles[place.number]
                self.driver.call(
                    "clEnqueueReadBuffer",
                    self.queue,
                    handle,
                    1,
                    place.offset,
                    found.nbytes,
                    found.ctypes.data,
                    0,
                    None,
                    None,
                )
        return found

    def wait(self) -> None:
        with self.lock:
            self.driver.call("clFinish", self.queue)


class OpenClCode(TextCode):
    """A kernel with its form for OpenCL C."""

    def __init__(self, kernel: Kernel, key: str, machine: Machine) -> None:
        super().__init__(kernel, key)
        self.legal = legal_for_text(kernel, machine, "OpenCL")
        shared = (a for a in self.legal.arrays if a.space is Space.SHARED)
        self.shared_bytes = sum(a.dtype.size_bytes * (a.size or 0) for a in shared)


class _Queue:
    """Commands go to the driver at once, which collects them."""

    def __init__(self, gpu: OpenClGpu) -> None:
        self._gpu = gpu

    def call(self, code: TextCode, words: Sequence[int], blocks: int, label: str) -> None:
        if not blocks:
            return
        gpu, driver = self._gpu, self._gpu.driver
        if code.key not in gpu.kernels:
            gpu.load([code])
        kernel, number = gpu.kernels[code.key], 0
        for word, size in zip(words, code.sizes):
            arguments: list[Any] = [c_int64(word)]
            if size:
                place = Place.of(word)
                arguments = [c_void_p(gpu.pool.handles[place.number]), c_uint64(place.offset)]
            for argument in arguments:
                status = driver.set_argument(kernel, number, 8, ctypes.addressof(argument))
                if status:
                    raise cl.failure("clSetKernelArg", status, f"{code.name} ({label})")
                number += 1
        total, threads = (c_size_t * 1)(blocks * code.threads), (c_size_t * 1)(code.threads)
        driver.call(
            "clEnqueueNDRangeKernel",
            gpu.queue,
            kernel,
            1,
            None,
            total,
            threads,
            0,
            None,
            None,
            what=f"{code.name} ({label})",
        )

    def copy(self, source: int, to: int, size: int) -> None:
        if size and source != to:
            a, b, gpu = Place.of(source), Place.of(to), self._gpu
            handles = gpu.pool.handles[a.number], gpu.pool.handles[b.number]
            gpu.driver.call("clEnqueueCopyBuffer", gpu.queue, *handles, a.offset, b.offset, size, 0, None, None)

    def flush(self) -> None:
        self._gpu.driver.call("clFlush", self._gpu.queue)


def open_gpu(index: int = 0) -> OpenClGpu:
    """The device with a number, the same for all that use it."""
    return _opened(index)


@cache
def _opened(index: int) -> OpenClGpu:
    return OpenClGpu(choose(index))
