"""`MetalGpu`: one GPU of Metal at work. Its memory is shared with the host, which reads and writes it in place when no
work is under way; the commands of a run are one command buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.metal.devices import choose
from rlx.backends.text_gpu.code import TextCode, TextLoader
from rlx.backends.text_gpu.device import TextGpu
from rlx.backends.text_gpu.memory import Array, Place, Pool
from rlx.errors import BackendError, InternalError, OutOfMemory
from rlx.kernels.emit.gpu_c_emit import GpuKernel, legal_for_text
from rlx.kernels.emit.msl_emit import msl_module
from rlx.kernels.ir.loop_ir import Kernel, Space
from rlx.kernels.legalize import KernelRefused
from rlx.kernels.machines import METAL, METAL_MATRICES, Machine

# Places for buffers in a kernel's arguments, of which the last is for sizes, and bytes that may be given in place.
MOST_BUFFERS, MOST_SIZES = 31, 512


class MetalCode(TextCode):
    """A kernel with its form for Metal."""

    def __init__(self, kernel: Kernel, key: str, machine: Machine) -> None:
        super().__init__(kernel, key)
        self.legal = legal_for_text(kernel, machine, "Metal")
        shared = (a for a in self.legal.arrays if a.space is Space.SHARED)
        self.shared_bytes = sum(a.dtype.size_bytes * (a.size or 0) for a in shared)
        buffers = sum(size > 0 for size in self.sizes)
        sizes = len(self.sizes) - buffers
        # Sizes come together, in a place of their own where there are any.
        if buffers + (sizes > 0) > MOST_BUFFERS or sizes > MOST_SIZES:
            raise KernelRefused(
                f"kernel {kernel.name} has {buffers} buffers and {sizes} sizes; Metal has places for "
                f"{MOST_BUFFERS} buffers, or one less and {MOST_SIZES} sizes; divide the op, or use wgpu or cpu"
            )


class MetalGpu(TextGpu):
    """A GPU of Metal; `module` is PyObjC's, or what stands in for it."""

    name = "metal"

    def __init__(self, module: Any, device: Any) -> None:
        super().__init__()
        self.metal, self.device, self.about = module, device, str(device.name())
        self.queue = device.newCommandQueue()
        self.pool = Pool(self.name, int(device.maxBufferLength()), self._create)
        has_matrices = device.supportsFamily_(module.MTLGPUFamilyApple7)
        self.machine = METAL_MATRICES if has_matrices else METAL
        self.loader = TextLoader(self.machine, self._code)
        self.commands = self._buffers = CommandBuffers(self)
        self.pipelines: dict[str, Any] = {}

    def _create(self, size: int, what: str) -> Any:
        made = self.device.newBufferWithLength_options_(size, self.metal.MTLResourceStorageModeShared)
        if made is None:
            raise OutOfMemory(f"metal: there is no memory for {size} bytes of {what}")
        return made

    # Code.

    def _code(self, kernel: Kernel, key: str) -> MetalCode:
        code, shared = MetalCode(kernel, key, self.machine), int(self.device.maxThreadgroupMemoryLength())
        if code.shared_bytes > shared:
            raise KernelRefused(
                f"kernel {code.name}: its threads share {code.shared_bytes} bytes, and those of {self.about} at most "
                f"{shared}; use smaller sizes, or the device cpu"
            )
        return code

    def load(self, codes: Iterable[TextCode]) -> None:
        missing = {c.key: c for c in codes if c.key not in self.pipelines}
        if not missing:
            return
        named = [(f"k{number}", code) for number, code in enumerate(missing.values())]
        text = msl_module([GpuKernel(entry, code.legal) for entry, code in named if isinstance(code, MetalCode)])
        options = self.metal.MTLCompileOptions.alloc().init()
        # Floats mean what they say: no reordering, and NaN and infinities exist.
        options.setFastMathEnabled_(False)
        library, error = self.device.newLibraryWithSource_options_error_(text, options, None)
        if library is None:
            names = ", ".join(code.name for _, code in named)
            raise InternalError(f"metal: the text of {names} is refused: {error}")
        for entry, code in named:
            function = library.newFunctionWithName_(entry)
            made, error = self.device.newComputePipelineStateWithFunction_error_(function, None)
            if made is None:
                raise InternalError(f"metal: there is no pipeline for {code.name}: {error}")
            if made.maxTotalThreadsPerThreadgroup() < code.threads:
                raise KernelRefused(
                    f"kernel {code.name} has {code.threads} threads; {self.about} runs "
                    f"{made.maxTotalThreadsPerThreadgroup()} of it; use smaller sizes, or the device cpu"
                )
            self.pipelines[code.key] = made

    # Memory.

    def view(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        self.wait()
        place = Place.of(address)
        count = int(np.prod(dims, dtype=np.int64))
        contents = self.pool.handles[place.number].contents().as_buffer(place.offset + count * dtype.itemsize)
        bytes_ = np.frombuffer(contents, np.uint8, count * dtype.itemsize, place.offset)
        return bytes_.view(dtype).reshape(dims)

    def write(self, address: int, array: Array) -> None:
        if array.nbytes:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            with self.lock:
                self.view(address, data.shape, data.dtype)[...] = data

    def read(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if not int(np.prod(dims, dtype=np.int64)):
            return np.empty(dims, dtype)
        with self.lock:
            return self.view(address, dims, dtype).copy()

    def wait(self) -> None:
        with self.lock:
            self._buffers.finish()


class CommandBuffers:
    """The command buffer that is being filled, and the last that was sent."""

    def __init__(self, gpu: MetalGpu) -> None:
        self._gpu = gpu
        self._filled: Any = None
        self._encoder: Any = None
        self._is_blit = False
        self._sent: list[tuple[Any, str]] = []
        self._label = ""

    def _encoding(self, is_blit: bool) -> Any:
        """An encoder of a kind; a command buffer has one at a time."""
        if self._filled is None:
            self._filled = self._gpu.queue.commandBuffer()
        if self._encoder is not None and self._is_blit is not is_blit:
            self._encoder.endEncoding()
            self._encoder = None
        if self._encoder is None:
            buffer = self._filled
            self._encoder = buffer.blitCommandEncoder() if is_blit else buffer.computeCommandEncoder()
            self._is_blit = is_blit
        return self._encoder

    def call(self, code: TextCode, words: Sequence[int], blocks: int, label: str) -> None:
        if not blocks:
            return
        gpu, self._label = self._gpu, label
        if code.key not in gpu.pipelines:
            gpu.load([code])
        encoder = self._encoding(is_blit=False)
        encoder.setComputePipelineState_(gpu.pipelines[code.key])
        places = [Place.of(word) for word, size in zip(words, code.sizes) if size]
        for number, place in enumerate(places):
            encoder.setBuffer_offset_atIndex_(gpu.pool.handles[place.number], place.offset, number)
        sizes = np.array([word for word, size in zip(words, code.sizes) if not size], np.int64)
        if len(sizes):
            encoder.setBytes_length_atIndex_(sizes.tobytes(), sizes.nbytes, len(places))
        make = gpu.metal.MTLSizeMake
        encoder.dispatchThreadgroups_threadsPerThreadgroup_(make(blocks, 1, 1), make(code.threads, 1, 1))

    def copy(self, source: int, to: int, size: int) -> None:
        if size and source != to:
            a, b, handles = Place.of(source), Place.of(to), self._gpu.pool.handles
            self._encoding(is_blit=True).copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(
                handles[a.number], a.offset, handles[b.number], b.offset, size
            )

    def flush(self) -> None:
        if self._filled is None:
            return
        self._encoder.endEncoding()
        self._filled.commit()
        self._sent.append((self._filled, self._label))
        self._filled = self._encoder = None

    def finish(self) -> None:
        """Return when all is done that was sent; raises what went wrong in it."""
        self.flush()
        sent, self._sent = self._sent, []
        if sent:
            # They run in order.
            sent[-1][0].waitUntilCompleted()
        for buffer, label in sent:
            if buffer.status() == self._gpu.metal.MTLCommandBufferStatusError:
                raise BackendError(f"metal: {label} failed: {buffer.error()}")


def open_gpu(index: int = 0) -> MetalGpu:
    """The device with a number, the same for all that use it."""
    return _opened(index)


@cache
def _opened(index: int) -> MetalGpu:
    return MetalGpu(*choose(index))
