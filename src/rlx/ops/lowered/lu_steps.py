"""One step of an LU in panels of columns; `rlx.compile.lower.lu_steps` puts them together.

It applies the panel in front of it to all columns behind, and factorises the first of these as the next panel. Each
column goes its own way, so that threads share them, and one is at work on the next panel while others are at the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.rules import batch_by_loop_over_leading
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.linalg.solve import TriangularSolve

__all__ = ["LuStep"]

Array = np.ndarray[Any, np.dtype[Any]]

_INTERNAL = NoRule("it is made by compilers, from ops that have been differentiated before")
_PANEL = ((4.0, 1.0), (0.5, 3.0), (0.25, -0.5), (-0.5, 0.125), (0.0, 0.75))
_ORDER = (3, 0, 4, 1, 2)


@op("lu_step")
class LuStep(Op):
    """The columns `rest` [.., M, N] behind a panel [.., M, k] of an LU whose rows are in the `order` [.., M] of i32.

    Five results: U [.., k, N], the first `width` columns of what is left below it, factorised [.., M - k, width], the
    columns behind those [.., M - k, N - width], not in the order of that panel yet, and the pivots [.., width] and the
    order [.., M - k] of that panel, as `Lu` has them. Sizes are fixed, and k + width is at most M. Ids are trusted.
    """

    primitive = True
    lowered = True

    width: int

    def infer(self, panel: Shape, order: Shape, rest: Shape) -> tuple[Shape, ...]:
        require_dtype(self, panel.dtype is DType.F64 and rest.dtype is DType.F64, "f64", panel, rest)
        require_dtype(self, order.dtype is DType.I32, "i32", order)
        fixed = all(isinstance(d, int) for t in (panel, rest) for d in t.dims)
        if not fixed or panel.rank < 2 or panel.dims[:-1] != rest.dims[:-1] or order.dims != rest.dims[:-1]:
            raise self.fail(
                f"needs a panel [..,M,k], an order [..,M] and columns [..,M,N], got {panel}, {order}, {rest}"
            )
        *lead, rows, columns = rest.static_dims
        done = panel.static_dims[-1]
        if not 0 < self.width <= min(columns, rows - done):
            raise self.fail(f"needs {self.width} columns and rows behind the panel {panel}, got {rest}")
        left = rows - done
        return (
            rest.with_dims((*lead, done, columns)),
            rest.with_dims((*lead, left, self.width)),
            rest.with_dims((*lead, left, columns - self.width)),
            order.with_dims((*lead, self.width)),
            order.with_dims((*lead, left)),
        )

    def eval(self, panel: Array, order: Array, rest: Array) -> tuple[Array, ...]:
        done = panel.shape[-1]
        rows = np.take_along_axis(rest, order[..., None].astype(np.int64), -2)
        upper = TriangularSolve(unit_diagonal=True).eval(panel[..., :done, :], rows[..., :done, :])
        left = rows[..., done:, :] - panel[..., done:, :] @ upper
        factors, pivots, after = Lu().eval(left[..., : self.width])
        return upper, factors, left[..., self.width :].copy(), pivots, after

    jvp = vjp = _INTERNAL
    batch = batch_by_loop_over_leading

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        panel, order = spec(5, 2, values=_PANEL), spec(5, dtype="i32", values=_ORDER)
        for width, columns in ((2, 4), (3, 3), (1, 40)):
            yield sample(cls(width), panel, order, spec(5, columns), dtypes=("f64",))
        stacked = spec(2, 5, 2, values=_PANEL), spec(2, 5, dtype="i32", values=_ORDER)
        yield sample(cls(2), *stacked, spec(2, 5, 3), dtypes=("f64",))
