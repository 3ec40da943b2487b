"""`GradientForm`: the gradients of attention on the tensor cores, and their launches."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.attention_form import attention_shape
from rlx.backends.cuda.hopper.attention_gradients import THREADS, gradients_text
from rlx.backends.cuda.hopper.gradient_shape import KEYS, GradientShape
from rlx.backends.cuda.hopper.launching import NOTHING, Load, Ready, TensorForm
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.memory import DeviceBuffer
from rlx.backends.cuda.modules import Launch
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.attention import FAR, GradientOrigin, Strided
from rlx.kernels.machines import Machine

# Queries and dy that blocks of different heads read at the same time: as much as the L2 cache keeps beside all else.
_TOGETHER = 16 << 20


def gradient_form_refusal(origin: GradientOrigin) -> str:
    """Why there is no form; empty if there is one."""
    if not origin.refusal and any(x.strides[3] != 1 for x in (origin.q, origin.k, origin.v, origin.dy)):
        return "strides"
    return origin.refusal


class GradientForm(TensorForm):
    """The gradients of one attention. Code is made when it is first launched, and serves all sizes."""

    name, entry = "wgmma gradients", "gradients"

    def __init__(self, origin: GradientOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(params, machine, load)
        self.origin = origin
        self.shape = GradientShape(attention_shape(origin.op, origin.q.dtype, origin.op.head_dim))
        # Counters, by GPU, 0 between launches. Launches follow each other in one stream; graphs may remember old ones.
        self._counters: dict[int, list[DeviceBuffer]] = {}

    def ptx(self) -> str:
        text = gradients_text(self.entry, self.shape, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "gradients of attention on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        origin, shape = self.origin, self.shape
        attention = shape.attention
        batch, queries, keys = (self.number(s, words) for s in (origin.batch, origin.queries, origin.keys))
        if min(batch, queries, keys) < 1 or max(queries, keys) >= FAR:
            return NOTHING
        # Every query sees a key, and every key is seen.
        if attention.window is not None and queries != keys:
            return NOTHING
        kv_heads = attention.heads // attention.group
        element, rows, depth = attention.element, shape.rows, shape.depth
        of_queries, of_keys = (depth, queries, attention.heads, batch), (depth, keys, kv_heads, batch)
        specs = [
            self._map(origin.q, words, of_queries, (64, rows), element),
            self._map(origin.k, words, of_keys, (64, KEYS), element),
            self._map(origin.v, words, of_keys, (64, KEYS), element),
            self._map(origin.dy, words, of_queries, (64, rows), element),
            self._map(origin.dq, words, of_queries, (32, rows), "f32"),
            # A group of warps stores its half of the keys.
            self._map(origin.dk, words, of_keys, (64, KEYS // 2), element),
            self._map(origin.dv, words, of_keys, (64, KEYS // 2), element),
        ]
        query_tiles, key_tiles = -(-queries // rows), -(-keys // KEYS)
        blocks, counters = batch * kv_heads * key_tiles, batch * attention.heads * query_tiles
        if not all(spec.is_possible for spec in specs) or max(blocks, counters) >= 2**29:
            return NOTHING
        function = self.function((), shape.shared_bytes, repr(shape), self.ptx, gpu)
        span = max(1, min(16, _TOGETHER // (queries * depth * 4 * attention.group)))
        arguments = [self._address(x, words) for x in (origin.logs, origin.means)]
        arguments.append(self._memory(gpu, 4 * counters))
        arguments += [self.number(s, words) for x in (origin.logs, origin.means) for s in x.strides]
        arguments += [query_tiles, key_tiles, queries, keys, batch * kv_heads, span]
        block = ArgumentBlock(len(specs), len(arguments))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        block.set_words(arguments)
        return Ready(function, Launch(blocks, THREADS, shape.shared_bytes), block)

    def _address(self, operand: Strided, words: Sequence[int]) -> int:
        return words[self.places[operand.pointer]] + operand.dtype.size_bytes * self.number(operand.offset, words)

    def _map(
        self, operand: Strided, words: Sequence[int], sizes: tuple[int, ...], box: tuple[int, int], element: str
    ) -> MapSpec:
        batch, head, position, _ = (self.number(s, words) for s in operand.strides)
        # One of a kind may have any distance to the next.
        strides = tuple(s if size > 1 else 8 for s, size in zip((position, head, batch), sizes[1:]))
        return MapSpec(self._address(operand, words), sizes, strides, (*box, 1, 1), element)

    def _memory(self, gpu: Gpu, size: int) -> int:
        """The address of counters that are 0 between launches."""
        kept = self._counters.setdefault(id(gpu), [])
        if not kept or kept[-1].size < size:
            # Launches that know the memory before are made again.
            self.forget()
            buffer = gpu.pool.allocate(size, gpu.stream, "turns of gradients of attention")
            kept.append(buffer)
            gpu.driver.cuMemsetD8Async(buffer.address, 0, buffer.size, gpu.stream.handle)
        return kept[-1].address


