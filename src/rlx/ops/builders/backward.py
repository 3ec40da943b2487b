"""Builder methods for the gradients that exist as ops of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx import ops
from rlx.ops.builders.base import Builder, DeclaredShape, TargetShape, dims_of_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor
    from rlx.ops.attn.gradients import AttentionBwdWrt
    from rlx.ops.attn.operands import MaskKind
    from rlx.ops.pointwise.unary import ActivationKind


class BackwardBuilders(Builder):
    """`dy` is the gradient of the result; types of forward operands are checked against what inference finds."""

    __slots__ = ()

    def relu_backward(self, x: TensorLike, dy: TensorLike) -> Tensor:
        """dy where x > 0, else 0."""
        return self._build(ops.relu_backward, x, dy)

    def activation_backward(self, kind: ActivationKind | str, x: TensorLike, dy: TensorLike) -> Tensor:
        """f'(x)·dy."""
        return self._build(ops.activation_backward, kind, x, dy)

    def layer_norm_backward_input(
        self, x: TensorLike, gamma: TensorLike, dy: TensorLike, axis: int = -1, eps: float = 1e-5
    ) -> Tensor:
        return self._build(ops.layer_norm_backward_input, x, gamma, dy, axis, eps)

    def layer_norm_backward_gamma(
        self, x: TensorLike, dy: TensorLike, gamma_shape: DeclaredShape = None, axis: int = -1, eps: float = 1e-5
    ) -> Tensor:
        return self._build(ops.layer_norm_backward_gamma, x, dy, axis, eps, shape=gamma_shape)

    def rms_norm_backward_input(
        self, x: TensorLike, gamma: TensorLike, beta: TensorLike, dy: TensorLike, axis: int = -1, eps: float = 1e-6
    ) -> Tensor:
        return self._build(ops.rms_norm_backward_input, x, gamma, beta, dy, axis, eps)

    def rms_norm_backward_gamma(
        self, x: TensorLike, gamma: TensorLike, beta: TensorLike, dy: TensorLike, axis: int = -1, eps: float = 1e-6
    ) -> Tensor:
        return self._build(ops.rms_norm_backward_gamma, x, gamma, beta, dy, axis, eps)

    def rms_norm_backward_beta(
        self, x: TensorLike, gamma: TensorLike, beta: TensorLike, dy: TensorLike, axis: int = -1, eps: float = 1e-6
    ) -> Tensor:
        return self._build(ops.rms_norm_backward_beta, x, gamma, beta, dy, axis, eps)

    def group_norm_backward_input(
        self, x: TensorLike, gamma: TensorLike, beta: TensorLike, dy: TensorLike, num_groups: int, eps: float = 1e-5
    ) -> Tensor:
        return self._build(ops.group_norm_backward_input, x, gamma, beta, dy, num_groups, eps)

    def group_norm_backward_gamma(
        self, x: TensorLike, dy: TensorLike, gamma_shape: DeclaredShape, num_groups: int, eps: float = 1e-5
    ) -> Tensor:
        return self._build(ops.group_norm_backward_gamma, x, dy, num_groups, eps, shape=gamma_shape)

    def group_norm_backward_beta(
        self, x: TensorLike, dy: TensorLike, beta_shape: DeclaredShape, num_groups: int, eps: float = 1e-5
    ) -> Tensor:
        return self._build(ops.group_norm_backward_beta, x, dy, num_groups, eps, shape=beta_shape)

    def rope_backward(
        self, dy: TensorLike, cos: TensorLike, sin: TensorLike, head_dim: int, n_rot: int | None = None
    ) -> Tensor:
        """The rotation of `rope` undone."""
        return self._build(ops.rope_backward, dy, cos, sin, head_dim, n_rot)

    def cumsum_backward(
        self, dy: TensorLike, out_shape: DeclaredShape = None, axis: int = -1, exclusive: bool = False
    ) -> Tensor:
        """Running sums from the other end."""
        return self._build(ops.cumsum_backward, dy, axis, exclusive, shape=out_shape)

    def gather_backward(self, dy: TensorLike, idx: TensorLike, table_shape: TargetShape, axis: int) -> Tensor:
        """Zeros of the table's shape, to which the rows of dy are added at idx."""
        return self._build(ops.gather_backward, dy, idx, dims_of_target(table_shape), axis)

    def maxpool2d_backward(
        self,
        x: TensorLike,
        dy: TensorLike,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int] = (0, 0),
    ) -> Tensor:
        """dy at the first largest element of every window."""
        return self._build(ops.maxpool2d_backward, x, dy, kernel_size, stride, padding)

    def conv2d_backward_input(
        self,
        dy: TensorLike,
        w: TensorLike,
        x_shape: TargetShape,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Tensor:
        op = ops.Conv2dBackwardInput(kernel_size, stride, padding, dilation, groups, dims_of_target(x_shape))
        return self._build(op, dy, w)

    def conv2d_backward_weight(
        self,
        x: TensorLike,
        dy: TensorLike,
        w_shape: DeclaredShape,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Tensor:
        op = ops.Conv2dBackwardWeight(kernel_size, stride, padding, dilation, groups)
        return self._build(op, x, dy, shape=w_shape)

    def softmax_cross_entropy_backward(self, logits: TensorLike, labels: TensorLike, d_loss: TensorLike) -> Tensor:
        """(softmax(logits) - one_hot(labels))·d_loss."""
        return self._build(ops.softmax_cross_entropy_backward, logits, labels, d_loss)

    def attention_backward(
        self,
        wrt: AttentionBwdWrt | str,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        dy: TensorLike,
        num_heads: int,
        head_dim: int,
        mask_kind: MaskKind | str | tuple[MaskKind, int],
        mask: TensorLike = None,
        score_scale: float | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """The gradient of attention in q, k, v or the bias."""
        options = _attention_options(num_heads, head_dim, mask_kind, score_scale, softcap)
        return self._build(ops.attention_backward, wrt, q, k, v, dy, mask, **options)

    def attention_backward_all(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        dy: TensorLike,
        num_heads: int,
        head_dim: int,
        mask_kind: MaskKind | str | tuple[MaskKind, int],
        mask: TensorLike = None,
        score_scale: float | None = None,
        softcap: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of attention in q, k and v."""
        options = _attention_options(num_heads, head_dim, mask_kind, score_scale, softcap)
        return self._build(ops.attention_backward_all, q, k, v, dy, mask, **options)

    def complex_norm_sq_backward(self, z: TensorLike, g: TensorLike) -> Tensor:
        """g·z, the Wirtinger gradient of |z|²."""
        return self._build(ops.complex_norm_sq_backward, z, g)

    def log_mel_backward(self, spec: TensorLike, filters: TensorLike, dy: TensorLike) -> Tensor:
        return self._build(ops.log_mel_backward, spec, filters, dy)


def _attention_options(
    num_heads: int,
    head_dim: int,
    mask_kind: MaskKind | str | tuple[MaskKind, int],
    score_scale: float | None,
    softcap: float | None,
) -> dict[str, Any]:
    return {
        "num_heads": num_heads,
        "head_dim": head_dim,
        "mask_kind": mask_kind,
        "score_scale": score_scale,
        "softcap": softcap,
    }
