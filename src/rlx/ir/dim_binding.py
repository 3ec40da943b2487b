"""`DimBinding`: sizes for symbols, `{"B": 2, "S": 8}`. Symbols may be given by name or themselves (`sym.BATCH`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlx.ir.dims import Dim


def by_name(sizes: Any) -> dict[str, Any]:
    """Sizes by the names of their symbols; a user may give the symbols themselves, such as `sym.BATCH`."""
    return {str(symbol): size for symbol, size in dict(sizes).items()}


class DimBinding(dict[str, int]):
    """Sizes for symbols.

    >>> DimBinding.batch_seq(2, 8)
    {'B': 2, 'S': 8}
    """

    def __init__(self, sizes: Mapping[str, int] | Mapping[Dim, int] | Iterable[tuple[str | Dim, int]] = ()) -> None:
        super().__init__(by_name(sizes))

    def set(self, symbol: str | Dim, size: int) -> DimBinding:
        self[str(symbol)] = int(size)
        return self

    def get(self, symbol: str | Dim, default: Any = None) -> Any:
        return super().get(str(symbol), default)

    def __getitem__(self, symbol: str | Dim) -> int:
        return super().__getitem__(str(symbol))

    def __setitem__(self, symbol: str | Dim, size: int) -> None:
        super().__setitem__(str(symbol), size)

    def __contains__(self, symbol: object) -> bool:
        return super().__contains__(str(symbol))

    def is_empty(self) -> bool:
        return not self

    @staticmethod
    def from_pairs(pairs: Iterable[tuple[str | Dim, int]]) -> DimBinding:
        return DimBinding(pairs)

    @staticmethod
    def batch_seq(batch: int, seq: int) -> DimBinding:
        return DimBinding({"B": batch, "S": seq})

    @staticmethod
    def batch_past_seq(batch: int, past: int) -> DimBinding:
        return DimBinding({"B": batch, "P": past})


def same_binding(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    return dict(a) == dict(b)
