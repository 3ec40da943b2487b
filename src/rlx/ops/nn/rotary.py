"""Rotary position embedding: pairs of features of each head are turned by an angle that grows with the position.

(y₁, y₂) = (x₁·cos - x₂·sin, x₂·cos + x₁·sin)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.dims import require_at_most, require_equal
from rlx.ir.op import Op, attribute_type, op
from rlx.ir.shape import Dims, Shape, Size
from rlx.ir.words import Words
from rlx.ops.attn.operands import AttentionLayout, guess_layout, join_batch
from rlx.ops.define.operands import convert, dims_of, promote_inexact, require_float
from rlx.ops.define.rules import batch_by_folding, derived_form, put_batch_first, unbatched_type
from rlx.ops.define.samples import Sample, sample, spec
from rlx.ops.define.widening import as_f64, rounded, rounded_tensor

__all__ = [
    "AxialRope2d",
    "Rope",
    "RopeBackward",
    "RopeStyle",
    "axial_rope2d",
    "rope",
    "rope_backward",
]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class RopeStyle(Words):
    """Which features form pair i of the n_rot rotated ones: NeoX (i, i + n_rot/2), GptJ (2i, 2i + 1)."""

    NeoX = "neox"
    GptJ = "gptj"


class _Rotation(Op):
    """What Rope and its gradient share: operands x (or dy), cos, sin and, with `has_positions`, positions."""

    linear_in = (0,)

    head_dim: int
    n_rot: int
    style: RopeStyle = RopeStyle.NeoX
    layout: AttentionLayout = AttentionLayout.Bsm
    has_positions: bool = False

    # +1 turns by the angle, -1 back.
    direction = 1.0

    def check(self) -> None:
        if self.n_rot % 2 or not 0 < self.n_rot <= self.head_dim:
            raise self.fail(f"n_rot must be even and from 2 to head_dim={self.head_dim}, got {self.n_rot}")

    def infer(self, x: Shape, cos: Shape, sin: Shape, *positions: Shape) -> Shape:
        require_float(self, x, cos, sin)
        batch, seq = self._batch_and_length(x)
        self._check_tables(cos, sin)
        if len(positions) != int(self.has_positions):
            raise self.fail(
                f"has_positions={self.has_positions} does not fit {len(positions)} operands after the tables"
            )
        if positions:
            self._check_positions(positions[0], batch, seq)
        else:
            self._check_reach(cos.dims[0], seq)
        return x

    def _check_reach(self, rows: Size, seq: Size) -> None:
        if not require_at_most(seq, rows, self.mnemonic):
            raise self.fail(f"the tables have rows for {rows} positions, the sequence has {seq}")

    def index_operands(self, x: Shape, cos: Shape, sin: Shape, *positions: Shape) -> dict[int, Dims]:
        return {3: (cos.dims[0],)} if positions else {}

    def _batch_and_length(self, x: Shape) -> tuple[Size, Size]:
        joined = self.layout is AttentionLayout.Bsm
        if x.rank not in ((2, 3) if joined else (4,)):
            raise self.fail(f"layout {self.layout} does not fit {x}: bshd and bhsd have rank 4, bsm has rank 3 or 2")
        width = x.dims[-1]
        fits = require_equal(width % self.head_dim if joined else width, 0 if joined else self.head_dim, self.mnemonic)
        if not fits:
            raise self.fail(f"the last axis of {x} must be {'a multiple of ' * joined}head_dim={self.head_dim}")
        if x.rank == 2:
            return 1, x.dims[0]
        return x.dims[0], x.dims[2 if self.layout is AttentionLayout.Bhsd else 1]

    def _check_tables(self, cos: Shape, sin: Shape) -> None:
        widths = (self.head_dim // 2, self.n_rot // 2)
        same = cos.rank == sin.rank == 2 and all(require_equal(a, b, self.mnemonic) for a, b in zip(cos.dims, sin.dims))
        if not same or cos.dtype is not sin.dtype or cos.dims[1] not in widths:
            wanted = " or ".join(f"[positions,{w}]" for w in dict.fromkeys(widths))
            raise self.fail(f"cos and sin must be {wanted} of one dtype, got {cos} and {sin}")

    def _check_positions(self, positions: Shape, batch: Size, seq: Size) -> None:
        from rlx.ops.shape.indexing import require_ids

        require_ids(self, positions)
        forms: dict[int, Dims] = {1: (seq,), 2: (batch, seq)}
        wanted = forms.get(positions.rank, ())
        if positions.rank not in forms or not all(
            require_equal(a, b, self.mnemonic) for a, b in zip(positions.dims, wanted)
        ):
            raise self.fail(f"positions must be [{seq}] or [{batch},{seq}], got {positions}")

    def eval(self, x: Array, cos: Array, sin: Array, *positions: Array) -> Array:
        from rlx.ops.shape.indexing import clipped_ids

        seq: Any = self._batch_and_length(Shape(x.shape))[1]
        if not positions:
            self._check_reach(len(cos), seq)
        rows = clipped_ids(positions[0], len(cos)) if positions else np.arange(seq)
        half = self.n_rot // 2
        c, s = (self._beside_heads(np, table[rows, :half]) for table in as_f64(cos, sin))
        first, second, rest = _pairs(np, as_f64(self._split_heads(np, x))[0], self.n_rot, self.style)
        with np.errstate(all="ignore"):
            turned = first * c - self.direction * second * s, second * c + self.direction * first * s
        y = np.concatenate([_joined(np, *turned, self.style), rest], axis=-1)
        return rounded(y.reshape(x.shape), x.dtype)

    def decompose(self, x: Any, cos: Any, sin: Any, *positions: Any) -> Any:
        from rlx.ops.shape import movement
        from rlx.ops.shape.selection import take

        wide = x.dtype.accumulator
        seq = self._batch_and_length(x.type)[1]
        half = self.n_rot // 2

        def rows(table: Any) -> Any:
            narrow = movement.narrow(convert(table, wide), 1, 0, half)
            chosen = take(narrow, positions[0], axis=0) if positions else movement.narrow(narrow, 0, 0, seq)
            return self._beside_heads(movement, chosen)

        c, s = rows(cos), rows(sin)
        first, second, rest = _pairs(movement, convert(self._split_heads(movement, x), wide), self.n_rot, self.style)
        if self.direction < 0:
            s = -s
        turned = _joined(movement, first * c - second * s, second * c + first * s, self.style)
        y = movement.concat([turned, rest], axis=-1) if self.n_rot < self.head_dim else turned
        return movement.reshape(rounded_tensor(y, x.dtype), x.shape)

    def form_for(self, rule: str, active: Sequence[bool]) -> Callable[..., Any] | None:
        """Tables are constants almost always; the rules leave other cases to the decomposition."""
        return derived_form(self, rule, active[1] or active[2])

    def vjp(self, ct: Any, y: Any, x: Any, *rest: Any) -> Any:
        back = RopeBackward if self.direction > 0 else Rope
        return back(**self.attributes)(ct, *rest), *(None for _ in rest)

    def batch(self, size: Any, operands: Any, batched: Any) -> Any:
        from rlx.ops.shape.movement import reshape

        x, cos, sin, *positions = operands
        one = unbatched_type(x, batched[0])
        own = self._batch_and_length(one)[0]
        joined = join_batch(put_batch_first(x, batched[0], size), one.rank > 2, own)
        if any(batched[3:]) or any(p.ndim == 2 for p in positions):
            per_row = positions[0].ndim - batched[3] == 2
            positions = [join_batch(put_batch_first(positions[0], batched[3], size), per_row, own)]
        return reshape(self(joined, cos, sin, *positions), (size, *one.dims))

    def _split_heads(self, m: Any, x: Any) -> Any:
        """Joined heads apart: [.., S, H·D] becomes [.., S, H, D]."""
        if self.layout is not AttentionLayout.Bsm:
            return x
        return m.reshape(x, (*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim))

    def _beside_heads(self, m: Any, rows: Any) -> Any:
        """Rows of a table, [S, half] or [B, S, half], so that they broadcast over the heads of x."""
        return m.expand_dims(rows, -3 if self.layout is AttentionLayout.Bhsd else -2)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        table = spec(5, 2)
        for style in RopeStyle:
            yield sample(cls(4, 4, style), spec(2, 3, 8), table, table)
            yield sample(cls(6, 4, style), spec(2, 3, 6), spec(3, 3), spec(3, 3))
            yield sample(cls(6, 4, style, "bhsd"), spec(2, 2, 3, 6), table, table)
        yield sample(cls(4, 2), spec(3, 8), spec(5, 1), spec(5, 1))
        yield sample(cls(4, 4, "neox", "bshd"), spec(2, 3, 2, 4), table, table)
        ids = spec(2, 3, dtype="i32", low=0, high=4)
        yield sample(cls(4, 4, has_positions=True), spec(2, 3, 8), table, table, ids)
        yield sample(cls(4, 4, layout="bhsd", has_positions=True), spec(2, 2, 3, 4), table, table, ids)
        fractions = spec(3, dtype="f32", values=[0.5, 4.5, 1.5])
        yield sample(cls(4, 4, has_positions=True), spec(2, 3, 4), table, table, fractions)
        wide = spec(5, 2, dtype="f32")
        yield sample(cls(4, 4), spec(1, 3, 4), wide, wide, dtypes=("f32", "f16", "bf16"))
        yield sample(cls(4, 4), spec("B", "S", 8), spec("P", 2), spec("P", 2), B=2, S=3, P=5)
        symbolic = spec("B", "S", dtype="i32", low=0, high=4)
        yield sample(cls(4, 4, "gptj", "bshd", True), spec("B", "S", 2, 4), table, table, symbolic, B=2, S=3)


def _pairs(m: Any, x: Any, n_rot: int, style: RopeStyle) -> tuple[Any, Any, Any]:
    """First and second members of the rotated pairs, and the features behind them; `m` as in `heads_first`."""
    half = n_rot // 2
    dims = x.shape[:-1]
    if style is RopeStyle.NeoX:
        return _cut(m, x, 0, half), _cut(m, x, half, half), _cut(m, x, n_rot, x.shape[-1] - n_rot)
    pairs = m.reshape(_cut(m, x, 0, n_rot), (*dims, half, 2))
    first, second = (m.reshape(_cut(m, pairs, i, 1), (*dims, half)) for i in range(2))
    return first, second, _cut(m, x, n_rot, x.shape[-1] - n_rot)


def _cut(m: Any, x: Any, start: int, length: int) -> Any:
    return x[..., start : start + length] if m is np else m.narrow(x, -1, start, length)


def _joined(m: Any, first: Any, second: Any, style: RopeStyle) -> Any:
    """The inverse of `_pairs`, without the rest."""
    if style is RopeStyle.NeoX:
        return np.concatenate([first, second], -1) if m is np else m.concat([first, second], -1)
    return m.reshape(m.stack([first, second], -1), (*first.shape[:-1], 2 * first.shape[-1]))


@op("rope")
class Rope(_Rotation):
    """Each head of x turned by position: the first `n_rot` features in pairs, the others copied.

    `cos` and `sin` have a row per position and width head_dim/2 or n_rot/2, of which the first n_rot/2 entries are
    used. Without `positions` token i stands at row i; with them (i32[B,S] or [S]) they choose the rows.
    """

    precision_class = "data_movement"


@op("rope_backward")
class RopeBackward(_Rotation):
    """The gradient of Rope with respect to x, from dy, cos, sin [, positions]: the rotation turned back."""

    precision_class = "data_movement"

    direction = -1.0


@op("axial_rope2d")
class AxialRope2d(Op):
    """Rotary embedding of a grid, x [B, S, H·D] with S = end_x·end_y·repeat_factor tokens.

    Token t stands at grid position p = t // repeat_factor, in column p % end_x and row p // end_x. Of each head, with
    f_c = theta^(-4c/D), pair (2c, 2c+1) turns by column·f_c and pair (D/2 + 2c, D/2 + 2c + 1) by row·f_c, c < D/4.
    """

    precision_class = "data_movement"

    end_x: int
    end_y: int
    head_dim: int
    num_heads: int
    theta: float = 10000.0
    repeat_factor: int = 1

    linear_in = (0,)

    def check(self) -> None:
        if self.head_dim % 4 or min(self.end_x, self.end_y, self.head_dim, self.num_heads, self.repeat_factor) < 1:
            raise self.fail(f"sizes must be positive and head_dim a multiple of 4, got {self.attributes}")

    def infer(self, x: Shape) -> Shape:
        require_float(self, x)
        tokens, width = self.end_x * self.end_y * self.repeat_factor, self.num_heads * self.head_dim
        fits = x.rank == 3 and all(require_equal(a, b, self.name) for a, b in zip(x.dims[1:], (tokens, width)))
        if not fits:
            raise self.fail(f"needs x [B,{tokens},{width}], got {x}")
        return x

    def _angles(self) -> Array:
        """[S, D/2]: the angle of every pair."""
        quarter = self.head_dim // 4
        frequency = self.theta ** (-4.0 * np.arange(quarter) / self.head_dim)
        position = np.arange(self.end_x * self.end_y * self.repeat_factor) // self.repeat_factor
        column, row = position % self.end_x, position // self.end_x
        return np.concatenate([column[:, None] * frequency, row[:, None] * frequency], axis=1)

    def eval(self, x: Array) -> Any:
        angles = self._angles()
        return Rope(self.head_dim, self.head_dim, RopeStyle.GptJ).eval(x, np.cos(angles), np.sin(angles))

    def decompose(self, x: Any) -> Any:
        return self._turned(Rope, x)

    def _turned(self, rotation: type[_Rotation], x: Any) -> Any:
        angles, dtype = self._angles(), x.dtype.accumulator.numpy
        tables = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
        return rotation(self.head_dim, self.head_dim, RopeStyle.GptJ)(x, *tables)

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        return self._turned(RopeBackward, ct)

    batch = batch_by_folding

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(2, 3, 4, 2), spec(2, 6, 8))
        yield sample(cls(3, 2, 8, 1, 100.0, 2), spec(2, 12, 8))
        yield sample(cls(2, 2, 4, 1), spec("B", 4, 4), B=3)


def build_rotation(
    cls: type[Op],
    x: Any,
    tables: tuple[Any, Any],
    head_dim: int,
    n_rot: int | None,
    positions: Any,
    style: RopeStyle | str,
    layout: AttentionLayout | str | None,
    num_heads: int | None,
) -> Any:
    """Apply `cls` (a rotation, its gradient, or a block of them) to x, which is rotated, and the tables."""
    from rlx.ops.shape.movement import reshape

    (x,) = promote_inexact(x)
    flat = [reshape(t, (-1, head_dim // 2)) if len(dims_of(t)) == 1 else t for t in promote_inexact(*tables)]
    chosen = AttentionLayout(layout) if layout is not None else guess_layout(dims_of(x), num_heads, cls.name)
    op = cls(head_dim, head_dim if n_rot is None else n_rot, RopeStyle(style), chosen, positions is not None)
    return op(x, *flat) if positions is None else op(x, *flat, positions)


def rope(
    x: Any,
    cos: Any,
    sin: Any,
    head_dim: int,
    n_rot: int | None = None,
    positions: Any = None,
    *,
    style: RopeStyle | str = RopeStyle.NeoX,
    layout: AttentionLayout | str | None = None,
    num_heads: int | None = None,
) -> Any:
    """Rotary position embedding, see `Rope`. Tables may be flat (rows of head_dim/2).

    The layout is taken from the shape: rank 2 and 3 are joined heads, rank 4 needs `layout` or `num_heads`.
    """
    return build_rotation(Rope, x, (cos, sin), head_dim, n_rot, positions, style, layout, num_heads)


def rope_backward(
    dy: Any,
    cos: Any,
    sin: Any,
    head_dim: int,
    n_rot: int | None = None,
    positions: Any = None,
    *,
    style: RopeStyle | str = RopeStyle.NeoX,
    layout: AttentionLayout | str | None = None,
    num_heads: int | None = None,
) -> Any:
    """The gradient of `rope` with respect to x."""
    return build_rotation(RopeBackward, dy, (cos, sin), head_dim, n_rot, positions, style, layout, num_heads)


def axial_rope2d(
    x: Any, end_x: int, end_y: int, head_dim: int, num_heads: int, theta: float = 10000.0, repeat_factor: int = 1
) -> Any:
    """Rotary embedding over the two axes of a grid; see `AxialRope2d`."""
    return AxialRope2d(end_x, end_y, head_dim, num_heads, theta, repeat_factor)(*promote_inexact(x))
