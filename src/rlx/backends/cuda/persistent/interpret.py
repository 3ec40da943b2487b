"""A plan run on the host: every block goes through its phases by itself, in an order that a seed decides.

    logits = run_plan(plan, arrays, launch=0, memory=Exchange(plan), seed=1)

Blocks see nothing of each other but words with tags. Besides the numbers this finds what no lucky order of a real run
would show: every block keeps the times of the others that it knows of, through the words that it has read (vector
clocks). A word may be written only by a block that knows that all readers of what lies there are done.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlx.backends.cuda.persistent.panel_rows import in_digits, panel_format
from rlx.backends.cuda.persistent.phases import Attend, Product, Settle
from rlx.backends.cuda.persistent.plan import Plan
from rlx.backends.cuda.persistent.step import Layer, Norm, Rows
from rlx.ir.dtype import DType
from rlx.quant.panels import PANEL_ROWS, unpack_rows
from rlx.quant.schemes import QuantScheme

Array = np.ndarray[Any, np.dtype[Any]]


class Hazard(Exception):
    """Blocks that could meet in another order: what is wrong, and who does it."""


class Exchange:
    """Words of all vectors: values, tags, who wrote them, and who has read them when."""

    def __init__(self, plan: Plan) -> None:
        count = plan.exchange_words
        self.values = np.zeros((count, 2), np.float32)
        self.tags = np.zeros(count, np.int64)
        self.writers = np.full(count, -1)
        self.written_at = np.zeros(count, np.int64)
        self.read_at = np.zeros((count, plan.blocks), np.int64)


class _Read(NamedTuple):
    vector: str
    version: int
    words: Array


class _Write(NamedTuple):
    vector: str
    version: int
    words: Array
    values: Array


_Steps = Generator[_Read | _Write, Array, None]


def run_plan(
    plan: Plan,
    arrays: Mapping[str, Array],
    launch: int,
    memory: Exchange,
    seed: int = 0,
    unawaited: frozenset[str] = frozenset(),
    steps: int = 1,
) -> Array:
    """The logits [batch, words] of one launch, of the last of `steps` where the plan chooses; caches are stored over.
    Vectors in `unawaited` are read as they are, which is a fault that must be found."""
    return _Run(plan, arrays, launch, memory, seed, unawaited, steps).run()


class _Run:
    def __init__(
        self,
        plan: Plan,
        arrays: Mapping[str, Array],
        launch: int,
        memory: Exchange,
        seed: int,
        unawaited: frozenset[str],
        steps: int,
    ) -> None:
        self.steps, self.versions = steps, len(plan.step.layers) + 1
        self.plan, self.step, self.arrays, self.memory = plan, plan.step, arrays, memory
        self.first_tag = launch * self.versions + 1
        self.rng, self.unawaited = random.Random(seed), unawaited
        self.element = DType(self.step.element).numpy
        # What block a knows of the time of block b. Launches follow each other: all know all that was before.
        now = int(memory.read_at.max(initial=0)) + 1
        self.clocks = np.full((plan.blocks, plan.blocks), now)
        self.sent: dict[tuple[int, int], Array] = {}
        self.logits = np.full((plan.batch, self.step.head.height), np.nan, np.float32)

    def run(self) -> Array:
        waiting: dict[int, tuple[_Steps, _Read | _Write]] = {}
        for block in range(self.plan.blocks):
            steps = self.block(block)
            waiting[block] = steps, next(steps)
        while waiting:
            ready = [b for b, (_, action) in waiting.items() if isinstance(action, _Write) or self.is_there(action)]
            if not ready:
                stand = {f"block {b} waits for {a.vector} {a.version}" for b, (_, a) in waiting.items()}
                raise Hazard(f"nobody can go on: {'; '.join(sorted(stand))}")
            block = self.rng.choice(ready)
            steps, action = waiting[block]
            try:
                if isinstance(action, _Read):
                    waiting[block] = steps, steps.send(self.read(block, action))
                else:
                    self.write(block, action)
                    waiting[block] = steps, next(steps)
            except StopIteration:
                del waiting[block]
        return self.logits

    # Words.

    def places(self, action: _Read | _Write) -> Array:
        return action.words + self.plan.vectors[action.vector].at

    def is_there(self, action: _Read) -> bool:
        if action.vector in self.unawaited:
            return True
        tags, wanted = self.memory.tags[self.places(action)], self.first_tag + action.version
        if (tags > wanted).any():
            raise Hazard(f"version {action.version} of {action.vector} was written over before it was read")
        return bool((tags == wanted).all())

    def read(self, block: int, action: _Read) -> Array:
        places = self.places(action)
        if (self.memory.tags[places] != self.first_tag + action.version).any():
            raise Hazard(f"block {block} reads words of {action.vector} that are not of version {action.version}")
        clock = self.clocks[block]
        for writer, time in {*zip(self.memory.writers[places].tolist(), self.memory.written_at[places].tolist())}:
            np.maximum(clock, self.sent[writer, time], out=clock)
        clock[block] += 1
        self.memory.read_at[places, block] = clock[block]
        return self.memory.values[places]

    def write(self, block: int, action: _Write) -> None:
        places, clock = self.places(action), self.clocks[block]
        late = np.argwhere(self.memory.read_at[places] > clock)
        if len(late):
            reader = int(late[0, 1])
            raise Hazard(
                f"block {block} writes version {action.version} of {action.vector} over words that block {reader} "
                "may not have read"
            )
        clock[block] += 1
        self.sent[block, int(clock[block])] = clock.copy()
        values = action.values.astype(np.float32)
        self.memory.values[places] = values if values.ndim == 2 else np.stack([values, np.zeros_like(values)], 1)
        self.memory.tags[places] = self.first_tag + action.version
        self.memory.writers[places], self.memory.written_at[places] = block, clock[block]

    # Blocks.

    def block(self, block: int) -> _Steps:
        plan, step = self.plan, self.step
        first, count = (values[block] for values in plan.owned_by("x", 0))
        columns = np.arange(first * plan.x_unit, (first + count) * plan.x_unit)
        tokens = self.arrays[step.tokens].reshape(-1)
        for number in range(self.steps):
            # Versions of this step begin here.
            base = number * self.versions
            residual = self.embedded(tokens)[:, columns] * np.float32(step.embed_scale)
            if count:
                yield _Write("x", base, self.row_places("x", columns), residual.ravel())
            for i, layer in enumerate(step.layers):
                for phase in plan.layer_phases:
                    if isinstance(phase, Product):
                        yield from self.product(block, phase, layer, base + i, residual)
                    elif isinstance(phase, Attend):
                        yield from self.attend(block, layer, base + i)
                    else:
                        yield from self.settle(block, phase, layer, base + i, residual)
            yield from self.product(block, plan.logits, None, base + len(step.layers), residual)
            if plan.chooses:
                tokens = yield from self.choose(block, base)

    def choose(self, block: int, version: int) -> Generator[_Read | _Write, Array, Array]:
        """Post the best words of this block, and read what all have found."""
        plan, rows = self.plan, np.arange(self.plan.batch)
        first, count = (values[block] for values in plan.owned_by("logits", len(self.step.layers)))
        unit = plan.logits.unit
        own = self.logits[:, first * unit : (first + count) * unit]
        words = own.argmax(-1) + first * unit if own.size else np.zeros(plan.batch, int)
        values = own.max(-1) if own.size else np.full(plan.batch, -np.inf)
        turn = ((self.first_tag - 1 + version) // self.versions & 1) * plan.batch * plan.vectors["best"].words
        lines = turn + rows * plan.vectors["best"].words + 2 * block
        yield _Write("best", version, np.stack([lines, lines + 1], 1).ravel(), np.stack([values, words], 1).ravel())
        found = yield _Read("best", version, turn + np.arange(plan.batch * plan.vectors["best"].words))
        found = found[:, 0].reshape(plan.batch, plan.blocks, 2)
        order = np.lexsort((found[..., 1], -found[..., 0]))[:, 0]
        chosen: Array = found[rows, order, 1].astype(int)
        return chosen

    def row_places(self, vector: str, columns: Array) -> Array:
        words = self.plan.vectors[vector].words
        places: Array = (np.arange(self.plan.batch)[:, None] * words + columns).ravel()
        return places

    def rounded(self, x: Array) -> Array:
        return x.astype(self.element).astype(np.float32)

    def weight(self, rows: Rows, first: int, count: int) -> tuple[Array, Array]:
        whole = self.rows(rows.weight, rows.scheme, rows.depth, rows.first + first, count)
        bias = np.zeros(len(whole), np.float32)
        if rows.bias:
            at = rows.bias_first + first
            bias = self.arrays[rows.bias][at : at + count].astype(np.float32)
        return whole, bias

    def rows(self, name: str, scheme: QuantScheme | None, depth: int, first: int, count: int) -> Array:
        if scheme is None:
            found: Array = self.arrays[name][first : first + count].astype(np.float32)
            return found
        panels = self.arrays[name][first // PANEL_ROWS : -(-(first + count) // PANEL_ROWS)]
        return unpack_rows(panel_format(scheme), panels, first % PANEL_ROWS + count, depth)[first % PANEL_ROWS :]

    def embedded(self, tokens: Array) -> Array:
        step = self.step
        lines = [self.rows(step.embed, step.embed_scheme, step.hidden, int(token), 1) for token in tokens]
        return np.concatenate(lines)

    def rows_of(self, product: Product, layer: Layer | None) -> list[Rows]:
        if layer is None:
            return [self.step.head]
        return [getattr(layer, name) for name in product.matrices]

    def normed(self, x: Array, norm: Norm) -> Array:
        if not norm.is_rms:
            x = x - x.mean(-1, keepdims=True)
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * self.arrays[norm.gain].astype(np.float32)
        found: Array = y + self.arrays[norm.shift].astype(np.float32) if norm.shift else y
        return found

    def product(self, block: int, product: Product, layer: Layer | None, version: int, residual: Array) -> _Steps:
        first, count = (values[block] for values in self.plan.owned_by(product.owner, version % self.versions))
        if not count:
            return
        words = yield _Read(product.reads, version, np.arange(self.plan.batch * self.plan.vectors[product.reads].words))
        is_packed = self.plan.vectors[product.reads].pairs
        x = (words if is_packed else words[:, 0]).reshape(self.plan.batch, product.depth)
        factor: Array = np.ones((len(x), 1), np.float32)
        if product.norm is not None:
            # The norms of all layers have one form, but gains of their own.
            norm: Norm | None = self.step.final_norm if layer is None else getattr(layer, f"{product.norm_name}_norm")
            assert norm is not None
            if self.plan.is_delayed(product):
                factor = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps)
                x = x * self.arrays[norm.gain].astype(np.float32)
            else:
                x = self.normed(x, norm)
        x, rows = self.rounded(x), self.rows_of(product, layer)
        x = in_digits(x) if product.schemes else x
        for unit in range(first, first + count):
            column = unit * product.unit
            if product.parts > 1:
                sums = [self.multiplied(x, factor, r, column, product.unit) for r in rows]
            else:
                starts = np.cumsum([0, *product.counts])
                which = int(np.searchsorted(starts, column, "right")) - 1
                sums = [self.multiplied(x, factor, rows[which], column - int(starts[which]), product.unit)]
            yield from self.finish(product, sums, column, unit - first, version, residual)

    def settle(self, block: int, phase: Settle, layer: Layer, version: int, residual: Array) -> _Steps:
        first, count = (values[block] for values in self.plan.owned_by("x", 0))
        if not count:
            return
        columns = np.arange(first * self.plan.x_unit, (first + count) * self.plan.x_unit)
        words = yield _Read(phase.reads, version, np.arange(self.plan.batch * phase.depth))
        norm: Norm = getattr(layer, f"{phase.norm_name}_norm")
        residual += self.normed(words[:, 0].reshape(self.plan.batch, phase.depth), norm)[:, columns]
        written = version + phase.next_version
        yield _Write(phase.writes, written, self.row_places(phase.writes, columns), residual.ravel())

    def multiplied(self, x: Array, factor: Array, rows: Rows, first: int, unit: int) -> Array:
        weight, bias = self.weight(rows, first, min(unit, rows.height - first))
        result: Array = x @ weight.T * factor + bias
        return result

    def finish(
        self, product: Product, sums: list[Array], column: int, number: int, version: int, residual: Array
    ) -> _Steps:
        columns = np.arange(column, column + sums[0].shape[1])
        if product.finish == "logits":
            self.logits[:, columns] = self.capped(sums[0] * np.float32(self.step.logit_scale), self.step.logit_softcap)
            return
        values = sums[0]
        if product.finish in ("gated", "act"):
            values = self.activated(values) * (sums[1] if product.parts > 1 else np.float32(1))
            pairs = self.rounded(values).reshape(-1, 2)
            yield _Write(product.writes, version, self.row_places(product.writes, columns[::2] // 2), pairs)
            return
        if product.finish == "add":
            own = slice(number * product.unit, (number + 1) * product.unit)
            residual[:, own] += values
            values = residual[:, own]
        written = version + product.next_version
        yield _Write(product.writes, written, self.row_places(product.writes, columns), values.ravel())

    def capped(self, x: Array, cap: float | None) -> Array:
        return x if cap is None else cap * np.tanh(x / cap)

    def activated(self, x: Array) -> Array:
        match self.step.activation:
            case "silu":
                found: Array = x * _sigmoid(x)
            case "sigmoid":
                found = _sigmoid(x)
            case "relu":
                found = np.maximum(x, 0)
            case "gelu_tanh":
                found = x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        return found

    # Attention.

    def attend(self, block: int, layer: Layer, version: int) -> _Steps:
        plan, step = self.plan, self.step
        dim, group, splits = step.head_dim, step.group, plan.splits
        for item in range(block, plan.items, plan.blocks):
            head, split = divmod(item, splits)
            row, own = divmod(head, step.kv_heads)
            start = row * plan.vectors["qkv"].words
            of_k = step.heads * dim + own * dim
            of_v = of_k + step.kv_heads * dim
            places = [own * group * dim + np.arange(group * dim), of_k + np.arange(dim), of_v + np.arange(dim)]
            words = yield _Read("qkv", version, start + np.concatenate(places))
            q, k, v = (x.reshape(-1, dim) for x in np.split(words[:, 0], [group * dim, (group + 1) * dim]))
            found = self.looked(layer, row, own, split, q, k, v, version // self.versions)
            if splits == 1:
                values = found[:, :dim] / np.where(found[:, -1:] == 0, 1, found[:, -1:])
                yield _Write("att", version, head * group * dim + np.arange(group * dim), values.ravel())
                continue
            lines = (head * group * (dim + 2) + np.arange(group * (dim + 2))) * splits
            yield _Write("part", version, lines + split, found.ravel())
            mine = np.arange(split * plan.joined, min((split + 1) * plan.joined, group * dim))
            if not len(mine):
                continue
            which = mine // dim * (dim + 2)
            needed = np.stack([which + mine % dim, which + dim, which + dim + 1])[..., None] * splits
            needed = needed + head * group * (dim + 2) * splits + np.arange(splits)
            parts = yield _Read("part", version, needed.ravel())
            values, peaks, sums = parts[:, 0].reshape(3, len(mine), splits)
            powers = np.exp2(peaks - peaks.max(-1, keepdims=True))
            total = (sums * powers).sum(-1)
            joined = (values * powers).sum(-1) / np.where(total == 0, 1, total)
            yield _Write("att", version, head * group * dim + mine, joined)

    def looked(self, layer: Layer, row: int, own: int, split: int, q: Array, k: Array, v: Array, moved: int) -> Array:
        """For each head of the group: sums of values, the highest score in powers of 2, and the sum of powers. The
        sequence has moved on by so many tokens."""
        plan, step = self.plan, self.step
        place, length = (int(self.arrays[name].reshape(-1)[row]) + moved for name in (step.positions, step.lengths))
        if layer.q_norm is not None:
            q = self.normed(q, layer.q_norm)
        if layer.k_norm is not None:
            k = self.normed(k, layer.k_norm)
        if layer.rope is not None:
            q, k = (self.turned(x, layer, place) for x in (q, k))
        k, v = self.rounded(k), self.rounded(v)
        caches = [self.arrays[name][row, own] for name in (layer.keys, layer.values)]
        past, first = min(place, length), 0 if layer.window is None else max(0, place - layer.window)
        chunk = np.arange(len(caches[0])) // plan.keys
        seen = (np.arange(len(chunk)) < past) & (np.arange(len(chunk)) >= first)
        mine = seen & (chunk % plan.splits == split)
        keys, values = (cache[mine].astype(np.float32) for cache in caches)
        if place // plan.keys % plan.splits == split:
            if place < length:
                keys, values = np.concatenate([keys, k]), np.concatenate([values, v])
            if 0 <= place < len(chunk):
                for cache, new in zip(caches, (k, v)):
                    cache[place] = new[0].astype(cache.dtype)
        scores = self.capped(q @ keys.T * np.float32(step.scale), step.softcap) * math.log2(math.e)
        peak = scores.max(-1, initial=-1e30, keepdims=True)
        powers = np.exp2(scores - peak)
        return np.concatenate([powers @ values, peak, powers.sum(-1, keepdims=True)], 1)

    def turned(self, x: Array, layer: Layer, place: int) -> Array:
        rope = layer.rope
        assert rope is not None
        cos, sin = (self.arrays[name][place] for name in (rope.cos, rope.sin))
        pairs = rope.pairs
        if rope.is_split:
            a, b = x[:, :pairs], x[:, pairs : 2 * pairs]
            return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[:, 2 * pairs :]], 1)
        y = x.copy()
        a, b = x[:, 0 : 2 * pairs : 2], x[:, 1 : 2 * pairs : 2]
        y[:, 0 : 2 * pairs : 2], y[:, 1 : 2 * pairs : 2] = a * cos - b * sin, b * cos + a * sin
        return y


def _sigmoid(x: Array) -> Array:
    found: Array = 1 / (1 + np.exp(-x))
    return found
