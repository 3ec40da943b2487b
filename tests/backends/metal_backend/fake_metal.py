"""A stand-in for PyObjC's module `Metal` that keeps books.

Its names and their meaning are those of Metal.framework as PyObjC spells them. What the real one leaves undefined
fails here with a `WrongUse`: commands after the end of an encoder, two encoders at once, a dispatch without a pipeline
or with a buffer missing or misaligned, a commit of an open encoder or of nothing. Work is done no sooner than somebody
waits for it, so that whoever reads memory too early reads what was there before. Around every buffer lies a margin
that kernels must not touch. Text becomes C++ by the headers in `shim/`.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

SHIM = Path(__file__).parent / "shim"
MARGIN, PATTERN = 64, 0xA5
_PARAMETER = re.compile(r"(device|constant) (?:const )?(\w+) \*\w+ \[\[buffer\((\d+)\)\]\]")
_BYTES = {"int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4, "uint32_t": 4, "float": 4}
_BYTES |= {"int64_t": 8, "uint64_t": 8}


class WrongUse(AssertionError):
    """The API used as it must not be."""


def require(condition, what):
    if not condition:
        raise WrongUse(what)


def compiler():
    """The command of a C++ compiler that is here; None if there is none."""
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return [name]
    try:
        import ziglang  # noqa: F401
    except ImportError:
        return None
    return [sys.executable, "-m", "ziglang", "c++"]


class Books:
    """What happened, and what exists."""

    def __init__(self):
        self.buffers = weakref.WeakSet()
        self.libraries = self.dispatches = self.copies = 0
        self.begun = []  # command buffers in the order of their making
        self.committed = []
        self.waits = 0

    @property
    def left_open(self):
        """Command buffers that nobody committed."""
        return [b for b in self.begun if b not in self.committed]


class Size(NamedTuple):
    width: int
    height: int
    depth: int


class Buffer:
    def __init__(self, size):
        self._memory = np.full(size + 2 * MARGIN, PATTERN, np.uint8)
        self._memory[MARGIN : MARGIN + size] = 0xFF  # NaN, until something is written
        self.size = size

    def length(self):
        return self.size

    def contents(self):
        return self

    def as_buffer(self, size):
        require(0 < size <= self.size, f"{size} bytes of a buffer of {self.size} are looked at")
        return memoryview(self._memory)[MARGIN : MARGIN + size]

    @property
    def address(self):
        return self._memory.ctypes.data + MARGIN

    def check_margins(self, what):
        margins = np.concatenate([self._memory[:MARGIN], self._memory[MARGIN + self.size :]])
        require((margins == PATTERN).all(), f"{what} wrote outside of a buffer")


class Function:
    def __init__(self, library, name, text):
        self.name, self.entry = name, getattr(library, name)
        head = re.search(rf"kernel void {name}\((.*?)\) {{", text, re.S)
        require(head, f"{name} has no head")
        self.element = {
            int(i): _BYTES[kind.removesuffix("_seen_otherwise")] for _, kind, i in _PARAMETER.findall(head[1])
        }
        require(sorted(self.element) == [*range(len(self.element))], f"{name} has gaps between its buffers")


class Library:
    def __init__(self, device, text):
        self._text, self._handle = text, device.compiled(text)

    def newFunctionWithName_(self, name):
        return Function(self._handle, name, self._text) if f"kernel void {name}(" in self._text else None


class Pipeline:
    def __init__(self, function):
        self.function = function

    def maxTotalThreadsPerThreadgroup(self):
        return 1024


class CompileOptions:
    @classmethod
    def alloc(cls):
        return cls()

    def init(self):
        self.fast_math = True
        return self

    def setFastMathEnabled_(self, enabled):
        self.fast_math = enabled


class Encoder:
    def __init__(self, command_buffer):
        self._owner, self.is_open = command_buffer, True

    def endEncoding(self):
        require(self.is_open, "an encoder is ended twice")
        self.is_open = False
        self._owner.encoder = None

    def _add(self, work):
        require(self.is_open, "a command for an encoder that has ended")
        self._owner.work.append(work)


class ComputeEncoder(Encoder):
    def __init__(self, command_buffer):
        super().__init__(command_buffer)
        self._pipeline, self._given = None, {}

    def setComputePipelineState_(self, pipeline):
        require(isinstance(pipeline, Pipeline), "no pipeline")
        self._pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer, offset, index):
        require(isinstance(buffer, Buffer) and 0 <= index < 31, f"no buffer for {index}")
        require(0 <= offset < buffer.size, f"offset {offset} in a buffer of {buffer.size} bytes")
        self._given[index] = buffer, offset

    def setBytes_length_atIndex_(self, data, size, index):
        require(isinstance(data, bytes) and len(data) == size <= 4096 and 0 <= index < 31, "bytes that do not fit")
        self._given[index] = ctypes.create_string_buffer(data, size), 0

    def dispatchThreadgroups_threadsPerThreadgroup_(self, blocks, threads):
        require(self._pipeline is not None, "a dispatch without a pipeline")
        require(min(*blocks, *threads) > 0 and threads[0] <= 1024, f"a grid of {blocks} x {threads}")
        function = self._pipeline.function
        for index, size in function.element.items():
            require(index in self._given, f"{function.name}: nothing is set for buffer {index}")
            require(self._given[index][1] % size == 0, f"{function.name}: buffer {index} begins between elements")
        given = [self._given[i] for i in sorted(function.element)]
        self._add(lambda device: device.run(function, given, blocks[0], threads[0]))
        self._owner.device.books.dispatches += 1


class BlitEncoder(Encoder):
    def copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size_(self, source, first, to, at, size):
        require(first % 4 == at % 4 == size % 4 == 0, "a copy of bytes that are no words")
        require(first + size <= source.size and at + size <= to.size, "a copy beyond a buffer")
        require(source is not to or abs(first - at) >= size, "a copy onto itself")
        self._add(lambda device: ctypes.memmove(to.address + at, source.address + first, size))
        self._owner.device.books.copies += 1


class CommandBuffer:
    def __init__(self, device):
        self.device, self.work, self.encoder = device, [], None
        self._status, self._error = 0, None
        device.books.begun.append(self)

    def _begin(self, kind):
        require(not self._status, "an encoder for a command buffer that was committed")
        require(self.encoder is None, "a second encoder before the first has ended")
        self.encoder = kind(self)
        return self.encoder

    def computeCommandEncoder(self):
        return self._begin(ComputeEncoder)

    def blitCommandEncoder(self):
        return self._begin(BlitEncoder)

    def commit(self):
        require(not self._status, "a command buffer is committed twice")
        require(self.encoder is None, "a commit before the encoder has ended")
        require(self.work, "a commit of nothing")
        self._status = 2
        self.device.books.committed.append(self)

    def waitUntilCompleted(self):
        require(self._status, "somebody waits for what was not committed")
        self.device.books.waits += 1
        committed = self.device.books.committed
        for buffer in committed[: committed.index(self) + 1]:
            buffer.do()

    def do(self):
        if self._status == 2:
            try:
                for work in self.work:
                    work(self.device)
                self._status = 4
            except RuntimeError as error:
                self._status, self._error = 5, error
            self.work = []  # what it held may go

    def status(self):
        return self._status

    def error(self):
        return self._error


class Queue:
    def __init__(self, device):
        self._device = device

    def commandBuffer(self):
        return CommandBuffer(self._device)


class Device:
    def __init__(self, folder, command):
        self.books, self._folder, self._command = Books(), Path(folder), command
        self.has_matrices = True
        self._threads = ctypes.CDLL(str(self._built("shim_threads", ["-O2"])), ctypes.RTLD_GLOBAL)
        self._compiled = {}

    def _built(self, name, flags, text=None):
        made = self._folder / f"{name}.so"
        if not made.exists():
            source = SHIM / f"{name}.cpp" if text is None else self._folder / f"{name}.cpp"
            if text is not None:
                source.write_text(text)
            line = [
                *self._command,
                "-std=c++17",
                "-shared",
                "-fPIC",
                "-w",
                *flags,
                f"-I{SHIM}",
                str(source),
                "-o",
                made,
            ]
            done = subprocess.run(line, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr[-3000:])
        return made

    def compiled(self, text):
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        if name not in self._compiled:
            self.books.libraries += 1
            self._compiled[name] = ctypes.CDLL(str(self._built(name, ["-O1", "-ffp-contract=off"], text)))
        return self._compiled[name]

    def run(self, function, given, blocks, threads):
        addresses = [b.address + at if isinstance(b, Buffer) else ctypes.addressof(b) for b, at in given]
        pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        entry = ctypes.cast(function.entry, ctypes.c_void_p)
        if self._threads.shim_run(entry, pointers, len(addresses), blocks, threads):
            raise RuntimeError(f"{function.name}: threads of a block part at a barrier")
        for buffer, _ in given:
            if isinstance(buffer, Buffer):
                buffer.check_margins(function.name)

    # Metal's own.

    def name(self):
        return "a stand-in for an Apple GPU"

    def registryID(self):
        return 1

    def hasUnifiedMemory(self):
        return True

    def recommendedMaxWorkingSetSize(self):
        return 1 << 30

    def maxBufferLength(self):
        return 1 << 28

    def maxThreadgroupMemoryLength(self):
        return 32 << 10

    def supportsFamily_(self, family):
        require(family == 1007, "whether matrices are multiplied is asked of the family Apple7")
        return self.has_matrices

    def newCommandQueue(self):
        return Queue(self)

    def newBufferWithLength_options_(self, size, options):
        require(options == 0 and 0 < size <= self.maxBufferLength(), f"a buffer of {size} bytes")
        made = Buffer(size)
        self.books.buffers.add(made)
        return made

    def newLibraryWithSource_options_error_(self, text, options, error):
        require(not options.fast_math, "fast math changes what NaN and infinities mean")
        try:
            return Library(self, text), None
        except RuntimeError as refused:
            return None, refused

    def newComputePipelineStateWithFunction_error_(self, function, error):
        require(isinstance(function, Function), "no function of this name")
        return Pipeline(function), None


def fake_module(folder):
    """The module, with one device."""
    made = ModuleType("Metal")
    device = Device(folder, compiler())
    made.device = device
    made.MTLCreateSystemDefaultDevice = lambda: device
    made.MTLCopyAllDevices = lambda: [device]
    made.MTLResourceStorageModeShared = 0
    made.MTLCommandBufferStatusError = 5
    made.MTLGPUFamilyApple7 = 1007
    made.MTLCompileOptions = CompileOptions
    made.MTLSizeMake = Size
    return made
