"""The epilogue of a product in a kernel that is LLVM text: a function made from loop IR, of two neighbouring elements.

`finish_of` makes the function for a product and says what it reads; `EpilogueWriter` writes the reads and the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rlx.backends.cuda.hopper.writer import Val, Writer
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.emit.llvm_text import ELEMENT, llvm_type
from rlx.kernels.gpu.pair_finish import pair_bytes
from rlx.kernels.ir.extents import Extent
from rlx.kernels.ir.loop_ir import Buffer, Const, Kernel, Value
from rlx.kernels.ir.pair_calls import PairCall
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import Machine


class OperandRead(NamedTuple):
    """How an operand of the epilogue is read: its pointer, the LLVM type and bytes of an element, and strides and
    offset in elements, as numbers or names of parameters. `in_pairs`: two elements from an even column on are one word
    of memory, and there is an even number of columns. `batch_stride` is that from matrix to matrix."""

    pointer: str
    element: str
    size: int
    row_stride: int | str
    column_stride: int | str
    offset: int | str
    in_pairs: bool
    batch_stride: int | str = 0


class FinishCall(NamedTuple):
    """The epilogue as LLVM text, the names and types of its first parameters, which are those of the kernel, too; then
    come the matrix, where there are several, row and column (i64), two sums of each product, and two elements of each
    of `reads`. `sizes` are m and n."""

    text: str
    params: tuple[tuple[str, str], ...]
    reads: tuple[OperandRead, ...]
    sizes: tuple[int | str, int | str]


class EpilogueWriter:
    """Declares what the epilogue needs as parameters of a kernel, the last ones, and writes its calls."""

    def __init__(self, w: Writer, call: FinishCall) -> None:
        self.w, self.call = w, call
        self.passed = [w.param(name, type) for name, type in call.params]
        # Which of several matrices it is about (i64).
        self.matrix: Val | None = None

    def read(self, row: Val, column: Val) -> list[Val]:
        """What the epilogue of a pair reads beside the sums."""
        return [value for operand in self.call.reads for value in self.pair(operand, row, column)]

    def finish(self, row: Val, column: Val, sums: Sequence[Val], read: Sequence[Val]) -> None:
        """Finish and store a pair: two sums of each product, and what was read."""
        which = () if self.matrix is None else (self.matrix,)
        arguments = [f"{v.type} {v.name}" for v in (*self.passed, *which, row, column, *sums, *read)]
        self.w.line(f"call void @finish({', '.join(arguments)})")

    def pair(self, operand: OperandRead, row: Val, column: Val) -> list[Val]:
        """Two neighbouring elements of an operand; for places outside of it those of the last row and column."""
        w = self.w
        m, n = (Val(w, str(size), "i64") for size in self.call.sizes)
        row_stride, column_stride, offset = (
            Val(w, str(s), "i64") for s in (operand.row_stride, operand.column_stride, operand.offset)
        )
        start = self.inside(row, m) * row_stride + offset
        if self.matrix is not None and operand.batch_stride != 0:
            start = start + self.matrix * Val(w, str(operand.batch_stride), "i64")
        if operand.in_pairs:
            even = w.emit(f"select i1 {(column < n).name}, i64 {column.name}, i64 0", "i64")
            kind = f"<2 x {operand.element}>"
            both = self.load(operand, start + even, kind, 2 * operand.size)
            return [w.emit(f"extractelement {kind} {both.name}, i32 {i}", operand.element) for i in range(2)]
        found: list[Val] = []
        for i in range(2):
            if i and operand.column_stride == 0:
                return [*found, *found]
            place = start + self.inside(column + i, n) * column_stride
            found.append(self.load(operand, place, operand.element, operand.size))
        return found

    def load(self, operand: OperandRead, place: Val, kind: str, align: int) -> Val:
        pointer = f"ptr addrspace(1) {operand.pointer}"
        address = self.w.emit(f"getelementptr {operand.element}, {pointer}, i64 {place.name}", "ptr addrspace(1)")
        return self.w.emit(f"load {kind}, ptr addrspace(1) {address.name}, align {align}", kind)

    def inside(self, index: Val, size: Val) -> Val:
        last = size - 1
        return self.w.emit(f"select i1 {(index < size).name}, i64 {index.name}, i64 {last.name}", "i64")


def _size(extent: Extent) -> int | str:
    return extent if isinstance(extent, int) else f"%{extent}"


def _read_of(matrix: Matrix, n: Extent) -> OperandRead:
    in_pairs = isinstance(n, int) and n % 2 == 0 and pair_bytes(matrix) > 0
    row, column, offset = (_size(s) for s in (matrix.row_stride, matrix.col_stride, matrix.offset))
    element, size = ELEMENT[matrix.dtype], matrix.dtype.size_bytes
    batch = _size(matrix.batch_stride)
    return OperandRead(f"%{matrix.name}", element, size, row, column, offset, in_pairs, batch)


def finish_of(product: Product, finish: Kernel, machine: Machine) -> FinishCall:
    """The function of `finish_kernel` as LLVM text, and how it is called."""
    passed = [p for p in finish.params if isinstance(p, Buffer) or not p.name.startswith(("at_", "sum", "read"))]
    operands = product.epilogue.operands if product.epilogue else ()
    reads = tuple(_read_of(operand, product.n) for operand in operands)
    return FinishCall(_function(finish, machine), _types(passed), reads, (_size(product.m), _size(product.n)))


def finish_of_pairs(call: PairCall, machine: Machine) -> FinishCall:
    """The same of a statement of loop IR that calls it."""
    width = _extent(call.width)
    reads = []
    for read in call.reads:
        offset, row_stride, col_stride = map(_extent, read.operands())
        matrix = Matrix(read.buffer.name, read.buffer.dtype, row_stride, col_stride, offset=offset)
        reads.append(_read_of(matrix, width))
    sizes = (_size(_extent(call.height)), _size(width))
    return FinishCall(_function(call.function, machine), _types(call.outer_params()), tuple(reads), sizes)


def _extent(value: Value) -> Extent:
    return int(value.literal) if isinstance(value, Const) else value.name


def _function(finish: Kernel, machine: Machine) -> str:
    # The kernel that it becomes a part of has waited already.
    inner = replace(machine, has_early_launch=False)
    text = emit_llvm(legalize(finish, inner), inner)
    head, body = text.split("define ptx_kernel void @finish(", 1)
    signature, rest = body.split("{\n", 1)
    parameters = signature[: signature.rindex(")")]
    declared = head.split("\n", 1)[1]
    return f"{declared}define internal void @finish({parameters}) alwaysinline {{\n{rest}"


def _types(params: Sequence[Buffer | Value]) -> tuple[tuple[str, str], ...]:
    return tuple((p.name, "ptr addrspace(1)" if isinstance(p, Buffer) else llvm_type(p.type)) for p in params)
