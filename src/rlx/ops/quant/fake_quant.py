"""Quantisation-aware training: ops that round to the grid of an integer type but stay in floats, and their gradients.

    z = x / s,    y = clamp(round(z), -qmax, qmax) · s,    qmax = 2^(bits-1) - 1

with ties away from zero and one step s per index of `axis` (one for all without it). `FakeQuantize` takes s from the
data or from a state; `FakeQuantizeLSQ` learns it. Rounding has no useful derivative: `SteKind` says what stands in
for it. All of it is computed in f32 (f64 for f64 operands) and rounded once.

To a derivative the step of `FakeQuantize` is a constant, wherever it comes from: the state has no gradient, and the
second derivative is that of the estimator alone. Batching gives every example steps of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, attribute_type, op
from rlx.ir.shape import Shape
from rlx.ir.words import Words
from rlx.ops.define.operands import convert, require_float, require_same_dtype
from rlx.ops.define.rounding import half_away_array, round_half_away
from rlx.ops.define.rules import add_tangents
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.pointwise.arithmetic import le, maximum, where
from rlx.ops.pointwise.unary import abs_, sign, square, stop_gradient, tanh
from rlx.ops.quant.quant_steps import SMALLEST_STEP, SteppedOp, round_array, round_tensor, wide_arrays, wide_tensors
from rlx.ops.reduction.reductions import reduce_max, reduce_sum
from rlx.ops.shape.movement import reshape

__all__ = [
    "FakeQuantize",
    "FakeQuantizeBackward",
    "FakeQuantizeLSQ",
    "FakeQuantizeLSQBackwardScale",
    "FakeQuantizeLSQBackwardX",
    "ScaleMode",
    "SteKind",
    "fake_quantize",
    "fake_quantize_backward",
    "fake_quantize_lsq",
    "fake_quantize_lsq_backward_scale",
    "fake_quantize_lsq_backward_x",
]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class SteKind(Words):
    """What replaces the derivative of rounding (the straight-through estimator).

    Identity: 1. ClippedIdentity: 1 where |x| ≤ qmax·s. Tanh: 1 - tanh²(x/s). HardTanh: max(0, 1 - |x / (qmax·s)|).
    """

    Identity = "identity"
    ClippedIdentity = "clipped_identity"
    Tanh = "tanh"
    HardTanh = "hard_tanh"


@attribute_type
class ScaleMode(Words):
    """Where the step comes from: this batch, a running average (kept in a state operand), or the state alone."""

    PerBatch = "per_batch"
    EMA = "ema"
    Fixed = "fixed"


class _Scaled(SteppedOp):
    """The step of FakeQuantize, shared with its gradient, which must see the same one."""

    ste: SteKind = SteKind.Identity
    scale_mode: ScaleMode = ScaleMode.PerBatch
    decay: float = 0.99

    def check(self) -> None:
        super().check()
        if not 0.0 <= self.decay <= 1.0:
            raise self.fail(f"decay must be in [0, 1], got {self.decay}")

    def _require_state(self, x: Shape, state: Shape | None) -> None:
        if self.scale_mode is ScaleMode.PerBatch:
            if state is not None:
                raise self.fail(f"scale_mode=per_batch takes no state, got {state}")
            return
        if state is None:
            raise self.fail(f"scale_mode={self.scale_mode} needs a state operand with the steps")
        require_float(self, state)
        if state.rank != 1 or not require_equal(state.dims[0], self.channels(x), self.mnemonic):
            raise self.fail(f"needs a state of shape [{self.channels(x)}] for {x}, got {state}")

    def _step_array(self, x: Array, state: Array | None) -> Array:
        """The step of each channel, [C], in x's (wide) dtype."""
        if self.scale_mode is ScaleMode.Fixed and state is not None:
            return np.maximum(state, x.dtype.type(SMALLEST_STEP))
        largest = np.max(np.abs(x), axis=self.other_axes(x.ndim), initial=0).reshape(-1)
        current = np.maximum(largest / x.dtype.type(self.qmax), x.dtype.type(SMALLEST_STEP))
        if self.scale_mode is ScaleMode.PerBatch or state is None:
            return current
        keep, blend = x.dtype.type(self.decay), x.dtype.type(1.0 - self.decay)
        return np.where(state <= 0, current, keep * state + blend * current)

    def _step(self, x: Any, state: Any) -> Any:
        if self.scale_mode is ScaleMode.Fixed:
            return maximum(state, SMALLEST_STEP)
        # An empty maximum is -inf and ends at the smallest step, like one of zeros.
        largest = reduce_max(abs_(x), self.other_axes(x.ndim))
        current = maximum(reshape(largest, (self.channels(x.type),)) / float(self.qmax), SMALLEST_STEP)
        if self.scale_mode is ScaleMode.PerBatch:
            return current
        return where(le(state, 0.0), current, state * self.decay + current * (1.0 - self.decay))


