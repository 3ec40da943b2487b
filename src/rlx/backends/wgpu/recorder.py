"""`Recorder`: the commands of a run. They are collected, and go to the GPU together in one command encoder.

Memory is bound by whole buffers: parameters that lie in one buffer share a binding, since WebGPU forbids to bind
memory twice that is written, and a buffer that is larger than a binding may be takes several. Where a parameter begins
in its buffer is an argument of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlx.backends.text_gpu.memory import DeviceBuffer, Place
from rlx.backends.wgpu.code import WgslCode
from rlx.backends.wgpu.pipelines import KEPT_GROUPS, Form
from rlx.errors import BackendError, BindingError
from rlx.kernels.emit.wgsl_emit import GRID_ROW, Bound

if TYPE_CHECKING:
    from rlx.backends.wgpu.device import Gpu

# Bytes of the buffer of arguments: as many commands are collected at most as it has room for.
ARGUMENT_BYTES = 1 << 20
# Where arguments may begin, on any GPU.
_ALIGN = 256


class _Dispatch(NamedTuple):
    form: Form
    numbers: tuple[int, ...]  # of the buffers, in the order of their bindings
    arguments: int  # the byte at which they begin
    blocks: int


class _Copy(NamedTuple):
    source: Place
    to: Place
    size: int


class Recorder:
    """Commands of one device; used under its lock."""

    def __init__(self, gpu: Gpu) -> None:
        import wgpu

        self._gpu = gpu
        self._commands: list[_Dispatch | _Copy] = []
        self._arguments = np.zeros(ARGUMENT_BYTES // 4, np.int32)
        self._end = 0
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        self._argument_buffer: Any = gpu.handle.create_buffer(size=ARGUMENT_BYTES, usage=usage)
        self._scratch: DeviceBuffer | None = None
        self._tables: dict[str, DeviceBuffer] = {}
        self._held: list[DeviceBuffer] = []  # by commands that have not been sent
        self._groups: dict[tuple[int, tuple[int, ...]], Any] = {}

    # Commands.

    def call(self, code: WgslCode, words: Sequence[int], blocks: int, label: str) -> None:
        """A kernel on one argument per parameter: an address, or a size."""
        scalars = [word for word, size in zip(words, code.sizes) if not size]
        if self._gpu.most_rounds:
            code = self._within_rounds(code, tuple(scalars), label)
        places = [Place.of(word) for word, size in zip(words, code.sizes) if size]
        sizes = [size for size in code.sizes if size]
        bound = [*places]
        if code.scratch_words:
            bound.append(self._scratch_for(4 * code.scratch_words * code.threads * blocks, label))
        if len(code.tables):
            bound.append(self._tables_of(code))
        order: dict[int, Bound] = {}
        following = 1
        for place in bound:
            if place.number not in order:
                windows = self._windows(place.number)
                window = self._gpu.binding_bytes // 4 if windows > 1 else 0
                order[place.number] = Bound(following, windows, window)
                following += windows
        if following - 1 > self._gpu.most_bindings:
            raise BackendError(
                f"wgpu: the kernel {code.name} ({label}) needs {following - 1} bindings of "
                f"{self._gpu.binding_bytes} bytes, and this GPU has {self._gpu.most_bindings}; use smaller sizes"
            )
        starts = [place.offset // size for place, size in zip(places, sizes)]
        is_aligned = all(place.offset % 4 == 0 for place in places)
        form = Form(code, tuple(order[p.number] for p in bound), is_aligned)
        for number in scalars:
            if not -(2**31) <= number < 2**31:
                raise BindingError(f"wgpu: a size of {label} is {number}; positions have 32 bits here")
        if blocks > GRID_ROW * 65535:
            raise BindingError(f"wgpu: {label} has {blocks} blocks, more than a GPU runs at a time; use smaller sizes")
        step = -(-form.argument_bytes // _ALIGN) * _ALIGN
        if self._end + step > ARGUMENT_BYTES:
            self.flush()
        first = self._end // 4
        self._arguments[first : first + len(starts) + len(scalars)] = [*starts, *scalars]
        self._arguments[first + code.argument_words - 1] = 0
        self._commands.append(_Dispatch(form, tuple(order), self._end, blocks))
        self._end += step

    def _within_rounds(self, code: WgslCode, sizes: tuple[int, ...], label: str) -> WgslCode:
        """A form of the kernel that goes through no more rounds of loops than this GPU allows."""
        most = self._gpu.most_rounds
        if code.rounds(sizes) <= most:
            return code
        if code.in_long_rounds.rounds(sizes) <= most:
            return code.in_long_rounds
        raise BackendError(
            f"wgpu: the kernel {code.name} ({label}) goes through {code.rounds(sizes)} rounds of loops in an "
            f"invocation; {self._gpu.about} stops after {most}, with a wrong result; use smaller sizes, a GPU, or the "
            "device cpu"
        )

    def _scratch_for(self, size: int, label: str) -> Place:
        """Memory for the arrays of threads, of which commands have one after the other."""
        if self._scratch is None or self._scratch.size < size:
            if self._scratch is not None:
                self._held.append(self._scratch)
            self._scratch = self._gpu.pool.allocate(size, f"scratch of {label}")
        return Place.of(self._scratch.address)

    def _tables_of(self, code: WgslCode) -> Place:
        """Where the tables of a kernel lie, written once."""
        if code.key not in self._tables:
            self._tables[code.key] = buffer = self._gpu.pool.allocate(code.tables.nbytes, f"tables of {code.name}")
            self._gpu.write(buffer.address, code.tables)
        return Place.of(self._tables[code.key].address)

    def copy(self, source: int, to: int, size: int) -> None:
        """Bytes from one place to another that does not overlap it; all of them words."""
        if size and source != to:
            self._commands.append(_Copy(Place.of(source), Place.of(to), size))

    def _windows(self, number: int) -> int:
        size = self._gpu.pool.handles[number].size
        return -(-size // self._gpu.binding_bytes)

    # To the GPU.

    def flush(self) -> None:
        """Send what has been collected. Nothing waits for it."""
        commands, self._commands = self._commands, []
        used, self._end = self._end, 0
        if not commands:
            return
        gpu = self._gpu
        gpu.pipelines.make(c.form for c in commands if isinstance(c, _Dispatch))
        self._forget()
        if used:
            gpu.queue.write_buffer(self._argument_buffer, 0, self._arguments[: used // 4])
        encoder = gpu.handle.create_command_encoder()
        compute = None
        for command in commands:
            if isinstance(command, _Copy):
                if compute is not None:
                    compute.end()
                    compute = None
                self._encode_copy(encoder, command)
                continue
            if compute is None:
                compute = encoder.begin_compute_pass()
            compute.set_pipeline(gpu.pipelines[command.form])
            compute.set_bind_group(0, self._group(command), [command.arguments])
            rows = -(-command.blocks // GRID_ROW)
            compute.dispatch_workgroups(min(command.blocks, GRID_ROW), rows, 1)
        if compute is not None:
            compute.end()
        gpu.queue.submit([encoder.finish()])
        self._held.clear()

    def _encode_copy(self, encoder: Any, copy: _Copy) -> None:
        handles = self._gpu.pool.handles
        source, to = handles[copy.source.number], handles[copy.to.number]
        if source is to:
            # A buffer is not copied into itself.
            between = self._gpu.pool.allocate(copy.size, "a copy")
            self._held.append(between)
            handle = handles[between.number]
            encoder.copy_buffer_to_buffer(source, copy.source.offset, handle, 0, copy.size)
            encoder.copy_buffer_to_buffer(handle, 0, to, copy.to.offset, copy.size)
        else:
            encoder.copy_buffer_to_buffer(source, copy.source.offset, to, copy.to.offset, copy.size)

    def _group(self, command: _Dispatch) -> Any:
        """The bind group of a command; the same buffers come again."""
        key = command.form.argument_bytes, command.numbers
        found = self._groups.get(key)
        if found is None:
            if len(self._groups) >= KEPT_GROUPS:
                self._groups.clear()
            entries = [{"buffer": self._argument_buffer, "offset": 0, "size": command.form.argument_bytes}]
            for number in command.numbers:
                entries += self._bindings(number)
            found = self._groups[key] = self._gpu.handle.create_bind_group(
                layout=self._gpu.pipelines.layout(len(entries) - 1),
                entries=[{"binding": i, "resource": entry} for i, entry in enumerate(entries)],
            )
        return found

    def _bindings(self, number: int) -> list[dict[str, Any]]:
        handle, window = self._gpu.pool.handles[number], self._gpu.binding_bytes
        starts = range(0, handle.size, window)
        return [{"buffer": handle, "offset": s, "size": min(window, handle.size - s)} for s in starts]

    def _forget(self) -> None:
        """Drop bind groups of buffers that no longer exist: they would keep their memory."""
        gone = self._gpu.pool.gone
        if gone:
            numbers = {*gone}
            self._groups = {key: g for key, g in self._groups.items() if numbers.isdisjoint(key[1])}
            gone.clear()
