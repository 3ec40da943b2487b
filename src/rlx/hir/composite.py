"""Blocks made of several layers: a decoder block, and a head that predicts one more token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rlx import ops
from rlx.hir.block import Block
from rlx.hir.blocks import ResidualRmsNorm, SwiGLU
from rlx.ir.module import FusionPolicy
from rlx.ir.op import op
from rlx.ir.shape import Shape
from rlx.ops.attn.operands import MaskKind
from rlx.ops.define.samples import Sample, sample, spec

__all__ = ["LlamaDecoderBlock", "Qwen35MtpHead", "Qwen35MtpInputs"]


@op("hir.llama_decoder_block")
class LlamaDecoderBlock(Block):
    """A pre-norm decoder block with rotary positions, grouped-query attention and a SwiGLU feed-forward part.

    h = x + attention(rope(n·q_w), rope(n·k_w), n·v_w)·o_w with n = rms(x; ln1), then h + swiglu(rms(h; ln2)).
    k_w and v_w have `num_kv_heads` heads of columns; query head i reads key head i // (num_heads / num_kv_heads).
    """

    num_heads: int
    head_dim: int
    num_kv_heads: int
    eps: float = 1e-6
    mask_kind: MaskKind = MaskKind.Causal
    window: int = 0

    @property
    def summary(self) -> str:
        heads = f"h={self.num_heads}, kv={self.num_kv_heads}, d={self.head_dim}"
        return f"llama_decoder_block[{heads}, {self.mask_kind}]"

    def infer(
        self,
        x: Shape,
        ln1_g: Shape,
        ln1_b: Shape,
        q_w: Shape,
        k_w: Shape,
        v_w: Shape,
        o_w: Shape,
        ln2_g: Shape,
        ln2_b: Shape,
        gate_w: Shape,
        up_w: Shape,
        down_w: Shape,
        cos: Shape,
        sin: Shape,
        mask: Shape | None = None,
    ) -> Shape | tuple[Shape, ...]:
        if x.rank != 3:
            raise self.fail(f"needs x [B, S, hidden], got {x}")
        attention = (x, ln1_g, ln1_b, q_w, k_w, v_w, o_w)
        return self.lowered_type(*attention, ln2_g, ln2_b, gate_w, up_w, down_w, cos, sin, mask)

    def lower(
        self,
        policy: FusionPolicy,
        x: Any,
        ln1_g: Any,
        ln1_b: Any,
        q_w: Any,
        k_w: Any,
        v_w: Any,
        o_w: Any,
        ln2_g: Any,
        ln2_b: Any,
        gate_w: Any,
        up_w: Any,
        down_w: Any,
        cos: Any,
        sin: Any,
        mask: Any = None,
    ) -> Any:
        normal = ops.rms_norm(x, ln1_g, ln1_b, eps=self.eps)
        q = ops.rope(ops.matmul(normal, q_w), cos, sin, self.head_dim)
        k = ops.rope(ops.matmul(normal, k_w), cos, sin, self.head_dim)
        v = ops.matmul(normal, v_w)
        mixed = ops.attention(
            q,
            k,
            v,
            mask,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            num_kv_heads=self.num_kv_heads,
            mask_kind=self.mask_kind,
            window=self.window,
            layout="bsm",
        )
        weights = (ln2_g, ln2_b, up_w, gate_w, down_w)
        return _residual_feed_forward(policy, x, ops.matmul(mixed, o_w), *weights, self.eps)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def operands(batch: int | str, seq: int | str, heads: int, kv_heads: int) -> list[Any]:
            hidden, inner, dim = 6, 5, 4
            norm, wide, narrow = spec(hidden), spec(hidden, heads * dim), spec(hidden, kv_heads * dim)
            feed_forward = (spec(hidden, inner), spec(hidden, inner), spec(inner, hidden))
            tables = (spec(4, dim // 2), spec(4, dim // 2))
            attention = (norm, norm, wide, narrow, narrow, spec(heads * dim, hidden))
            return [spec(batch, seq, hidden), *attention, norm, norm, *feed_forward, *tables]

        yield sample(cls(2, 4, 2), *operands(2, 3, 2, 2))
        yield sample(cls(4, 4, 2, 1e-5), *operands("B", 3, 4, 2), B=2)
        mask = spec(1, 3, values=[[1.0, 1.0, 0.0]])
        yield sample(cls(2, 4, 1, mask_kind="custom"), *operands(1, 3, 2, 1), mask)


class Qwen35MtpInputs(NamedTuple):
    """The operands of `Qwen35MtpHead`, in order. Names with `_b` are the offsets of the norms with `_w`."""

    h_pre_norm: Any
    input_ids: Any
    cos: Any
    sin: Any
    last_token_idx: Any
    embed_w: Any
    hnorm_w: Any
    hnorm_b: Any
    enorm_w: Any
    enorm_b: Any
    eh_w: Any
    attn_norm_w: Any
    attn_norm_b: Any
    q_gate_w: Any
    k_w: Any
    v_w: Any
    q_norm_w: Any
    q_norm_b: Any
    k_norm_w: Any
    k_norm_b: Any
    o_w: Any
    post_norm_w: Any
    post_norm_b: Any
    gate_w: Any
    up_w: Any
    down_w: Any
    head_norm_w: Any
    head_norm_b: Any
    lm_head_w: Any


@op("hir.qwen35_mtp_head")
class Qwen35MtpHead(Block):
    """A head that predicts the token after next from the trunk's hidden states and the embedding of the next tokens.

    Embeddings and hidden states are normalised, joined and projected to `cur` [B,S,E]; then one decoder block whose
    queries and keys are normalised per head, rotated over `n_rot` elements, and whose attention is gated by a sigmoid;
    the row last_token_idx[b] of every sequence is normalised and projected to logits [B, mtp_vocab].
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    n_rot: int
    n_embd: int
    n_ff: int
    mtp_vocab: int
    eps: float = 1e-6

    @classmethod
    def arity(cls) -> tuple[int, int | None]:
        return len(Qwen35MtpInputs._fields), len(Qwen35MtpInputs._fields)

    def infer(self, *operands: Shape) -> Shape | tuple[Shape, ...]:
        given = Qwen35MtpInputs(*operands)
        wide, width = self.num_heads * self.head_dim, self.n_embd
        expected = {
            "eh_w": (2 * width, width),
            "q_gate_w": (width, 2 * wide),
            "o_w": (wide, width),
            "gate_w": (width, self.n_ff),
            "up_w": (width, self.n_ff),
            "down_w": (self.n_ff, width),
            "lm_head_w": (width, self.mtp_vocab),
        }
        for name, dims in expected.items():
            shape = getattr(given, name)
            if shape.dims != dims:
                raise self.fail(f"{name} must be {list(dims)} with these attributes, got {shape}")
        if given.h_pre_norm.rank != 3 or given.input_ids.rank != 2 or given.last_token_idx.rank != 1:
            found = f"{given.h_pre_norm}, {given.input_ids}, {given.last_token_idx}"
            raise self.fail(f"needs h_pre_norm [B,S,E], input_ids [B,S] and last_token_idx [B], got {found}")
        return self.lowered_type(*operands)

    def lower(self, policy: FusionPolicy, *operands: Any) -> Any:
        t = Qwen35MtpInputs(*operands)
        embedded = self._norm(ops.gather(t.embed_w, t.input_ids, 0), t.enorm_w, t.enorm_b)
        hidden = self._norm(t.h_pre_norm, t.hnorm_w, t.hnorm_b)
        cur = ops.matmul(ops.concat([embedded, hidden], -1), t.eh_w)
        mixed = self._attention(t, self._norm(cur, t.attn_norm_w, t.attn_norm_b))
        weights = (t.post_norm_w, t.post_norm_b, t.up_w, t.gate_w, t.down_w)
        last = _pick_rows(_residual_feed_forward(policy, cur, mixed, *weights, self.eps), t.last_token_idx)
        return ops.matmul(self._norm(last, t.head_norm_w, t.head_norm_b), t.lm_head_w)

    def _norm(self, x: Any, gamma: Any, beta: Any) -> Any:
        return ops.rms_norm(x, gamma, beta, eps=self.eps)

    def _attention(self, t: Qwen35MtpInputs, x: Any) -> Any:
        batch, seq, _ = x.shape
        dim = self.head_dim

        def heads(rows: Any, count: int, width: int) -> Any:
            return ops.reshape(rows, (batch, seq, count, width))

        def rotated(rows: Any, gamma: Any, beta: Any) -> Any:
            return ops.rope(self._norm(rows, gamma, beta), t.cos, t.sin, dim, self.n_rot, layout="bshd")

        q_gate = heads(ops.matmul(x, t.q_gate_w), self.num_heads, 2 * dim)
        q, gate = ops.narrow(q_gate, 3, 0, dim), ops.narrow(q_gate, 3, dim, dim)
        mixed = ops.attention(
            rotated(q, t.q_norm_w, t.q_norm_b),
            rotated(heads(ops.matmul(x, t.k_w), self.num_kv_heads, dim), t.k_norm_w, t.k_norm_b),
            heads(ops.matmul(x, t.v_w), self.num_kv_heads, dim),
            num_heads=self.num_heads,
            head_dim=dim,
            num_kv_heads=self.num_kv_heads,
            mask_kind=MaskKind.Causal,
            layout="bshd",
        )
        gated = ops.reshape(ops.mul(mixed, ops.sigmoid(gate)), (batch, seq, self.num_heads * dim))
        return ops.matmul(gated, t.o_w)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def operands(batch: int | str, ids: Any, last: Any) -> list[Any]:
            width, wide, narrow, inner, vocab = 6, 8, 4, 5, 7
            norm, head = (spec(width), spec(width)), (spec(4), spec(4))
            inputs = (spec(batch, 3, width), spec(batch, 3, dtype="i32", values=ids), spec(3, 2), spec(3, 2))
            first = (*inputs, spec(batch, dtype="i32", values=last), spec(9, width), *norm, *norm)
            attention = (spec(width, 2 * wide), spec(width, narrow), spec(width, narrow), *head, *head)
            feed_forward = (spec(width, inner), spec(width, inner), spec(inner, width))
            projection = (spec(2 * width, width), *norm)
            return [*first, *projection, *attention, spec(wide, width), *norm, *feed_forward, *norm, spec(width, vocab)]

        yield sample(cls(2, 1, 4, 2, 6, 5, 7), *operands(2, [[1, 8, 0], [2, 3, 5]], [2, 0]))
        yield sample(cls(2, 1, 4, 4, 6, 5, 7), *operands("B", [[1, 8, 0], [2, 3, 5]], [1, 2]), B=2)


def _residual_feed_forward(
    policy: FusionPolicy, x: Any, change: Any, gamma: Any, beta: Any, up_w: Any, gate_w: Any, down_w: Any, eps: float
) -> Any:
    """h + swiglu(rms(h)) with h = x + change."""
    normal, h = ResidualRmsNorm(eps, with_sum=True).lower(policy, x, change, gamma, beta)
    return ops.add(h, SwiGLU().lower(policy, normal, up_w, gate_w, down_w))


def _pick_rows(x: Any, idx: Any) -> Any:
    """x[b, idx[b]] for every b."""
    return ops.gather_nd(x, ops.expand_dims(idx, -1), axes=(1,), batch_dims=1)
