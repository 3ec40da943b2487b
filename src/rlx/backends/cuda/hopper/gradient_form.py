"""`GradientForm`: the gradients of attention on the tensor cores, and their launches.

Two kernels follow each other: the sums of dy*y of all queries, then the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.attention_form import attention_shape
from rlx.backends.cuda.hopper.attention_gradients import THREADS, gradients_text
from rlx.backends.cuda.hopper.gradient_shape import KEYS, GradientShape
from rlx.backends.cuda.hopper.launching import NOTHING, Load, Ready, TensorForm
from rlx.backends.cuda.hopper.row_products import THREADS as SUM_THREADS
from rlx.backends.cuda.hopper.row_products import row_products_text, rows_per_block
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
    if not origin.refusal and any(x.strides[3] != 1 for x in (origin.q, origin.k, origin.v, origin.dy, origin.y)):
        return "strides"
    return origin.refusal


class OfGradients(TensorForm):
    """What all have. Code is made when it is first launched, and serves all sizes."""

    def __init__(self, origin: GradientOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(params, machine, load)
        self.origin = origin
        depth = origin.op.head_dim
        self.shape = GradientShape(attention_shape(origin.op, origin.q.dtype, depth, depth))
        # By GPU. Launches follow each other in one stream; smaller ones of before stay: recorded launches may use them.
        self._kept: dict[int, list[DeviceBuffer]] = {}

    def sizes(self, words: Sequence[int]) -> tuple[int, int, int]:
        """Batch, queries and keys."""
        batch, queries, keys = (
            self.number(s, words) for s in (self.origin.batch, self.origin.queries, self.origin.keys)
        )
        return batch, queries, keys

    def address(self, operand: Strided, words: Sequence[int]) -> int:
        return words[self.places[operand.pointer]] + operand.dtype.size_bytes * self.number(operand.offset, words)

    def memory(self, gpu: Gpu, size: int, what: str) -> int:
        """The address of memory of the form's own, which is 0 when it is new."""
        kept = self._kept.setdefault(id(gpu), [])
        if not kept or kept[-1].size < size:
            kept.append(gpu.pool.allocate(size, gpu.stream, what))
            gpu.driver.cuMemsetD8Async(kept[-1].address, 0, kept[-1].size, gpu.stream.handle)
        return kept[-1].address


class Sums(OfGradients):
    """The sums of dy*y of all queries, [batch, head, query]."""

    name, entry = "row products", "row_products"

    def ptx(self) -> str:
        text = row_products_text(self.entry, self.shape, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "sums of gradients of attention")

    def place(self, words: Sequence[int], gpu: Gpu) -> int:
        """The address of the sums."""
        batch, queries, _ = self.sizes(words)
        return self.memory(gpu, 4 * batch * queries * self.shape.attention.heads, "sums of gradients of attention")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        batch, queries, _ = self.sizes(words)
        rows = batch * queries * self.shape.attention.heads
        operands = (self.origin.dy, self.origin.y)
        addresses = [self.address(x, words) for x in operands]
        steps = [self.number(s, words) for x in operands for s in x.strides[:3]]
        if not 0 < rows < 2**31 - SUM_THREADS or any(a % 16 for a in addresses) or any(s % 8 for s in steps):
            return NOTHING
        function = self.function((), 0, f"{self.entry}\0{self.shape!r}", self.ptx, gpu)
        arguments = [*addresses, self.place(words, gpu), *steps, queries, rows]
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(-(-rows // rows_per_block(self.shape)), SUM_THREADS), block)


class GradientForm(OfGradients):
    """The gradients of one attention."""

    name, entry = "wgmma gradients", "gradients"

    def __init__(self, origin: GradientOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(origin, params, machine, load)
        self.sums = Sums(origin, params, machine, load)

    def ptx(self) -> str:
        text = gradients_text(self.entry, self.shape, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "gradients of attention on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        origin, shape = self.origin, self.shape
        attention = shape.attention
        batch, queries, keys = self.sizes(words)
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
        sums = self.sums.prepared(words, gpu)
        if sums.function is None:
            return NOTHING
        function = self.function((), shape.shared_bytes, f"{self.entry}\0{shape!r}", self.ptx, gpu)
        span = max(1, min(16, _TOGETHER // (queries * depth * 4 * attention.group)))
        arguments = [self.address(origin.logs, words), self.sums.place(words, gpu)]
        # Counters are 0 between launches.
        arguments.append(self.memory(gpu, 4 * counters, "turns of gradients of attention"))
        arguments += [self.number(s, words) for s in origin.logs.strides]
        arguments += [attention.heads * queries, queries, 1]
        arguments += [query_tiles, key_tiles, queries, keys, batch * kv_heads, span]
        block = ArgumentBlock(len(specs), len(arguments))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        block.set_words(arguments)
        return Ready(function, Launch(blocks, THREADS, shape.shared_bytes), block, (sums,))

    def _map(
        self, operand: Strided, words: Sequence[int], sizes: tuple[int, ...], box: tuple[int, int], element: str
    ) -> MapSpec:
        batch, head, position, _ = (self.number(s, words) for s in operand.strides)
        # One of a kind may have any distance to the next.
        strides = tuple(s if size > 1 else 8 for s, size in zip((position, head, batch), sizes[1:]))
        return MapSpec(self.address(operand, words), sizes, strides, (*box, 1, 1), element)