@op("fake_quantize")
class FakeQuantize(_Scaled):
    """y = clamp(round(x / s), -qmax, qmax) · s, ties away from zero.

    PerBatch: s = max|x| / qmax. EMA: s = state' = decay·state + (1-decay)·max|x|/qmax, or the latter while state ≤ 0;
    the second result is state'. Fixed: s = state. s is at least 1e-12. The state has one element per index of `axis`,
    or one. The derivative is that of `FakeQuantizeBackward`.
    """

    precision_class = "elementwise"

    derivative_is_defined = True

    def infer(self, x: Shape, state: Shape | None = None) -> Shape | tuple[Shape, ...]:
        require_float(self, x)
        self._require_state(x, state)
        return (x, state) if self.scale_mode is ScaleMode.EMA and state is not None else x

    def eval(self, x: Array, state: Array | None = None) -> Any:
        with np.errstate(all="ignore"):
            (wide,) = wide_arrays(x)
            step = self._step_array(wide, None if state is None else state.astype(wide.dtype))
            y = round_array(wide, self.aligned(step, x.ndim), self.qmax).astype(x.dtype)
            return (y, step.astype(state.dtype)) if self.scale_mode is ScaleMode.EMA and state is not None else y

    def decompose(self, x: Any, state: Any = None) -> Any:
        (wide,) = wide_tensors(x)
        step = self._step(wide, None if state is None else convert(state, wide.dtype))
        y = convert(round_tensor(wide, self.aligned(step, x.ndim), self.qmax), x.dtype)
        return (y, convert(step, state.dtype)) if self.scale_mode is ScaleMode.EMA else y

    @property
    def _backward(self) -> FakeQuantizeBackward:
        return FakeQuantizeBackward(**self.attributes)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        x, *state = primals
        # The estimator is a factor on each element, so it serves tangents and cotangents alike.
        dy = None if tangents[0] is None else self._backward(x, tangents[0], *state)
        return (dy, None) if self.scale_mode is ScaleMode.EMA else dy

    def vjp(self, ct: Any, y: Any, x: Any, *state: Any) -> Any:
        dy = ct[0] if self.scale_mode is ScaleMode.EMA else ct
        return None if dy is None else self._backward(x, dy, *state), *(None for _ in state)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        lanes, merged = self.in_lanes(size, operands, batched, steps=1)
        result = self.replace(axis=0)(*merged)
        if self.scale_mode is ScaleMode.EMA:
            return lanes.split(result[0]), lanes.split_steps(result[1])
        return lanes.split(result)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for bits in (8, 4, 2, 3):
            yield sample(cls(bits), spec(3, 4))
        yield sample(cls(8, 1), spec(2, 3, 4))
        yield sample(cls(4, -1), spec(2, 3))
        yield sample(cls(4), spec())
        yield sample(cls(8), spec(0, 3))
        yield sample(cls(8), spec(3, values=0.0))
        yield sample(cls(4, scale_mode="fixed"), spec(3, 4), spec(1, low=0.01, high=0.3))
        yield sample(cls(4, 0, scale_mode="fixed"), spec(3, 4), spec(3, low=0.01, high=0.3, dtype="f32"))
        yield sample(cls(4, scale_mode="ema", decay=0.5), spec(3, 4), spec(1, low=0.01, high=0.3))
        first = spec(3, dtype="f32", values=[0.0, 0.2, -1.0])
        yield sample(cls(4, 0, scale_mode="ema"), spec(3, 4), first)
        yield sample(cls(4, 1, scale_mode="ema"), spec("B", 3), first, B=2)
        yield sample(cls(4, 0), spec("C", 3), C=2)


