"""Builder methods that move, select, reduce and order elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.errors import ShapeError
from rlx.ir.shape import Shape, normalize_axis
from rlx.ops.builders.base import Builder, DeclaredShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.dims import Dim
    from rlx.ir.dtype import DTypeLike
    from rlx.ir.graph import TensorLike
    from rlx.ir.shape import Size
    from rlx.ir.tensor import Tensor
    from rlx.ops.reduction.reductions import ReduceOp


def _padded_to(x: Tensor, axis: int, length: int) -> Tensor:
    axis = normalize_axis(axis, x.ndim, "pad_axis_to_len")
    have = x.shape[axis]
    if not isinstance(have, int) or have > length:
        raise ShapeError(f"pad_axis_to_len: axis {axis} of {x.type} cannot be padded to {length}")
    high = [length - have if i == axis else 0 for i in range(x.ndim)]
    padded: Tensor = ops.pad(x, 0, [0] * x.ndim, high)
    return padded


class MovementBuilders(Builder):
    """Shapes, selection, reductions. Names with a trailing underscore are those of the seed's `GraphExt`."""

    __slots__ = ()

    def reshape(self, x: TensorLike, new_shape: Sequence[int | str | Dim], shape: DeclaredShape = None) -> Tensor:
        """The same elements in order under new dims; one of them may be -1."""
        return self._build(ops.reshape, x, new_shape, shape=shape)

    reshape_ = reshape

    def transpose_(self, x: TensorLike, perm: Sequence[int]) -> Tensor:
        """Axis i of the result is axis perm[i] of x."""
        return self._build(ops.transpose, x, perm)

    transpose = transpose_

    def narrow_(self, x: TensorLike, axis: int, start: Size, length: Size) -> Tensor:
        """`length` elements along `axis`, from `start`."""
        return self._build(ops.narrow, x, axis, start, length)

    narrow = narrow_

    def pad_axis_to_len(self, x: TensorLike, axis: int, length: int) -> Tensor:
        """x with zeros behind it, up to `length` elements along `axis`."""
        return self._build(_padded_to, x, axis, length)

    def reverse_last_axis(self, x: TensorLike) -> Tensor:
        """x with its last axis read from the end."""
        return self._build(ops.reverse, x, (-1,))

    def zeros_tensor(self, dims: Shape | Sequence[int | str | Dim], dtype: DTypeLike = "f32") -> Tensor:
        """A tensor of zeros."""
        declared = dims if isinstance(dims, Shape) else Shape(dims, dtype)
        return self._build(ops.zeros, declared.dims, declared.dtype)

    def expand(self, x: TensorLike, target_shape: Sequence[int | str | Dim], shape: DeclaredShape = None) -> Tensor:
        """x repeated along axes of size 1; -1 keeps a size."""
        return self._build(ops.expand, x, target_shape, shape=shape)

    def concat(self, xs: Sequence[TensorLike], axis: int, shape: DeclaredShape = None) -> Tensor:
        return self._build(ops.concat, xs, axis, shape=shape)

    concat_ = concat

    def gather(self, table: TensorLike, idx: TensorLike, axis: int, shape: DeclaredShape = None) -> Tensor:
        """Slices of `table` along `axis`, as np.take."""
        return self._build(ops.gather, table, idx, axis, shape=shape)

    gather_ = gather

    def scatter_add(self, updates: TensorLike, idx: TensorLike, rows: Size, shape: DeclaredShape = None) -> Tensor:
        """Zeros with `rows` rows, to which updates[i] is added at row idx[i]."""
        return self._build(ops.scatter_add, updates, idx, rows, shape=shape)

    def reduce(
        self,
        x: TensorLike,
        op: ReduceOp | str,
        axes: Sequence[int],
        keep_dim: bool = False,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """Sum, mean, max, min or product over `axes`."""
        return self._build(ops.reduce, x, op, axes, keep_dim, shape=shape)

    def sum(self, x: TensorLike, axes: Sequence[int], keep_dim: bool = False) -> Tensor:
        return self.reduce(x, "sum", axes, keep_dim)

    def mean(self, x: TensorLike, axes: Sequence[int], keep_dim: bool = False) -> Tensor:
        return self.reduce(x, "mean", axes, keep_dim)

    def softmax(self, x: TensorLike, axis: int = -1, shape: DeclaredShape = None) -> Tensor:
        """exp(x) / Σ exp(x) along `axis`."""
        return self._build(ops.softmax, x, axis, shape=shape)

    sm = softmax

    def cumsum(self, x: TensorLike, axis: int, exclusive: bool = False, shape: DeclaredShape = None) -> Tensor:
        """Running sums along `axis`; exclusive ones start with 0."""
        return self._build(ops.cumsum, x, axis, exclusive=exclusive, shape=shape)

    def topk(self, x: TensorLike, k: int, shape: DeclaredShape = None) -> Tensor:
        """Ids of the k largest along the last axis, largest first."""
        return self._build(ops.topk, x, k, shape=shape)

    def sample(
        self,
        logits: TensorLike,
        top_k: int = 0,
        top_p: float = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """One id per row of logits, drawn from the softmax of what top_k and top_p leave. Seed 0 draws anew."""
        return self._build(ops.sample, logits, ops.sampling_key(seed), top_k, top_p, temperature, shape=shape)
