"""What is done to two neighbouring sums of a product before they are stored, as a loop kernel of its own: kernels on
tensor cores call it for every pair that a thread has (`rlx.kernels.ir.pair_calls`)."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, MatrixOperand, Product
from rlx.kernels.gpu.matmul import store_elements
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import Extents
from rlx.kernels.ir.loop_ir import Kernel, Value


def finish_kernel(product: Product) -> Kernel:
    """The epilogue of two neighbouring elements: of those parameters of the product that it needs, then the matrix
    where there are several, row, column, two sums of each product, and two elements of each operand of the epilogue,
    which are read long before."""
    k = KernelBuilder("finish")
    epilogue = product.epilogue
    cs = [MatrixOperand(k, c, write=True, noalias=False, align=pair_bytes(c)) for c in product.cs]
    operands = epilogue.operands if epilogue else ()
    extra = [MatrixOperand(k, e, noalias=False, align=pair_bytes(e)) for e in operands]
    extents = Extents(k)
    m, n = extents(product.m), extents(product.n)
    for operand in (*cs, *extra):
        operand.declare_strides(extents)
    batch = k.as_index(0) if product.batch == 1 else k.index("at_batch")
    row, column = k.index("at_row"), k.index("at_column")
    sums = [[k.scalar(f"sum{b}_{i}", DType.F32) for i in range(2)] for b in range(len(product.bs))]
    read = [[k.scalar(f"read{e}_{i}", o.dtype) for i in range(2)] for e, o in enumerate(operands)]

    def pair(values: Sequence[Value]) -> Value:
        return k.shuffle(k.splat(values[0], 2), (0, 2), k.splat(values[1], 2))

    with k.when(row < m):
        if isinstance(product.n, int) and product.n % 2 == 0:
            with k.when(column < n):
                given = [pair(values) for values in read]
                store_elements(
                    k, epilogue, cs, extra, (batch, row, column), 2, list(map(pair, sums)), pair_bytes, given
                )
        else:
            for i in range(2):
                with k.when(column + i < n):
                    one, given = [s[i] for s in sums], [values[i] for values in read]
                    store_elements(k, epilogue, cs, extra, (batch, row, column + i), 1, one, given=given)
    return k.build()


def pair_bytes(matrix: Matrix) -> int:
    """What the addresses of pairs of elements at even columns are multiples of; 0 where nothing is known."""
    is_even = all(isinstance(s, int) and s % 2 == 0 for s in (matrix.row_stride, matrix.offset))
    is_even &= isinstance(matrix.batch_stride, str) or matrix.batch_stride % 2 == 0
    return 2 * matrix.dtype.size_bytes if is_even and matrix.col_stride == 1 else 0
