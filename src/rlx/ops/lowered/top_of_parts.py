"""`TopOfParts`: the largest few of every part of long rows, of which the largest few of the row are some."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.reduction.sort import TopKWithValues

__all__ = ["TopOfParts"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("top_of_parts")
class TopOfParts(Op):
    """Values and i32 positions of the `k` largest elements of each of so many parts of x[.., n]: [.., parts·k].

    Part p begins at n·p // parts. In each part they descend and ties are decided by position, so that the first k of
    all, by value and then in this order, are those of the row.
    """

    lowered = True
    primitive = True
    jvp = vjp = batch = NoRule("the compiler makes this op, after derivatives and batches are taken; use top_k")

    k: int
    parts: int

    def infer(self, x: Shape) -> tuple[Shape, Shape]:
        if self.k < 1 or self.parts < 1 or not x.dims or not isinstance(x.dims[-1], int):
            raise self.fail(f"needs k and parts of 1 or more and rows of a fixed length, got {self} of {x}")
        TopKWithValues(self.k).infer(x.with_dim(-1, x.dims[-1] // self.parts))
        values = x.with_dim(-1, self.k * self.parts)
        return values, values.with_dtype(DType.I32)

    def eval(self, x: Array) -> tuple[Array, Array]:
        starts = [x.shape[-1] * p // self.parts for p in range(self.parts + 1)]
        found = [TopKWithValues(self.k).eval(x[..., a:b]) for a, b in pairwise(starts)]
        ids = [i + np.int32(start) for (_, i), start in zip(found, starts)]
        return np.concatenate([v for v, _ in found], -1), np.concatenate(ids, -1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2, 3), spec(2, 10, values=[3, 1, 2, 3, 1, 0, 2, 3, 3, 1]), dtypes=(*FLOATS, *INTS))
        yield sample(cls(1, 2), spec(5, values=[np.nan, 1.0, np.inf, np.nan, -np.inf]))
