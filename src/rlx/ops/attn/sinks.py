"""Attention with sinks: a logit for each head that takes part in softmax, and has no value.

    out = Σ exp(S_j)·v_j / (exp(sink) + Σ exp(S_j))

A head may so look at nothing. It is the same as a key that every query sees, whose value is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlx.ir.op import op
from rlx.ops.attn.attention import WholeAttention
from rlx.ops.define.samples import FLOATS, Sample, spec

__all__ = ["AttentionWithSinks"]


@op("attention_with_sinks")
class AttentionWithSinks(WholeAttention):
    """`attention` with one more operand behind all others, `sinks` [H]: the score of a key with the value 0 that every
    query of a head sees, whatever the mask. It is neither scaled nor softcapped."""

    @property
    def _present(self) -> tuple[bool, ...]:
        return *super()._present, True

    def form_for(self, rule: str, active: tuple[bool, ...]) -> Callable[..., Any] | None:
        """All rules are those of the parts: examples of a batch may have sinks of their own."""
        return self.decompose

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        base: dict[str, Any] = {"num_heads": 4, "head_dim": 4, "num_kv_heads": 2}
        q, k, v, sinks = spec(2, 4, 3, 4), spec(2, 2, 5, 4), spec(2, 2, 5, 3), spec(4)
        yield Sample(cls(**base), (q, k, v, sinks), FLOATS, {})
        yield Sample(cls(**base, mask_kind="sliding_window", window=1, softcap=2.0), (q, k, v, sinks), FLOATS, {})
        lengths = spec("B", dtype="i32", values=[5, 0])
        positions = spec("B", 3, dtype="i32", values=[[2, 3, 4], [0, 0, 0]])
        cached = cls(**base, mask_kind="causal", has_kv_len=True, has_positions=True)
        stored = (spec("B", 2, "T", 4), spec("B", 2, "T", 3))
        given = (spec("B", 4, 3, 4), *stored, lengths, positions, sinks)
        yield Sample(cached, given, FLOATS, {"B": 2, "T": 5})
        codes = [spec(2, 2, 5, width, dtype="i8", low=-3, high=3) for width in (4, 3)]
        scales = (spec(2, 2, 5, low=0.1, high=0.5),) * 2
        yield Sample(cls(**base, has_scales=True), (q, *codes, *scales, sinks), ("f32", "f64"), {})
