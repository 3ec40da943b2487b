"""The epilogue of a product in a kernel that is LLVM text: a function made from loop IR, of two neighbouring elements.

`finish_of` makes the function for a product and says what it reads; `EpilogueWriter` writes the reads and the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rlx.backends.cuda.hopper.writer import Val, Writer
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, MatrixOperand, Product
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.emit.llvm_text import ELEMENT, llvm_type
from rlx.kernels.gpu.matmul import store_elements
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent, Extents
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import Machine


class OperandRead(NamedTuple):
    """How an operand of the epilogue is read: its pointer, the LLVM type and bytes of an element, and strides and
    offset in elements, as numbers or names of parameters. `in_pairs`: two elements from an even column on are one word
    of memory, and there is an even number of columns."""

    pointer: str
    element: str
    size: int
    row_stride: int | str
    column_stride: int | str
    offset: int | str
    in_pairs: bool


class FinishCall(NamedTuple):
    """The epilogue as LLVM text, the names and types of its first parameters, which are those of the kernel, too; then
    come row and column (i64), two sums of each product, and two elements of each of `reads`. `sizes` are m and n."""

    text: str
    params: tuple[tuple[str, str], ...]
    reads: tuple[OperandRead, ...]
    sizes: tuple[int | str, int | str]


class EpilogueWriter:
    """Declares what the epilogue needs as parameters of a kernel, the last ones, and writes its calls."""

    def __init__(self, w: Writer, call: FinishCall) -> None:
        self.w, self.call = w, call
        self.passed = [w.param(name, type) for name, type in call.params]

    def read(self, row: Val, column: Val) -> list[Val]:
        """What the epilogue of a pair reads beside the sums."""
        return [value for operand in self.call.reads for value in self.pair(operand, row, column)]

    def finish(self, row: Val, column: Val, sums: Sequence[Val], read: Sequence[Val]) -> None:
        """Finish and store a pair: two sums of each product, and what was read."""
        arguments = [f"{v.type} {v.name}" for v in (*self.passed, row, column, *sums, *read)]
        self.w.line(f"call void @finish({', '.join(arguments)})")

    def pair(self, operand: OperandRead, row: Val, column: Val) -> list[Val]:
        """Two neighbouring elements of an operand; for places outside of it those of the last row and column."""
        w = self.w
        m, n = (Val(w, str(size), "i64") for size in self.call.sizes)
        row_stride, column_stride, offset = (
            Val(w, str(s), "i64") for s in (operand.row_stride, operand.column_stride, operand.offset)
        )
        start = self.inside(row, m) * row_stride + offset
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


def finish_kernel(product: Product) -> Kernel:
    """The epilogue of two neighbouring elements: of those parameters of the product that it needs, then row, column,
    two sums of each product, and two elements of each operand of the epilogue, which are read long before."""
    k = KernelBuilder("finish")
    epilogue = product.epilogue
    cs = [MatrixOperand(k, c, write=True, noalias=False, align=_pair_bytes(c)) for c in product.cs]
    operands = epilogue.operands if epilogue else ()
    extra = [MatrixOperand(k, e, noalias=False, align=_pair_bytes(e)) for e in operands]
    extents = Extents(k)
    m, n = extents(product.m), extents(product.n)
    for operand in (*cs, *extra):
        operand.declare_strides(extents)
    row, column = k.index("at_row"), k.index("at_column")
    sums = [[k.scalar(f"sum{b}_{i}", DType.F32) for i in range(2)] for b in range(len(product.bs))]
    read = [[k.scalar(f"read{e}_{i}", o.dtype) for i in range(2)] for e, o in enumerate(operands)]
    zero = k.as_index(0)

    def pair(values: Sequence[Value]) -> Value:
        return k.shuffle(k.splat(values[0], 2), (0, 2), k.splat(values[1], 2))

    with k.when(row < m):
        if isinstance(product.n, int) and product.n % 2 == 0:
            with k.when(column < n):
                given = [pair(values) for values in read]
                store_elements(
                    k, epilogue, cs, extra, (zero, row, column), 2, list(map(pair, sums)), _pair_bytes, given
                )
        else:
            for i in range(2):
                with k.when(column + i < n):
                    one, given = [s[i] for s in sums], [values[i] for values in read]
                    store_elements(k, epilogue, cs, extra, (zero, row, column + i), 1, one, given=given)
    return k.build()


def _pair_bytes(matrix: Matrix) -> int:
    """What the addresses of pairs of elements at even columns are multiples of; 0 where nothing is known."""
    is_even = all(isinstance(s, int) and s % 2 == 0 for s in (matrix.row_stride, matrix.offset))
    return 2 * matrix.dtype.size_bytes if is_even and matrix.col_stride == 1 else 0


def _size(extent: Extent) -> int | str:
    return extent if isinstance(extent, int) else f"%{extent}"


def _read_of(matrix: Matrix, n: Extent) -> OperandRead:
    in_pairs = isinstance(n, int) and n % 2 == 0 and _pair_bytes(matrix) > 0
    row, column, offset = (_size(s) for s in (matrix.row_stride, matrix.col_stride, matrix.offset))
    element, size = ELEMENT[matrix.dtype], matrix.dtype.size_bytes
    return OperandRead(f"%{matrix.name}", element, size, row, column, offset, in_pairs)


def finish_of(product: Product, finish: Kernel, machine: Machine) -> FinishCall:
    """The function of `finish_kernel` as LLVM text, and how it is called."""
    # The kernel that it becomes a part of has waited already.
    inner = replace(machine, has_early_launch=False)
    text = emit_llvm(legalize(finish, inner), inner)
    head, body = text.split("define ptx_kernel void @finish(", 1)
    signature, rest = body.split("{\n", 1)
    parameters = signature[: signature.rindex(")")]
    declared = head.split("\n", 1)[1]
    function = f"{declared}define internal void @finish({parameters}) alwaysinline {{\n{rest}"
    passed = [p for p in finish.params if isinstance(p, Buffer) or not p.name.startswith(("at_", "sum", "read"))]
    types = tuple((p.name, "ptr addrspace(1)" if isinstance(p, Buffer) else llvm_type(p.type)) for p in passed)
    operands = product.epilogue.operands if product.epilogue else ()
    reads = tuple(_read_of(operand, product.n) for operand in operands)
    return FinishCall(function, types, reads, (_size(product.m), _size(product.n)))
