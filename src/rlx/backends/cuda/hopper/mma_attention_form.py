"""`MmaAttentionForm`: attention of many rows on chips without wgmma, from sm_80 on, and on Hopper where a mask or sinks
are operands; and which ways an attention has."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.attention_form import AttentionForm, DecodeForm, OfAttention
from rlx.backends.cuda.hopper.attention_shape import AttentionShape
from rlx.backends.cuda.hopper.launching import NOTHING, Ready, block_shared_bytes
from rlx.backends.cuda.hopper.mma_attention import Mask, MmaAttentionShape, mma_attention_text
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Launch
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.attention import AttentionOrigin, has_own_scores
from rlx.kernels.machines import Machine
from rlx.ops.attn.operands import MaskKind


def attention_ways(origin: AttentionOrigin, machine: Machine) -> tuple[tuple[type[OfAttention], ...], str]:
    """The forms of an attention, in the order in which they are asked; or why there is none. That of few rows gives no
    logarithms."""
    if any(x.strides[3] != 1 for x in (origin.q, origin.k, origin.v)):
        return (), origin.refusal or "strides"
    ways: list[type[OfAttention]] = []
    if not origin.few_refusal and origin.logs is None:
        ways.append(DecodeForm)
    if not origin.refusal:
        ways.append(AttentionForm if machine.has_wgmma and not has_own_scores(origin.op) else MmaAttentionForm)
    return tuple(ways), "" if ways else origin.refusal


def mma_attention_shape(
    attention: AttentionShape, machine: Machine, blocks: int, multiprocessors: int
) -> MmaAttentionShape:
    """Tiles for `blocks` times as many queries as a tall tile has. What a warp reads of keys and values serves all its
    rows, so it has 32 of them where registers hold the sums, and there are tiles enough."""
    widest = max(attention.depth, attention.width)
    keys = 64
    if widest <= 128:
        return MmaAttentionShape(attention, 4, 2 if blocks >= multiprocessors else 1, keys)
    large = MmaAttentionShape(attention, 8, 1, keys)
    return large if large.shared_bytes <= block_shared_bytes(machine) else large._replace(warps=4)


class MmaAttentionForm(OfAttention):
    """One attention. Code is made when it is first launched, and serves all sizes."""

    name, entry = "mma attention", "mma_attention"
    waits = True

    def kernel_width(self, width: int) -> int:
        """Threads fill up what is missing."""
        return width

    def made_shape(self, blocks: int, multiprocessors: int) -> MmaAttentionShape:
        origin, mask = self.origin, None
        if origin.mask is not None:
            step = origin.mask.strides[3]
            is_bias = origin.op.mask_kind is MaskKind.Bias
            mask = Mask(is_bias, origin.mask.dtype.value, step if isinstance(step, int) else None)
        shape = mma_attention_shape(self.shape, self.machine, blocks, multiprocessors)
        return shape._replace(mask=mask, has_sinks=origin.sinks is not None, begins_early=self.machine.has_early_launch)

    def ptx(self, shape: MmaAttentionShape) -> str:
        text = mma_attention_text(self.entry, shape, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "attention on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        origin, sizes = self.origin, self.sizes(words)
        if sizes is None:
            return NOTHING
        batch, queries, keys = sizes
        operands = [n for x in (origin.q, origin.k, origin.v, origin.out) for n in self.in_bytes(x, words)]
        if any(n % 16 for n in operands):
            return NOTHING
        heads = batch * self.shape.heads
        shape = self.made_shape(heads * -(-queries // 128), gpu.info.multiprocessors)
        tiles = -(-queries // shape.rows)
        if heads * tiles >= 2**31:
            return NOTHING
        arguments = [*operands, tiles, queries, keys, *self.seen_keys(words)]
        if origin.mask is not None:
            step = origin.mask.dtype.size_bytes * self.number(origin.mask.strides[3], words)
            arguments += [*self.in_bytes(origin.mask, words), step]
        if origin.sinks is not None:
            step = origin.sinks.dtype.size_bytes * self.number(origin.sinks.strides[0], words)
            arguments += [self.address(origin.sinks, words), step]
        if origin.logs is not None:
            arguments.append(self.address(origin.logs, words))
        function = self.function(shape, shape.shared_bytes, repr(shape), lambda: self.ptx(shape), gpu)
        block = ArgumentBlock(0, len(arguments))
        block.set_words(arguments)
        return Ready(function, Launch(heads * tiles, shape.threads, shape.shared_bytes), block)
