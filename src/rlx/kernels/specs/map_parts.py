"""What maps and rows compute: an index space, what is read and written in it, and the expressions between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rlx.kernels.ir.extents import Extent
from rlx.kernels.specs.expr import Expr
from rlx.kernels.specs.scopes import Access


class Move(NamedTuple):
    """How far from where its access says an element is stored, in elements; it is not stored unless `exists`. With
    `is_unique` no place is written twice."""

    by: Expr
    exists: Expr | None = None
    is_unique: bool = False


@dataclass(frozen=True)
class MapPart:
    """`outputs[j][i] = exprs[j](inputs[0][i], inputs[1][i], ..)` for every index `i` of `shape`.

    Accesses with one name are one buffer, in all parts of a kernel. With a `move` each element of the only output is
    stored at a place that is computed, which must not change along the last axis. Where the access of the output stands
    still, the same place may be written again: unless the move `is_unique`, such axes are visited in their order, by
    one worker.
    """

    shape: tuple[Extent, ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    exprs: tuple[Expr, ...]
    move: Move | None = None

    @property
    def all_exprs(self) -> tuple[Expr, ...]:
        moved = () if self.move is None else (self.move.by, self.move.exists)
        return (*self.exprs, *(e for e in moved if e is not None))


@dataclass(frozen=True)
class MapSpec:
    """Several maps as one kernel. No part may write what another one reads or writes."""

    parts: tuple[MapPart, ...]


@dataclass(frozen=True)
class RowSpec:
    """`outputs[j] = exprs[j]` for every row of the index space `rows` and every element of the axes `length` of a row.

    Strides of accesses are those of `rows`, then those of `length`. A `reduce` joins all elements of a row. An output
    that does not move along the row is stored once per row.
    """

    rows: tuple[Extent, ...]
    length: tuple[Extent, ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    exprs: tuple[Expr, ...]
