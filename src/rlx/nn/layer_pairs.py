"""Layers as pairs of plain functions: `init` makes the weights, `apply` uses them. No classes to derive from, no state.

    layer = nn.chain(nn.dense(64), nn.relu, nn.dropout_layer(0.1), nn.dense(10))
    params = layer.init(key, x.shape)
    y = layer.apply(params, x)                  # without a key: nothing random, as for evaluation
    y = layer.apply(params, x, key)             # in training

The shape is that of the whole x; only the sizes that the weights depend on matter. A layer whose name would be that of
a function of weights (`nn.conv(x, weight)`) ends in `_layer`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import rlx
from rlx import random
from rlx.errors import OpError, ShapeError
from rlx.nn import initializers, layers

__all__ = [
    "Layer",
    "chain",
    "conv_layer",
    "dense",
    "dropout_layer",
    "embedding_layer",
    "flatten",
    "mlp",
    "norm_layer",
    "residual",
]

Dims = tuple[int, ...]
Initializer = Callable[..., Any]


class Layer(NamedTuple):
    """`init(key, x_shape) -> params`, `apply(params, x, key=None) -> y`, and the shape of y for a shape of x."""

    init: Callable[[Any, Sequence[int]], Any]
    apply: Callable[..., Any]
    out_shape: Callable[[Sequence[int]], Dims]


def plain(function: Callable[[Any], Any]) -> Layer:
    """A function of x alone as a layer without weights."""

    def apply(params: Any, x: Any, key: Any = None) -> Any:
        return function(x)

    def out_shape(shape: Sequence[int]) -> Dims:
        return tuple(rlx.jit(function).trace(rlx.Spec(shape)).out_specs.dims)

    return Layer(lambda key, shape: {}, apply, out_shape)


def chain(*parts: Layer | Callable[[Any], Any]) -> Layer:
    """The parts one after another; functions of x alone are parts too. The weights are a list with one item each."""
    chained = [part if isinstance(part, Layer) else plain(part) for part in parts]

    def init(key: Any, shape: Sequence[int]) -> list[Any]:
        params, dims = [], tuple(shape)
        for own, part in zip(_split(key, len(chained)), chained):
            params.append(part.init(own, dims))
            dims = part.out_shape(dims)
        return params

    def apply(params: Any, x: Any, key: Any = None) -> Any:
        for part, own, weights in zip(chained, _split(key, len(chained)), params, strict=True):
            x = part.apply(weights, x, own)
        return x

    def out_shape(shape: Sequence[int]) -> Dims:
        dims = tuple(shape)
        for part in chained:
            dims = part.out_shape(dims)
        return dims

    return Layer(init, apply, out_shape)


def _split(key: Any, count: int) -> list[Any]:
    return [None] * count if key is None else [random.fold_in(key, n) for n in range(count)]


def residual(*parts: Layer | Callable[[Any], Any]) -> Layer:
    """x plus the chain of the parts on it."""
    inner = chain(*parts)

    def apply(params: Any, x: Any, key: Any = None) -> Any:
        return x + inner.apply(params, x, key)

    return Layer(inner.init, apply, lambda shape: tuple(shape))


def _with_last(shape: Sequence[int], size: int) -> Dims:
    return (*shape[:-1], size)


def require_rank(what: str, shape: Sequence[int], rank: int, wanted: str) -> None:
    if len(shape) < rank:
        raise ShapeError(f"{what}: x must be {wanted}, got the shape {tuple(shape)}")


def dense(size: int, *, use_bias: bool = True, kernel_init: Initializer | None = None, dtype: Any = "f32") -> Layer:
    """x @ w + b along the last axis, which gets `size` features."""
    make = initializers.lecun_normal() if kernel_init is None else kernel_init

    def init(key: Any, shape: Sequence[int]) -> dict[str, Any]:
        require_rank("dense", shape, 1, "[.., features]")
        params = {"w": make(key, (shape[-1], size), dtype)}
        return params | {"b": initializers.zeros(key, (size,), dtype)} if use_bias else params

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        return layers.linear(x, params["w"], params.get("b"))

    return Layer(init, apply, lambda shape: _with_last(shape, size))


def conv_layer(
    channels: int,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | Sequence[tuple[int, int]] | str = "same",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    use_bias: bool = True,
    kernel_init: Initializer | None = None,
    dtype: Any = "f32",
) -> Layer:
    """A convolution over the spatial axes of x [N, C, spatial..]; see `nn.conv`."""
    make = initializers.he_normal(in_axis=1, out_axis=0) if kernel_init is None else kernel_init
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}

    def weight_shape(shape: Sequence[int]) -> Dims:
        require_rank("conv_layer", shape, 3, "[N, C, spatial..]")
        rank = len(shape) - 2
        sizes = (kernel,) * rank if isinstance(kernel, int) else tuple(kernel)
        if shape[1] % groups or channels % groups or len(sizes) != rank:
            raise ShapeError(
                f"conv_layer: {shape[1]} and {channels} channels, {groups} groups and the kernel {kernel} "
                f"do not fit x of shape {tuple(shape)}"
            )
        return (channels, shape[1] // groups, *sizes)

    def init(key: Any, shape: Sequence[int]) -> dict[str, Any]:
        params = {"w": make(key, weight_shape(shape), dtype)}
        return params | {"b": initializers.zeros(key, (channels,), dtype)} if use_bias else params

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        return layers.conv(x, params["w"], params.get("b"), **options)

    def out_shape(shape: Sequence[int]) -> Dims:
        convolved = rlx.jit(lambda x, w: layers.conv(x, w, **options))
        return tuple(convolved.trace(rlx.Spec(shape), rlx.Spec(weight_shape(shape))).out_specs.dims)

    return Layer(init, apply, out_shape)


def norm_layer(
    kind: str = "layer", *, groups: int | None = None, eps: float | None = None, dtype: Any = "f32"
) -> Layer:
    """Normalisation with learned factors: "layer" and "rms" over the last axis, "group" over channels of [N, C, ..]."""
    if kind not in ("layer", "rms", "group") or (kind == "group") != (groups is not None):
        raise OpError(
            f"norm_layer: kind must be 'layer', 'rms' or 'group' (with groups=...), got {kind!r}, groups={groups}"
        )
    options: dict[str, Any] = {} if eps is None else {"eps": eps}

    def init(key: Any, shape: Sequence[int]) -> dict[str, Any]:
        size = shape[1] if kind == "group" else shape[-1]
        params = {"scale": initializers.ones(key, (size,), dtype)}
        return params if kind == "rms" else params | {"b": initializers.zeros(key, (size,), dtype)}

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        if kind == "group":
            return layers.group_norm(x, groups or 1, params["scale"], params["b"], **options)
        norm = layers.rms_norm if kind == "rms" else layers.layer_norm
        return norm(x, params["scale"], params.get("b"), **options)

    return Layer(init, apply, lambda shape: tuple(shape))


def dropout_layer(rate: float) -> Layer:
    """Elements set to 0 with probability `rate`, the others divided by 1 - rate; x itself without a key."""
    if not 0 <= rate < 1:
        raise OpError(f"dropout_layer: rate must be at least 0 and below 1, got {rate}")

    def apply(params: Any, x: Any, key: Any = None) -> Any:
        return x if key is None else layers.dropout(x, rate, key)

    return Layer(lambda key, shape: {}, apply, lambda shape: tuple(shape))


def embedding_layer(count: int, width: int, *, init_scale: float = 0.02, dtype: Any = "f32") -> Layer:
    """Rows of a table by number: x has integers, y one more axis of `width`."""
    make = initializers.normal(init_scale)

    def apply(params: dict[str, Any], x: Any, key: Any = None) -> Any:
        return layers.embedding(x, params["table"])

    return Layer(lambda key, shape: {"table": make(key, (count, width), dtype)}, apply, lambda shape: (*shape, width))


def flatten() -> Layer:
    """All axes but the first as one."""

    def out_shape(shape: Sequence[int]) -> Dims:
        return (shape[0], math.prod(shape[1:]))

    def apply(params: Any, x: Any, key: Any = None) -> Any:
        return x.reshape(out_shape(x.shape))

    return Layer(lambda key, shape: {}, apply, out_shape)


def mlp(sizes: Sequence[int], activation: Callable[[Any], Any] | None = None, *, use_bias: bool = True) -> Layer:
    """Dense layers of the given sizes with an activation (relu unless given) between them, not after the last."""
    from rlx.nn.activations import relu

    if not sizes:
        raise OpError("mlp: at least one size is needed")
    parts: list[Any] = []
    for size in sizes[:-1]:
        parts += [dense(size, use_bias=use_bias), relu if activation is None else activation]
    return chain(*parts, dense(sizes[-1], use_bias=use_bias))
