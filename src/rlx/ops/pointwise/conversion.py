"""Conversion between element types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dtype import DType, DTypeLike, integer_limits
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.rules import batch_pointwise
from rlx.ops.define.samples import FLOATS, Sample, sample, spec

__all__ = ["Cast", "cast"]


@op("cast")
class Cast(Op):
    """y = x converted to `to`.

    Float to integer truncates toward zero and saturates, NaN gives 0; anything to bool is `x != 0`; real to complex has
    imaginary part 0; complex to real keeps the real part; float to float rounds to nearest even.
    """

    is_elementwise = True
    only_moves = True
    primitive = True
    precision_class = "data_movement"

    to: DType

    def infer(self, x: Shape) -> Shape:
        return x.with_dtype(self.to)

    def eval(self, x: np.ndarray[Any, Any]) -> Any:
        return convert_array(x, self.to)

    @property
    def derivative_is_defined(self) -> bool:
        """Rounding to fewer digits passes derivatives through, whatever the digits."""
        return self.to not in (DType.F64, DType.C128)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        return self(tangents[0]) if self.to.is_inexact else None

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        if not x.dtype.is_inexact:
            return (None,)
        # Cotangents are ∂L/∂z̄: dL = 2·Re(conj(ct)·dz), so a real number that becomes complex counts twice.
        if self.to.is_complex and not x.dtype.is_complex:
            return (2.0 * cast(ct, x.dtype),)
        if x.dtype.is_complex and not self.to.is_complex:
            return (0.5 * cast(ct, x.dtype),)
        return (cast(ct, x.dtype),)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for to in ("f16", "bf16", "f32", "f64", "bool", "c64"):
            yield sample(cls(to), spec(3, 4))
            yield sample(cls(to), spec(4), dtypes=("i32", "u8", "bool"))
        for to in ("i8", "u8", "i32", "i64", "u32"):
            yield sample(
                cls(to), spec(7, values=[0.0, -0.9, 1.5, -2.5, 300.0, -300.0, float("nan")]), dtypes=("f32", "f64")
            )
            yield sample(cls(to), spec(3, 2, low=-100, high=100), dtypes=("i32", "u8", "i64"))
        yield sample(cls("f8e4m3"), spec(3, 4), dtypes=FLOATS)
        yield sample(cls("f8e5m2"), spec(3, 4))
        yield sample(cls("f32"), spec(3), dtypes=("c64",))
        yield sample(cls("f64"), spec(3), dtypes=("c128",))
        yield sample(cls("c128"), spec(3), dtypes=("f64",))
        yield sample(cls("f32"), spec(0, 4))
        yield sample(cls("f16"), spec("B", 4), B=3)


def convert_array(x: np.ndarray[Any, Any], to: DType) -> np.ndarray[Any, Any]:
    """NumPy's conversion with the cases pinned down that C leaves undefined."""
    if x.dtype == to.numpy:
        return x
    if x.dtype.kind == "c" and not to.is_complex:
        x = x.real
    if to is DType.BOOL:
        return x != 0
    source = DType.of(x.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        if source.is_float and to.is_int:
            return _float_to_int(x, to)
        if source.is_storage and not to.is_float:
            return x.astype(np.float32).astype(to.numpy)
        return x.astype(to.numpy)


def _float_to_int(x: np.ndarray[Any, Any], to: DType) -> np.ndarray[Any, Any]:
    info = integer_limits(to)
    wide = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    # The largest i64 and u64 are not doubles: compare first, convert only what fits.
    low, high = wide <= float(info.min), wide >= float(info.max)
    inside = np.where(low | high, 0.0, wide).astype(to.numpy)
    limits = np.asarray([info.min, info.max]).astype(to.numpy) if to.size_bytes < 8 else None
    smallest = limits[0] if limits is not None else to.numpy.type(info.min)
    largest = limits[1] if limits is not None else to.numpy.type(info.max)
    return np.where(low, smallest, np.where(high, largest, inside)).astype(to.numpy)


def cast(x: Any, dtype: DTypeLike) -> Any:
    """`x` with another element type."""
    return Cast(DType.of(dtype))(x)
