"""Operands on which an op is tested. Every op class yields some from `samples`; every generated test runs on them.

    @classmethod
    def samples(cls):
        yield sample(cls(axis=1), spec(3, 4))                      # swept over f16, bf16, f32, f64
        yield sample(cls(axis=0), spec("B", 4), B=3)               # symbolic, tested at B = 3
        yield sample(cls(axis=0), spec(5, low=0.1), dtypes=INTS)   # swept over integer types

Keyword arguments of `sample` are sizes for symbols.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rlx.ir.dims import Dim
from rlx.ir.dtype import DType
from rlx.ir.op import Op
from rlx.ir.shape import Shape

FLOATS = ("f16", "bf16", "f32", "f64")
INTS = ("i8", "u8", "i32", "i64")
COMPLEX = ("c64", "c128")


class Spec(NamedTuple):
    """One operand: dims, a fixed dtype or None for the swept one, and where its values lie."""

    dims: tuple[int | str | Dim, ...]
    dtype: str | None = None
    low: float = -2.0
    high: float = 2.0
    distinct: bool = False
    values: Any = None

    def shape(self, swept: str) -> Shape:
        return Shape(self.dims, self.dtype or swept)


def spec(
    *dims: int | str | Dim,
    dtype: str | None = None,
    low: float = -2.0,
    high: float = 2.0,
    distinct: bool = False,
    values: Any = None,
) -> Spec:
    """An operand with random values in [low, high]; `distinct` keeps them apart (for max, sort and their gradients)."""
    return Spec(dims, dtype, low, high, distinct, values)


class Sample(NamedTuple):
    """An op with operands for it, the dtypes to sweep, and sizes for its symbols."""

    op: Op
    operands: tuple[Spec, ...]
    dtypes: tuple[str, ...]
    binding: dict[str, int]
    # False on a kink (ties of a sort, say): rules are still checked against each other, not against differences.
    smooth: bool = True

    def shapes(self, dtype: str) -> list[Shape]:
        """Operand types, symbols and all."""
        return [s.shape(dtype) for s in self.operands]

    def arrays(self, dtype: str, seed: int = 0) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """Operand values with the symbols bound."""
        rng = np.random.default_rng(seed)
        return [_values(s, s.shape(dtype).bind(self.binding), rng) for s in self.operands]

    def __str__(self) -> str:
        operands = ", ".join(str(s.shape(self.dtypes[0])) for s in self.operands)
        return f"{self.op!r}({operands})"


def sample(op: Op, *operands: Spec, dtypes: tuple[str, ...] = FLOATS, smooth: bool = True, **binding: int) -> Sample:
    return Sample(op, operands, dtypes, binding, smooth)


def _values(s: Spec, shape: Shape, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[Any]]:
    dims, dtype = shape.static_dims, shape.dtype
    if s.values is not None:
        return np.broadcast_to(np.asarray(s.values), dims).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, dims).astype(bool)
    if s.distinct:
        count = int(np.prod(dims))
        steps = np.linspace(s.low, s.high, count) if not dtype.is_int else np.arange(count) + int(s.low)
        return rng.permutation(steps).reshape(dims).astype(dtype.numpy)
    if dtype.is_int:
        low = max(int(s.low), 0) if not dtype.is_signed else int(s.low)
        return rng.integers(low, max(int(s.high), low + 1), dims, endpoint=True).astype(dtype.numpy)
    values = rng.uniform(s.low, s.high, dims)
    if dtype.is_complex:
        values = values + 1j * rng.uniform(s.low, s.high, dims)
    return values.astype(dtype.numpy)
