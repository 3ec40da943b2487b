"""Ids that come straight from the caller are validated, not clipped in silence.

An op says by `index_operands` which operands hold ids and how large the axes are that they select from. Executors check
such operands where they are the caller's own arrays; ids that the program computed follow the op's definition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.ir.op import Op
from rlx.ir.shape import Dims, Shape

Array = np.ndarray[Any, np.dtype[Any]]


def check_outside_ids(op: Op, shapes: Sequence[Shape], outside: Mapping[int, tuple[str, Array]]) -> None:
    """Check the ids among `outside`, the operands that come from the caller: position -> (name, values)."""
    for position, sizes in op.index_operands(*shapes).items():
        if position in outside:
            name, ids = outside[position]
            check_ids(op, ids, sizes, name)


def check_ids(op: Op, ids: Array, sizes: Dims, name: str = "ids") -> None:
    """Refuse ids outside of their axis; `sizes` is an entry of `op.index_operands`, with symbols bound."""
    columns = [ids] if len(sizes) == 1 else [ids[..., j] for j in range(len(sizes))]
    for column, size in zip(columns, Shape(sizes).static_dims):
        numbers = column if column.dtype.kind in "iu" else np.trunc(column.astype(np.float64))
        valid = (numbers >= -size) & (numbers < size)
        if not valid.all():
            wrong = column[~valid].flat[0]
            raise op.fail(
                f"{name} holds {wrong}, but the indexed axis has size {size}: valid ids are {-size}..{size - 1}"
            )
