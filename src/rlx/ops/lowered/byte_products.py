"""`ByteMatMul`: products of two matrices of f8, which the compiler writes where tensor cores multiply them as they
are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import BYTE_FLOATS, DType
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype, require_rank
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.lowered.lowered_product import LoweredProduct

__all__ = ["ByteMatMul"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("byte_matmul")
class ByteMatMul(LoweredProduct):
    """y[.., n] = x[.., k] · w[n, k]ᵀ for f8 of either kind, summed as exactly as the device's tensor cores do, in
    `to`."""

    to: DType

    def check(self) -> None:
        if not self.to.is_float or self.to.is_storage:
            raise self.fail(f"the result must be a float that is computed with, got {self.to}")

    def infer(self, x: Shape, w: Shape) -> Shape:
        require_dtype(self, all(s.dtype in BYTE_FLOATS for s in (x, w)), "f8", x, w)
        require_rank(self, w, 2)
        if x.rank < 1 or not require_equal(x.dims[-1], w.dims[1], self.name):
            raise self.fail(f"needs x [.., k] and w [n, k], got {x} and {w}")
        return Shape((*x.dims[:-1], w.dims[0]), self.to)

    def eval(self, x: Array, w: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(x.astype(np.float64) @ w.astype(np.float64).T).astype(self.to.numpy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for left, right in (("f8e4m3", "f8e4m3"), ("f8e5m2", "f8e4m3")):
            yield sample(cls("f32"), spec(5, 48, dtype=left), spec(7, 48, dtype=right), dtypes=("f32",))
        yield sample(cls("bf16"), spec(2, 3, 16, dtype="f8e4m3"), spec(4, 16, dtype="f8e4m3"), dtypes=("f32",))
