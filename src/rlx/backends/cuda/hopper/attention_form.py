"""`AttentionForm`: forward attention on the tensor cores: which have this form, and its launch."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.attention import ROWS, THREADS, AttentionShape, Integers, attention_text
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Load, Ready, TensorForm
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.attention import FAR, AttentionOrigin, Strided
from rlx.kernels.machines import Machine
from rlx.ops.attn.operands import MaskKind

_INTEGERS = {DType.I32: Integers("i32"), DType.I64: Integers("i64")}


def attention_refusal(origin: AttentionOrigin) -> str:
    """Why an attention has no form; empty if it has one."""
    if not origin.refusal and any(x.strides[3] != 1 for x in (origin.q, origin.k, origin.v)):
        return "strides"
    return origin.refusal


class AttentionForm(TensorForm):
    """One attention. Code is made when it is first launched, and serves all sizes."""

    name, entry = "wgmma attention", "attention"

    def __init__(self, origin: AttentionOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(params, machine, load)
        self.origin, op = origin, origin.op
        self.shape = AttentionShape(
            op.head_dim,
            origin.width,
            ELEMENTS[origin.q.dtype],
            op.num_heads,
            op.num_heads // op.kv_heads,
            op.mask_kind.is_positional,
            op.window if op.mask_kind is MaskKind.SlidingWindow else None,
            op.scale,
            None if op.softcap is None else op.softcap_in(DType.F32),
            None if origin.lengths is None else _INTEGERS[origin.lengths.dtype],
            # They matter for positional masks alone.
            None if origin.positions is None else _INTEGERS[origin.positions.dtype],
        )

    def ptx(self) -> str:
        text = attention_text(self.entry, self.shape, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "attention on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        origin, shape = self.origin, self.shape
        batch, queries, keys = (self.number(s, words) for s in (origin.batch, origin.queries, origin.keys))
        if min(batch, queries, keys) < 1 or max(queries, keys) >= FAR:
            return NOTHING
        kv_heads = shape.heads // shape.group
        specs = [
            self._map(origin.q, words, (shape.depth, queries, shape.heads, batch), ROWS),
            self._map(origin.k, words, (shape.depth, keys, kv_heads, batch), shape.keys),
            self._map(origin.v, words, (shape.width, keys, kv_heads, batch), shape.keys),
            # A group of warps stores its half of a tile.
            self._map(origin.out, words, (shape.width, queries, shape.heads, batch), ROWS // 2),
        ]
        tiles = -(-queries // ROWS)
        work = batch * shape.heads * (-(-tiles // 2) if shape.is_paired else tiles)
        if not all(spec.is_possible for spec in specs) or work >= 2**31:
            return NOTHING
        integers: list[int] = []
        if origin.lengths is not None:
            integers += [self._address(origin.lengths, words), self.number(origin.lengths.strides[0], words)]
        if origin.positions is not None:
            steps = (self.number(s, words) for s in origin.positions.strides)
            integers += [self._address(origin.positions, words), *steps]
        function = self.function((), shape.shared_bytes, repr(shape), self.ptx, gpu)
        block = ArgumentBlock(len(specs), 4 + len(integers))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        block.set_words([tiles, work, queries, keys, *integers])
        return Ready(function, Launch(min(gpu.info.multiprocessors, work), THREADS, shape.shared_bytes), block)

    def _address(self, operand: Strided, words: Sequence[int]) -> int:
        return words[self.places[operand.pointer]] + operand.dtype.size_bytes * self.number(operand.offset, words)

    def _map(self, operand: Strided, words: Sequence[int], sizes: tuple[int, ...], box: int) -> MapSpec:
        batch, head, position, _ = (self.number(s, words) for s in operand.strides)
        # One of a kind may have any distance to the next.
        strides = tuple(s if size > 1 else 8 for s, size in zip((position, head, batch), sizes[1:]))
        return MapSpec(self._address(operand, words), sizes, strides, (64, box, 1, 1), self.shape.element)
