"""Builder methods for sequence mixing: attention, rotary positions, state-space scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx import ops
from rlx.ops.builders.base import Builder, DeclaredShape

if TYPE_CHECKING:
    from rlx.ir.graph import TensorLike
    from rlx.ir.tensor import Tensor
    from rlx.ops.attn.operands import MaskKind


class AttentionBuilders(Builder):
    """q, k, v are [B, S, H·D], [B, S, H, D] or [B, H, S, D]; k and v may have fewer heads than q."""

    __slots__ = ()

    def attention(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        mask: TensorLike,
        num_heads: int,
        head_dim: int,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """Attention to the keys whose mask is at least 0.5."""
        return self.attention_opts(q, k, v, mask, num_heads, head_dim, shape=shape)

    attention_ = attention

    def attention_opts(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        mask: TensorLike,
        num_heads: int,
        head_dim: int,
        score_scale: float | None = None,
        softcap: float | None = None,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """`attention` with another scale than 1/√D, and scores softly capped."""
        return self._build(
            ops.attention,
            q,
            k,
            v,
            mask,
            num_heads=num_heads,
            head_dim=head_dim,
            mask_kind="custom",
            score_scale=score_scale,
            softcap=softcap,
            shape=shape,
        )

    def attention_kind(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        num_heads: int,
        head_dim: int,
        mask_kind: MaskKind | str | tuple[MaskKind, int],
        shape: DeclaredShape = None,
    ) -> Tensor:
        """Attention without a mask operand: all keys, causal, or `MaskKind.SlidingWindow(w)`."""
        return self.attention_kind_opts(q, k, v, num_heads, head_dim, mask_kind, shape=shape)

    def attention_kind_opts(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        num_heads: int,
        head_dim: int,
        mask_kind: MaskKind | str | tuple[MaskKind, int],
        score_scale: float | None = None,
        softcap: float | None = None,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """`attention_kind` with another scale than 1/√D, and scores softly capped."""
        return self._build(
            ops.attention,
            q,
            k,
            v,
            num_heads=num_heads,
            head_dim=head_dim,
            mask_kind=mask_kind,
            score_scale=score_scale,
            softcap=softcap,
            shape=shape,
        )

    def attention_bias(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        bias: TensorLike,
        num_heads: int,
        head_dim: int,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """Attention with a bias [B, H, Sq, Sk] added to the scores."""
        return self._build(
            ops.attention, q, k, v, bias, num_heads=num_heads, head_dim=head_dim, mask_kind="bias", shape=shape
        )

    def rope(self, x: TensorLike, cos: TensorLike, sin: TensorLike, head_dim: int) -> Tensor:
        """Rotary positions over whole heads; row p of the tables belongs to position p."""
        return self._build(ops.rope, x, cos, sin, head_dim)

    def rope_n(self, x: TensorLike, cos: TensorLike, sin: TensorLike, head_dim: int, n_rot: int) -> Tensor:
        """Rotary positions over the first `n_rot` elements of every head."""
        return self._build(ops.rope, x, cos, sin, head_dim, n_rot)

    def axial_rope2d(
        self,
        x: TensorLike,
        end_x: int,
        end_y: int,
        head_dim: int,
        num_heads: int,
        theta: float,
        repeat_factor: int = 1,
    ) -> Tensor:
        """Rotary positions of a grid: half of every head turns with the column, half with the row."""
        return self._build(ops.axial_rope2d, x, end_x, end_y, head_dim, num_heads, theta, repeat_factor)

    def selective_scan(
        self,
        x: TensorLike,
        delta: TensorLike,
        a: TensorLike,
        b: TensorLike,
        c: TensorLike,
        state_size: int,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """The state-space scan of Mamba."""
        return self._build(ops.selective_scan, x, delta, a, b, c, state_size, shape=shape)

    def gated_delta_net(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        g: TensorLike,
        beta: TensorLike,
        state_size: int,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """Linear attention by the gated delta rule, from a zero state."""
        return self._build(ops.gated_delta_net, q, k, v, g, beta, state_size, shape=shape)

    def gated_delta_net_carry(
        self,
        q: TensorLike,
        k: TensorLike,
        v: TensorLike,
        g: TensorLike,
        beta: TensorLike,
        state: TensorLike,
        state_size: int,
        shape: DeclaredShape = None,
    ) -> Tensor:
        """`gated_delta_net` from a given state."""
        return self._build(ops.gated_delta_net_carry, q, k, v, g, beta, state, state_size, shape=shape)