@op("fake_quantize_backward")
class FakeQuantizeBackward(_Scaled):
    """dx of FakeQuantize by the straight-through estimator `ste`; operands x, dy and, for EMA and Fixed, the state.

    The state is the one that entered the forward op, so that both use the same step; the step counts as a constant.
    """

    precision_class = "elementwise"

    derivative_is_defined = True

    def infer(self, x: Shape, dy: Shape, state: Shape | None = None) -> Shape:
        require_float(self, x, dy)
        require_same_dtype(self, x, dy)
        _require_same_dims(self, x, dy)
        self._require_state(x, state)
        return x

    def eval(self, x: Array, dy: Array, state: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            wide, grad = wide_arrays(x, dy)
            step = self._step_array(wide, None if state is None else state.astype(wide.dtype))
            return np.asarray(grad * self._gate_array(wide, self.aligned(step, x.ndim))).astype(x.dtype)

    def _gate_array(self, x: Array, step: Array) -> Any:
        limit = step * x.dtype.type(self.qmax)
        if self.ste is SteKind.Identity:
            return x.dtype.type(1)
        if self.ste is SteKind.ClippedIdentity:
            return (np.abs(x) <= limit).astype(x.dtype)
        if self.ste is SteKind.Tanh:
            return 1 - np.tanh(x / step) ** 2
        return np.maximum(0, 1 - np.abs(x / limit))

    def decompose(self, x: Any, dy: Any, state: Any = None) -> Any:
        if self.ste is SteKind.Identity:
            return dy
        wide, grad = wide_tensors(x, dy)
        step = stop_gradient(self._step(wide, None if state is None else convert(state, wide.dtype)))
        return convert(grad * self._gate(wide, self.aligned(step, x.ndim)), x.dtype)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        lanes, merged = self.in_lanes(size, operands, batched, steps=2)
        return lanes.split(self.replace(axis=0)(*merged))

    def _gate(self, x: Any, step: Any) -> Any:
        limit = step * float(self.qmax)
        if self.ste is SteKind.ClippedIdentity:
            return where(le(abs_(x), limit), convert(1.0, x.dtype), 0.0)
        if self.ste is SteKind.Tanh:
            return 1.0 - square(tanh(x / step))
        return maximum(0.0, 1.0 - abs_(x / limit))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for ste in SteKind:
            yield sample(cls(4, ste=ste), spec(3, 4), spec(3, 4))
            yield sample(cls(4, 1, ste, "fixed"), spec(2, 3), spec(2, 3), spec(3, low=0.05, high=0.3))
            yield sample(cls(3, 0, ste, "ema", 0.9), spec("C", 3), spec("C", 3), spec("C", low=0.05, high=0.3), C=2)
        yield sample(cls(4, ste="tanh"), spec(0, 3), spec(0, 3))


@op("fake_quantize_lsq")
class FakeQuantizeLSQ(SteppedOp):
    """FakeQuantize with a learned step: y = clamp(round(x / s), -qmax, qmax) · s with s = max(scale, 1e-12).

    `scale` has one element, or one per index of `axis`. Its derivative lets x through where |x / s| ≤ qmax, and that
    with respect to the scale is ψ of `FakeQuantizeLSQBackwardScale`.
    """

    precision_class = "elementwise"

    derivative_is_defined = True

    def infer(self, x: Shape, scale: Shape) -> Shape:
        self.require_steps("scale", scale, x)
        return x

    def eval(self, x: Array, scale: Array) -> Array:
        with np.errstate(all="ignore"):
            wide, step = _lsq_arrays(self, x, scale)
            return round_array(wide, step, self.qmax).astype(x.dtype)

    def decompose(self, x: Any, scale: Any) -> Any:
        wide, step = _lsq(self, x, scale)
        return convert(round_tensor(wide, step, self.qmax), x.dtype)

    def jvp(self, primals: Any, tangents: Any, y: Any) -> Any:
        x, scale = primals
        dx, dscale = tangents
        through = None if dx is None else FakeQuantizeLSQBackwardX(self.bits, self.axis)(x, scale, dx)
        if dscale is None:
            return through
        wide, step = _lsq(self, x, scale)
        moved = convert(_slope(wide / step, self.qmax) * self.aligned(convert(dscale, wide.dtype), x.ndim), x.dtype)
        return moved if through is None else add_tangents(through, moved)

    def vjp(self, ct: Any, y: Any, x: Any, scale: Any) -> Any:
        return (
            FakeQuantizeLSQBackwardX(self.bits, self.axis)(x, scale, ct),
            FakeQuantizeLSQBackwardScale(self.bits, self.axis)(x, scale, ct),
        )

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        lanes, merged = self.in_lanes(size, operands, batched, steps=1)
        return lanes.split(self.replace(axis=0)(*merged))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for made, *operands in _lsq_samples(cls):
            yield sample(made, *operands)
        yield sample(cls(4, 1), spec("B", 3), spec(3, low=0.05, high=0.5), B=2)


@op("fake_quantize_lsq_backward_x")
class FakeQuantizeLSQBackwardX(SteppedOp):
    """dx of FakeQuantizeLSQ: dy where |x / s| ≤ qmax, else 0."""

    precision_class = "elementwise"

    linear_in = (2,)

    def infer(self, x: Shape, scale: Shape, dy: Shape) -> Shape:
        self.require_steps("scale", scale, x)
        require_same_dtype(self, x, dy)
        _require_same_dims(self, x, dy)
        return x

    def eval(self, x: Array, scale: Array, dy: Array) -> Array:
        with np.errstate(all="ignore"):
            wide, step = _lsq_arrays(self, x, scale)
            return np.where(np.abs(wide / step) <= self.qmax, dy, np.zeros_like(dy))

    def decompose(self, x: Any, scale: Any, dy: Any) -> Any:
        wide, step = _lsq(self, x, scale)
        return where(le(abs_(wide / step), float(self.qmax)), dy, 0.0)

    def vjp(self, ct: Any, y: Any, x: Any, scale: Any, dy: Any) -> Any:
        return None, None, self(x, scale, ct)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        lanes, merged = self.in_lanes(size, operands, batched, steps=1)
        return lanes.split(self.replace(axis=0)(*merged))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for made, x, scale in _lsq_samples(cls):
            yield sample(made, x, scale, spec(*x.dims))


@op("fake_quantize_lsq_backward_scale")
class FakeQuantizeLSQBackwardScale(SteppedOp):
    """dscale of FakeQuantizeLSQ: Σ ψ(x/s)·dy over what shares the step, ψ(z) = round(z) - z if |z| ≤ qmax, else
    ±qmax."""

    precision_class = "elementwise"

    def infer(self, x: Shape, scale: Shape, dy: Shape) -> Shape:
        self.require_steps("scale", scale, x)
        require_same_dtype(self, x, dy)
        _require_same_dims(self, x, dy)
        return scale

    def _summed_axes(self, rank: int, scale: Any) -> tuple[int, ...]:
        return tuple(range(rank)) if scale.shape[0] == 1 else self.other_axes(rank)

    def eval(self, x: Array, scale: Array, dy: Array) -> Array:
        with np.errstate(all="ignore"):
            wide, step = _lsq_arrays(self, x, scale)
            z = wide / step
            slope = np.where(np.abs(z) <= self.qmax, half_away_array(z) - z, np.sign(z) * self.qmax)
            total = np.sum(slope * dy, axis=self._summed_axes(x.ndim, scale), dtype=np.float64)
            return total.reshape(scale.shape).astype(scale.dtype)

    def decompose(self, x: Any, scale: Any, dy: Any) -> Any:
        wide, step = _lsq(self, x, scale)
        slope = _slope(wide / step, self.qmax)
        total = reduce_sum(slope * convert(dy, wide.dtype), self._summed_axes(x.ndim, scale))
        return convert(reshape(total, scale.shape), scale.dtype)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        lanes, merged = self.in_lanes(size, operands, batched, steps=1)
        return lanes.split_steps(self.replace(axis=0)(*merged))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        # x / s stays away from ½, 1½, .., where ψ jumps.
        x, steps = spec(2, 3, 2, low=-2.2, high=2.2, distinct=True), spec(3, values=[0.5, 1.0, 0.8])
        yield sample(cls(8), x, spec(1, values=0.5), spec(2, 3, 2))
        yield sample(cls(2), x, spec(1, values=0.8), spec(2, 3, 2))
        yield sample(cls(3, 1), x, steps, spec(2, 3, 2))
        yield sample(cls(4, -2), spec("B", 3, 2, low=-2.2, high=2.2, distinct=True), steps, spec("B", 3, 2), B=2)
        few = spec(2, 3, low=-2.2, high=2.2, distinct=True)
        yield sample(cls(4, -1), few, spec(1, values=2.0, dtype="f32"), spec(2, 3), dtypes=("f16", "f32"))
        yield sample(cls(4), spec(0, 3), spec(1, values=0.5), spec(0, 3))


def _require_same_dims(op: Op, x: Shape, dy: Shape) -> None:
    if x.rank != dy.rank or not all(require_equal(a, b, op.mnemonic) for a, b in zip(x.dims, dy.dims)):
        raise op.fail(f"x and dy must have one shape, got {x} and {dy}")


def _lsq_arrays(op: SteppedOp, x: Array, scale: Array) -> tuple[Array, Array]:
    """x and the learned step, aligned with it, in the type of the computation."""
    wide, step = wide_arrays(x, scale)
    return wide, op.aligned(np.maximum(step, wide.dtype.type(SMALLEST_STEP)), x.ndim)


def _lsq(op: SteppedOp, x: Any, scale: Any) -> tuple[Any, Any]:
    wide, step = wide_tensors(x, scale)
    return wide, op.aligned(maximum(step, SMALLEST_STEP), x.ndim)


def _slope(z: Any, qmax: int) -> Any:
    """ψ(z), what stands for the derivative with respect to the step."""
    return where(le(abs_(z), float(qmax)), round_half_away(z) - z, sign(z) * float(qmax))


def _lsq_samples(cls: type[SteppedOp]) -> Iterator[tuple[Any, ...]]:
    yield cls(8), spec(3, 4), spec(1, low=0.01, high=0.05)
    yield cls(2), spec(3, 4), spec(1, low=0.4, high=0.9)
    yield cls(4, 1), spec(2, 3, 2), spec(3, low=0.05, high=0.5)
    yield cls(4, -1), spec(2, 3), spec(1, low=0.05, high=0.5, dtype="f32")
    yield cls(4), spec(0, 3), spec(1, low=0.05, high=0.5)


def fake_quantize(
    x: Any,
    bits: int = 8,
    axis: int | None = None,
    ste: SteKind | str = SteKind.Identity,
    scale_mode: ScaleMode | str = ScaleMode.PerBatch,
    decay: float = 0.99,
    state: Any = None,
) -> Any:
    """x rounded to the grid of a `bits`-wide integer; with scale_mode="ema" the pair (value, new state).

    >>> fake_quantize(np.array([1.0, 0.4, -0.7]), bits=2).tolist()
    [1.0, 0.0, -1.0]
    """
    operands = (x,) if state is None else (x, state)
    return FakeQuantize(bits, axis, SteKind(ste), ScaleMode(scale_mode), decay)(*operands)


def fake_quantize_backward(
    x: Any,
    dy: Any,
    bits: int = 8,
    axis: int | None = None,
    ste: SteKind | str = SteKind.Identity,
    scale_mode: ScaleMode | str = ScaleMode.PerBatch,
    decay: float = 0.99,
    state: Any = None,
) -> Any:
    """The gradient of `fake_quantize` with respect to x, by the straight-through estimator."""
    operands = (x, dy) if state is None else (x, dy, state)
    return FakeQuantizeBackward(bits, axis, SteKind(ste), ScaleMode(scale_mode), decay)(*operands)


def fake_quantize_lsq(x: Any, scale: Any, bits: int = 8, axis: int | None = None) -> Any:
    """x rounded to multiples of a learned step; see `FakeQuantizeLSQ`."""
    return FakeQuantizeLSQ(bits, axis)(x, scale)


def fake_quantize_lsq_backward_x(x: Any, scale: Any, dy: Any, bits: int = 8, axis: int | None = None) -> Any:
    """The gradient of `fake_quantize_lsq` with respect to x."""
    return FakeQuantizeLSQBackwardX(bits, axis)(x, scale, dy)


def fake_quantize_lsq_backward_scale(x: Any, scale: Any, dy: Any, bits: int = 8, axis: int | None = None) -> Any:
    """The gradient of `fake_quantize_lsq` with respect to the step."""
    return FakeQuantizeLSQBackwardScale(bits, axis)(x, scale, dy)
