"""Attention without a softmax, whose memory is a matrix that decays: what Mamba-2, RetNet and their kin compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.dims import ceildiv, dim_max, dim_min, require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, op
from rlx.ir.shape import Dims, Shape
from rlx.ops.define.operands import promote_inexact, require_float, require_same_dtype, same_graph
from rlx.ops.define.rules import batch_by_folding
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import accumulators, as_f64, rounded, rounded_tensor

__all__ = ["LinearAttention", "linear_attention"]

Array = np.ndarray[Any, np.dtype[Any]]

# Steps whose products with each other are made at once where the op is decomposed: scores grow with their square.
CHUNK = 64


@op("linear_attention")
class LinearAttention(Op):
    """o of linear attention with a decay, per head with a state S [n, p]:

        S_t = e^{g_t}·S_{t-1} + k_t·v_tᵀ,   o_t = S_tᵀ·q_t

    q and k [b, s, kv, n], v [b, s, h, p], g [b, s, h]; h/kv neighbouring heads share queries and keys. The result is
    [b, s, h, p]. S begins at 0, or at the operand state [b, h, n, p] with `carry_state`; with `return_state` the final
    S is a second result.
    """

    is_heavy = True
    opens_for_autodiff = True

    precision_class = "reduction"

    carry_state: bool = False
    return_state: bool = False

    def infer(self, q: Shape, k: Shape, v: Shape, g: Shape, state: Shape | None = None) -> Shape | tuple[Shape, ...]:
        if q.rank != 4 or v.rank != 4:
            raise self.fail(f"q must be [batch, seq, groups, n] and v [batch, seq, heads, p], got {q} and {v}")
        if self.carry_state != (state is not None):
            raise self.fail(f"carry_state={self.carry_state} does not fit an operand state of {state}")
        batch, seq, heads, p = v.dims
        groups, n = q.dims[2:]
        if not isinstance(heads, int) or not isinstance(groups, int) or groups < 1 or heads % groups:
            raise self.fail(f"{heads} heads are not a multiple of {groups} groups of queries and keys")
        final = v.with_dims((batch, heads, n, p))
        asked: Dims = (batch, seq, groups, n)
        operands = {"q": (q, asked), "k": (k, asked), "v": (v, v.dims), "g": (g, v.dims[:3])}
        if state is not None:
            operands["state"] = (state, final.dims)
        require_float(self, *(shape for shape, _ in operands.values()))
        require_same_dtype(self, *(shape for shape, _ in operands.values()))
        for name, (shape, wanted) in operands.items():
            if shape.rank != len(wanted) or not all(require_equal(x, y, self.name) for x, y in zip(shape.dims, wanted)):
                raise self.fail(f"{name} must be {list(wanted)}, got {shape}")
        return (v, final) if self.return_state else v

    @np.errstate(all="ignore")
    def eval(self, q: Array, k: Array, v: Array, g: Array, state: Array | None = None) -> Any:
        batch, seq, heads, p = v.shape
        share = heads // q.shape[2]
        query, key = (np.repeat(x, share, axis=2) for x in as_f64(q, k))
        value, decay = as_f64(v, g)
        held = np.zeros((batch, heads, q.shape[3], p)) if state is None else as_f64(state)[0]
        out = np.zeros(v.shape)
        for t in range(seq):
            held = np.exp(decay[:, t, :, None, None]) * held + key[:, t, :, :, None] * value[:, t, :, None, :]
            out[:, t] = np.einsum("bhnp,bhn->bhp", held, query[:, t])
        o = rounded(out, v.dtype)
        return (o, rounded(held, v.dtype)) if self.return_state else o

    def decompose(self, q: Any, k: Any, v: Any, g: Any, state: Any = None) -> Any:
        """In chunks of steps, whose outputs are products; a scan takes the state from chunk to chunk."""
        from rlx.ops.linalg.contraction import matmul
        from rlx.ops.pointwise.arithmetic import where
        from rlx.ops.pointwise.unary import exp
        from rlx.ops.reduction.cumulative import cumsum
        from rlx.ops.shape.creation import tri, zeros
        from rlx.ops.shape.movement import broadcast_to, expand_dims, narrow, pad_zeros, reshape, transpose

        batch, seq, heads, p = v.shape
        groups, n = q.shape[2:]
        steps = dim_max(1, dim_min(seq, CHUNK))
        chunks = ceildiv(seq, steps)

        def chunked(x: Any) -> Any:
            """[b, s, h, ..] as [b, chunks, h, steps, ..]; steps that are added change nothing, being 0."""
            more = [chunks * steps - seq if axis == 1 else 0 for axis in range(len(x.shape))]
            filled = pad_zeros(x, [0] * len(more), more)
            apart = reshape(filled, (batch, chunks, steps, *x.shape[2:]))
            return transpose(apart, (0, 1, 3, 2, *range(4, len(apart.shape))))

        def of_heads(x: Any) -> Any:
            wide = (*x.shape[:3], heads // groups, *x.shape[3:])
            return reshape(broadcast_to(expand_dims(x, 3), wide), (*x.shape[:2], heads, *x.shape[3:]))

        query, key, value, decay = (chunked(x) for x in accumulators(q, k, v, g))
        total = cumsum(decay, -1)
        last = narrow(total, -1, steps - 1, 1)
        back = expand_dims(total, -1) - expand_dims(total, -2)
        with same_graph(v):
            weights = exp(where(tri(steps, steps, 0, DType.BOOL), back, -math.inf))
        inside = matmul(of_heads(matmul(query, transpose(key, (0, 1, 2, 4, 3)))) * weights, value)
        query, key = of_heads(query), of_heads(key)
        made = matmul(transpose(key * expand_dims(exp(last - total), -1), (0, 1, 2, 4, 3)), value)
        initial = zeros((batch, heads, n, p), value.dtype) if state is None else accumulators(state)[0]
        final, before = _states(initial, exp(last), made, chunks)
        whole = inside + matmul(query * expand_dims(exp(total), -1), before)
        joined = reshape(transpose(whole, (0, 1, 3, 2, 4)), (batch, chunks * steps, heads, p))
        o = rounded_tensor(narrow(joined, 1, 0, seq), v.dtype)
        return (o, rounded_tensor(final, v.dtype)) if self.return_state else o

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def operands(b: int | str, s: int | str, groups: int, h: int, n: int, p: int) -> tuple[Any, ...]:
            asked = spec(b, s, groups, n, low=-1, high=1)
            return asked, asked, spec(b, s, h, p, low=-1, high=1), spec(b, s, h, low=-1, high=0)

        for returned in (False, True):
            yield sample(cls(return_state=returned), *operands(2, 3, 1, 2, 3, 4))
            yield sample(cls(True, returned), *operands(2, 3, 2, 2, 3, 4), spec(2, 2, 3, 4))
        yield sample(cls(True, True), *operands(1, 0, 1, 2, 2, 3), spec(1, 2, 2, 3))
        yield sample(cls(True, True), *operands("B", "S", 1, 2, 2, 3), spec("B", 2, 2, 3), B=2, S=3)


def _states(initial: Any, decays: Any, made: Any, chunks: Any) -> tuple[Any, Any]:
    """The state behind all chunks, and [b, chunks, h, n, p] before each, of the decay of each and what it adds."""
    from rlx.ops.control.bodies import build_body
    from rlx.ops.control.scans import Scan
    from rlx.ops.shape.movement import moveaxis

    def advance(state: Any, decay: Any, more: Any) -> tuple[Any, Any]:
        return _expanded(decay) * state + more, state

    rows = [moveaxis(x, 1, 0) for x in (decays, made)]
    types = [initial.type, *(row.type.with_dims(row.shape[1:]) for row in rows)]
    body = build_body("linear_attention_chunk", advance, **dict(zip(("state", "decay", "made"), types)))
    final, before = Scan(body, chunks, num_xs=2)(initial, *rows)
    return final, moveaxis(before, 0, 1)


def _expanded(decay: Any) -> Any:
    from rlx.ops.shape.movement import expand_dims

    return expand_dims(decay, -1)


def linear_attention(q: Any, k: Any, v: Any, g: Any, *, state: Any = None, return_state: bool = False) -> Any:
    """Linear attention with a decay for each head; see `LinearAttention`. (o, final state) with `return_state`."""
    operands = (q, k, v, g) if state is None else (q, k, v, g, state)
    return LinearAttention(state is not None, return_state)(*promote_inexact(*operands))
