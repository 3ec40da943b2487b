"""`PairCall`: a group gives each two neighbouring elements of its fragments to a function, which is a loop kernel.

Whoever has a pair calls it, in any order. The parameters of the kernel are found by name among those of the kernel
around; the others are, in this order: `at_row` and `at_column` of the pair, `sum{f}_{i}`, its elements of fragment f,
and `read{e}_{i}`, those of operand e at the same place, which may be read long before; for places outside of it, those
of the last row and column.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.kernels.ir.loop_ir import Buffer, GroupStatement, Kernel, Value
from rlx.kernels.ir.regions import Renew, Use


@dataclass(frozen=True, eq=False)
class PairRead:
    """A matrix that calls read: its buffer, where it begins, and its strides."""

    buffer: Buffer
    offset: Value
    row_stride: Value
    col_stride: Value

    def operands(self) -> tuple[Value, ...]:
        return (self.offset, self.row_stride, self.col_stride)


@dataclass(eq=False, slots=True)
class PairCall(GroupStatement):
    """Fragments of one shape, whose first element is that of `row` and `col` of matrices of `height` x `width`."""

    fragments: tuple[Buffer, ...]
    row: Value
    col: Value
    height: Value
    width: Value
    reads: tuple[PairRead, ...]
    function: Kernel

    def operands(self) -> tuple[Value, ...]:
        return (self.row, self.col, self.height, self.width, *(v for read in self.reads for v in read.operands()))

    def text(self, use: Use) -> str:
        names = ", ".join(f.name for f in self.fragments)
        place = f"at {use(self.row)}, {use(self.col)} of {use(self.height)}x{use(self.width)}"
        read = "".join(
            f" read {r.buffer.name}[{use(r.offset)}] stride {use(r.row_stride)}, {use(r.col_stride)}"
            for r in self.reads
        )
        return f"call {self.function.name} of pairs of {names} {place}{read}"

    def renewed(self, new: Renew) -> PairCall:
        row, col, height, width = (new(v) for v in (self.row, self.col, self.height, self.width))
        reads = tuple(PairRead(r.buffer, *map(new, r.operands())) for r in self.reads)
        return PairCall(self.fragments, row, col, height, width, reads, self.function)

    def outer_params(self) -> list[Buffer | Value]:
        """Parameters of the function that are those of the kernel around."""
        own = ("at_row", "at_column", "sum", "read")
        return [p for p in self.function.params if isinstance(p, Buffer) or not p.name.startswith(own)]
