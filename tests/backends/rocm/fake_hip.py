"""A libamdhip64 without a GPU: HIP's functions as methods of a Python object, which keeps books.

Memory, launches and graphs are those of the stand-in for libcuda; what differs is written here as HIP has it. Work of a
stream is not done when it is asked for, but when somebody waits: who reads too early reads poison. Memory that was
freed, in the order of a stream, belongs to nobody any more: a copy or launch that touches it fails. Modules are loaded
from code objects as the loader reads them, and `kernels` has the loop kernel that each stands for.
"""

from __future__ import annotations

import contextlib
import ctypes

import numpy as np

from backends.cuda.fake_libcuda import POISON, FakeCuda, _number, _set
from rlx.backends.rocm.code_object import read_code_object
from rlx.errors import InternalError

# Numbers of hipDeviceAttribute_t.
_VALUES = {23: 9, 61: 4, 63: 304, 19: 4 << 20, 74: 64 << 10, 57: 2048, 87: 64, 56: 1024}

_RENAMED = {
    "hipInit": "cuInit",
    "hipGetDeviceCount": "cuDeviceGetCount",
    "hipDeviceGet": "cuDeviceGet",
    "hipDeviceTotalMem": "cuDeviceTotalMem_v2",
    "hipMemGetInfo": "cuMemGetInfo_v2",
    "hipStreamCreateWithPriority": "cuStreamCreateWithPriority",
    "hipEventCreateWithFlags": "cuEventCreate",
    "hipEventDestroy": "cuEventDestroy_v2",
    "hipEventElapsedTime": "cuEventElapsedTime",
    "hipModuleUnload": "cuModuleUnload",
    "hipModuleGetFunction": "cuModuleGetFunction",
    "hipFuncGetAttribute": "cuFuncGetAttribute",
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor": "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "hipModuleLaunchKernel": "cuLaunchKernel",
    "hipMemPoolCreate": "cuMemPoolCreate",
    "hipMemPoolDestroy": "cuMemPoolDestroy",
    "hipMemPoolSetAttribute": "cuMemPoolSetAttribute",
    "hipMemPoolGetAttribute": "cuMemPoolGetAttribute",
    "hipMemPoolTrimTo": "cuMemPoolTrimTo",
    "hipMallocFromPoolAsync": "cuMemAllocFromPoolAsync",
    "hipHostMalloc": "cuMemHostAlloc",
    "hipHostFree": "cuMemFreeHost",
    "hipMemcpyHtoDAsync": "cuMemcpyHtoDAsync_v2",
    "hipMemcpyDtoHAsync": "cuMemcpyDtoHAsync_v2",
    "hipMemcpyDtoDAsync": "cuMemcpyDtoDAsync_v2",
    "hipMemsetD8Async": "cuMemsetD8Async",
    "hipStreamBeginCapture": "cuStreamBeginCapture_v2",
    "hipStreamEndCapture": "cuStreamEndCapture",
    "hipGraphInstantiateWithFlags": "cuGraphInstantiateWithFlags",
    "hipGraphDestroy": "cuGraphDestroy",
    "hipGraphExecDestroy": "cuGraphExecDestroy",
    "hipGraphGetNodes": "cuGraphGetNodes",
}


