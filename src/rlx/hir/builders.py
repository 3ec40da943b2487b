"""Methods of `HirModule` that build blocks: `m.linear(x, w, b, "gelu")`.

Operands are tensors, node ids or arrays; an output shape may be declared and is checked. A block takes its float
operands in one dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from rlx.hir.blocks import (
    DepthwiseConv1dCausal,
    HirAttention,
    HirDequantMatMul,
    HirGatedDeltaNet,
    HirRmsNorm,
    HirRoPE,
    Linear,
    LinearFused,
    ResidualRmsNorm,
    SharedLinearPair,
    SwiGLU,
)
from rlx.hir.composite import LlamaDecoderBlock, Qwen35MtpHead
from rlx.ir.shape import Shape
from rlx.ops.attn.operands import MaskKind
from rlx.ops.pointwise.unary import ActivationKind
from rlx.quant.schemes import QuantScheme

if TYPE_CHECKING:
    from rlx.hir.block import Block
    from rlx.ir.graph import Graph, TensorLike
    from rlx.ir.tensor import Tensor


class HirBuilders:
    """One method per block."""

    __slots__ = ()

    def _block(self, block: Block, operands: Sequence[TensorLike], out_shape: Shape | None) -> Tensor:
        return cast("Graph", self).append_node(block, [x for x in operands if x is not None], out_shape)

    def linear(
        self,
        x: TensorLike,
        w: TensorLike,
        bias: TensorLike = None,
        act: ActivationKind | str | None = None,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """act(x·w + bias), bias and act being optional."""
        return self._block(Linear(act, bias is not None), (x, w, bias), out_shape)

    def linear_fused(
        self,
        x: TensorLike,
        w: TensorLike,
        bias: TensorLike,
        act: ActivationKind | str | None = None,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """act(x·w + bias) as one op under every policy."""
        return self._block(LinearFused(act), (x, w, bias), out_shape)

    def shared_linear_pair(
        self,
        x: TensorLike,
        w0: TensorLike,
        w1: TensorLike,
        out_shape0: Shape | None = None,
        out_shape1: Shape | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x·w0 and x·w1."""
        first = self._block(SharedLinearPair(0), (x, w0, w1), out_shape0)
        return first, self._block(SharedLinearPair(1), (x, w0, w1), out_shape1)

    def swiglu_ffn(
        self,
        x: TensorLike,
        up_w: TensorLike,
        gate_w: TensorLike,
        down_w: TensorLike,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """(x·up_w ⊙ silu(x·gate_w))·down_w."""
        return self._block(SwiGLU(), (x, up_w, gate_w, down_w), out_shape)

    def residual_rms_norm(
        self,
        x: TensorLike,
        residual: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        eps: float = 1e-6,
        out_shape: Shape | None = None,
        with_sum: bool = False,
    ) -> Any:
        """RMS normalisation of x + residual; with `with_sum` a pair of it and the sum."""
        return self._block(ResidualRmsNorm(eps, with_sum), (x, residual, gamma, beta), out_shape)

    def attention(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        mask: TensorLike,
        num_heads: int,
        head_dim: int,
        mask_kind: MaskKind | str | tuple[MaskKind, int] | None = None,
        out_shape: Shape | None = None,
        num_kv_heads: int | None = None,
    ) -> Tensor:
        """Attention over q, k, v [B, S, H·D]. Without a `mask_kind`, a mask (if not None) is of the kind custom."""
        kind, window = _kind_and_window(mask_kind, mask)
        block = HirAttention(num_heads, head_dim, kind, window, num_kv_heads)
        return self._block(block, (q, k, v, mask), out_shape)

    def depthwise_conv1d_causal(
        self,
        x: TensorLike,
        w: TensorLike,
        left_pad: TensorLike,
        kernel_size: int,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """Causal convolution along S of x [B,S,C], one filter per channel."""
        return self._block(DepthwiseConv1dCausal(kernel_size), (x, w, left_pad), out_shape)

    def dequant_matmul(
        self,
        x: TensorLike,
        w_q: TensorLike,
        scale: TensorLike,
        zp: TensorLike,
        scheme: QuantScheme | str,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """x·W with stored weights; scale and zp are None for formats that keep them inside."""
        return self._block(HirDequantMatMul(scheme), (x, w_q, scale, zp), out_shape)

    def gated_delta_net(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        g: TensorLike,
        beta: TensorLike,
        state_size: int,
        out_shape: Shape | None = None,
        return_state: bool = False,
    ) -> Any:
        """Linear attention by the gated delta rule, from a zero state; with `return_state` a pair with the last one."""
        return self._block(HirGatedDeltaNet(state_size, False, return_state), (q, k, v, g, beta), out_shape)

    def gated_delta_net_carry(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        g: TensorLike,
        beta: TensorLike,
        state: TensorLike,
        state_size: int,
        out_shape: Shape | None = None,
        return_state: bool = False,
    ) -> Any:
        """The same from a given state."""
        return self._block(HirGatedDeltaNet(state_size, True, return_state), (q, k, v, g, beta, state), out_shape)

    def rope(
        self,
        x: TensorLike,
        cos: TensorLike,
        sin: TensorLike,
        head_dim: int,
        n_rot: int | None = None,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """Rotary positions over whole heads, or over their first `n_rot` elements."""
        return self._block(HirRoPE(head_dim, head_dim if n_rot is None else n_rot), (x, cos, sin), out_shape)

    def rms_norm(
        self,
        x: TensorLike,
        gamma: TensorLike,
        beta: TensorLike,
        eps: float = 1e-6,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """RMS normalisation over the last axis."""
        return self._block(HirRmsNorm(eps), (x, gamma, beta), out_shape)

    def llama_decoder_block(
        self,
        x: TensorLike,
        ln1_g: TensorLike,
        ln1_b: TensorLike,
        q_w: TensorLike,
        k_w: TensorLike,
        v_w: TensorLike,
        o_w: TensorLike,
        ln2_g: TensorLike,
        ln2_b: TensorLike,
        gate_w: TensorLike,
        up_w: TensorLike,
        down_w: TensorLike,
        cos: TensorLike,
        sin: TensorLike,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        eps: float = 1e-6,
        mask_kind: MaskKind | str | tuple[MaskKind, int] = MaskKind.Causal,
        mask: TensorLike = None,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """A whole pre-norm decoder block; see `LlamaDecoderBlock`."""
        kind, window = _kind_and_window(mask_kind, mask)
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        block = LlamaDecoderBlock(num_heads, head_dim, kv_heads, eps, kind, window)
        attention = (x, ln1_g, ln1_b, q_w, k_w, v_w, o_w)
        return self._block(block, (*attention, ln2_g, ln2_b, gate_w, up_w, down_w, cos, sin, mask), out_shape)

    def transformer_block(self, *args: Any, **kwargs: Any) -> Tensor:
        """`llama_decoder_block` under the name transformer_block."""
        return self.llama_decoder_block(*args, **kwargs).named("transformer_block")

    def qwen35_mtp_head(
        self,
        inputs: Sequence[TensorLike],
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        n_rot: int,
        n_embd: int,
        n_ff: int,
        mtp_vocab: int,
        eps: float = 1e-6,
        out_shape: Shape | None = None,
    ) -> Tensor:
        """The head of `Qwen35MtpHead` over the 29 operands of `Qwen35MtpInputs`."""
        block = Qwen35MtpHead(num_heads, num_kv_heads, head_dim, n_rot, n_embd, n_ff, mtp_vocab, eps)
        return self._block(block, inputs, out_shape)


def _kind_and_window(mask_kind: MaskKind | str | tuple[MaskKind, int] | None, mask: Any) -> tuple[MaskKind, int]:
    if isinstance(mask_kind, tuple):
        return mask_kind
    if mask_kind is None:
        return (MaskKind.NoMask if mask is None else MaskKind.Custom), 0
    return MaskKind(mask_kind), 0


def install() -> None:
    """Give `HirModule` these methods; `rlx.ir` cannot, because they need the blocks."""
    from rlx.ir import module

    for name, value in vars(HirBuilders).items():
        if not (name.startswith("__") and name.endswith("__")):
            setattr(module.HirModule.__mro__[1], name, value)
