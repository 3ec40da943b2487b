"""The numeric part of a sparse Cholesky factorisation: dense panels, from those of the columns before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import require_rank, same_graph
from rlx.ops.define.rules import put_batch_first
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.shape.movement import concat, expand_dims, moveaxis, reshaped
from rlx.sparse.ops_products import COMPLEX, REAL, batch_offsets, joined, joined_bounds, require_values

Array = np.ndarray[Any, np.dtype[Any]]


@op("panel_cholesky")
class PanelCholesky(Op):
    """The panels of L with L Lᴴ = A, from panels [.., F] that hold the lower triangle of A; see `supernodes.Panels` for
    the other operands. What lies above the diagonal of a panel has no meaning. Where A is not positive definite there
    is NaN or 0 on the diagonal. Supernodes whose numbers point outside of the operands are left as they are."""

    primitive = True
    jvp = vjp = NoRule("solutions with a factor have derivatives, the factor has none: use sparse.cholesky(A).solve(b)")

    def infer(
        self, panels: Shape, starts: Shape, widths: Shape, heights: Shape, links: Shape, sources: Shape, relative: Shape
    ) -> Shape:
        require_values(self, panels)
        plan = (starts, widths, heights, links, relative)
        for t in plan:
            require_rank(self, t, 1)
        require_rank(self, sources, 2)
        count = widths.dims[0]
        sizes = ((heights.dims[0], count), (starts.dims[0], count + 1), (links.dims[0], count + 1))
        if any(t.dtype is not DType.I64 for t in (*plan, sources)):
            raise self.fail("needs i64 for all that describes the panels")
        if not all(require_equal(a, b, self.mnemonic) for a, b in (*sizes, (sources.dims[1], 4))):
            raise self.fail(
                f"needs heights of the length of widths, starts and links one longer, and 4 columns of sources; got "
                f"{heights}, {widths}, {starts}, {links}, {sources}"
            )
        return panels

    def eval(
        self, panels: Array, starts: Array, widths: Array, heights: Array, links: Array, sources: Array, relative: Array
    ) -> Array:
        wide = panels.astype(np.complex128 if panels.dtype.kind == "c" else np.float64)
        for place in np.ndindex(*wide.shape[:-1]):
            _factorise(wide[place], starts, widths, heights, links, sources, relative)
        return wide.astype(panels.dtype)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        panels, *plan = (put_batch_first(x, b, size) if any(batched[1:]) or i == 0 else x
                         for i, (x, b) in enumerate(zip(operands, batched)))  # fmt: skip
        if not any(batched[1:]):
            return self(panels, *plan)
        # Matrices that are laid out differently are the blocks of one.
        length = panels.type.dims[-1]
        beside = moveaxis(panels, 0, -2)
        lead = beside.type.dims[:-2]
        y = self(reshaped(beside, (*lead, size * length)), *_side_by_side(size, length, *plan))
        return moveaxis(reshaped(y, (*lead, size, length)), -2, 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # [[4, 2, 0], [2, 5, 2], [0, 2, 6]]: the first column, then the others together.
        plan = ((0, 2, 6), (1, 2), (2, 2), (0, 0, 1), ((0, 1, 2, 0),), (0,))
        numbers = [spec(*np.shape(v), dtype="i64", values=v) for v in plan]
        values = (4.0, 2.0, 5.0, 2.0, 0.0, 6.0)
        yield sample(cls(), spec(6, values=values), *numbers, dtypes=REAL)
        yield sample(cls(), spec(2, 6, values=(values, (9.0, 3.0, 5.0, -1.0, 0.0, 4.0))), *numbers, dtypes=REAL)
        yield sample(cls(), spec(6, values=(4.0, 2.0 - 1.0j, 5.0, 2.0j, 0.0, 6.0)), *numbers, dtypes=COMPLEX)
        none = [spec(1, dtype="i64", values=0), spec(0, dtype="i64"), spec(0, dtype="i64")]
        last = [spec(1, dtype="i64", values=0), spec(0, 4, dtype="i64"), spec(0, dtype="i64")]
        yield sample(cls(), spec(0), *none, *last, dtypes=REAL)


def _side_by_side(
    size: Size, length: Size, starts: Any, widths: Any, heights: Any, links: Any, sources: Any, relative: Any
) -> list[Any]:
    """What describes the panels of `size` matrices, as if they were one; panels of each have `length` entries."""
    count, entries, places = widths.type.dims[1], sources.type.dims[1], relative.type.dims[1]
    with same_graph(sources):
        steps = [batch_offsets(size, step, entries, sources) for step in (count, 0, 0, places)]
        moved = sources + concat([expand_dims(s, -1) for s in steps], -1)
    return [
        joined_bounds(starts, size, length),
        joined(widths, True, size),
        joined(heights, True, size),
        joined_bounds(links, size, entries),
        joined(moved, True, size),
        joined(relative, True, size),
    ]


def _factorise(
    values: Array, starts: Array, widths: Array, heights: Array, links: Array, sources: Array, relative: Array
) -> None:
    """In place, in double precision, supernode by supernode."""
    total = len(values)
    begin = starts[:-1]
    are_sizes = (begin >= 0) & (begin <= total) & (widths >= 0) & (heights >= widths) & (heights <= total)
    is_sound = are_sizes & (begin + np.where(are_sizes, widths * np.minimum(heights, total), 0) <= total)

    def panel(s: int) -> Array:
        return values[starts[s] : starts[s] + widths[s] * heights[s]].reshape(widths[s], heights[s])

    with np.errstate(all="ignore"):
        for s in np.flatnonzero(is_sound).tolist():
            goal = panel(s)
            for d, first, last, place in sources[max(links[s], 0) : max(links[s + 1], 0)]:
                if not 0 <= d < s or not is_sound[d] or not 0 <= first <= last <= heights[d]:
                    continue
                if not heights[s] or place < 0 or place + heights[d] - first > len(relative):
                    continue
                rows = np.clip(relative[place : place + heights[d] - first], 0, heights[s] - 1)
                columns = np.clip(rows[: last - first], 0, max(widths[s] - 1, 0))
                source = panel(d)
                change = source[:, first:last].conj().T @ source[:, first:]
                if widths[s]:
                    np.subtract.at(goal, (columns[:, None], rows[None, :]), change)
            for c in range(widths[s]):
                goal[c, c:] -= goal[:c, c].conj() @ goal[:c, c:]
                root = np.sqrt(goal[c, c].real)
                goal[c, c:] /= root
                goal[c, c] = root
