"""The text of attention on groups of warps, run without a GPU: products from views of swizzled tiles, copies that land
at random times, blocks whose warps go in any order, beside f64."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from group_text import Box, run_groups
from warp_text import GLOBAL

from rlx.backends.cuda.hopper.attention import THREADS, attention_text
from rlx.backends.cuda.hopper.attention_form import row_tile_count
from rlx.backends.cuda.hopper.attention_shape import ROWS, AttentionShape, Integers
from rlx.backends.cuda.hopper.decode import THREADS as DECODE_THREADS
from rlx.backends.cuda.hopper.decode import DecodeShape, decode_text
from rlx.backends.cuda.hopper.split_attention import split_attention_text
from rlx.kernels.machines import machine_named

TRIPLE = machine_named("sm_90a").triple
BF16 = ml_dtypes.bfloat16


class Place:
    """Operands one behind the other in the memory of a GPU."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def put(self, array: Any) -> int:
        data = np.ascontiguousarray(array).tobytes()
        data += bytes(-len(data) % 256)
        self.parts.append(data)
        self.size += len(data)
        return GLOBAL + self.size - len(data)

    def memory(self) -> Any:
        return np.frombuffer(b"".join(self.parts), np.uint8).copy()


class Case(NamedTuple):
    """An attention; rows of k and v behind `lengths` are noise that is not finite."""

    is_split: bool
    depth: int = 64
    queries: int = 150
    keys: int = 200
    heads: int = 2
    group: int = 2
    is_causal: bool = False
    window: int | None = None
    softcap: float | None = None
    lengths: tuple[int, ...] = ()
    start: int | None = None
    has_logs: bool = False
    size: float = 1.0  # of queries
    polynomials: int = 0
    reads_ahead: bool = False
    splits: int = 0  # blocks that share the keys of a tile of few rows
    narrow: int = 0  # how wide heads are, where they are not as wide as those of the kernel

    @property
    def width(self) -> int:
        return self.narrow or self.depth

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(
            self.depth,
            self.depth,
            "bf16",
            self.heads,
            self.group,
            self.is_causal,
            self.window,
            self.width**-0.5,
            self.softcap,
            Integers("i32") if self.lengths else None,
            Integers("i64") if self.start is not None else None,
            self.has_logs,
            self.is_split,
            self.polynomials,
        )


