"""Products with matrices in compressed rows of dense blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_rank, same_graph
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.contraction import matmul
from rlx.ops.shape.axis_indexing import gather
from rlx.ops.shape.creation import iota, ones
from rlx.ops.shape.movement import reshaped
from rlx.sparse.ops_products import (
    COMPLEX,
    REAL,
    SAMPLE_INDICES,
    SAMPLE_INDPTR,
    CsrMatMul,
    in_range,
    require_pattern,
    require_values,
    row_ids,
    rows_of,
    summed_by,
)

Array = np.ndarray[Any, np.dtype[Any]]


@op("bsr_matmul")
class BsrMatMul(Op):
    """y = A x for A in compressed rows of blocks: values [blocks, R, C], and a pattern whose rows and columns are those
    of blocks; x is [columns·C] or [columns·C, K]. A block column out of range is the last one."""

    def infer(self, values: Shape, indices: Shape, indptr: Shape, x: Shape) -> Shape:
        require_values(self, values, x)
        require_rank(self, values, 3)
        require_pattern(self, indices, indptr)
        require_rank(self, x, 1, 2)
        block = values.dims[1:]
        if not all(isinstance(n, int) and n > 0 for n in block):
            raise self.fail(f"needs blocks of a fixed size, got {values}")
        if not require_equal(values.dims[0], indices.dims[0], self.mnemonic):
            raise self.fail(f"needs as many blocks as indices, got {values} and {indices}")
        if not require_equal(x.dims[0] % int(block[1]), 0, self.mnemonic):
            raise self.fail(f"blocks of {block[1]} columns do not divide the {x.dims[0]} rows of x")
        return x.with_dims((rows_of(indptr) * block[0], *x.dims[1:]))

    def eval(self, values: Array, indices: Array, indptr: Array, x: Array) -> Array:
        count, r, c = values.shape
        columns = len(x) // c
        if not columns or not count:
            return np.zeros(((len(indptr) - 1) * r, *x.shape[1:]), x.dtype)
        parts = x.reshape(columns, c, -1)[in_range(indices, columns)]
        with np.errstate(all="ignore"):
            terms = np.einsum("brc,bck->brk", values, parts)
        return summed_by(row_ids(indptr, count), terms, len(indptr) - 1).reshape(-1, *x.shape[1:])

    def decompose(self, values: Any, indices: Any, indptr: Any, x: Any) -> Any:
        count, r, c = values.type.dims
        columns = x.type.dims[0] // c
        width = x.type.dims[1] if x.ndim == 2 else 1
        parts = gather(reshaped(x, (columns, c * width)), indices, 0, "clip")
        terms = reshaped(matmul(values, reshaped(parts, (count, c, width))), (count, r * width))
        with same_graph(values):
            # Rows of blocks are summed: a product with ones, in which block k has column k.
            summed = CsrMatMul()(ones((count,), values.dtype), iota((count,), indices.dtype), indptr, terms)
        return reshaped(summed, (rows_of(indptr.type) * r, *x.type.dims[1:]))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for block in ((2, 3), (4, 4), (1, 1), (3, 2)):
            for tail in ((), (19,)):
                operands = spec(5, *block), SAMPLE_INDICES, SAMPLE_INDPTR, spec(4 * block[1], *tail)
                yield sample(cls(), *operands, dtypes=REAL)
        yield sample(cls(), spec(5, 2, 3), SAMPLE_INDICES, SAMPLE_INDPTR, spec(12, 2), dtypes=COMPLEX)
        yield sample(cls(), spec(5, 2, 4), SAMPLE_INDICES, SAMPLE_INDPTR, spec(16), dtypes=COMPLEX)
