"""What a product computes: matrices in memory, what is done to the sums, and how the second matrix is stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlx.compile.fuse.matmul_nest import WindowForm
from rlx.errors import InternalError
from rlx.ir.dtype import DType
from rlx.kernels.ir.extents import Extent
from rlx.kernels.specs.expr import Expr
from rlx.quant.panels import PanelFormat


@dataclass(frozen=True)
class Matrix:
    """A matrix operand: `offset + batch*batch_stride + i*row_stride + j*col_stride`, in elements."""

    name: str
    dtype: DType
    row_stride: Extent
    col_stride: Extent = 1
    batch_stride: Extent = 0
    offset: Extent = 0


@dataclass(frozen=True)
class Epilogue:
    """What is done to the products before they are stored. The first operands of `exprs` are the sums of the products,
    the others are `operands`, read at the element's place: a bias has row_stride 0, a scale per row col_stride 0,
    a residual neither. `index` axes are batch, row, column. There is one expression for each result.
    """

    exprs: tuple[Expr, ...]
    operands: tuple[Matrix, ...] = ()


@dataclass(frozen=True)
class Product:
    """What a product kernel computes: C[batch, m, n] = epilogue(A[batch, m, k] @ B[batch, k, n], ..).

    Several Bs are several products of the same A, which the epilogue makes the Cs of; one of its operands may be the
    same memory as a C. The kernel has these parameters: pointers of A, the Bs, the Cs and the epilogue's operands, then
    every named extent once, in the order m, n, k, batch and (batch, row, column) strides and offset of A, the Bs, the
    Cs and the operands.
    """

    m: Extent
    n: Extent
    k: Extent
    a: Matrix
    b: Matrix | tuple[Matrix, ...]
    c: Matrix | tuple[Matrix, ...]
    epilogue: Epilogue | None = None
    batch: Extent = 1

    @property
    def bs(self) -> tuple[Matrix, ...]:
        return _several(self.b)

    @property
    def cs(self) -> tuple[Matrix, ...]:
        return _several(self.c)

    @property
    def weight_shape(self) -> tuple[int, int]:
        """k and n of a B whose layout in panels depends on them."""
        if isinstance(self.k, int) and isinstance(self.n, int):
            return self.k, self.n
        raise InternalError(f"product: B[{self.k}, {self.n}] in panels needs sizes that are known at compile time")

    def in_words(self, size: int) -> Product:
        """The same product, counted along K in words of so many elements."""
        return replace(self, k=self.weight_shape[0] // size)


def _several(matrices: Matrix | tuple[Matrix, ...]) -> tuple[Matrix, ...]:
    return (matrices,) if isinstance(matrices, Matrix) else matrices


@dataclass(frozen=True)
class ProductSpec:
    """A product, and how its B lies in memory: plain by its strides, `packed` in panels of the machine's width, in the
    blocks of a `layout`. With `has_pairs` two neighbours along K are multiplied at once, and panels hold pairs. With
    `code_digits` the rows of A are codes of so many times 8 bits. With `experts` each row of A has the B of its own
    expert, of which there are so many."""

    product: Product
    accumulator: DType
    packed: bool = False
    has_pairs: bool = False
    layout: PanelFormat | None = None
    code_digits: int = 0
    experts: int = 0
    windows: WindowForm | None = None

    @property
    def signature(self) -> str:
        """What decides how fast a schedule is: sizes, types and strides, but not what is done to the sums."""
        p = self.product
        sizes = f"{p.batch}x{p.m}x{p.n}x{p.k} {self.accumulator}"
        matrices = " ".join(_placed(m) for m in (p.a, *p.bs, *p.cs, *(p.epilogue.operands if p.epilogue else ())))
        stored = ("pairs" if self.has_pairs else "packed") if self.packed else "plain"
        return f"{sizes} {stored} {matrices}"


def _placed(m: Matrix) -> str:
    return f"{m.name}:{m.dtype}[{m.batch_stride},{m.row_stride},{m.col_stride}]"
