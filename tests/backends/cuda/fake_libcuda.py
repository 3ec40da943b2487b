"""A libcuda without a GPU: the driver's functions as methods of a Python object, which keeps books.

Memory is host memory, checked for every copy and launch. A launch runs its kernel in the interpreter of the loop IR,
which checks every access; so whole programs run, every launch with the grid, the block and the arguments that a GPU
would get. "PTX" is the text of the loop kernel: `kernels` has what each text stands for.
"""

from __future__ import annotations

import ctypes
import itertools

import numpy as np

from rlx.backends.cuda.driver_types import DeviceAttribute, FunctionAttribute, LaunchConfig, PoolAttribute
from rlx.kernels.ir.interpret import grid_size, interpret
from rlx.kernels.ir.loop_ir import Buffer

POISON = 0xA5

_ATTRIBUTES = {
    DeviceAttribute.COMPUTE_CAPABILITY_MAJOR: 9,
    DeviceAttribute.COMPUTE_CAPABILITY_MINOR: 0,
    DeviceAttribute.MULTIPROCESSOR_COUNT: 132,
    DeviceAttribute.L2_CACHE_SIZE: 60 << 20,
    DeviceAttribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: 232448,
    DeviceAttribute.MAX_THREADS_PER_MULTIPROCESSOR: 2048,
}


def _set(out, value):
    """Write through a pointer that `ctypes.byref` made."""
    out._obj.value = value


def _number(handle):
    return getattr(handle, "value", handle) or 0