class FakeHip(FakeCuda):
    """`queues` has the work of each stream that has not been done; `faults` what went wrong while it was done."""

    def __init__(self, arch="gfx942", version=60_443_483, devices=1, memory=1 << 30):
        super().__init__(devices=devices, version=version, memory=memory)
        self.arch, self.queues, self.faults, self.current = arch, {}, [], None
        self._events = {}  # event -> its stream, and whether it has happened

    def __getattribute__(self, name):
        if not name.startswith("hip"):
            return object.__getattribute__(self, name)
        own = object.__getattribute__(self, "__dict__").get(name)
        function = own or getattr(type(self), name, None) or getattr(type(self), _RENAMED.get(name, ""), None)
        if function is None:
            raise AttributeError(f"libamdhip64 has no {name}")

        def called(*arguments):
            self.log.append(name)
            codes = self.fail.get(name)
            if codes:
                return codes.pop(0)
            return function(self, *arguments) or 0

        return called

    # Devices.

    def hipDriverGetVersion(self, out):
        _set(out, self.version)

    def hipDeviceGetName(self, text, size, device):
        text.value = b"Fake Instinct"

    def hipGetDevicePropertiesR0600(self, to, device):
        text = f"{self.arch}:sramecc+:xnack-".encode()
        ctypes.memmove(to, b"Fake Instinct\0", 14)
        ctypes.memmove(to + 1160, text + b"\0", len(text) + 1)

    def hipDeviceGetAttribute(self, out, which, device):
        if which not in _VALUES:
            return 1
        _set(out, _VALUES[which])

    def hipSetDevice(self, device):
        if not 0 <= device < self.devices:
            return 101
        self.current = device

    def hipDeviceSynchronize(self):
        for stream in list(self.queues):
            self._drain(stream)

    # Streams do their work when somebody waits for it.

    def _work(self, stream, do):
        recorded = self.recording.get(_number(stream))
        if recorded is not None:
            recorded.append(do)
        else:
            self.queues.setdefault(_number(stream), []).append(do)

    def _drain(self, stream, count=None):
        queue = self.queues.get(_number(stream), [])
        for _ in range(len(queue) if count is None else min(count, len(queue))):
            queue.pop(0)()

    def hipStreamSynchronize(self, stream):
        if _number(stream) in self.recording:
            return 900
        self._drain(stream)
        return 700 if self.faults else 0

    def hipStreamQuery(self, stream):
        return 600 if self.queues.get(_number(stream)) else 0

    def hipStreamDestroy(self, stream):
        self._drain(stream)
        self.cuStreamDestroy_v2(stream)

    def hipEventRecord(self, event, stream):
        self._recorded_at[_number(event)] = next(self._clock)
        done = [False]
        self._events[_number(event)] = (_number(stream), done)
        self._work(stream, lambda: done.__setitem__(0, True))

    def hipEventSynchronize(self, event):
        self._await(event)
        return 700 if self.faults else 0

    def _await(self, event):
        stream, done = self._events[_number(event)]
        while not done[0]:
            self._drain(stream, 1)

    def hipEventQuery(self, event):
        return 0 if self._events[_number(event)][1][0] else 600

    def hipStreamWaitEvent(self, stream, event, flags):
        self._work(stream, lambda: self._await(event))

    def hipGraphLaunch(self, graph, stream):
        for do in self._graphs[_number(graph)]:
            self._work(stream, do)

    def hipGraphExecUpdate(self, graph_exec, graph, node, result):
        code = self.cuGraphExecUpdate_v2(graph_exec, graph, None) or 0
        _set(result, 1 if code else 0)
        return code

    # Memory.

    def hipFreeAsync(self, address, stream):
        if address not in self.allocations:
            return 1

        def free():
            block = self.allocations.pop(address)
            self.used -= len(block)
            block[:] = POISON

        self._work(stream, free)

    def _copy(self, to, source, size, stream, device):
        if any(self.memory_at(address, size) is None for address in device):
            return 1
        source, kept = _number(source), None
        is_pinned = any(start <= source < start + len(block) for start, block in self.pinned.items())
        if source not in [_number(d) for d in device] and not is_pinned:
            # Pageable memory has been read when the call returns.
            kept = np.frombuffer(ctypes.string_at(source, size), np.uint8)

        def copied():
            gone = any(self.memory_at(_number(address), size) is None for address in device)
            if gone:
                self.faults.append("a copy from or to memory that was freed")
                return
            ctypes.memmove(_number(to), source if kept is None else kept.ctypes.data, size)

        self._work(stream, copied)

    # Code.

    def hipModuleLoadData(self, out, image):
        try:
            found = read_code_object(image)
        except InternalError:
            return 218
        if found.arch != self.arch:
            return 209
        (info,) = found.kernels.values()
        self._modules[self._new("module", out)] = (info, self.kernels[bytes(image).rstrip(b"\0")])

    def cuModuleGetFunction(self, out, module, name):
        info, kernel = self._modules[_number(module)]
        if info.name != name.decode():
            return 500
        handle = next(self._handles)
        self._functions[handle] = kernel
        sizes = [(a.offset, a.size) for a in info.arguments]
        assert sizes == [(8 * i, 8) for i in range(len(kernel.params))], "arguments are words, one after the other"
        assert info.threads == kernel.thread_count and info.kernarg_bytes == 8 * len(kernel.params)
        _set(out, handle)

    def _views(self, kernel, words):
        for param, address in zip(kernel.params, words):
            if hasattr(param, "space") and self.memory_at(address, 1) is None and address not in self.allocations:
                self.faults.append(f"{kernel.name}: {param.name} lies in memory that was freed")
                raise _Fault
        return super()._views(kernel, words)

    def _launch(self, function, grid, block, attributes, stream, arguments):
        before = len(self.queues.get(_number(stream), []))
        code = super()._launch(function, grid, block, attributes, stream, arguments)
        queue = self.recording.get(_number(stream)) or self.queues.get(_number(stream), [])
        if not code and len(queue) > before:
            do = queue[-1]

            def guarded():
                with contextlib.suppress(_Fault):
                    do()

            queue[-1] = guarded
        return code


class _Fault(Exception):
    """A kernel that touched memory that is not its own: it stops, and the next wait says so."""
