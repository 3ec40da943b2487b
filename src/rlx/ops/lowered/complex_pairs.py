"""Complex numbers as pairs of real ones and back, in the same memory: `AsReals` and `AsComplex` move nothing.

as_reals(z)[.., 0]                            # the real part
as_complex(concat([re[.., None], im[.., None]], -1))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.samples import COMPLEX, Sample, sample, spec

__all__ = ["AsComplex", "AsReals"]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("the compiler makes this op, after derivatives and batches are taken; use real and imag")


@op("as_reals")
class AsReals(Op):
    """y[.., 0] = Re z, y[.., 1] = Im z, as they lie in memory."""

    lowered = True
    primitive = True
    jvp = vjp = batch = _INTERNAL

    def infer(self, z: Shape) -> Shape:
        require_dtype(self, z.dtype.is_complex, "complex", z)
        return Shape((*z.dims, 2), z.dtype.real)

    def eval(self, z: Array) -> Array:
        return np.stack([z.real, z.imag], -1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), dtypes=COMPLEX)
        yield sample(cls(), spec(), dtypes=COMPLEX)
        yield sample(cls(), spec("B", 4), dtypes=COMPLEX, B=3)


@op("as_complex")
class AsComplex(Op):
    """y = x[.., 0] + i·x[.., 1], as they lie in memory."""

    lowered = True
    primitive = True
    jvp = vjp = batch = _INTERNAL

    def infer(self, x: Shape) -> Shape:
        require_dtype(self, x.dtype in (DType.F32, DType.F64), "f32 or f64", x)
        if not x.dims or x.dims[-1] != 2:
            raise self.fail(f"needs pairs along the last axis, got {x}")
        return Shape(x.dims[:-1], x.dtype.complex)

    def eval(self, x: Array) -> Array:
        y: Array = np.ascontiguousarray(x).view(DType.of(x.dtype).complex.numpy)[..., 0]
        return y

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 2), dtypes=("f32", "f64"))
        yield sample(cls(), spec(2), dtypes=("f32", "f64"))
        yield sample(cls(), spec("B", 4, 2), dtypes=("f32", "f64"), B=3)
