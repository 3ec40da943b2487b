"""Integer quantisation: `Quantize`, `Dequantize`, and the integer products `QMatMul` and `QConv2d`.

A real number x is stored as q = round(x / scale) + zero_point. Rounding is half away from zero, everywhere.

Derivatives go straight through rounding and clipping: to them q is x / scale + zero_point. Integers have no tangents
elsewhere, but the codes that pass from one of these ops to the next do, in f32 (`codes_have_tangents`). So
`dequantize(quantize(x, s), s)` passes gradients on unchanged; any other op in between, a reshape too, stops them. For
training, `fake_quantize` stays in floats and has estimators that know about clipping.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from rlx.ir.dims import Dim, require_equal
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size, matmul_shape, normalize_axis
from rlx.ir.tensor import Tensor
from rlx.ops.define.operands import convert, dims_of, require_dtype, require_float
from rlx.ops.define.rounding import half_away_array, quantizer_dtype, round_half_away
from rlx.ops.define.rules import add_tangents, batch_elementwise, batched_axis, put_batch_first, unbroadcast, zeros_of
from rlx.ops.define.samples import Sample, Spec, sample, spec
from rlx.ops.linalg.contraction import matmul
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.convolution_gradients import Conv2dBackwardInput, Conv2dBackwardWeight
from rlx.ops.pointwise.arithmetic import clamp
from rlx.ops.pointwise.conversion import cast, convert_array
from rlx.ops.shape.movement import moveaxis, reshape, swapaxes

__all__ = [
    "Dequantize",
    "QConv2d",
    "QMatMul",
    "Quantize",
    "dequantize",
    "dequantize_per_channel",
    "q_conv2d",
    "q_matmul",
    "quantize",
    "quantize_per_channel",
]

Array = np.ndarray[Any, np.dtype[Any]]

_CODE_TYPES = (DType.I8, DType.U8, DType.I16, DType.U16)


def _limits(dtype: DType) -> tuple[int, int]:
    info = ml_dtypes.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


class _Affine(Op):
    """What Quantize and Dequantize share: scales and zero points, one for all or one per index along `axis`."""

    codes_have_tangents = True

    axis: int | None
    scales: tuple[float, ...]
    zero_points: tuple[int, ...] = (0,)

    def check(self) -> None:
        if not self.scales or not all(s > 0 and math.isfinite(s) for s in self.scales):
            raise self.fail(f"scales must be positive and finite, got {self.scales}")
        if not self.zero_points:
            raise self.fail("needs at least one zero point; leave it out for 0")
        if self.axis is None and (len(self.scales) > 1 or len(self.zero_points) > 1):
            raise self.fail(
                f"{len(self.scales)} scales and {len(self.zero_points)} zero points need an axis to lie along"
            )

    def _require_channels(self, x: Shape) -> None:
        if self.axis is None:
            return
        channels = x.dims[normalize_axis(self.axis, x.rank, self.mnemonic)]
        for what, values in (("scales", self.scales), ("zero points", self.zero_points)):
            if len(values) != 1 and not require_equal(channels, len(values), self.mnemonic):
                raise self.fail(f"{len(values)} {what} do not fit axis {self.axis} of {x}; give 1 or {channels}")

    def _along_axis(self, values: Array, rank: int) -> Array:
        """One value for all, or the values shaped so that they broadcast along `axis`."""
        if len(values) == 1 or self.axis is None:
            return values[0]
        dims = [1] * rank
        dims[self.axis] = len(values)
        return values.reshape(dims)

    def _scale(self, rank: int) -> Array:
        """The scales as a factor on tangents, which are f32 on the side of the codes."""
        return self._along_axis(np.asarray(self.scales, np.float32), rank)

    def batch(self, size: Size, operands: tuple[Tensor], batched: tuple[bool]) -> Any:
        (x,) = operands
        return (self if self.axis is None else self.replace(axis=batched_axis(self.axis, x)))(x)


@op("quantize")
class Quantize(_Affine):
    """q = clamp(round(x · (1/s)) + z, lowest, highest) of `dtype`, ties away from zero; s and z per index of `axis`.

    The reciprocal and the product are rounded in f32 (f64 for f64 operands). NaN gives 0.
    """

    precision_class = "elementwise"

    dtype: DType = DType.I8

    def check(self) -> None:
        super().check()
        if self.dtype not in _CODE_TYPES:
            raise self.fail(f"dtype must be one of {', '.join(map(str, _CODE_TYPES))}, got {self.dtype}")
        low, high = _limits(self.dtype)
        if not all(low <= z <= high for z in self.zero_points):
            raise self.fail(f"zero points must lie in [{low}, {high}], got {self.zero_points}")

    def infer(self, x: Shape) -> Shape:
        require_float(self, x)
        self._require_channels(x)
        return x.with_dtype(self.dtype)

    def _factors(self, dtype: DType, rank: int) -> tuple[Array, Array]:
        """1/s and z, in the type of the computation."""
        steps = np.asarray(self.scales, dtype.numpy)
        zeros = np.asarray(self.zero_points, dtype.numpy)
        return self._along_axis(1 / steps, rank), self._along_axis(zeros, rank)

    def eval(self, x: Array) -> Array:
        wide = quantizer_dtype(DType.of(x.dtype))
        inverse, zero = self._factors(wide, x.ndim)
        with np.errstate(all="ignore"):
            codes = half_away_array(x.astype(wide.numpy) * inverse) + zero
            return convert_array(np.clip(codes, *_limits(self.dtype)), self.dtype)

    def decompose(self, x: Any) -> Any:
        wide = quantizer_dtype(x.dtype)
        inverse, zero = self._factors(wide, x.ndim)
        low, high = _limits(self.dtype)
        return cast(clamp(round_half_away(convert(x, wide) * inverse) + zero, low, high), self.dtype)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: Tensor) -> Any:
        return convert(tangents[0], DType.F32) / self._scale(y.ndim)

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return convert(ct / self._scale(x.ndim), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(None, (0.02,), (3,)), spec(3, 4))
        yield sample(cls(None, (0.5,)), spec(8, values=[0.25, -0.25, 0.75, -0.75, 1.25, 200, -200, np.nan]))
        yield sample(cls(None, (0.02,), (128,), "u8"), spec(3, 4))
        yield sample(cls(None, (1e-4,), (0,), "i16"), spec(5))
        yield sample(cls(1, (0.1, 0.02, 0.5), (0, 5, -7)), spec(2, 3, 2))
        yield sample(cls(-1, (0.1, 0.02), (4,)), spec(3, 2))
        yield sample(cls(None, (0.02,)), spec(0, 3))
        yield sample(cls(None, (0.02,)), spec())
        yield sample(cls(1, (0.1, 0.02)), spec("B", 2), B=3)


@op("dequantize")
class Dequantize(_Affine):
    """x = (q - z) · s in `dtype`; s and z per index of `axis`. The difference is taken in i32, the product in f32."""

    precision_class = "elementwise"

    dtype: DType = DType.F32

    def check(self) -> None:
        super().check()
        if not self.dtype.is_float or self.dtype.is_storage:
            raise self.fail(f"dtype must be a float type, got {self.dtype}")
        low, high = _limits(DType.I32)
        if not all(low <= z <= high for z in self.zero_points):
            raise self.fail(f"zero points must lie in [{low}, {high}], got {self.zero_points}")

    def infer(self, q: Shape) -> Shape:
        require_dtype(self, q.dtype in (*_CODE_TYPES, DType.I32), "8- or 16-bit integer or i32", q)
        self._require_channels(q)
        return q.with_dtype(self.dtype)

    def _factors(self, rank: int) -> tuple[Array, Array]:
        wide = quantizer_dtype(self.dtype).numpy
        scale = self._along_axis(np.asarray(self.scales, wide), rank)
        return scale, self._along_axis(np.asarray(self.zero_points, np.int32), rank)

    def eval(self, q: Array) -> Array:
        scale, zero = self._factors(q.ndim)
        with np.errstate(all="ignore"):
            return np.asarray((q.astype(np.int32) - zero).astype(scale.dtype) * scale).astype(self.dtype.numpy)

    def decompose(self, q: Any) -> Any:
        scale, zero = self._factors(q.ndim)
        return convert(cast(convert(q, DType.I32) - zero, DType.of(scale.dtype)) * scale, self.dtype)

    def jvp(self, primals: tuple[Tensor], tangents: tuple[Tensor], y: Tensor) -> Any:
        return convert(tangents[0] * self._scale(y.ndim), self.dtype)

    def vjp(self, ct: Tensor, y: Tensor, q: Tensor) -> Any:
        return convert(ct, DType.F32) * self._scale(q.ndim)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        codes = ("i8", "u8", "i16", "i32")
        yield sample(cls(None, (0.02,), (3,)), spec(3, 4, low=-100, high=100), dtypes=codes)
        yield sample(cls(1, (0.1, 0.02, 0.5), (0, 5, -7)), spec(2, 3, 2, low=-100, high=100), dtypes=("i8",))
        yield sample(cls(-2, (0.1, 0.02), (4,), "f16"), spec(2, 3), dtypes=("i8",))
        yield sample(cls(None, (0.02,), (1,), "f64"), spec(), dtypes=("i8",))
        yield sample(cls(None, (0.02,)), spec(0, 3), dtypes=("i8",))
        yield sample(cls(0, (0.1, 0.02)), spec(2, "S"), dtypes=("i8",), S=3)


def _require_codes(op: Op, dtype: DType, *codes: Shape) -> None:
    if dtype not in (DType.I8, DType.U8):
        raise op.fail(f"dtype must be i8 or u8, got {dtype}")
    require_dtype(op, all(c.dtype in (DType.I8, DType.U8) for c in codes), "i8 or u8", *codes)


def _require_bias(op: Op, bias: Shape | None, channels: Size) -> None:
    if bias is None:
        return
    if bias.rank != 1 or bias.dtype is not DType.I32 or not require_equal(bias.dims[0], channels, op.mnemonic):
        raise op.fail(f"needs a bias i32[{channels}], got {bias}")


def _requantize_array(total: Array, mult: float, zero: int, dtype: DType) -> Array:
    """clamp(round(total · mult) + zero) of an i32 sum, computed in f32."""
    scaled = half_away_array(total.astype(np.float32) * np.float32(mult)) + np.float32(zero)
    return np.clip(scaled, *_limits(dtype)).astype(dtype.numpy)


def _centred(codes: Tensor, zero: int) -> Any:
    """The codes minus their zero point, in f32: what the products of tangents are taken with."""
    return cast(codes, DType.F32) - float(zero)


def _sum_present(parts: Sequence[Tensor | None]) -> Any:
    return functools.reduce(add_tangents, [p for p in parts if p is not None])


def _requantize(total: Any, mult: float, zero: int, dtype: DType) -> Any:
    low, high = _limits(dtype)
    return cast(clamp(round_half_away(cast(total, DType.F32) * mult) + float(zero), low, high), dtype)


@op("q_matmul")
class QMatMul(Op):
    """q = clamp(round((bias + Σ_k (x - x_zp)(w - w_zp)) · mult) + out_zp), ties away from zero.

    x[..,M,K] and w[..,K,N] are i8 or u8, their batch dims broadcast; bias is i32[N] or absent. The sum wraps in i32;
    mult = scale_x · scale_w / scale_out is applied in f32.
    """

    is_blas = True

    codes_have_tangents = True

    x_zp: int
    w_zp: int
    out_zp: int
    mult: float
    dtype: DType = DType.I8

    def infer(self, x: Shape, w: Shape, bias: Shape | None = None) -> Shape:
        _require_codes(self, self.dtype, x, w)
        result = matmul_shape(x.with_dtype(self.dtype), w.with_dtype(self.dtype), self.mnemonic)
        _require_bias(self, bias, result.dims[-1])
        return result

    def eval(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        total = np.matmul(x.astype(np.int32) - self.x_zp, w.astype(np.int32) - self.w_zp)
        if bias is not None:
            total = total + bias
        return _requantize_array(total, self.mult, self.out_zp, self.dtype)

    def decompose(self, x: Any, w: Any, bias: Any = None) -> Any:
        total = matmul(cast(x, DType.I32) - self.x_zp, cast(w, DType.I32) - self.w_zp)
        return _requantize(total if bias is None else total + bias, self.mult, self.out_zp, self.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Tensor) -> Any:
        (x, w, *_), (dx, dw, *_) = primals, tangents
        by_x = None if dx is None else matmul(dx, _centred(w, self.w_zp))
        by_w = None if dw is None else matmul(_centred(x, self.x_zp), dw)
        return _sum_present([by_x, by_w]) * self.mult

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor, w: Tensor, *bias: Tensor) -> Any:
        scaled = ct * self.mult
        dx = matmul(scaled, swapaxes(_centred(w, self.w_zp), -1, -2))
        dw = matmul(swapaxes(_centred(x, self.x_zp), -1, -2), scaled)
        return unbroadcast(dx, x.type), unbroadcast(dw, w.type), *(None for _ in bias)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        # The op takes one bias for all matrices, so one per example is added by the decomposition.
        bias_per_example = len(operands) == 3 and batched[2]
        product: Any = self.decompose if bias_per_example else self
        return batch_elementwise(product, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        codes, bias = ("i8", "u8"), spec(5, dtype="i32", low=-900, high=900)
        yield sample(cls(3, -2, 5, 0.002), _codes(2, 4), _codes(4, 5), bias, dtypes=codes)
        yield sample(cls(0, 0, 0, 0.5), spec(2, 4, low=-4, high=4), spec(4, 5, low=-4, high=4), dtypes=codes)
        yield sample(cls(0, 1, 128, 0.01, "u8"), _codes(2, 4), _codes(4, 5), dtypes=codes)
        yield sample(cls(1, 0, 2, 0.01), _codes(3, 1, 2, 4), _codes(2, 4, 5), bias, dtypes=("i8",))
        yield sample(cls(1, 1, 2, 0.01), spec(2, 0), spec(0, 5), bias, dtypes=("i8",))
        yield sample(cls(1, 1, 2, 0.01), _codes("B", 4), _codes(4, 5), bias, dtypes=("i8",), B=3)


@op("q_conv2d")
class QConv2d(Op):
    """`QMatMul`'s formula summed over the windows of a convolution: x NCHW, w[C_out, C_in/groups, kH, kW].

    bias is i32[C_out] or absent. Taps in the padding contribute 0, as if x were x_zp there. Any number of spatial axes
    will do.
    """

    is_blas = True

    codes_have_tangents = True

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    x_zp: int = 0
    w_zp: int = 0
    out_zp: int = 0
    mult: float = 1.0
    dtype: DType = DType.I8

    def check(self) -> None:
        _ = self._sum

    @property
    def _sum(self) -> Conv:
        """The convolution of the centred codes; it also checks attributes and shapes."""
        return Conv(*self._window)

    @property
    def _window(self) -> tuple[Any, ...]:
        return self.kernel_size, self.stride, self.padding, self.dilation, self.groups

    def infer(self, x: Shape, w: Shape, bias: Shape | None = None) -> Shape:
        _require_codes(self, self.dtype, x, w)
        result = self._sum.infer(x.with_dtype(DType.I32), w.with_dtype(DType.I32))
        _require_bias(self, bias, result.dims[1])
        return result.with_dtype(self.dtype)

    def eval(self, x: Array, w: Array, bias: Array | None = None) -> Array:
        total = self._sum.eval(x.astype(np.int32) - self.x_zp, w.astype(np.int32) - self.w_zp)
        if bias is not None:
            total = total + bias.reshape(-1, *(1,) * len(self.kernel_size))
        return _requantize_array(total, self.mult, self.out_zp, self.dtype)

    def decompose(self, x: Any, w: Any, bias: Any = None) -> Any:
        total = self._sum(cast(x, DType.I32) - self.x_zp, cast(w, DType.I32) - self.w_zp)
        if bias is not None:
            total = total + reshape(bias, (*bias.shape, *(1,) * len(self.kernel_size)))
        return _requantize(total, self.mult, self.out_zp, self.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Tensor) -> Any:
        (x, w, *_), (dx, dw, *_) = primals, tangents
        by_x = None if dx is None else self._sum(dx, _centred(w, self.w_zp))
        by_w = None if dw is None else self._sum(_centred(x, self.x_zp), dw)
        return _sum_present([by_x, by_w]) * self.mult

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor, w: Tensor, *bias: Tensor) -> Any:
        scaled = ct * self.mult
        dx = Conv2dBackwardInput(*self._window, x_shape=x.shape)(scaled, _centred(w, self.w_zp))
        dw = Conv2dBackwardWeight(*self._window)(_centred(x, self.x_zp), scaled)
        return dx, dw, *(None for _ in bias)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        x, *weights = operands
        if not any(batched[1:]):
            y = self(reshape(x, (size * x.shape[1], *x.shape[2:])), *weights)
            return reshape(y, (size, x.shape[1], *y.shape[1:]))
        if isinstance(size, Dim):
            raise self.fail(f"weights that differ within a batch need a batch of fixed size, got {size}; bind it first")
        if size == 0:
            one = self.infer(*(Shape(t.shape[b:], t.dtype) for t, b in zip(operands, batched)))
            assert isinstance(one, Shape)
            return zeros_of(one.with_dims((0, *one.dims)), x)
        # Every example is a group of channels of its own.
        x, *weights = (put_batch_first(t, b, size) for t, b in zip(operands, batched))
        images = reshape(moveaxis(x, 0, 1), (x.shape[1], size * x.shape[2], *x.shape[3:]))
        y = self.replace(groups=size * self.groups)(
            images, *(reshape(t, (size * t.shape[1], *t.shape[2:])) for t in weights)
        )
        return moveaxis(reshape(y, (y.shape[0], size, y.shape[1] // size, *y.shape[2:])), 1, 0)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        codes = ("i8", "u8")
        bias = spec(4, dtype="i32", low=-900, high=900)
        plain = cls((3, 3), (1, 1), (0, 0), (1, 1), x_zp=3, w_zp=-2, out_zp=5, mult=0.001)
        yield sample(plain, _codes(2, 3, 5, 4), _codes(4, 3, 3, 3), bias, dtypes=codes)
        strided = plain.replace(kernel_size=(2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
        yield sample(strided, _codes(1, 3, 5, 4), _codes(4, 3, 2, 3), bias, dtypes=codes)
        grouped = plain.replace(groups=2, padding=(1, 1), dtype="u8")
        yield sample(grouped, _codes(1, 4, 3, 3), _codes(4, 2, 3, 3), dtypes=("i8",))
        yield sample(grouped, _codes("B", 4, "H", 3), _codes(4, 2, 3, 3), bias, dtypes=("i8",), B=2, H=3)
        yield sample(plain, spec(0, 3, 5, 4), spec(4, 3, 3, 3), bias, dtypes=("i8",))


def _codes(*dims: int | str) -> Spec:
    return spec(*dims, low=-120, high=120)


def _numbers(values: Any) -> tuple[Any, ...]:
    return tuple(values) if isinstance(values, Sequence | np.ndarray) else (values,)


def quantize(x: Any, scale: Any, zero_point: Any = 0, axis: int | None = None, dtype: DTypeLike = DType.I8) -> Any:
    """x as integers, round(x / scale) + zero_point; lists of scales and zero points lie along `axis`.

    >>> quantize(np.array([0.24, -0.26, 99.0], np.float32), 0.5).tolist()
    [0, -1, 127]
    """
    return Quantize(axis, _numbers(scale), _numbers(zero_point), DType.of(dtype))(x)


def quantize_per_channel(x: Any, axis: int, scales: Sequence[float], zero_points: Sequence[int] = (0,)) -> Any:
    """`quantize` to i8 with one scale and zero point per index of `axis`."""
    return quantize(x, scales, zero_points, axis)


def dequantize(q: Any, scale: Any, zero_point: Any = 0, axis: int | None = None, dtype: DTypeLike = DType.F32) -> Any:
    """The numbers behind integers, (q - zero_point) · scale; lists of scales and zero points lie along `axis`."""
    return Dequantize(axis, _numbers(scale), _numbers(zero_point), DType.of(dtype))(q)


def dequantize_per_channel(q: Any, axis: int, scales: Sequence[float], zero_points: Sequence[int] = (0,)) -> Any:
    """`dequantize` to f32 with one scale and zero point per index of `axis`."""
    return dequantize(q, scales, zero_points, axis)


def q_matmul(x: Any, w: Any, bias: Any = None, x_zp: int = 0, w_zp: int = 0, out_zp: int = 0, mult: float = 1.0) -> Any:
    """Product of quantised matrices with a quantised result; see `QMatMul`."""
    operands = (x, w) if bias is None else (x, w, bias)
    return QMatMul(x_zp, w_zp, out_zp, mult)(*operands)


def q_conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    groups: int = 1,
    x_zp: int = 0,
    w_zp: int = 0,
    out_zp: int = 0,
    mult: float = 1.0,
) -> Any:
    """Convolution of a quantised image with quantised weights; see `QConv2d`."""
    operands = (x, w) if bias is None else (x, w, bias)
    kernel = Shape(dims_of(w)).static_dims[2:]
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    return QConv2d(kernel, stride or ones, padding or zeros, dilation or ones, groups, x_zp, w_zp, out_zp, mult)(
        *operands
    )
