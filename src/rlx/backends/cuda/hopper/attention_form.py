"""`AttentionForm` and `DecodeForm`: attention on the tensor cores, of many rows and of few: which have them, and their
launches."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.attention import THREADS, attention_text
from rlx.backends.cuda.hopper.attention_shape import ROWS, AttentionShape, Integers
from rlx.backends.cuda.hopper.decode import KEYS, WARPS, DecodeShape, decode_text
from rlx.backends.cuda.hopper.decode import THREADS as DECODE_THREADS
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Load, Ready, TensorForm, block_shared_bytes
from rlx.backends.cuda.hopper.split_attention import split_attention_text
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.memory import DeviceBuffer
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.attention import FAR, AttentionOrigin, Strided, tensor_width
from rlx.kernels.machines import Machine
from rlx.ops.attn.operands import AttentionBase, MaskKind

# Queries of a sequence that are few.
MOST_QUERIES = 8
_INTEGERS = {DType.I32: Integers("i32"), DType.I64: Integers("i64")}


def attention_shape(op: AttentionBase, dtype: DType, depth: int, width: int) -> AttentionShape:
    """That of an attention without operands that say which keys there are, in a kernel for heads that are so wide."""
    return AttentionShape(
        depth,
        width,
        ELEMENTS[DType.BF16 if dtype is DType.F32 else dtype],
        op.num_heads,
        op.num_heads // op.kv_heads,
        op.mask_kind.is_positional,
        op.window if op.mask_kind is MaskKind.SlidingWindow else None,
        op.scale,
        None if op.softcap is None else op.softcap_in(DType.F32),
        None,
        None,
        is_split=dtype is DType.F32,
    )


def row_tile_count(shape: AttentionShape, rows: int) -> int:
    """Of eight rows, in a tile of few rows: registers hold the parts of sixteen queries, or of eight wide ones."""
    return 1 if rows <= 8 or (shape.is_split and shape.depth > 128) else 2


class OfAttention(TensorForm):
    """What all have."""

    def __init__(self, origin: AttentionOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(params, machine, load)
        self.origin = origin
        depth, width = (self.kernel_width(x) for x in (origin.op.head_dim, origin.width))
        self.shape = attention_shape(origin.op, origin.q.dtype, depth, width)._replace(
            lengths=None if origin.lengths is None else _INTEGERS[origin.lengths.dtype],
            positions=None if origin.positions is None else _INTEGERS[origin.positions.dtype],
            has_logs=origin.logs is not None,
        )

    def kernel_width(self, width: int) -> int:
        """Of the heads of a kernel that takes heads which are so wide."""
        return tensor_width(width)

    def sizes(self, words: Sequence[int]) -> tuple[int, int, int] | None:
        """Batch, queries and keys, if there are some, and not too many."""
        batch, queries, keys = (
            self.number(s, words) for s in (self.origin.batch, self.origin.queries, self.origin.keys)
        )
        return None if min(batch, queries, keys) < 1 or max(queries, keys) >= FAR else (batch, queries, keys)

    def address(self, operand: Strided, words: Sequence[int]) -> int:
        return words[self.places[operand.pointer]] + operand.dtype.size_bytes * self.number(operand.offset, words)

    def in_bytes(self, operand: Strided, words: Sequence[int]) -> list[int]:
        """Where an operand begins, and how far it is from batch to batch, head to head and position to position."""
        size = operand.dtype.size_bytes
        return [self.address(operand, words), *(size * self.number(s, words) for s in operand.strides[:3])]

    def seen_keys(self, words: Sequence[int]) -> list[int]:
        """The arguments of `SeenKeys`."""
        operands = [x for x in (self.origin.lengths, self.origin.positions) if x is not None]
        return [n for x in operands for n in (self.address(x, words), *(self.number(s, words) for s in x.strides))]


class AttentionForm(OfAttention):
    """One attention. Code is made when it is first launched, and serves all sizes."""

    name, entry = "wgmma attention", "attention"
    waits = True
    # Of every eight powers, those by a polynomial: benchmarks try others (`cuda_peers.py --groups attention_ways`).
    polynomials = 0

    @property
    def made_shape(self) -> AttentionShape:
        """Polynomials are as near as f16 and bf16 need."""
        return self.shape._replace(polynomials=0 if self.shape.is_split else self.polynomials)

    def ptx(self) -> str:
        make = split_attention_text if self.shape.is_split else attention_text
        text = make(self.entry, self.made_shape, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "attention on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        origin, shape, sizes = self.origin, self.made_shape, self.sizes(words)
        if sizes is None:
            return NOTHING
        batch, queries, keys = sizes
        # Heads as they are: behind them the copy engine reads zeros, and writes nothing.
        kv_heads, depth, width = shape.heads // shape.group, origin.op.head_dim, origin.width
        specs = [
            self._map(origin.k, words, (depth, keys, kv_heads, batch), shape.keys),
            self._map(origin.v, words, (width, keys, kv_heads, batch), shape.keys),
        ]
        rows: list[int] = []
        if shape.is_split:
            # Threads read and write these in words of 16 bytes.
            rows = [n for operand in (origin.q, origin.out) for n in self.in_bytes(operand, words)]
            if any(n % 16 for n in rows):
                return NOTHING
        else:
            specs.insert(0, self._map(origin.q, words, (depth, queries, shape.heads, batch), ROWS))
            # A group of warps stores its half of a tile.
            specs.append(self._map(origin.out, words, (width, queries, shape.heads, batch), ROWS // 2))
        tiles = -(-queries // ROWS)
        work = batch * shape.heads * (-(-tiles // 2) if shape.is_paired else tiles)
        if not all(spec.is_possible for spec in specs) or work >= 2**31:
            return NOTHING
        function = self.function(shape, shape.shared_bytes, repr(shape), self.ptx, gpu)
        arguments = [*rows, tiles, work, queries, keys, *self.seen_keys(words)]
        if origin.logs is not None:
            arguments.append(self.address(origin.logs, words))
        block = ArgumentBlock(len(specs), len(arguments))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        block.set_words(arguments)
        return Ready(function, Launch(min(gpu.info.multiprocessors, work), THREADS, shape.shared_bytes), block)

    def _map(self, operand: Strided, words: Sequence[int], sizes: tuple[int, ...], box: int) -> MapSpec:
        batch, head, position, _ = (self.number(s, words) for s in operand.strides)
        # One of a kind may have any distance to the next.
        strides = tuple(s if size > 1 else 8 for s, size in zip((position, head, batch), sizes[1:]))
        return MapSpec(self.address(operand, words), sizes, strides, (64, box, 1, 1), self.shape.element)


class DecodeForm(OfAttention):
    """The same for few queries: blocks share the keys of a head."""

    name, entry = "mma attention of few rows", "decode"
    waits = True
    # Whether warps read ahead where registers allow it, and keys for which a block more is worth what it costs:
    # benchmarks try others (`cuda_peers.py --groups decode_attention_ways`).
    reads_ahead = False
    least_keys = KEYS * WARPS

    def __init__(self, origin: AttentionOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(origin, params, machine, load)
        # What blocks find, by GPU. Launches follow each other in one stream. Smaller memory of before stays: there may
        # be recorded launches that use it.
        self._found: dict[int, list[DeviceBuffer]] = {}

    def decode_shape(self, tiles: int) -> DecodeShape:
        shape = self.shape
        # Where heads are wide, small chips have room for what eight rows find.
        if DecodeShape(shape, tiles).shared_bytes > block_shared_bytes(self.machine):
            tiles = 1
        has_room = shape.depth + shape.width <= 256 and not (shape.is_split and shape.depth > 64 and tiles > 1)
        return DecodeShape(shape, tiles, self.machine.has_early_launch, self.reads_ahead and has_room)

    def ptx(self, tiles: int) -> str:
        text = decode_text(self.entry, self.decode_shape(tiles), self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "attention of few rows")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        origin, sizes = self.origin, self.sizes(words)
        if sizes is None or sizes[1] > MOST_QUERIES:
            return NOTHING
        batch, queries, keys = sizes
        operands = [n for x in (origin.q, origin.k, origin.v, origin.out) for n in self.in_bytes(x, words)]
        if any(x % 16 for x in operands):
            return NOTHING
        rows = queries * self.shape.group
        shape = self.decode_shape(row_tile_count(self.shape, rows))
        row_tiles = -(-rows // shape.rows)
        items = batch * (self.shape.heads // self.shape.group) * row_tiles
        # As many blocks as there are multiprocessors, and not more than there are keys for.
        splits = max(1, min(gpu.info.multiprocessors // items, -(-keys // self.least_keys)))
        what = f"{shape!r}"
        function = self.function(shape, shape.shared_bytes, what, lambda: self.ptx(shape.tiles), gpu)
        found, counters = self._memory(gpu, items * splits * shape.floats * 4) if splits > 1 else (0, 0)
        arguments = [*operands, found, counters, queries, keys, row_tiles, splits, *self.seen_keys(words)]
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(items * splits, DECODE_THREADS, shape.shared_bytes), block)

    def _memory(self, gpu: Gpu, size: int) -> tuple[int, int]:
        """The addresses of memory for what blocks find, and of counters that are 0 between launches, one for each tile
        of which several blocks share the keys: there are fewer of those than multiprocessors."""
        of_counters = 4 * -(-gpu.info.multiprocessors // 64) * 64
        buffers = self._found.setdefault(id(gpu), [])
        if not buffers or buffers[-1].size < of_counters + size:
            buffers.append(gpu.pool.allocate(of_counters + size, gpu.stream, "attention of few rows"))
            gpu.driver.cuMemsetD8Async(buffers[-1].address, 0, of_counters, gpu.stream.handle)
        return buffers[-1].address + of_counters, buffers[-1].address
