"""Kernels that access memory in whole vectors, and the same for memory that does not begin at one.

Buffers of programs begin at multiples of 256 bytes; views into them and rows of a loop may begin anywhere.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Load, Space, Statement, Store
from rlx.kernels.ir.rewrite import Copier


def needed_alignments(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """The parameters, by number, whose addresses must be multiples of more than an element, and of what."""
    params = enumerate(kernel.params)
    return tuple((n, p.align) for n, p in params if isinstance(p, Buffer) and p.align > p.dtype.size_bytes)


def without_alignment(kernel: Kernel) -> Kernel:
    """The same kernel for parameters at any address of an element."""
    lowered = {p: replace(p, align=p.dtype.size_bytes) for p in kernel.params if isinstance(p, Buffer)}
    params = [lowered[p] if isinstance(p, Buffer) else p for p in kernel.params]
    builder = KernelBuilder(kernel.name)
    copier = _Lowering(builder, builder.adopt(Kernel(kernel.name, params, kernel.arrays, kernel.body)))
    copier.buffers = lowered
    copier.block(kernel.body)
    return builder.build()


class _Lowering(Copier):
    buffers: dict[Buffer, Buffer]

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, Load | Store) and statement.buffer.space is Space.GLOBAL:
            align = statement.buffer.dtype.size_bytes
            statement = replace(statement, buffer=self.buffers[statement.buffer], align=align)
        super().statement(statement)