def drawn(case: Case, batch: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(case.depth + case.queries)
    q = rng.standard_normal((batch, case.heads, case.queries, case.width)) * case.size
    k, v = (rng.standard_normal((batch, case.heads // case.group, case.keys, case.width)) for _ in range(2))
    for b, length in enumerate(case.lengths):
        k[b, :, length:] = v[b, :, length:] = np.nan
    return q.astype(np.float32 if case.is_split else BF16), k.astype(BF16), v.astype(BF16)


def exact(case: Case, q: Any, k: Any, v: Any, added: Any = 0.0, sinks: Any = -np.inf) -> tuple[Any, Any]:
    """The result and the logarithms of base 2 of sums of powers, in f64; `added` to scores, and a sink of each head."""
    k, v = (np.nan_to_num(x.astype("f8")).repeat(case.group, 1) for x in (k, v))
    scores = q.astype("f8") @ k.swapaxes(-1, -2) * case.width**-0.5
    if case.softcap is not None:
        scores = np.tanh(scores / case.softcap) * case.softcap
    scores = scores + added
    counts = np.array(case.lengths or [case.keys] * len(q))
    key, row = np.arange(case.keys), np.arange(case.queries)
    seen = np.broadcast_to(key < counts[:, None, None], (len(q), case.queries, case.keys))
    if case.is_causal:
        first = np.maximum(counts - case.queries, 0) if case.start is None else np.full(len(q), case.start)
        position = (first[:, None] + row)[:, :, None]
        seen = seen & (key <= position)
        if case.window is not None:
            seen = seen & (key >= position - case.window)
    scores = np.where(seen[:, None], scores, -np.inf)
    sinks = np.asarray(sinks).reshape(-1, 1, 1)
    peak = np.maximum(scores.max(-1, keepdims=True), sinks)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    powers = np.exp(scores - peak)
    total = powers.sum(-1, keepdims=True) + np.exp(sinks - peak)
    logs = np.where(total > 0, (np.log(np.where(total > 0, total, 1.0)) + peak) * np.log2(np.e), np.inf)
    return powers @ v / np.where(total > 0, total, 1.0), logs[..., 0]


def box_of(start: int, x: Any, rows: int) -> Box:
    """A tensor [batch, head, position, element] in boxes of so many positions."""
    return Box(start, x.shape[::-1], x.strides[::-1][1:], (64, rows, 1, 1))


def attended(case: Case, seed: int) -> tuple[Any, Any, Any, Any]:
    """What the kernel finds, and what there is in f64: results, logarithms."""
    batch = len(case.lengths) or 1
    q, k, v = drawn(case, batch)
    place, shape = Place(), case.shape
    out = np.full(q.shape, 777, q.dtype)
    logs = np.full(q.shape[:3], 777, np.float32)
    starts = [place.put(x) for x in (q, k, v, out, logs)]
    seen: list[int] = []
    if case.lengths:
        seen += [place.put(np.array(case.lengths, np.int32)), 1]
    if case.start is not None:
        seen += [place.put(case.start + np.arange(case.queries, dtype=np.int64)), 0, 1]
    rows = [(at, *x.strides[:3]) for at, x in zip(starts, (q, k, v, out))]
    if case.splits:
        launched = few_rows(case, batch, place, rows, seen)
    else:
        maps = [box_of(starts[1], k, shape.keys), box_of(starts[2], v, shape.keys)]
        operands = [0, 1, *rows[0], *rows[3]]
        text = (split_attention_text if case.is_split else attention_text)("attention", shape, TRIPLE)
        if not case.is_split:
            maps = [box_of(starts[0], q, ROWS), *maps, box_of(starts[3], out, ROWS // 2)]
            operands = [0, 1, 2, 3]
        tiles = -(-case.queries // ROWS)
        work = batch * case.heads * (-(-tiles // 2) if shape.is_paired else tiles)
        of_logs = [starts[4]] if case.has_logs else []
        arguments = [*operands, tiles, work, case.queries, case.keys, *seen, *of_logs]
        launched = Launched(text, arguments, 2, THREADS, maps, shape.shared_bytes)
    memory = place.memory()
    for _ in range(2 if case.splits else 1):
        # Counters are ready for the next launch.
        run_groups(launched.text, launched.arguments, memory, *launched[2:], seed)

    def found(start: int, like: Any) -> Any:
        return memory[start - GLOBAL :][: like.nbytes].view(like.dtype).reshape(like.shape)

    return found(starts[3], out), found(starts[4], logs), *exact(case, q, k, v)


class Launched(NamedTuple):
    text: str
    arguments: list[int]
    blocks: int
    threads: int
    maps: list[Box]
    shared: int


def few_rows(case: Case, batch: int, place: Place, rows: list[tuple[int, ...]], seen: list[int]) -> Launched:
    count = case.queries * case.group
    shape = DecodeShape(case.shape, row_tile_count(case.shape, count), True, case.reads_ahead)
    row_tiles = -(-count // shape.rows)
    items = batch * (case.heads // case.group) * row_tiles
    found = place.put(np.full(items * case.splits * shape.floats, np.nan, np.float32))
    counters = place.put(np.zeros(items, np.int32))
    arguments = [*itertools.chain(*rows), found, counters, case.queries, case.keys, row_tiles, case.splits, *seen]
    text = decode_text("decode", shape, TRIPLE)
    return Launched(text, arguments, items * case.splits, DECODE_THREADS, [], shape.shared_bytes)


CASES = {
    "bf16": Case(False, is_causal=True, has_logs=True),
    "polynomials": Case(False, is_causal=True, keys=300, lengths=(300, 280), polynomials=3, has_logs=True),
    "all polynomials": Case(False, keys=256, softcap=20.0, polynomials=8, has_logs=True),
    "plain": Case(True, has_logs=True),
    "causal": Case(True, is_causal=True, lengths=(200, 131)),
    "128": Case(True, depth=128, is_causal=True, group=1, size=6.0),
    "window": Case(True, is_causal=True, window=37, softcap=4.0, queries=130, has_logs=True),
    "cache": Case(True, is_causal=True, lengths=(180, 0, 3), start=20, queries=40, heads=4, group=4),
    "heads of 96": Case(False, depth=128, narrow=96, is_causal=True, lengths=(200, 131), has_logs=True),
    "heads of 40": Case(False, narrow=40, queries=70, softcap=3.0),
    "few bf16": Case(False, queries=2, is_causal=True, lengths=(200, 77), splits=2),
    "few": Case(True, queries=1, keys=300, is_causal=True, lengths=(300, 1), start=290, heads=8, group=4, splits=2),
    "few ahead": Case(False, keys=300, queries=1, is_causal=True, lengths=(300, 20, 0), splits=2, reads_ahead=True),
    "few 128": Case(True, depth=128, queries=4, group=1, splits=1, size=6.0),
    "sixteen": Case(True, queries=4, is_causal=True, window=50, lengths=(150, 0), heads=4, group=4, splits=2),
    "few 256": Case(True, depth=256, queries=3, keys=90, heads=4, group=4, softcap=5.0, splits=2),
    "256": Case(True, depth=256, queries=70, keys=90, heads=1, group=1),
}


@pytest.mark.parametrize("name", CASES)
def test_against_f64(name: str) -> None:
    case = CASES[name]
    got, logs, want, exact_logs = attended(case, seed=len(name))
    error = np.abs(got.astype("f8") - want).max() / np.abs(want).max()
    # Bits of queries by how many parts they have: 8, 16, 24; weights of two parts are within 2^-18 of a value.
    assert error < {1: 6e-3, 2: 6e-6, 3: 2**-18}[case.shape.query_parts], error
    if case.has_logs:
        # A polynomial for bf16 is off by 7.5e-5, the logarithm of that by 1.1e-4.
        np.testing.assert_allclose(logs, exact_logs, rtol=1e-5, atol=1.2e-4 if case.polynomials else 1e-5)
