"""Gradients of the normalisations in `rlx.ops.nn.norms`, one op per operand.

Throughout, r = 1/√(variance + eps), x̂ = (x - μ)·r, and dy is the gradient of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import require_equal
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ops.define.operands import promote_inexact
from rlx.ops.define.rules import SharedInBatch, batch_by_folding, batched_axis, put_batch_first
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor
from rlx.ops.nn.norms import (
    along,
    check_features,
    check_groups,
    grouped_dims,
    mean_of,
    other_axes,
    rms_scale_tensor,
    standardize,
    standardize_tensor,
)

__all__ = [
    "BatchNormInferenceBackwardBeta",
    "BatchNormInferenceBackwardGamma",
    "BatchNormInferenceBackwardInput",
    "GroupNormBackwardBeta",
    "GroupNormBackwardGamma",
    "GroupNormBackwardInput",
    "LayerNormBackwardGamma",
    "LayerNormBackwardInput",
    "RmsNormBackwardBeta",
    "RmsNormBackwardGamma",
    "RmsNormBackwardInput",
    "batch_norm_inference_backward_beta",
    "batch_norm_inference_backward_gamma",
    "batch_norm_inference_backward_input",
    "group_norm_backward_beta",
    "group_norm_backward_gamma",
    "group_norm_backward_input",
    "layer_norm_backward_gamma",
    "layer_norm_backward_input",
    "rms_norm_backward_beta",
    "rms_norm_backward_gamma",
    "rms_norm_backward_input",
]

Array = np.ndarray[Any, np.dtype[Any]]


def _check_like(op: Op, x: Shape, dy: Shape) -> None:
    same = dy.rank == x.rank and all(require_equal(a, b, op.mnemonic) for a, b in zip(dy.dims, x.dims))
    if not same or dy.dtype is not x.dtype:
        raise op.fail(f"dy must have the type of x, {x}, got {dy}")


def _project_out(u: Array, normal: Array, scale: Array, axes: tuple[int, ...]) -> Array:
    """r·(u - mean u - x̂·mean(u·x̂)): the gradient of x̂ with respect to x, applied to u."""
    return scale * (u - mean_of(u, axes) - normal * mean_of(u * normal, axes))


def _project_out_tensor(u: Any, normal: Any, scale: Any, axes: tuple[int, ...]) -> Any:
    from rlx.ops.reduction.reductions import mean

    return scale * (u - mean(u, axes, keepdims=True) - normal * mean(u * normal, axes, keepdims=True))


def _sum_tensor(x: Any, axes: tuple[int, ...]) -> Any:
    from rlx.ops.reduction.reductions import reduce_sum

    return reduce_sum(x, axes)


def _batch_rows(op: Any, size: Any, operands: Any, batched: Any) -> Any:
    """The batch rule of gradients along `axis` that are computed row by row; `op.shared` operands are vectors."""
    whole = [x if i in op.shared else put_batch_first(x, b, size) for i, (x, b) in enumerate(zip(operands, batched))]
    return op.replace(axis=batched_axis(op.axis, whole[0]))(*whole)


@op("layer_norm_backward_input")
class LayerNormBackwardInput(SharedInBatch, Op):
    """dx = r·(u - mean u - x̂·mean(u·x̂)) with u = dy·γ and means over `axis`; operands x, γ, dy."""

    precision_class = "reduction"

    shared = (1,)

    axis: int = -1
    eps: float = 1e-5

    def infer(self, x: Shape, gamma: Shape, dy: Shape) -> Shape:
        check_features(self, x, self.axis, gamma)
        _check_like(self, x, dy)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array, gamma: Array, dy: Array) -> Array:
        wide, gain, cotangent = as_f64(x, gamma, dy)
        axes = (self.axis,)
        normal, scale = standardize(wide, axes, self.eps)
        u = cotangent * gain.reshape(along(self.axis, x.ndim, gamma.size))
        return rounded(_project_out(u, normal, scale, axes), x.dtype)

    def decompose(self, x: Any, gamma: Any, dy: Any) -> Any:
        from rlx.ops.shape.movement import reshape

        wide, gain, cotangent = accumulators(x, gamma, dy)
        axes = (self.axis,)
        normal, scale = standardize_tensor(wide, axes, self.eps)
        u = cotangent * reshape(gain, along(self.axis, x.ndim, gamma.shape[0]))
        return rounded_tensor(_project_out_tensor(u, normal, scale, axes), x.dtype)

    batch = _batch_rows

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(4), spec(3, 4))
        yield sample(cls(axis=1, eps=1e-3), spec(2, 3, 4), spec(3), spec(2, 3, 4))
        yield sample(cls(), spec("B", "S", 4), spec(4), spec("B", "S", 4), B=2, S=3)


@op("layer_norm_backward_gamma")
class LayerNormBackwardGamma(Op):
    """dγ = Σ dy·x̂ over all axes but `axis`; operands x, dy."""

    precision_class = "reduction"

    axis: int = -1
    eps: float = 1e-5

    def infer(self, x: Shape, dy: Shape) -> Shape:
        axis = check_features(self, x, self.axis)
        _check_like(self, x, dy)
        return x.with_dims((x.dims[axis],))

    @np.errstate(all="ignore")
    def eval(self, x: Array, dy: Array) -> Array:
        wide, cotangent = as_f64(x, dy)
        normal, _ = standardize(wide, (self.axis,), self.eps)
        return rounded((cotangent * normal).sum(axis=other_axes(self.axis, x.ndim)), x.dtype)

    def decompose(self, x: Any, dy: Any) -> Any:
        wide, cotangent = accumulators(x, dy)
        normal, _ = standardize_tensor(wide, (self.axis,), self.eps)
        return rounded_tensor(_sum_tensor(cotangent * normal, other_axes(self.axis, x.ndim)), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(3, 4))
        yield sample(cls(axis=1, eps=1e-3), spec(2, 3, 4), spec(2, 3, 4))
        yield sample(cls(), spec(0, 4), spec(0, 4))
        yield sample(cls(), spec("B", "S", 4), spec("B", "S", 4), B=2, S=3)


class _RmsNormGradient(Op):
    """What the gradients of RmsNorm share: operands x, γ, β, dy."""

    axis: int = -1
    eps: float = 1e-6

    def _check(self, x: Shape, gamma: Shape, beta: Shape, dy: Shape) -> None:
        check_features(self, x, self.axis, gamma, beta)
        _check_like(self, x, dy)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4), spec(4), spec(4), spec(3, 4))
        yield sample(cls(axis=1, eps=1e-2), spec(2, 3, 4), spec(3), spec(3), spec(2, 3, 4))
        yield sample(cls(), spec("B", "S", 4), spec(4), spec(4), spec("B", "S", 4), B=2, S=3)


@op("rms_norm_backward_input")
class RmsNormBackwardInput(SharedInBatch, _RmsNormGradient):
    """dx = r·(u - x·r²·mean(u·x)) with u = dy·γ and r = (mean x² + eps)^-½; operands x, γ, β, dy."""

    precision_class = "reduction"

    shared = (1, 2)

    def infer(self, x: Shape, gamma: Shape, beta: Shape, dy: Shape) -> Shape:
        self._check(x, gamma, beta, dy)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array, gamma: Array, beta: Array, dy: Array) -> Array:
        wide, gain, cotangent = as_f64(x, gamma, dy)
        axes = (self.axis,)
        scale = 1.0 / np.sqrt(mean_of(wide * wide, axes) + self.eps)
        u = cotangent * gain.reshape(along(self.axis, x.ndim, gamma.size))
        return rounded(scale * (u - wide * scale**2 * mean_of(u * wide, axes)), x.dtype)

    def decompose(self, x: Any, gamma: Any, beta: Any, dy: Any) -> Any:
        from rlx.ops.reduction.reductions import mean
        from rlx.ops.shape.movement import reshape

        wide, gain, cotangent = accumulators(x, gamma, dy)
        scale = rms_scale_tensor(wide, self.axis, self.eps)
        u = cotangent * reshape(gain, along(self.axis, x.ndim, gamma.shape[0]))
        normal = wide * scale
        return rounded_tensor(scale * (u - normal * mean(u * normal, (self.axis,), keepdims=True)), x.dtype)

    batch = _batch_rows


@op("rms_norm_backward_gamma")
class RmsNormBackwardGamma(_RmsNormGradient):
    """dγ = Σ dy·x·r over all axes but `axis`; operands x, γ, β, dy."""

    precision_class = "reduction"

    def infer(self, x: Shape, gamma: Shape, beta: Shape, dy: Shape) -> Shape:
        self._check(x, gamma, beta, dy)
        return gamma

    @np.errstate(all="ignore")
    def eval(self, x: Array, gamma: Array, beta: Array, dy: Array) -> Array:
        wide, cotangent = as_f64(x, dy)
        normal = wide / np.sqrt(mean_of(wide * wide, (self.axis,)) + self.eps)
        return rounded((cotangent * normal).sum(axis=other_axes(self.axis, x.ndim)), x.dtype)

    def decompose(self, x: Any, gamma: Any, beta: Any, dy: Any) -> Any:
        wide, cotangent = accumulators(x, dy)
        normal = wide * rms_scale_tensor(wide, self.axis, self.eps)
        return rounded_tensor(_sum_tensor(cotangent * normal, other_axes(self.axis, x.ndim)), x.dtype)


@op("rms_norm_backward_beta")
class RmsNormBackwardBeta(_RmsNormGradient):
    """dβ = Σ dy over all axes but `axis`; operands x, γ, β, dy."""

    precision_class = "reduction"

    def infer(self, x: Shape, gamma: Shape, beta: Shape, dy: Shape) -> Shape:
        self._check(x, gamma, beta, dy)
        return beta

    def eval(self, x: Array, gamma: Array, beta: Array, dy: Array) -> Array:
        (cotangent,) = as_f64(dy)
        return rounded(cotangent.sum(axis=other_axes(self.axis, x.ndim)), x.dtype)

    def decompose(self, x: Any, gamma: Any, beta: Any, dy: Any) -> Any:
        (cotangent,) = accumulators(dy)
        return rounded_tensor(_sum_tensor(cotangent, other_axes(self.axis, x.ndim)), x.dtype)


class _GroupNormGradient(Op):
    """What the gradients of GroupNorm share."""

    num_groups: int
    eps: float = 1e-5

    def check(self) -> None:
        if self.num_groups < 1:
            raise self.fail(f"num_groups must be positive, got {self.num_groups}")

    def _check(self, x: Shape, dy: Shape, *vectors: Shape) -> None:
        check_groups(self, x, self.num_groups)
        check_features(self, x, 1, *vectors)
        _check_like(self, x, dy)


@op("group_norm_backward_input")
class GroupNormBackwardInput(SharedInBatch, _GroupNormGradient):
    """dx of GroupNorm: the LayerNorm formula per sample and group with γ per channel; operands x, γ, β, dy."""

    precision_class = "reduction"

    shared = (1, 2)

    def infer(self, x: Shape, gamma: Shape, beta: Shape, dy: Shape) -> Shape:
        self._check(x, dy, gamma, beta)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array, gamma: Array, beta: Array, dy: Array) -> Array:
        wide, gain, cotangent = as_f64(x, gamma, dy)
        split, axes = grouped_dims(x.shape, self.num_groups)
        normal, scale = standardize(wide.reshape(split), axes, self.eps)
        u = (cotangent * gain.reshape(along(1, x.ndim, gamma.size))).reshape(split)
        return rounded(_project_out(u, normal, scale, axes).reshape(x.shape), x.dtype)

    def decompose(self, x: Any, gamma: Any, beta: Any, dy: Any) -> Any:
        from rlx.ops.shape.movement import reshape

        wide, gain, cotangent = accumulators(x, gamma, dy)
        split, axes = grouped_dims(x.shape, self.num_groups)
        normal, scale = standardize_tensor(reshape(wide, split), axes, self.eps)
        u = reshape(cotangent * reshape(gain, along(1, x.ndim, gamma.shape[0])), split)
        return rounded_tensor(reshape(_project_out_tensor(u, normal, scale, axes), x.shape), x.dtype)

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for groups in (1, 2):
            yield sample(cls(groups), spec(2, 4, 2, 3), spec(4), spec(4), spec(2, 4, 2, 3))
        yield sample(cls(2), spec("N", 4, "H"), spec(4), spec(4), spec("N", 4, "H"), N=2, H=3)


@op("group_norm_backward_gamma")
class GroupNormBackwardGamma(_GroupNormGradient):
    """dγ = Σ dy·x̂ per channel, over samples and positions; operands x, dy."""

    precision_class = "reduction"

    def infer(self, x: Shape, dy: Shape) -> Shape:
        self._check(x, dy)
        return x.with_dims((x.dims[1],))

    @np.errstate(all="ignore")
    def eval(self, x: Array, dy: Array) -> Array:
        wide, cotangent = as_f64(x, dy)
        split, axes = grouped_dims(x.shape, self.num_groups)
        normal, _ = standardize(wide.reshape(split), axes, self.eps)
        return rounded((cotangent * normal.reshape(x.shape)).sum(axis=other_axes(1, x.ndim)), x.dtype)

    def decompose(self, x: Any, dy: Any) -> Any:
        from rlx.ops.shape.movement import reshape

        wide, cotangent = accumulators(x, dy)
        split, axes = grouped_dims(x.shape, self.num_groups)
        normal, _ = standardize_tensor(reshape(wide, split), axes, self.eps)
        return rounded_tensor(_sum_tensor(cotangent * reshape(normal, x.shape), other_axes(1, x.ndim)), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2), spec(2, 4, 2, 3), spec(2, 4, 2, 3))
        yield sample(cls(1), spec("N", 4, "H"), spec("N", 4, "H"), N=2, H=3)


@op("group_norm_backward_beta")
class GroupNormBackwardBeta(_GroupNormGradient):
    """dβ = Σ dy per channel, over samples and positions; operands x, dy."""

    precision_class = "reduction"

    def infer(self, x: Shape, dy: Shape) -> Shape:
        self._check(x, dy)
        return x.with_dims((x.dims[1],))

    def eval(self, x: Array, dy: Array) -> Array:
        (cotangent,) = as_f64(dy)
        return rounded(cotangent.sum(axis=other_axes(1, x.ndim)), x.dtype)

    def decompose(self, x: Any, dy: Any) -> Any:
        (cotangent,) = accumulators(dy)
        return rounded_tensor(_sum_tensor(cotangent, other_axes(1, x.ndim)), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2), spec(2, 4, 2, 3), spec(2, 4, 2, 3))
        yield sample(cls(1), spec("N", 4, "H"), spec("N", 4, "H"), N=2, H=3)


@op("batch_norm_inference_backward_input")
class BatchNormInferenceBackwardInput(SharedInBatch, Op):
    """dx = dy·γ/√(var + eps); operands x, γ, mean, var, dy."""

    precision_class = "reduction"

    shared = (1, 2, 3)

    eps: float = 1e-5

    def infer(self, x: Shape, gamma: Shape, mean: Shape, var: Shape, dy: Shape) -> Shape:
        check_features(self, x, -1, gamma, mean, var)
        _check_like(self, x, dy)
        return x

    @np.errstate(all="ignore")
    def eval(self, x: Array, gamma: Array, mean: Array, var: Array, dy: Array) -> Array:
        gain, variance, cotangent = as_f64(gamma, var, dy)
        return rounded(cotangent * gain / np.sqrt(variance + self.eps), x.dtype)

    def decompose(self, x: Any, gamma: Any, mean: Any, var: Any, dy: Any) -> Any:
        from rlx.ops.pointwise.unary import rsqrt

        gain, variance, cotangent = accumulators(gamma, var, dy)
        return rounded_tensor(cotangent * (gain * rsqrt(variance + self.eps)), x.dtype)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        x, *vectors, dy = operands
        return self(put_batch_first(x, batched[0], size), *vectors, put_batch_first(dy, batched[-1], size))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        variance = spec(4, low=0.1, high=2)
        yield sample(cls(), spec(3, 4), spec(4), spec(4), variance, spec(3, 4))
        yield sample(cls(eps=0.1), spec("B", 2, 4), spec(4), spec(4), variance, spec("B", 2, 4), B=3)


@op("batch_norm_inference_backward_gamma")
class BatchNormInferenceBackwardGamma(Op):
    """dγ = Σ dy·(x - mean)/√(var + eps) over all axes but the last; operands x, mean, var, dy."""

    precision_class = "reduction"

    eps: float = 1e-5

    def infer(self, x: Shape, mean: Shape, var: Shape, dy: Shape) -> Shape:
        check_features(self, x, -1, mean, var)
        _check_like(self, x, dy)
        return x.with_dims((x.dims[-1],))

    @np.errstate(all="ignore")
    def eval(self, x: Array, mean: Array, var: Array, dy: Array) -> Array:
        wide, centre, variance, cotangent = as_f64(x, mean, var, dy)
        total = (cotangent * (wide - centre)).sum(axis=other_axes(-1, x.ndim))
        return rounded(total / np.sqrt(variance + self.eps), x.dtype)

    def decompose(self, x: Any, mean: Any, var: Any, dy: Any) -> Any:
        from rlx.ops.pointwise.unary import rsqrt

        wide, centre, variance, cotangent = accumulators(x, mean, var, dy)
        total = _sum_tensor(cotangent * (wide - centre), other_axes(-1, x.ndim))
        return rounded_tensor(total * rsqrt(variance + self.eps), x.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        variance = spec(4, low=0.1, high=2)
        yield sample(cls(), spec(3, 4), spec(4), variance, spec(3, 4))
        yield sample(cls(eps=0.1), spec("B", 2, 4), spec(4), variance, spec("B", 2, 4), B=3)


@op("batch_norm_inference_backward_beta")
class BatchNormInferenceBackwardBeta(Op):
    """dβ = Σ dy over all axes but the last."""

    precision_class = "reduction"

    def infer(self, dy: Shape) -> Shape:
        check_features(self, dy, -1)
        return dy.with_dims((dy.dims[-1],))

    def eval(self, dy: Array) -> Array:
        (cotangent,) = as_f64(dy)
        return rounded(cotangent.sum(axis=other_axes(-1, dy.ndim)), dy.dtype)

    def decompose(self, dy: Any) -> Any:
        (cotangent,) = accumulators(dy)
        return rounded_tensor(_sum_tensor(cotangent, other_axes(-1, dy.ndim)), dy.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 4))
        yield sample(cls(), spec("B", 2, 4), B=3)


def layer_norm_backward_input(x: Any, gamma: Any, dy: Any, axis: int = -1, eps: float = 1e-5) -> Any:
    """Gradient of `layer_norm` with respect to x."""
    return LayerNormBackwardInput(axis, eps)(*promote_inexact(x, gamma, dy))


def layer_norm_backward_gamma(x: Any, dy: Any, axis: int = -1, eps: float = 1e-5) -> Any:
    """Gradient of `layer_norm` with respect to gamma."""
    return LayerNormBackwardGamma(axis, eps)(*promote_inexact(x, dy))


def rms_norm_backward_input(x: Any, gamma: Any, beta: Any, dy: Any, axis: int = -1, eps: float = 1e-6) -> Any:
    """Gradient of `rms_norm` with respect to x."""
    return RmsNormBackwardInput(axis, eps)(*promote_inexact(x, gamma, beta, dy))


def rms_norm_backward_gamma(x: Any, gamma: Any, beta: Any, dy: Any, axis: int = -1, eps: float = 1e-6) -> Any:
    """Gradient of `rms_norm` with respect to gamma."""
    return RmsNormBackwardGamma(axis, eps)(*promote_inexact(x, gamma, beta, dy))


def rms_norm_backward_beta(x: Any, gamma: Any, beta: Any, dy: Any, axis: int = -1, eps: float = 1e-6) -> Any:
    """Gradient of `rms_norm` with respect to beta."""
    return RmsNormBackwardBeta(axis, eps)(*promote_inexact(x, gamma, beta, dy))


def group_norm_backward_input(x: Any, gamma: Any, beta: Any, dy: Any, num_groups: int, eps: float = 1e-5) -> Any:
    """Gradient of `group_norm` with respect to x."""
    return GroupNormBackwardInput(num_groups, eps)(*promote_inexact(x, gamma, beta, dy))


def group_norm_backward_gamma(x: Any, dy: Any, num_groups: int, eps: float = 1e-5) -> Any:
    """Gradient of `group_norm` with respect to gamma."""
    return GroupNormBackwardGamma(num_groups, eps)(*promote_inexact(x, dy))


def group_norm_backward_beta(x: Any, dy: Any, num_groups: int, eps: float = 1e-5) -> Any:
    """Gradient of `group_norm` with respect to beta."""
    return GroupNormBackwardBeta(num_groups, eps)(*promote_inexact(x, dy))


def batch_norm_inference_backward_input(x: Any, gamma: Any, mean: Any, var: Any, dy: Any, eps: float = 1e-5) -> Any:
    """Gradient of `batch_norm_inference` with respect to x."""
    return BatchNormInferenceBackwardInput(eps)(*promote_inexact(x, gamma, mean, var, dy))


def batch_norm_inference_backward_gamma(x: Any, mean: Any, var: Any, dy: Any, eps: float = 1e-5) -> Any:
    """Gradient of `batch_norm_inference` with respect to gamma."""
    return BatchNormInferenceBackwardGamma(eps)(*promote_inexact(x, mean, var, dy))


def batch_norm_inference_backward_beta(dy: Any) -> Any:
    """Gradient of `batch_norm_inference` with respect to beta."""
    return BatchNormInferenceBackwardBeta()(*promote_inexact(dy))
