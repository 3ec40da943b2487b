"""`r_` and `c_`: arrays and ranges joined by what stands between brackets, `r_[0:3, 7]`.

>>> r_[1:4, 9].tolist(), c_[[1, 2], [3, 4]].tolist()
([1, 2, 3, 9], [[1, 3], [2, 4]])
"""

from __future__ import annotations

from typing import Any

from rlx.errors import OpError
from rlx.numpy.arguments import rank_of
from rlx.numpy.creation import arange, asarray, linspace
from rlx.numpy.joining import concatenate, stack
from rlx.numpy.manipulation import atleast_1d, atleast_2d, transpose

__all__ = ["c_", "r_"]


class _Joined:
    """Items of an index joined along an axis: slices are ranges, `a:b:5j` five numbers from a to b."""

    def __init__(self, as_columns: bool) -> None:
        self._as_columns = as_columns

    def __getitem__(self, key: Any) -> Any:
        items = [self._item(item) for item in (key if isinstance(key, tuple) else (key,))]
        if not self._as_columns:
            return concatenate(items, axis=0)
        if all(rank_of(item) == 1 for item in items):
            return stack(items, axis=-1)
        return concatenate([transpose(atleast_2d(i)) if rank_of(i) == 1 else i for i in items], axis=-1)

    def _item(self, item: Any) -> Any:
        if isinstance(item, str):
            raise OpError(f"r_ and c_ take arrays, numbers and slices, not {item!r}; use concatenate with an axis")
        if not isinstance(item, slice):
            return atleast_1d(asarray(item))
        if isinstance(item.step, complex):
            return linspace(item.start or 0, item.stop, int(abs(item.step)))
        return arange(item.start or 0, item.stop, 1 if item.step is None else item.step)


r_, c_ = _Joined(as_columns=False), _Joined(as_columns=True)
