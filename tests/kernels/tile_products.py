"""Products of one matrix with one or two others, and small tiles for the interpreter."""

from __future__ import annotations

from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.gpu.matmul_groups import GroupTiles

# As on the GPU, but small: two groups of four rows, eight columns, four elements along K.
SMALL = GroupTiles(columns=8, depth=4, stages=3, rows=4, groups=2, slab=4, band=2)


def product_of(m, n, k, dtype=DType.BF16, a_turned=False, b_turned=False, epilogue=None, products=1):
    a = Matrix("a", dtype, *((1, m) if a_turned else (k, 1)))
    bs = tuple(Matrix(f"b{i}", dtype, *((1, k) if b_turned else (n, 1))) for i in range(products))
    return Product(m, n, k, a, bs, Matrix("c", DType.F32, n), epilogue)
