"""Builder methods for images, normalisation and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ops.builders.base import Builder, DeclaredShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor
    from rlx.ops.reduction.reductions import ReduceOp


class NeuralBuilders(Builder):
    """Images are [N, C, H, W]; gamma and beta have the size of the normalised axis or of the channels."""

    __slots__ = ()

    def conv2d(
        self,
        x: TensorLike,
        w: TensorLike,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        groups: int = 1,
    ) -> Tensor:
        """Cross-correlation with w [C_out, C_in/groups, kH, kW] and zero padding."""
        return self._build(ops.Conv(kernel_size, stride, padding, dilation, groups), x, w)

    def conv_transpose2d(
        self,
        x: TensorLike,
        w: TensorLike,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        output_padding: Sequence[int] = (0, 0),
        groups: int = 1,
    ) -> Tensor:
        """The adjoint of a convolution; w is [C_in, C_out/groups, kH, kW]."""
        op = ops.ConvTranspose2d(kernel_size, stride, padding, dilation, output_padding, groups)
        return self._build(op, x, w)

    def im2col(
        self,
        x: TensorLike,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (1, 1),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
    ) -> Tensor:
        """Every window of x as one row."""
        return self._build(ops.im2col, x, kernel_size, stride, padding, dilation)

    def pool(
        self,
        x: TensorLike,
        kind: ReduceOp | str,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int] = (0, 0),
        shape: DeclaredShape = None,
    ) -> Tensor:
        """Max, mean, sum, min or product over windows."""
        return self._build(ops.pool, x, kind, kernel_size, stride, padding, shape=shape)

    def resize_nearest_2x(self, x: TensorLike) -> Tensor:
        """Every pixel as a square of four."""
        return self._build(ops.resize_nearest_2x, x)

    def layer_norm(
        self,
        x: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        axis: int = -1,
        eps: float = 1e-5,
        shape: DeclaredShape = None,
    ) -> Tensor:
        return self._build(ops.layer_norm, x, gamma, beta, axis, eps, shape=shape)

    def ln(self, x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-5) -> Tensor:
        """Layer normalisation over the last axis."""
        return self._build(ops.layer_norm, x, gamma, beta, -1, eps)

    def layer_norm2d(self, x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-6) -> Tensor:
        """Layer normalisation over the channels at each pixel."""
        return self._build(ops.layer_norm2d, x, gamma, beta, eps)

    def group_norm(
        self, x: TensorLike, gamma: TensorLike, beta: TensorLike, num_groups: int, eps: float = 1e-5
    ) -> Tensor:
        return self._build(ops.group_norm, x, gamma, beta, num_groups, eps)

    def rms_norm(self, x: TensorLike, gamma: TensorLike, beta: TensorLike, eps: float = 1e-6) -> Tensor:
        """x/√(mean(x²) + eps)·gamma + beta over the last axis."""
        return self._build(ops.rms_norm, x, gamma, beta, -1, eps)

    def batch_norm_inference(
        self,
        x: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        mean: TensorLike,
        var: TensorLike,
        eps: float = 1e-5,
    ) -> Tensor:
        """Normalisation along the last axis with given statistics."""
        return self._build(ops.batch_norm_inference, x, gamma, beta, mean, var, eps)

    def fused_residual_ln(
        self,
        x: TensorLike,
        residual: TensorLike,
        bias: TensorLike | None,
        gamma: TensorLike,
        beta: TensorLike,
        eps: float = 1e-5,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """Layer normalisation of x + residual (+ bias)."""
        return self._build(ops.fused_residual_ln, x, residual, bias, gamma, beta, eps, shape=shape)

    def fused_residual_rms_norm(
        self,
        x: TensorLike,
        residual: TensorLike,
        bias: TensorLike | None,
        gamma: TensorLike,
        beta: TensorLike,
        eps: float = 1e-6,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """RMS normalisation of x + residual (+ bias)."""
        return self._build(ops.fused_residual_rms_norm, x, residual, bias, gamma, beta, eps, shape=shape)

    def softmax_cross_entropy_with_logits(self, logits: TensorLike, labels: TensorLike) -> Tensor:
        """logsumexp(logits) - logits[label] for every row."""
        return self._build(ops.softmax_cross_entropy_with_logits, logits, labels)