class FakeCuda:
    """`log` has the name of every call in order, `launches` the name, grid, block and attributes of every launch,
    `live` what has been created and not destroyed, by its kind. `fail` has codes for the next calls of functions,
    None for one that does what it should."""

    def __init__(self, devices=1, version=13000, capability=(9, 0), memory=1 << 30):
        self.devices, self.version, self.capability, self.memory = devices, version, capability, memory
        self.log, self.launches, self.kernels, self.fail = [], [], {}, {}
        self.live = {kind: set() for kind in ("stream", "event", "module", "graph", "graph_exec", "pool", "link")}
        self.allocations = {}  # address -> the bytes there
        self.pinned = {}
        self.tensor_maps = []
        self.freed = {}  # size -> blocks
        self.used = 0
        self.recording = {}  # stream -> the work recorded so far
        self._graphs, self._modules, self._functions, self._links = {}, {}, {}, {}
        self._handles = itertools.count(0x1000, 0x10)
        self._clock = itertools.count(1)
        self._recorded_at = {}

    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or found is None:
            return found

        def called(*arguments):
            self.log.append(name)
            codes = self.fail.get(name)
            code = codes.pop(0) if codes else None
            return found(*arguments) or 0 if code is None else code

        return called

    def _new(self, kind, out):
        handle = next(self._handles)
        self.live[kind].add(handle)
        _set(out, handle)
        return handle

    def _end(self, kind, handle):
        self.live[kind].remove(_number(handle))

    def _work(self, stream, do):
        """Do work now, or record it."""
        recorded = self.recording.get(_number(stream))
        do() if recorded is None else recorded.append(do)

    def memory_at(self, address, size):
        """`size` bytes of the device; None if they are not all in one allocation."""
        for start, block in self.allocations.items():
            if start <= address and address + size <= start + len(block):
                return block[address - start : address - start + size]
        return None

    # Start, devices, contexts.

    def cuInit(self, flags):
        return 100 if self.devices < 0 else 0

    def cuDriverGetVersion(self, out):
        _set(out, self.version)

    def cuDeviceGetCount(self, out):
        _set(out, max(self.devices, 0))

    def cuDeviceGet(self, out, index):
        if index >= self.devices:
            return 101
        _set(out, index)

    def cuDeviceGetName(self, text, size, device):
        text.value = b"Fake GPU"

    def cuDeviceTotalMem_v2(self, out, device):
        _set(out, self.memory)

    def cuDeviceGetAttribute(self, out, which, device):
        values = dict(_ATTRIBUTES)
        values[DeviceAttribute.COMPUTE_CAPABILITY_MAJOR], values[DeviceAttribute.COMPUTE_CAPABILITY_MINOR] = (
            self.capability
        )
        _set(out, values[DeviceAttribute(which)])

    def cuDevicePrimaryCtxRetain(self, out, device):
        _set(out, 0x77)

    def cuCtxSetCurrent(self, context):
        return 0

    def cuCtxSynchronize(self):
        return 0

    def cuMemGetInfo_v2(self, free, total):
        _set(free, self.memory - self.used)
        _set(total, self.memory)

    # Streams, events, graphs.

    def cuStreamCreateWithPriority(self, out, flags, priority):
        self._new("stream", out)

    def cuStreamDestroy_v2(self, stream):
        self._end("stream", stream)

    def cuStreamSynchronize(self, stream):
        return 900 if _number(stream) in self.recording else 0

    def cuStreamQuery(self, stream):
        return 0

    def cuStreamWaitEvent(self, stream, event, flags):
        return 0

    def cuEventCreate(self, out, flags):
        self._new("event", out)

    def cuEventDestroy_v2(self, event):
        self._end("event", event)

    def cuEventRecord(self, event, stream):
        self._recorded_at[_number(event)] = next(self._clock)

    def cuEventSynchronize(self, event):
        return 0

    def cuEventQuery(self, event):
        return 0

    def cuEventElapsedTime(self, out, start, stop):
        _set(out, float(self._recorded_at[_number(stop)] - self._recorded_at[_number(start)]))

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.recording[_number(stream)] = []

    def cuStreamEndCapture(self, stream, out):
        self._graphs[self._new("graph", out)] = self.recording.pop(_number(stream))

    def cuGraphInstantiateWithFlags(self, out, graph, flags):
        self._graphs[self._new("graph_exec", out)] = self._graphs[_number(graph)]

    def cuGraphLaunch(self, graph, stream):
        for do in self._graphs[_number(graph)]:
            do()

    def cuGraphExecUpdate_v2(self, graph_exec, graph, info):
        before, after = self._graphs[_number(graph_exec)], self._graphs[_number(graph)]
        if len(before) != len(after):
            return 910
        self._graphs[_number(graph_exec)] = after

    def cuGraphGetNodes(self, graph, nodes, count):
        _set(count, len(self._graphs[_number(graph)]))

    def cuGraphDestroy(self, graph):
        self._end("graph", graph)

    def cuGraphExecDestroy(self, graph):
        self._end("graph_exec", graph)

    # Code.

    def cuLinkCreate_v2(self, count, keys, values, out):
        self._links[self._new("link", out)] = b""

    def cuLinkAddData_v2(self, state, kind, data, size, name, count, keys, values):
        self._links[_number(state)] = data[: size - 1]
        return 0 if data[: size - 1].decode() in self.kernels else 218

    def cuLinkComplete(self, state, cubin, size):
        image = ctypes.create_string_buffer(self._links[_number(state)])
        self._links[_number(state)] = image
        _set(cubin, ctypes.addressof(image))
        _set(size, len(image) - 1)

    def cuLinkDestroy(self, state):
        del self._links[_number(state)]
        self._end("link", state)

    def cuModuleLoadDataEx(self, out, image, count, keys, values):
        text = image.rstrip(b"\0").decode()
        if text not in self.kernels:
            return 218
        self._modules[self._new("module", out)] = self.kernels[text]

    def cuModuleUnload(self, module):
        self._end("module", module)

    def cuModuleGetFunction(self, out, module, name):
        kernel = self._modules[_number(module)]
        if kernel.name != name.decode():
            return 500
        handle = next(self._handles)
        self._functions[handle] = kernel
        _set(out, handle)

    def cuTensorMapEncodeTiled(self, to, dtype, rank, address, dims, strides, box, *rest):
        if to % 64 or address % 16 or strides[0] % 16:
            return 1
        self.tensor_maps.append((address, tuple(dims), strides[0], tuple(box)))

    def cuFuncGetAttribute(self, out, which, function):
        _set(out, 40 if which == FunctionAttribute.NUM_REGS else 0)

    def cuFuncSetAttribute(self, function, which, value):
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out, function, threads, shared):
        _set(out, 2048 // threads)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra):
        grid, block = (tuple(map(_number, sizes)) for sizes in ((gx, gy, gz), (bx, by, bz)))
        return self._launch(function, grid, block, {}, stream, arguments)

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        c: LaunchConfig = config._obj
        attributes = {c.attributes[i].id: c.attributes[i].value for i in range(c.attribute_count)}
        grid, block = (c.grid_x, c.grid_y, c.grid_z), (c.block_x, c.block_y, c.block_z)
        return self._launch(function, grid, block, attributes, c.stream, arguments)

    def _launch(self, function, grid, block, attributes, stream, arguments):
        kernel = self._functions[_number(function)]
        words = []
        for number in range(len(kernel.params)):
            place = ctypes.c_uint64.from_address(_number(arguments) + 8 * number).value
            words.append(ctypes.c_int64.from_address(place).value)
        self.launches.append((kernel.name, grid, block, attributes))
        if hasattr(kernel, "run_grid"):
            # Code whose blocks talk to each other brings what runs it.
            self._work(stream, lambda: kernel.run_grid(words, grid[0], block[0]))
            return 0
        if grid[0] < 1 or grid[1:] != (1, 1) or block != (kernel.thread_count, 1, 1):
            return 1
        sizes = {p.name: w for p, w in zip(kernel.params, words) if not isinstance(p, Buffer)}
        if grid[0] != grid_size(kernel, sizes):
            return 1
        self._work(stream, lambda: interpret(kernel, {**sizes, **self._views(kernel, words)}))

    def _views(self, kernel, words):
        views = {}
        for param, address in zip(kernel.params, words):
            if not isinstance(param, Buffer):
                continue
            assert address % max(param.align, 1) == 0, f"{kernel.name}: {param.name} is not aligned"
            start, block = next((s, b) for s, b in self.allocations.items() if s <= address <= s + len(b))
            rest = block[address - start :]
            dtype = param.dtype.numpy
            views[param.name] = rest[: len(rest) // dtype.itemsize * dtype.itemsize].view(dtype)
        return views

    # Memory.

    def cuMemPoolCreate(self, out, props):
        self._new("pool", out)

    def cuMemPoolDestroy(self, pool):
        self._end("pool", pool)

    def cuMemPoolSetAttribute(self, pool, which, value):
        return 0

    def cuMemPoolGetAttribute(self, pool, which, value):
        used = self.used if which == PoolAttribute.USED_MEM_CURRENT else 2 * self.used
        ctypes.c_uint64.from_address(_number(value)).value = used

    def cuMemPoolTrimTo(self, pool, keep):
        return 0

    def cuMemAllocFromPoolAsync(self, out, size, pool, stream):
        if self.used + size > self.memory:
            return 2
        # A pool gives what was freed last, so that programs that do the same get the same addresses.
        freed = self.freed.get(size)
        raw = np.full(size + 256, POISON, np.uint8)
        start = -raw.ctypes.data % 256
        block = freed.pop() if freed else raw[start : start + size]
        self.allocations[block.ctypes.data] = block
        self.used += size
        _set(out, block.ctypes.data)

    def cuMemFreeAsync(self, address, stream):
        block = self.allocations.pop(address)
        self.used -= len(block)
        block[:] = POISON
        self.freed.setdefault(len(block), []).append(block)

    def cuMemHostAlloc(self, out, size, flags):
        block = np.full(size, POISON, np.uint8)
        self.pinned[block.ctypes.data] = block
        _set(out, block.ctypes.data)

    def cuMemFreeHost(self, address):
        del self.pinned[_number(address)]

    def _copy(self, to, source, size, stream, device):
        if any(self.memory_at(address, size) is None for address in device):
            return 1
        self._work(stream, lambda: ctypes.memmove(_number(to), _number(source), size))

    def cuMemcpyHtoDAsync_v2(self, to, source, size, stream):
        return self._copy(to, source, size, stream, [to])

    def cuMemcpyDtoHAsync_v2(self, to, source, size, stream):
        return self._copy(to, source, size, stream, [source])

    def cuMemcpyDtoDAsync_v2(self, to, source, size, stream):
        return self._copy(to, source, size, stream, [to, source])

    def cuMemsetD8Async(self, address, value, size, stream):
        block = self.memory_at(address, size)
        if block is None:
            return 1
        self._work(stream, lambda: block.fill(value))
