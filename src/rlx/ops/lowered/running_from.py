"""`RunningFrom`: running joins of parts of a long axis, each from what the parts before it have in all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, normalize_axis
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.ops.define.widening import rounded
from rlx.ops.reduction.cumulative import Cumulative, CumulativeOp, join_of
from rlx.ops.reduction.reductions import widened

__all__ = ["RunningFrom"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("running_from")
class RunningFrom(Op):
    """`Cumulative` of each part of x[.., n, ..] along an axis, joined with what is before it: [.., n/part, ..] of the
    type that x is accumulated in."""

    lowered = True
    primitive = True
    jvp = vjp = batch = NoRule("the compiler makes this op, after derivatives and batches are taken; use cumsum")

    kind: CumulativeOp
    axis: int
    part: int
    exclusive: bool = False
    reverse: bool = False

    @property
    def plain(self) -> Cumulative:
        return Cumulative(self.kind, self.axis, self.exclusive, self.reverse)

    def infer(self, x: Shape, before: Shape) -> Shape:
        self.plain.infer(x)
        length = x.dims[normalize_axis(self.axis, x.rank, self.mnemonic)]
        if self.part < 1 or not isinstance(length, int) or length % self.part:
            raise self.fail(f"parts of {self.part} do not make up axis {self.axis} of {x}")
        wanted = x.with_dim(self.axis, length // self.part).with_dtype(x.dtype.accumulator)
        if before != wanted:
            raise self.fail(f"needs {wanted} for {x}, got {before}")
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array, before: Array) -> Array:
        axis = self.axis % x.ndim
        cut = x.reshape(*before.shape[: axis + 1], self.part, *x.shape[axis + 1 :])
        inside = self.plain.replace(axis=axis + 1).eval(cut.astype(before.dtype))
        joined = join_of(self.kind)(widened(inside), widened(np.expand_dims(before, axis + 1)))
        return rounded(joined, x.dtype).reshape(x.shape)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in (*FLOATS, *INTS):
            wide = str(DType.of(dtype).accumulator)
            for made in (cls("sum", 1, 3), cls("max", 1, 3, reverse=True), cls("prod", 1, 3, exclusive=True)):
                yield sample(made, spec(2, 6, 3, dtype=dtype), spec(2, 2, 3, dtype=wide), dtypes=(dtype,))
            yield sample(
                cls("sum", -1, 5, True, True), spec(2, 5, dtype=dtype), spec(2, 1, dtype=wide), dtypes=(dtype,)
            )
