"""`MmaGradientForm`: the gradients of attention on chips without wgmma, from sm_80 on, and their launches.

Three or four kernels follow each other: the sums of dy*y of all queries, then dq, then dk and dv.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.gradient_form import OfGradients, Sums
from rlx.backends.cuda.hopper.launching import NOTHING, Load, Ready, block_shared_bytes
from rlx.backends.cuda.hopper.mma_gradients import THREADS, MmaGradientShape, mma_gradients_text
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock
from rlx.backends.cuda.modules import Launch
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.gpu.attention import FAR, GradientOrigin, Strided
from rlx.kernels.machines import Machine

# Heads of which registers hold the sums of two operands, and those of 32 rows of a warp.
_BOTH, _TALL = 128, 64


class MmaGradientForm(OfGradients):
    """The gradients of one attention."""

    name, entry = "mma gradients", "mma_gradients"

    def __init__(self, origin: GradientOrigin, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(origin, params, machine, load)
        self.sums = Sums(origin, params, machine, load)

    def shapes(self) -> list[MmaGradientShape]:
        """Of the kernels behind that of the sums."""
        attention = self.shape.attention
        parts = ("q", "kv") if attention.depth <= _BOTH else ("q", "k", "v")
        tall = 2 if attention.depth <= _TALL else 1
        shapes = [MmaGradientShape(attention, x, tall, 32) for x in parts]
        room = block_shared_bytes(self.machine)
        return [shape if shape.shared_bytes <= room else shape._replace(others=16) for shape in shapes]

    def ptx(self, shape: MmaGradientShape) -> str:
        text = mma_gradients_text(self.entry, shape, self.machine.triple)
        return compile_optimized_assembly(text, self.machine, "gradients of attention on tensor cores")

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        origin, attention = self.origin, self.shape.attention
        batch, queries, keys = self.sizes(words)
        if min(batch, queries, keys) < 1 or max(queries, keys) >= FAR:
            return NOTHING
        operands = [self.in_bytes(x, words) for x in (origin.q, origin.k, origin.v, origin.dy)]
        results = {"q": self.in_bytes(origin.dq, words), "k": self.in_bytes(origin.dk, words)}
        results["v"] = self.in_bytes(origin.dv, words)
        if any(n % 16 for operand in (*operands, *results.values()) for n in operand):
            return NOTHING
        sums = self.sums.prepared(words, gpu)
        if sums.function is None:
            return NOTHING
        means = [self.sums.place(words, gpu), 4 * attention.heads * queries, 4 * queries, 4]
        ready = [sums]
        for shape in self.shapes():
            rows, heads = (
                (queries, attention.heads) if shape.sums == "q" else (keys, attention.heads // attention.group)
            )
            tiles = -(-rows // shape.rows)
            if batch * heads * tiles >= 2**31:
                return NOTHING
            arguments = [n for operand in operands for n in operand]
            arguments += [n for x in shape.sums for n in results[x]]
            arguments += [*self.in_bytes(origin.logs, words), *means, tiles, queries, keys]
            function = self.function(shape, shape.shared_bytes, repr(shape), partial(self.ptx, shape), gpu)
            block = ArgumentBlock(0, len(arguments))
            block.set_words(arguments)
            ready.append(Ready(function, Launch(batch * heads * tiles, THREADS, shape.shared_bytes), block))
        return ready[-1]._replace(before=tuple(ready[:-1]))

    def in_bytes(self, operand: Strided, words: Sequence[int]) -> list[int]:
        """Where an operand begins, and how far it is along its first three axes."""
        size = operand.dtype.size_bytes
        return [self.address(operand, words), *(size * self.number(s, words) for s in operand.strides[:3])]
