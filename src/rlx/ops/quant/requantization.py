"""`Requantize`: i32 sums of integer products as codes of the next layer, with integers only.

`QMatMul` and `QConv2d` apply one f32 factor. Chips without floats, and programs that must give the same codes on all of
them, use this instead; `rlx.quant.fixed_point` has the arithmetic, and `split_multipliers` makes the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import NoRule, Op, op
from rlx.ir.shape import Shape, normalize_axis
from rlx.ops.define.operands import require_dtype
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.pointwise.arithmetic import clamp, lt, maximum, minimum, shift_left, shift_right, where
from rlx.ops.pointwise.conversion import cast
from rlx.ops.shape.movement import reshape
from rlx.quant.fixed_point import HIGHEST, LOWEST, MOST_SHIFT, scaled

__all__ = ["Requantize", "requantize"]

Array = np.ndarray[Any, np.dtype[Any]]

_RESULTS = (DType.I8, DType.U8, DType.I16, DType.I32)


@op("requantize")
class Requantize(Op):
    """q = clamp(RDPOT(SRDHM(acc·2^left, m0), right) + zero_point) of `dtype`, in integers throughout.

    SRDHM(a, b) = a·b / 2^fraction_bits, ties towards +∞; RDPOT(x, s) = x / 2^s, ties away from zero; right and left are
    max(shift, 0) and max(-shift, 0), a shift beyond ±31 counts as ±31. What leaves i32 on the way saturates. The tables
    m0, shift and zero_point are i32[1], or i32[channels] along `axis`.
    """

    precision_class = "elementwise"

    jvp = NoRule("codes are integers; train with fake_quantize, and make the integer program of the result")
    vjp = jvp

    axis: int = -1
    dtype: DType = DType.I8
    fraction_bits: int = 31

    def check(self) -> None:
        if self.dtype not in _RESULTS:
            raise self.fail(f"dtype must be one of {', '.join(map(str, _RESULTS))}, got {self.dtype}")
        if self.fraction_bits not in (15, 31):
            raise self.fail(f"fraction_bits must be 31 or 15, got {self.fraction_bits}")

    def infer(self, acc: Shape, m0: Shape, shift: Shape, zero_point: Shape) -> Shape:
        require_dtype(self, acc.dtype is DType.I32, "i32 sums", acc)
        axis = normalize_axis(self.axis, acc.rank, self.mnemonic) if acc.rank else None
        channels = 1 if axis is None else acc.dims[axis]
        for what, table in (("m0", m0), ("shift", shift), ("zero_point", zero_point)):
            fits = table.rank == 1 and (table.dims == (1,) or require_equal(table.dims[0], channels, self.mnemonic))
            if table.dtype is not DType.I32 or not fits:
                raise self.fail(
                    f"{what} must be i32[1] or i32[{channels}] along axis {self.axis} of {acc}, got {table}"
                )
        return acc.with_dtype(self.dtype)

    def _along_axis(self, table: Any, rank: int) -> Any:
        """A table shaped so that it broadcasts along `axis`; arrays and tensors."""
        dims: list[Any] = [1] * rank
        if rank:
            dims[self.axis] = table.shape[0]
        return table.reshape(dims) if isinstance(table, np.ndarray) else reshape(table, dims)

    def eval(self, acc: Array, m0: Array, shift: Array, zero_point: Array) -> Array:
        m0, shift, zero = (self._along_axis(t.astype(np.int64), acc.ndim) for t in (m0, shift, zero_point))
        low, high = _limits(self.dtype)
        codes = scaled(acc, m0, shift, self.fraction_bits) + zero
        return np.asarray(np.clip(codes, low, high)).astype(self.dtype.numpy)

    def decompose(self, acc: Any, m0: Any, shift: Any, zero_point: Any) -> Any:
        # Both roundings are an addition and a shift that keeps the sign; i64 has room for all of it.
        m0, shift, zero = (cast(self._along_axis(t, acc.ndim), DType.I64) for t in (m0, shift, zero_point))
        left, right = clamp(-shift, 0, MOST_SHIFT), clamp(shift, 0, MOST_SHIFT)
        grown = clamp(shift_left(cast(acc, DType.I64), left), LOWEST, HIGHEST)
        high_half = shift_right(grown * m0 + (1 << (self.fraction_bits - 1)), self.fraction_bits)
        x = clamp(high_half, LOWEST, HIGHEST)
        half = shift_right(shift_left(1, right), 1)
        # Ties of negative numbers go down: one less than half is added, where there is anything to round.
        below = where(lt(x, 0), minimum(right, 1), 0)
        codes = shift_right(x + half - below, right) + zero
        low, high = _limits(self.dtype)
        return cast(minimum(maximum(codes, low), high), self.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        sums = spec(3, 4, dtype="i32", low=-60000, high=60000)
        m0 = spec(4, dtype="i32", low=2**30, high=2**31 - 1)
        shift, zero = spec(4, dtype="i32", values=[7, 9, 0, 8]), spec(4, dtype="i32", low=-20, high=20)
        one = [spec(1, dtype="i32", values=[v]) for v in (0x4CCCCD00, 8, 3)]
        ints = ("i32",)
        yield sample(cls(), sums, m0, shift, zero, dtypes=ints)
        yield sample(cls(dtype="u8"), sums, *one, dtypes=ints)
        yield sample(cls(dtype="i16"), sums, m0, shift, one[2], dtypes=ints)
        yield sample(cls(1), spec(2, 4, 3, dtype="i32", low=-60000, high=60000), m0, shift, zero, dtypes=ints)
        narrow = spec(4, dtype="i32", low=2**14, high=2**15 - 1)
        yield sample(cls(fraction_bits=15), sums, narrow, shift, zero, dtypes=ints)
        ends = spec(4, dtype="i32", values=[-(2**31), 2**31 - 1, 1 - 2**31, -1])
        lefts = spec(4, dtype="i32", values=[0, -1, -31, 31])
        yield sample(
            cls(dtype="i32"),
            ends,
            spec(4, dtype="i32", values=[-(2**31), 2**30, 2**30, 2**30]),
            lefts,
            zero,
            dtypes=ints,
        )
        yield sample(cls(), spec(dtype="i32", low=-900, high=900), *one, dtypes=ints)
        yield sample(cls(), spec(0, 4, dtype="i32"), m0, shift, zero, dtypes=ints)
        yield sample(cls(), spec("B", 4, dtype="i32", low=-60000, high=60000), m0, shift, zero, dtypes=ints, B=3)


def _limits(dtype: DType) -> tuple[int, int]:
    info = ml_dtypes.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def requantize(
    acc: Any,
    m0: Any,
    shift: Any,
    zero_point: Any = 0,
    *,
    axis: int = -1,
    dtype: DTypeLike = DType.I8,
    fraction_bits: int = 31,
) -> Any:
    """i32 sums as codes: each times its multiplier (m0, shift), plus the zero point; see `Requantize`.

    >>> requantize(np.int32([1, 64, 320, -421]), 0x4CCCCD00, 1).tolist()
    [1, 19, 96, -127]
    """
    tables = (np.atleast_1d(np.int32(t)) if isinstance(t, int) else t for t in (m0, shift, zero_point))
    return Requantize(axis, DType.of(dtype), fraction_bits)(acc, *tables)
