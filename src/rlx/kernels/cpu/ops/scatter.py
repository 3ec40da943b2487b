"""Scatter: values brought to places that are known at run time, stored over the operand that they change.

Places that differ in a batch axis or in an axis that is not indexed can never meet, so these are dealt out, and long
rows in parts; inside, updates are applied one after the other in the order that the op promises. So the result is the
same for any number of workers, without atomics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.kernels.cpu.ops import OpSite, op_kernel
from rlx.kernels.cpu.ops.strips import along, are_native, run_length
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.extents import total, unflatten
from rlx.kernels.ir.loop_ir import HALVES, Const, Value
from rlx.kernels.specs.expr import compute_dtype
from rlx.ops.shape.indexing import IndexMode, ScatterKind, ScatterNd

# Elements that one iteration moves, about; and the shortest part of a row, so that few ids are looked at twice.
WORK = 16384
SHORTEST = 64
# Ids that are looked at together.
BLOCK = 64


def _supports(op: Op, operands: Sequence[Shape]) -> bool:
    assert isinstance(op, ScatterNd)
    # Sums of half floats are formed in f32: `kernel_forms` widens them.
    is_half_sum = operands[0].dtype in HALVES and op.kind in (ScatterKind.Add, ScatterKind.Mul)
    return are_native(*operands) and not is_half_sum


@op_kernel(ScatterNd, kind="scatter", supports=_supports, strided={2}, updates=0)
def scatter_nd(site: OpSite) -> None:
    """The result lies over x; only the places that updates go to change."""
    Scatter(site).build()


class Scatter:
    """A scatter to be written: `outer` are the axes of x that are not indexed nor part of its rows, `length` is that of
    a row, `points` are the sizes that number the updates."""

    def __init__(self, site: OpSite) -> None:
        assert isinstance(site.op, ScatterNd)
        self.site, self.op, self.k = site, site.op, site.k
        _, self.indices, self.updates = site.inputs
        (self.y,) = site.outputs
        rank = len(self.y.dims)
        rest = [a for a in range(self.op.batch_dims, rank) if a not in self.op.axes]
        # Rows: the last axes of x that are not indexed, as far as they lie side by side in the updates, too.
        last = 0
        while last < len(rest) and rest[-1 - last] == rank - 1 - last:
            last += 1
        self.inner = min(last, max(1, run_length(site, self.updates)))
        self.outer = rest[: len(rest) - self.inner]
        self.length = total(self.k, self.y.dims[rank - self.inner :])
        self.points = self.indices.dims[self.op.batch_dims : -1]
        has_step = self.inner > 0 and self.updates.shape.dims[-1] != 1
        self.step = self.updates.strides[-1] if has_step else self.k.as_index(1)

    def build(self) -> None:
        k, lead = self.k, self.op.batch_dims
        count = total(k, self.points)
        wanted = k.as_index(WORK) // k.max(count, 1) // SHORTEST * SHORTEST
        part = k.max(1, k.min(self.length, k.max(SHORTEST, wanted)))
        parts = (self.length + (part - 1)) // part
        units = [*self.y.dims[:lead], *(self.y.dims[a] for a in self.outer), parts]
        number = total(k, units)
        together = k.max(1, k.as_index(WORK) // k.max(part * count, 1))
        with (
            k.parallel("units", (number + (together - 1)) // together) as block,
            k.loop("unit", block * together, k.min(block * together + together, number)) as unit,
        ):
            *place, which = unflatten(unit, units)
            start = which * part
            stop = k.min(start + part, self.length)

            def bring(point: Value, is_inside: bool = False) -> None:
                at = unflatten(point, self.points)
                self.bring(place[:lead], place[lead:], at, start, stop, is_inside)

            if self.inner == 0 and self.has_plain_ids():
                self.in_blocks(place[:lead], count, bring)
                return
            with k.loop("point", 0, count) as point:
                bring(point)

    def has_plain_ids(self) -> bool:
        """Whether each update has one id, which says where it goes if it is on its axis."""
        is_one = len(self.op.axes) == 1 and not self.site.machine.is_gpu
        return is_one and self.indices.shape.dtype in (DType.I32, DType.I64)

    def in_blocks(self, batch: Sequence[Value], count: Value, bring: Callable[..., None]) -> None:
        """Updates of one element each: most blocks of ids are on the axis, which vectors see at once."""
        k, dtype = self.k, self.indices.shape.dtype
        unsigned, lanes = DType.of(f"u{8 * dtype.size_bytes}"), self.site.machine.lanes(dtype)
        size = k.min(self.y.dims[self.op.axes[0]], (1 << (8 * dtype.size_bytes - 1)) - 1)
        base, whole = self.indices.at(*batch), count // BLOCK * BLOCK
        with k.loop("block", 0, whole, BLOCK) as first:
            checks = []
            for i in range(0, BLOCK, lanes):
                ids = k.load(self.indices.buffer, base + first + i, lanes=lanes)
                checks.append(k.bitcast(ids, unsigned) < k.splat(k.cast(size, unsigned), lanes))
            inside = checks[0]
            for check in checks[1:]:
                inside = inside & check
            are_inside = k.reduce("and", inside)
            for condition, is_inside in ((are_inside, True), (~are_inside, False)):
                with k.when(condition), k.loop("point", first, first + BLOCK) as point:
                    bring(point, is_inside)
        with k.loop("point", whole, count) as point:
            bring(point)

    def bring(
        self,
        batch: Sequence[Value],
        others: Sequence[Value],
        point: Sequence[Value],
        start: Value,
        stop: Value,
        is_inside: bool,
    ) -> None:
        """One update, elements start..stop of its row, whose place is known to exist if it `is_inside`."""
        k, y, updates = self.k, self.y, self.updates
        goal, exists = self.place([*batch, *point], is_inside)
        goal = goal + y.at(*batch)
        for axis, i in zip(self.outer, others):
            goal = goal + y.strides[axis] * i
        source = updates.at(*batch, *point, *others)

        def move(i: Value, lanes: int, mask: Value | None) -> None:
            self.move(goal + i, source + self.step * i, lanes, mask)

        with nullcontext() if exists is None else k.when(exists):
            if self.inner == 0:
                move(k.as_index(0), 1, None)
            else:
                along(k, self.site.machine, [y.shape.dtype], start, stop, move)

    def move(self, goal: Value, source: Value, lanes: int, mask: Value | None) -> None:
        """Elements of an update from `source` on to their places."""
        k, y = self.k, self.y
        update = k.load(self.updates.buffer, source, lanes=lanes, stride=self.step, mask=mask)
        if self.op.kind is not ScatterKind.Set:
            update = _meet(k, self.op.kind, k.load(y.buffer, goal, lanes=lanes, mask=mask), update)
        k.store(y.buffer, goal, update, mask=mask)

    def place(self, at: Sequence[Value], is_inside: bool = False) -> tuple[Value, Value | None]:
        """How far from the start of its batch a point lies, and whether it exists; None if it surely does."""
        k, y, indices = self.k, self.y, self.indices
        first, offset = indices.at(*at), k.as_index(0)
        conditions: list[Value] = []
        for number, axis in enumerate(self.op.axes):
            size = y.dims[axis]
            place = k.cast(k.load(indices.buffer, first + indices.strides[-1] * number), DType.I64)
            if is_inside:
                offset = offset + y.strides[axis] * place
                continue
            place = k.select(place < 0, place + size, place)
            if self.op.mode is not IndexMode.Clip:
                conditions += [place >= 0, place < size]
            else:
                place = k.max(k.min(place, size - 1), 0)
                if not (isinstance(size, Const) and size.literal > 0):
                    conditions.append(size > 0)
            offset = offset + y.strides[axis] * place
        exists = conditions[0] if conditions else None
        for condition in conditions[1:]:
            exists = condition if exists is None else exists & condition
        return offset, exists


def _meet(k: KernelBuilder, kind: ScatterKind, there: Value, update: Value) -> Value:
    """A value and an update of it, joined."""
    if there.dtype is DType.BOOL:
        return there | update if kind is ScatterKind.Max else there & update
    wide = compute_dtype(there.dtype)
    return k.cast(k.op(kind.value, k.cast(there, wide), k.cast(update, wide)), there.dtype)
