"""The vocabulary of attention: which keys a query sees, how heads lie in memory, and which operands fit together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rlx.errors import OpError, ShapeError
from rlx.ir.dims import require_equal
from rlx.ir.dtype import DType
from rlx.ir.op import Op, attribute_type
from rlx.ir.shape import Dims, Shape, Size
from rlx.ir.words import Words
from rlx.ops.define.operands import require_dtype, require_float, require_same_dtype
from rlx.ops.define.rules import put_batch_first, unbatched_type

__all__ = ["AttentionLayout", "MaskKind"]

Array = np.ndarray[Any, np.dtype[Any]]


@attribute_type
class MaskKind(Words):
    """Which keys a query sees. Of n valid keys, query i of Sq stands at p = max(0, n - Sq) + i, or as `positions` says.

    NoMask: all keys. Causal: k <= p. SlidingWindow: p - window <= k <= p, which are window + 1 keys. Custom: keys whose
    mask is at least 0.5 (or true). Bias: all keys, with a bias added to the scores.
    """

    NoMask = "none"
    Causal = "causal"
    SlidingWindow = "sliding_window"
    Custom = "custom"
    Bias = "bias"

    @classmethod
    def other_spellings(cls) -> Mapping[str, str]:
        return {"sliding": "sliding_window"}

    def __call__(self, window: int) -> tuple[MaskKind, int]:
        """`MaskKind.SlidingWindow(8)`: the kind with its window, as `attention` accepts it."""
        if self is not MaskKind.SlidingWindow:
            raise OpError(f"attention: only MaskKind.SlidingWindow has a window, not MaskKind.{self.name}")
        return self, window

    @staticmethod
    def read(value: MaskKind | str | tuple[MaskKind | str, int], window: int) -> tuple[MaskKind, int]:
        """Kind and window of what a user gives: a kind, its word, `"sliding:8"`, or `MaskKind.SlidingWindow(8)`."""
        if isinstance(value, tuple):
            value, window = value
        elif isinstance(value, str) and ":" in value:
            value, _, number = value.partition(":")
            if MaskKind(value) is not MaskKind.SlidingWindow or not number.strip().isdecimal():
                raise OpError(f"attention: a mask with a window is written sliding:8, got {value}:{number}")
            window = int(number)
        return MaskKind(value), window

    @property
    def is_positional(self) -> bool:
        """Whether the position of a query decides what it sees."""
        return self in (MaskKind.Causal, MaskKind.SlidingWindow)

    @property
    def is_operand(self) -> bool:
        """Whether the mask is given as an operand."""
        return self in (MaskKind.Custom, MaskKind.Bias)


@attribute_type
class AttentionLayout(Words):
    """How heads lie: [B, S, H, D], [B, H, S, D], or joined [B, S, H·D] (also [S, H·D] for one sequence)."""

    Bshd = "bshd"
    Bhsd = "bhsd"
    Bsm = "bsm"


# The axes of (batch, head, seq, head_dim), once joined heads are apart. Each permutation is its own inverse.
TO_BHSD = {AttentionLayout.Bshd: (0, 2, 1, 3), AttentionLayout.Bhsd: (0, 1, 2, 3), AttentionLayout.Bsm: (0, 2, 1, 3)}


def heads_first(m: Any, x: Any, layout: AttentionLayout, heads: int) -> Any:
    """`x` as [B, H, S, D]; `m` is numpy for arrays, `rlx.ops.shape.movement` for tensors: they share functions."""
    if layout is AttentionLayout.Bsm:
        batch, seq, width = (1, *x.shape) if len(x.shape) == 2 else x.shape
        x = m.reshape(x, (batch, seq, heads, width // heads))
    return m.transpose(x, TO_BHSD[layout])


def heads_back(m: Any, x: Any, layout: AttentionLayout, dims: Dims) -> Any:
    """The inverse of `heads_first`; `dims` are those of the operand in its own layout."""
    x = m.transpose(x, TO_BHSD[layout])
    return m.reshape(x, dims) if layout is AttentionLayout.Bsm else x


def guess_layout(dims: Dims, num_heads: int | None, what: str) -> AttentionLayout:
    """The layout that `dims` allow, an error when there are two."""
    if len(dims) in (2, 3):
        return AttentionLayout.Bsm
    if len(dims) == 4 and num_heads is not None and (dims[1] == num_heads) != (dims[2] == num_heads):
        return AttentionLayout.Bhsd if dims[1] == num_heads else AttentionLayout.Bshd
    raise ShapeError(
        f"{what}: the layout of {list(dims)} is not clear for {num_heads} heads; pass layout='bshd', 'bhsd' or 'bsm'"
    )


class Extras(NamedTuple):
    """The operands after q, k, v (and dy), each None when absent; Shapes, arrays or tensors."""

    mask: Any = None
    kv_len: Any = None
    positions: Any = None
    k_scale: Any = None
    v_scale: Any = None
    sinks: Any = None


class AttentionBase(Op):
    """Attributes and checks that attention and its gradient share."""

    num_heads: int
    head_dim: int
    mask_kind: MaskKind = MaskKind.NoMask
    window: int = 0
    num_kv_heads: int | None = None
    layout: AttentionLayout = AttentionLayout.Bhsd
    score_scale: float | None = None
    softcap: float | None = None
    has_kv_len: bool = False
    has_positions: bool = False

    def check(self) -> None:
        if self.num_heads < 1 or self.head_dim < 1:
            raise self.fail(f"num_heads and head_dim must be positive, got {self.num_heads} and {self.head_dim}")
        if self.kv_heads < 1 or self.num_heads % self.kv_heads:
            raise self.fail(f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.kv_heads}")
        if self.window < 0 or (self.window and self.mask_kind is not MaskKind.SlidingWindow):
            raise self.fail(f"window={self.window} needs the mask kind sliding_window, and cannot be negative")
        if self.softcap is not None and self.softcap <= 0:
            raise self.fail(f"softcap must be positive, got {self.softcap}")
        if self.has_positions and not self.mask_kind.is_positional:
            raise self.fail(f"positions matter for causal and sliding_window masks only, not for {self.mask_kind}")

    def softcap_in(self, dtype: DType) -> float:
        """The softcap with which scores of a type are computed: one that neither vanishes in it nor swallows scores.

        Far below 1 all keys weigh the same in this type, far above it scores stay as they are, whatever it is exactly.
        """
        assert self.softcap is not None
        lowest, highest = (2.0**-80, 2.0**900) if dtype is DType.F64 else (2.0**-40, 2.0**100)
        return min(max(self.softcap, lowest), highest)

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim) if self.score_scale is None else self.score_scale

    def fold_queries(self, m: Any, x: Any) -> Any:
        """[B, H, S, N] as [B, Hkv, (H/Hkv)·S, N]: queries that share a key head become rows of one matrix."""
        batch, heads, seq, width = x.shape
        return m.reshape(x, (batch, self.kv_heads, heads // self.kv_heads * seq, width))

    @property
    def _present(self) -> tuple[bool, ...]:
        """Which of the optional operands there are, in the order of `Extras`; those behind the last are absent."""
        return self.mask_kind.is_operand, self.has_kv_len, self.has_positions

    def extras(self, operands: tuple[Any, ...]) -> Extras:
        """The optional operands by name, as the attributes say which are present."""
        present = self._present
        if len(operands) != sum(present):
            spoken = ("mask or bias", *Extras._fields[1:])
            names = ", ".join(n for n, p in zip(spoken, present) if p) or "none"
            raise self.fail(f"with these attributes the optional operands are: {names}; got {len(operands)} of them")
        rest = iter(operands)
        return Extras(*(next(rest) if p else None for p in present))

    def result_dims(self, q: Dims, v: Dims) -> Dims:
        """The dims of the result: those of q, with heads as wide as the heads of v."""
        joined = self.layout is AttentionLayout.Bsm
        return (*q[:-1], v[-1] // self.kv_heads * self.num_heads if joined else v[-1])

    def check_operands(self, q: Shape, k: Shape, v: Shape, extras: Extras) -> None:
        """Refuse operands that do not fit each other or the attributes."""
        has_codes = extras.k_scale is not None
        require_float(self, q, *(() if has_codes else (k, v)))
        require_dtype(self, not has_codes or k.dtype is v.dtype is DType.I8, "with scales i8 codes as", k, v)
        require_same_dtype(self, k, v)
        batch, seq_q = self._batch_and_length("q", q, self.num_heads, self.head_dim)
        k_batch, seq_k = self._batch_and_length("k", k, self.kv_heads, self.head_dim)
        v_batch, v_seq = self._batch_and_length("v", v, self.kv_heads)
        if not self._agree((k_batch, v_batch, v_seq), (batch, batch, seq_k)):
            raise self.fail(f"q, k and v need one batch size, k and v one length; got {q}, {k}, {v}")
        self._check_mask(extras.mask, (batch, self.num_heads, seq_q, seq_k))
        if extras.kv_len is not None:
            self._check_integers("kv_len", extras.kv_len, {1: (batch,)})
        if extras.positions is not None:
            self._check_integers("positions", extras.positions, {1: (seq_q,), 2: (batch, seq_q)})
        for name, scale in (("k_scale", extras.k_scale), ("v_scale", extras.v_scale)):
            if scale is not None:
                require_dtype(self, scale.dtype in (DType.F32, DType.F64), f"f32 or f64 {name}", scale)
                self._check_form(name, scale, {3: (batch, self.kv_heads, seq_k)})
        if extras.sinks is not None:
            require_float(self, extras.sinks)
            self._check_form("sinks", extras.sinks, {1: (self.num_heads,)})

    def _agree(self, found: Dims, wanted: Dims) -> bool:
        return len(found) == len(wanted) and all(require_equal(a, b, self.mnemonic) for a, b in zip(found, wanted))

    def _batch_and_length(self, name: str, x: Shape, heads: int, head_dim: int | None = None) -> tuple[Size, Size]:
        joined = self.layout is AttentionLayout.Bsm
        if x.rank not in ((2, 3) if joined else (4,)):
            raise self.fail(f"layout {self.layout} does not fit {name} {x}: bshd and bhsd have rank 4, bsm has rank 3")
        if joined:
            batch, seq, width = (1, *x.dims) if x.rank == 2 else x.dims
            wanted = width // heads * heads if head_dim is None else heads * head_dim
            fits = self._agree((width,), (wanted,))
        else:
            batch, count, seq, width = (x.dims[i] for i in TO_BHSD[self.layout])
            fits = self._agree((count, width), (heads, width if head_dim is None else head_dim))
        if not fits:
            wide = "" if head_dim is None else f" of {head_dim}"
            raise self.fail(f"{name} must hold {heads} heads{wide} in layout {self.layout}, got {x}")
        return batch, seq

    def _check_mask(self, mask: Shape | None, full: Dims) -> None:
        if mask is None:
            return
        forms = {4: full} if self.mask_kind is MaskKind.Bias else {2: full[::3], 3: (full[0], *full[2:]), 4: full}
        wanted = forms.get(mask.rank)
        if wanted is None or not self._agree(tuple(w if d == 1 else d for d, w in zip(mask.dims, wanted)), wanted):
            shapes = " or ".join(str(list(f)) for f in forms.values())
            raise self.fail(f"the {self.mask_kind} operand must be {shapes} (1 broadcasts), got {mask}")
        if self.mask_kind is MaskKind.Bias:
            require_float(self, mask)

    def _check_integers(self, name: str, x: Shape, forms: dict[int, Dims]) -> None:
        require_dtype(self, x.dtype.is_int or x.dtype.is_float, f"integer {name}", x)
        self._check_form(name, x, forms)

    def _check_form(self, name: str, x: Shape, forms: dict[int, Dims]) -> None:
        if x.rank not in forms or not self._agree(x.dims, forms[x.rank]):
            shapes = " or ".join(str(list(f)) for f in forms.values())
            raise self.fail(f"{name} must be {shapes}, got {x}")

    @property
    def shares_mask(self) -> bool:
        """Whether a mask with 1 for the batch may serve several examples; not where it gets a gradient."""
        return True

    def batch(self, size: Size, operands: tuple[Any, ...], batched: tuple[bool, ...]) -> Any:
        """The batch axis joins the one that the operands have, or can be given."""
        types = [unbatched_type(x, b) for x, b in zip(operands, batched)]
        own = types[0].dims[0] if types[0].rank > 2 else 1
        given = list(zip(operands, batched, types))
        count = len(given) - sum(self._present)
        whole = [join_batch(put_batch_first(x, b, size), t.rank > 2, own) for x, b, t in given[:count]]
        for name, extra in self.extras(tuple(given[count:]))._asdict().items():
            if extra is None:
                continue
            x, is_batched, t = extra
            fits_all = (name == "positions" and t.rank == 1) or (name == "mask" and t.dims[0] == 1 and self.shares_mask)
            if is_batched or not fits_all:
                has_batch = name != "positions" or t.rank == 2
                x = join_batch(put_batch_first(x, is_batched, size), has_batch, own)
            whole.append(x)
        results, inferred = self(*whole), self.infer(*types)
        if isinstance(inferred, tuple):
            return tuple(_part_batch(y, t, size, own) for y, t in zip(results, inferred, strict=True))
        return _part_batch(results, inferred, size, own)


class AttentionForward(AttentionBase):
    """Attention, whose k and v may be stored as codes with a scale for each row."""

    has_scales: bool = False

    @property
    def _present(self) -> tuple[bool, ...]:
        return *super()._present, self.has_scales, self.has_scales

    @property
    def shared_attributes(self) -> dict[str, Any]:
        """The attributes that its gradient has, too."""
        return {name: self.attributes[name] for name in AttentionBase._fields}


def join_batch(x: Any, has_batch: bool, own: Size) -> Any:
    """[examples, batch, ..] as [examples·batch, ..]; `own` is the size of the batch, which may be 1 or missing in x."""
    from rlx.ops.shape.movement import broadcast_to, expand_dims, reshape

    if not has_batch:
        x = expand_dims(x, 1)
    size, rest = x.shape[0], x.shape[2:]
    return reshape(broadcast_to(x, (size, own, *rest)), (size * own, *rest))


def _part_batch(y: Any, one: Shape, size: Size, own: Size) -> Any:
    """The inverse for results, of which each example has the type `one`; what its batch shares is summed."""
    from rlx.ops.reduction.reductions import reduce_sum
    from rlx.ops.shape.movement import reshape

    if one.rank > 2 and one.dims[0] == 1 and own != 1:
        return reduce_sum(reshape(y, (size, own, *one.dims[1:])), (1,), keepdims=True)
    return reshape(y, (size, *one.dims))


def full_rank(m: Any, mask: Any) -> Any:
    """A mask of any form as [B, H, Sq, Sk], with 1 where it is shared."""
    missing = {2: (1, 2), 3: (1,), 4: ()}[len(mask.shape)]
    return m.expand_dims(mask, missing) if missing else mask
