"""Builder methods for quantised values and weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlx import ops
from rlx.ops.builders.base import Builder, DeclaredShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor
    from rlx.ops.quant.fake_quant import ScaleMode, SteKind
    from rlx.quant.schemes import QuantScheme


class QuantizedBuilders(Builder):
    """int8 values, fake quantisation, and products with packed weights."""

    __slots__ = ()

    def quantize(self, x: TensorLike, scale: float, zero_point: int = 0) -> Tensor:
        """clamp(round(x / scale) + zero_point) as i8."""
        return self._build(ops.quantize, x, scale, zero_point)

    def quantize_per_channel(
        self, x: TensorLike, axis: int, scales: Sequence[float], zero_points: Sequence[int]
    ) -> Tensor:
        """`quantize` with a scale and zero point for every index along `axis`."""
        return self._build(ops.quantize_per_channel, x, axis, scales, zero_points)

    def dequantize(self, x: TensorLike, scale: float, zero_point: int = 0) -> Tensor:
        """(x - zero_point)·scale as f32."""
        return self._build(ops.dequantize, x, scale, zero_point)

    def dequantize_per_channel(
        self, x: TensorLike, axis: int, scales: Sequence[float], zero_points: Sequence[int]
    ) -> Tensor:
        """`dequantize` with a scale and zero point for every index along `axis`."""
        return self._build(ops.dequantize_per_channel, x, axis, scales, zero_points)

    def fake_quantize(
        self,
        x: TensorLike,
        bits: int,
        axis: int | None = None,
        ste: SteKind | str = "identity",
        scale_mode: ScaleMode | str = "per_batch",
        state: TensorLike = None,
        decay: float = 0.99,
    ) -> Any:
        """x rounded to the grid of a `bits`-bit quantiser, still in floats; with "ema" the pair of it and the state."""
        return self._build(ops.fake_quantize, x, bits, axis, ste, scale_mode, decay, state=state)

    def fake_quantize_lsq(self, x: TensorLike, scale: TensorLike, bits: int, axis: int | None = None) -> Tensor:
        """`fake_quantize` with a learnt scale."""
        return self._build(ops.fake_quantize_lsq, x, scale, bits, axis)

    def q_matmul(
        self,
        x: TensorLike,
        w: TensorLike,
        bias: TensorLike,
        x_zp: int,
        w_zp: int,
        out_zp: int,
        mult: float,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """i8 product with i32 sums, brought back to i8 by `mult` and `out_zp`."""
        return self._build(ops.q_matmul, x, w, bias, x_zp, w_zp, out_zp, mult, shape=shape)

    def q_conv2d(
        self,
        x: TensorLike,
        w: TensorLike,
        bias: TensorLike,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        x_zp: int,
        w_zp: int,
        out_zp: int,
        mult: float,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """i8 convolution with i32 sums, brought back to i8 by `mult` and `out_zp`."""
        op = ops.QConv2d(kernel_size, stride, padding, dilation, groups, x_zp, w_zp, out_zp, mult)
        return self._build(op, x, w, bias, shape=shape)

    def dequant_matmul(
        self,
        x: TensorLike,
        w_q: TensorLike,
        scale: TensorLike,
        zp: TensorLike,
        scheme: QuantScheme | str,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """x·W with W stored as codes, scales and zero points."""
        return self._build(ops.dequant_matmul, x, w_q, scale, zp, scheme=scheme, shape=shape)

    def dequant_matmul_packed(
        self, x: TensorLike, packed_w: TensorLike, scheme: QuantScheme | str, shape: DeclaredShape = None
    ) -> Tensor:
        """x·W with W stored in GGUF blocks."""
        return self._build(ops.dequant_matmul, x, packed_w, scheme=scheme, shape=shape)

    def dequant_matmul_nvfp4(
        self,
        x: TensorLike,
        w_q: TensorLike,
        block_scales: TensorLike,
        global_scale: TensorLike,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """x·W with W stored as FP4 codes, an FP8 scale per 16 of them and one global scale."""
        scheme = "nvfp4"
        return self._build(ops.dequant_matmul, x, w_q, block_scales, global_scale, scheme=scheme, shape=shape)

    def dequant_grouped_matmul(
        self, x: TensorLike, packed_w: TensorLike, idx: TensorLike, scheme: QuantScheme | str, n: int
    ) -> Tensor:
        """`grouped_matmul` with the experts stored in GGUF blocks; each has `n` columns."""
        return self._build(ops.dequant_grouped_matmul, x, packed_w, idx, scheme=scheme, n=n)

    def dequant_gather(self, packed: TensorLike, idx: TensorLike, scheme: QuantScheme | str, k: int) -> Tensor:
        """Rows of a table of GGUF blocks, each of `k` elements."""
        return self._build(ops.dequant_gather, packed, idx, scheme=scheme, k=k)

    def dequant_moe_weights(
        self, packed_w: TensorLike, scheme: QuantScheme | str, experts: int, k: int, n: int
    ) -> Tensor:
        """f32[experts, k, n] from the GGUF blocks of all experts, each stored as n rows of k."""
        return self._build(ops.dequant_moe_weights, packed_w, scheme=scheme, experts=experts, k=k, n=n)
