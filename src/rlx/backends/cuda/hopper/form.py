"""`hopper_form`: the tensor-core kernel of a product, if it has one, and how it is launched.

The loop kernel of the product stays what it means, and what runs where the copy engine cannot read an operand or there
are too few rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.device import Gpu
from rlx.backends.cuda.hopper.launching import ELEMENTS, NOTHING, Load, Ready, TensorForm
from rlx.backends.cuda.hopper.product import ROWS, THREADS, FinishCall, OperandRead, ProductShape, product_text
from rlx.backends.cuda.hopper.tensor_maps import ArgumentBlock, MapSpec, encode
from rlx.backends.cuda.modules import Launch
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, MatrixOperand, Product
from rlx.kernels.emit.llvm_codegen import compile_optimized_assembly
from rlx.kernels.emit.llvm_emit import emit_llvm
from rlx.kernels.emit.llvm_text import ELEMENT, llvm_type
from rlx.kernels.gpu.matmul import store_elements
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extent, Extents
from rlx.kernels.ir.loop_ir import Buffer, Kernel, Value
from rlx.kernels.legalize import legalize
from rlx.kernels.machines import Machine

# One row is a matter of the memory's speed alone.
FEWEST_ROWS = 2

# What a column costs in tiles that are so many times narrower than the widest: A is read more often. Estimates.
_COSTS = {1: 1.0, 2: 1.1, 4: 1.4}


def hopper_form(product: Product, acc: DType, params: Sequence[str], machine: Machine, load: Load) -> HopperForm | None:
    """The form of a product of f16 or bf16 with sums in f32, of which A lies side by side along K; `params` are the
    names of the parameters of its loop kernel."""
    if product_refusal(product, acc, machine):
        return None
    return HopperForm(product, params, machine, load)


def product_refusal(product: Product, acc: DType, machine: Machine) -> str:
    """Why a product has no form; empty if it has one."""
    a, bs = product.a, product.bs
    if machine.name != "sm_90a":
        return f"{machine.name} has no wgmma"
    if a.dtype not in ELEMENTS or any(b.dtype is not a.dtype for b in bs):
        return f"{a.dtype} @ {bs[0].dtype}"
    if acc is not DType.F32:
        return f"sums in {acc}"
    if len(bs) > 2:
        return f"{len(bs)} products of one A"
    if product.batch != 1:
        return "batches"
    along_k = all(b.row_stride == 1 for b in bs)
    if a.col_stride != 1 or (not along_k and any(b.col_stride != 1 for b in bs)):
        return "strides"
    if isinstance(product.m, int) and product.m < FEWEST_ROWS:
        return "one row"
    # Bools are bytes in memory and bits in code.
    if product.epilogue is not None and any(e.dtype is DType.BOOL for e in product.epilogue.operands):
        return "an epilogue that reads bool"
    return ""


class HopperForm(TensorForm):
    """One product. Code is made when it is first launched, for wide tiles of C or, where those are too few to fill the
    GPU, for narrow ones."""

    name, entry = "wgmma tiles", "product"

    def __init__(self, product: Product, params: Sequence[str], machine: Machine, load: Load) -> None:
        super().__init__(params, machine, load)
        self.product, self._element = product, ELEMENTS[product.a.dtype]
        self._along_k = all(b.row_stride == 1 for b in product.bs)
        self._finish = _finish_kernel(product)
        self._passed = [self.places[p.name] for p in self._finish.params if p.name in self.places]
        buffers = [p for p in self._finish.params if isinstance(p, Buffer)]
        self._aligned = [(self.places[p.name], p.align) for p in buffers]

    def ptx(self, columns: int) -> str:
        """The code for tiles of so many columns of each product."""
        return _ptx(self._shape(columns), self.machine, self._finish, self.product)

    def _shape(self, columns: int) -> ProductShape:
        return ProductShape(columns, len(self.product.bs), self._along_k, self._element)

    def prepared(self, words: Sequence[int], gpu: Gpu) -> Ready:
        product = self.product
        m, n, k = (self.number(s, words) for s in (product.m, product.n, product.k))
        if m < FEWEST_ROWS or k == 0:
            return NOTHING
        columns = self._columns(m, n, gpu)
        specs = [self._map(product.a, words, (m, k), ROWS)]
        for b in product.bs:
            size, box = ((n, k), columns) if self._along_k else ((k, n), 64)
            specs.append(self._map(b, words, size, box))
        aligned = (words[place] % align == 0 for place, align in self._aligned)
        if not all(spec.is_possible for spec in specs) or not all(aligned):
            return NOTHING
        shape = self._shape(columns)
        what = f"{shape}\0{product}\0{self._finish.text}"
        function = self.function(columns, shape.shared_bytes, what, lambda: self.ptx(columns), gpu)
        block = ArgumentBlock(len(specs), 3 + len(self._passed))
        for number, spec in enumerate(specs):
            encode(gpu, spec, block.map_at(number))
        tiles = [-(-m // ROWS), -(-n // columns), -(-k // 64)]
        block.set_words([*tiles, *(words[i] for i in self._passed)])
        blocks = min(gpu.info.multiprocessors, tiles[0] * tiles[1])
        return Ready(function, Launch(blocks, THREADS, shape.shared_bytes), block)

    def _columns(self, m: int, n: int, gpu: Gpu) -> int:
        """Of a tile: those with which the multiprocessor that has most to do needs the least time."""
        wide = 256 // len(self.product.bs)

        def longest(columns: int) -> float:
            tiles = -(-m // ROWS) * -(-n // columns)
            return -(-tiles // gpu.info.multiprocessors) * columns * _COSTS[wide // columns]

        # The copy engine brings at least 64 columns.
        return min((c for c in (wide, wide // 2, wide // 4) if c >= 64), key=longest)

    def _map(self, matrix: Matrix, words: Sequence[int], size: tuple[int, int], box: int) -> MapSpec:
        is_turned = matrix is not self.product.a and self._along_k
        pitch = self.number(matrix.col_stride if is_turned else matrix.row_stride, words)
        address = words[self.places[matrix.name]] + 2 * self.number(matrix.offset, words)
        # One row may have any distance to the next.
        return MapSpec.matrix(address, *size, pitch if size[0] > 1 else -(-size[1] // 8) * 8, box, self._element)


def _finish_kernel(product: Product) -> Kernel:
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


def _ptx(shape: ProductShape, machine: Machine, finish: Kernel, product: Product) -> str:
    text = emit_llvm(legalize(finish, machine), machine)
    head, body = text.split("define ptx_kernel void @finish(", 1)
    signature, rest = body.split("{\n", 1)
    parameters = signature[: signature.rindex(")")]
    declared = head.split("\n", 1)[1]
    function = f"{declared}define internal void @finish({parameters}) alwaysinline {{\n{rest}"
    passed = [p for p in finish.params if isinstance(p, Buffer) or not p.name.startswith(("at_", "sum", "read"))]
    types = tuple((p.name, "ptr addrspace(1)" if isinstance(p, Buffer) else llvm_type(p.type)) for p in passed)
    operands = product.epilogue.operands if product.epilogue else ()
    reads = tuple(_read_of(operand, product.n) for operand in operands)
    sizes = (_size(product.m), _size(product.n))
    module = product_text("product", shape, FinishCall(function, types, reads, sizes), machine.triple)
    return compile_optimized_assembly(module, machine, "a product on tensor cores")
