"""Attention of a block's items: past keys and values through the ring, the new ones from the vector of all blocks.

A lane has eight elements of a head, so neighbouring lanes have a head of q, and several heads of the group are looked
at together. A warp has every eighth key of a stage. Blocks that share the keys of a head join what they have found in a
second exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlx.backends.cuda.hopper.writer import Val, Var
from rlx.backends.cuda.persistent.exchange import UNTIL_P, Block
from rlx.backends.cuda.persistent.plan import CONSUMERS, WARPS
from rlx.backends.cuda.persistent.ring import Fill, Read
from rlx.backends.cuda.persistent.step import Norm

# The peak of a row that has seen nothing: below all scores, and its powers are no numbers to worry about.
NOTHING = -1e30
# Elements of a lane.
EACH = 8
# Words at places of their own that a thread waits for together.
MOST_POLLED = 8


class Item(NamedTuple):
    """A head of k of a sequence, and which of its splits; the keys that are seen in the cache are `first` to `past`."""

    head: Val  # of all sequences
    row: Val
    split: Val
    position: Val
    first: Val
    past: Val
    sees_itself: Val


def each_item(block: Block, layer: Val, do: Callable[[Item], None]) -> None:
    """The items of this block in a layer."""
    w, plan = block.w, block.plan
    with w.loop(block.block, w.value(plan.items), plan.blocks) as number:
        head = number // plan.splits
        row = head // plan.step.kv_heads
        position, length = block.place(row)
        past = w.most(w.least(position, length), 0)
        first = w.value(0)
        if plan.has_windows:
            window = w.emit(f"trunc i64 {block.entry('window', layer).name} to i32", "i32")
            first = w.least(w.most(position - window, 0), past)
        do(Item(head, row, number % plan.splits, position, first, past, position < length))


def chunks(block: Block, item: Item) -> tuple[Val, Val]:
    """The first chunk of keys of this split that a query sees, and how many there are: chunk i is that of split i
    modulo splits, wherever a window begins."""
    plan, splits = block.plan, block.plan.splits
    start = item.first // plan.keys
    start = start + (item.split + splits - start % splits) % splits
    end = (item.past + (plan.keys - 1)) // plan.keys
    return start, block.w.most(end + (splits - 1) - start, 0) // splits


def bring_keys(block: Block, layer: Val, fill: Fill) -> None:
    """Keys and values of the chunks of this block: one lane copies the keys of a chunk, another its values."""
    w, plan, dim = block.w, block.plan, block.step.head_dim

    if block.number is not None:
        # The step before has written keys of this layer, which are read like those of launches before.
        with w.when(block.number > 0):
            await_appended(block, (block.number - 1) * len(block.step.layers) + layer + 1)

    def one(item: Item) -> None:
        start, count = chunks(block, item)
        lines = w.wide(item.head) * w.wide(block.capacity) * (2 * dim)
        with w.loop(0, count, plan.chunks_of_stage) as number:
            keys = [(start + (number + i) * plan.splits) * plan.keys for i in range(plan.chunks_of_stage)]
            sizes = [w.most(w.least(item.past - key, plan.keys), 0) * (2 * dim) for key in keys]
            whole = sizes[0]
            for size in sizes[1:]:
                whole = whole + size

            def copy(to: Val, full: Val) -> None:
                for chunk, (key, size) in enumerate(zip(keys, sizes)):
                    for part, name in enumerate(("keys", "values")):
                        with w.when(block.lane.equals(2 * chunk + part) & (size > 0)):
                            source = block.entry(name, layer) + lines + w.wide(key) * (2 * dim)
                            fill.copy_shared(to + (2 * chunk + part) * (2 * dim * plan.keys), source, size, full)

            fill.bring(whole << 1, copy)

    each_item(block, layer, one)


def await_appended(block: Block, count: Val) -> None:
    """Wait until the caches have new keys and values of so many layers, and let the copy engine see them."""
    block.w.asm(
        "{ .reg .pred p; .reg .b64 t0, t1; .reg .b32 h; mov.u64 t0, %globaltimer; SPIN: "
        f"ld.acquire.cta.shared.u32 h, [<a>]; sub.u32 h, h, <g>; setp.ge.s32 p, h, 0; {UNTIL_P} }}",
        a=block.shared("appended"),
        g=count,
    )
    block.w.asm("fence.proxy.async;")


class Attention:
    """Attention of one block, for the warps that multiply."""

    def __init__(self, block: Block, read: Read) -> None:
        self.block, self.w, self.plan, self.step = block, block.w, block.plan, block.step
        self.read = read
        step, dim = self.step, self.step.head_dim
        # Lanes of a head, a power of two; heads of a warp; and how often it goes through keys for all of the group.
        self.lanes = 1 << max(0, (dim // EACH - 1).bit_length())
        self.heads = 32 // self.lanes
        self.rounds = -(-step.group // self.heads)
        self.part, self.slot = block.lane % self.lanes, block.lane // self.lanes
        self.small = block.shared("scratch")
        self.found = self.small + (step.group + 2) * (4 * dim)

    def run(self, layer: Val) -> None:
        block = self.block
        each_item(block, layer, lambda item: self.one(item, layer))
        if block.number is not None:
            # All threads of the block have met behind what they have stored.
            with self.w.when(block.thread.equals(0)):
                done = block.number * len(self.step.layers) + layer + 1
                self.w.asm("st.release.cta.shared.b32 [<a>], <v>;", a=block.shared("appended"), v=done)

    def one(self, item: Item, layer: Val) -> None:
        block = self.block
        tag = block.tag(layer)
        block.mark("attend", "begins", layer)
        block.await_hint("qkv", layer)
        block.mark("attend", "hinted", layer)
        self.fetch(item, tag)
        block.everyone()
        block.mark("attend", "ready", layer)
        self.prepare(item, layer)
        self.look(item)
        block.everyone()
        block.mark("attend", "looked", layer)
        self.join_warps(item, tag)
        if self.plan.splits > 1:
            self.join_blocks(item, layer, tag)
        # Nobody writes to scratch before all have read it.
        block.everyone()
        with self.w.when(block.thread.equals(0)):
            block.arrive("att")
        block.mark("attend", "done", layer)

    # q, k and v.

    def fetch(self, item: Item, tag: Val) -> None:
        """To shared memory: q of the whole group, k, v."""
        w, block, step = self.w, self.block, self.step
        dim, group = step.head_dim, step.group
        head = item.head % step.kv_heads
        line = item.row * self.plan.vectors["qkv"].words
        count = (group + 2) * dim
        numbers = [w.least(block.thread + start, count - 1) for start in range(0, count, CONSUMERS)]
        places = []
        for number in numbers:
            own = head * (group * dim) + number
            of_k = head * dim + (number - group * dim) + step.heads * dim
            of_v = of_k + (step.kv_heads * dim - dim)
            where = w.select(number < group * dim, own, w.select(number < (group + 1) * dim, of_k, of_v))
            places.append((block.word("qkv", line + where), 0))
        for start in range(0, len(places), MOST_POLLED):
            values = block.poll(places[start : start + MOST_POLLED], tag)
            # Threads behind the last element write what the last one writes.
            for number, value in zip(numbers[start:], values):
                block.keep(self.small + (number << 2), value)

    def prepare(self, item: Item, layer: Val) -> None:
        """Norms of heads, positions; then k and v as the cache has them, and where it has them."""
        layers = self.step.layers[0]
        if layers.q_norm is not None or layers.k_norm is not None:
            self.normed_heads(layer, layers.q_norm, layers.k_norm)
            self.block.everyone()
        if layers.rope is not None:
            self.turn(item, layer, layers.rope.pairs, layers.rope.is_split)
            self.block.everyone()
        self.append(item, layer)
        self.block.everyone()

    def normed_heads(self, layer: Val, q_norm: Norm | None, k_norm: Norm | None) -> None:
        """A warp for each head."""
        w, block, step = self.w, self.block, self.step
        dim = step.head_dim
        with w.loop(block.warp, w.value(step.group + 1), WARPS) as head:
            is_k = head.equals(step.group)
            for norm, name, condition in ((q_norm, "q_norm", head < step.group), (k_norm, "k_norm", is_k)):
                if norm is None:
                    continue
                with w.when(condition):
                    self.normed_head(head, norm, block.entry(f"{name}_gain", layer), dim)

    def normed_head(self, head: Val, norm: Norm, gain_at: Val, dim: int) -> None:
        w, block = self.w, self.block
        places = [block.lane + i for i in range(0, dim, 32)]
        inside = [None if i + 32 <= dim else place < dim for i, place in zip(range(0, dim, 32), places)]
        places = [place if ok is None else w.least(place, dim - 1) for place, ok in zip(places, inside)]
        at = [self.small + ((head * dim + place) << 2) for place in places]
        values = [block.load(a, 1, "float")[0] for a in at]
        gains = [block.load_half(gain_at + (w.wide(place) << 1)) for place in places]
        total = w.value(0.0, "float")
        for value, ok in zip(values, inside):
            square = value * value
            total = total + (square if ok is None else w.select(ok, square, 0.0, "float"))
        mean = block.summed(total) * (1.0 / dim) + norm.eps
        factor = w.call("llvm.nvvm.rsqrt.approx.f", "float", mean)
        block.together()
        for a, value, gain in zip(at, values, gains):
            block.keep(a, value * factor * gain)

    def turn(self, item: Item, layer: Val, pairs: int, is_split: bool) -> None:
        """Heads of q and k, pair by pair."""
        w, block, dim = self.w, self.block, self.step.head_dim
        table = w.emit(f"trunc i64 {block.entry('rope', layer).name} to i32", "i32")
        angles = block.shared("rope") + (table * self.plan.batch + item.row) * self.plan.rope_bytes
        with w.loop(block.thread, w.value((self.step.group + 1) * pairs), CONSUMERS) as number:
            head, pair = number // pairs, number % pairs
            (cos,), (sin,) = (block.load(angles + 4 * pairs * i + (pair << 2), 1, "float") for i in range(2))
            first = head * dim + (pair if is_split else pair << 1)
            at = [self.small + (place << 2) for place in (first, first + (pairs if is_split else 1))]
            (a,), (b,) = (block.load(x, 1, "float") for x in at)
            block.keep(at[0], a * cos - b * sin)
            block.keep(at[1], b * cos + a * sin)

    def append(self, item: Item, layer: Val) -> None:
        """Round k and v; the block that has the new key stores them. q becomes what scores are powers of 2 of."""
        w, block, step = self.w, self.block, self.step
        dim, group = step.head_dim, step.group
        line = (w.wide(item.head) * w.wide(block.capacity) + w.wide(w.most(item.position, 0))) * (2 * dim)
        # Places outside of the cache are nobody's.
        is_inside = (w.value(-1) < item.position) & (item.position < block.capacity)
        is_owner = self.is_owner(item) & is_inside
        keys, values = (block.entry(name, layer) for name in ("keys", "values"))
        with w.loop(block.thread, w.value(2 * dim), CONSUMERS) as number:
            at = self.small + ((number + group * dim) << 2)
            (value,) = block.load(at, 1, "float")
            word = block.pair(value, value)
            block.keep(at, block.unpacked(word, 0))
            is_k = number < dim
            place = w.select(is_k, number, number - dim)
            to = w.select(is_k, keys, values, "i64") + line + (w.wide(place) << 1)
            with w.when(is_owner):
                w.asm("{ .reg .b16 x, y; mov.b32 {x, y}, <r>; st.global.b16 [<a>], x; }", r=word, a=to)
                if block.number is not None:
                    w.asm("fence.proxy.async;")

    def is_owner(self, item: Item) -> Val:
        """Of the new key: a split that would have its chunk."""
        return (item.position // self.plan.keys % self.plan.splits).equals(item.split)

    # Scores and sums of values.

    def look(self, item: Item) -> None:
        w, block, plan, dim = self.w, self.block, self.plan, self.step.head_dim
        queries = [self.query(number) for number in range(self.rounds)]
        peaks = [Var(w, NOTHING, "float") for _ in range(self.rounds)]
        totals = [Var(w, 0.0, "float") for _ in range(self.rounds)]
        sums = [[Var(w, 0.0, "float") for _ in range(EACH)] for _ in range(self.rounds)]

        def update(keys: Sequence[list[Val]], values: Sequence[list[Val]], seen: Sequence[Val | None]) -> None:
            for q, peak, total, acc in zip(queries, peaks, totals, sums):
                scores = [self.score(q, key) for key in keys]
                scores = [s if ok is None else w.select(ok, s, NOTHING, "float") for s, ok in zip(scores, seen)]
                highest = peak.get()
                for s in scores:
                    highest = block.larger(highest, s)
                fade = block.exp2(peak.get() - highest)
                powers = [block.exp2(s - highest) for s in scores]
                powers = [p if ok is None else w.select(ok, p, 0.0, "float") for p, ok in zip(powers, seen)]
                total.set(added(powers, total.get() * fade))
                for i, variable in enumerate(acc):
                    variable.set(added([p * v[i] for p, v in zip(powers, values)], variable.get() * fade))
                peak.set(highest)

        start, count = chunks(block, item)
        # Lanes without elements of a head read those of the first lane, and multiply them by zero.
        part = self.part if self.lanes * EACH == dim else w.select(self.part * EACH < dim, self.part, 0)
        with w.loop(0, count, plan.chunks_of_stage) as number:
            stage = self.read.take()
            with w.loop(number, w.least(number + plan.chunks_of_stage, count)) as chunk:
                first = (start + chunk * plan.splits) * plan.keys
                lines = self.read.memory(stage) + (chunk - number) * (4 * dim * plan.keys) + part * (2 * EACH)
                slots = [block.warp + i for i in range(0, plan.keys, WARPS)]
                seen: list[Val | None] = []
                for slot in slots:
                    ok = first + slot < item.past
                    seen.append(ok & (item.first < first + slot + 1) if plan.has_windows else ok)
                at = [lines + slot * (2 * dim) for slot in slots]
                keys = [self.elements(block.load(a, 4)) for a in at]
                values = [self.elements(block.load(a + 2 * dim * plan.keys, 4)) for a in at]
                # What was in the stage before may be no number.
                values = [[w.select(ok, x, 0.0, "float") for x in v] for v, ok in zip(values, seen) if ok is not None]
                update(keys, values, seen)
            self.read.release(stage)
        with w.when(self.is_owner(item) & item.sees_itself & block.warp.equals(0)):
            key, value = (self.own(self.step.group + i) for i in range(2))
            update([key], [value], [None])
        self.put(peaks, totals, sums)

    def query(self, number: int) -> list[Val]:
        """This lane's elements of a head of q; the last head stands for those behind it."""
        w, step = self.w, self.step
        head = w.least(self.slot + number * self.heads, step.group - 1)
        found = self.own(head)
        if step.softcap is None:
            found = [x * (step.scale * math.log2(math.e)) for x in found]
        if self.lanes * EACH != step.head_dim:
            found = [w.select(self.part * EACH < step.head_dim, x, 0.0, "float") for x in found]
        return found

    def own(self, head: Val | int) -> list[Val]:
        """This lane's elements of a head in shared memory."""
        w, block, dim = self.w, self.block, self.step.head_dim
        place = self.part * EACH if self.lanes * EACH == dim else w.least(self.part * EACH, dim - EACH)
        at = self.small + w.value(head) * (4 * dim) + (place << 2)
        return [*block.load(at, 4, "float"), *block.load(at + 16, 4, "float")]

    def elements(self, words: Sequence[Val]) -> list[Val]:
        return [self.block.unpacked(word, which) for word in words for which in range(2)]

    def score(self, q: Sequence[Val], key: Sequence[Val]) -> Val:
        products = [a * b for a, b in zip(q, key)]
        total = self.block.summed(added(products[1:], products[0]), self.lanes)
        return total if self.step.softcap is None else self.block.capped(total, self.step.softcap)

    # What warps and blocks have found.

    def put(self, peaks: Sequence[Var], totals: Sequence[Var], sums: Sequence[Sequence[Var]]) -> None:
        """[warp]: elements of all heads, then peak and sum of each."""
        w, block, step = self.w, self.block, self.step
        dim, group = step.head_dim, step.group
        start = self.found + block.warp * self.plan.found_bytes
        for number, (peak, total, acc) in enumerate(zip(peaks, totals, sums)):
            head = self.slot + number * self.heads
            with w.when((head < group) & (self.part * EACH < dim)):
                at = start + head * (4 * dim) + self.part * (4 * EACH)
                for i in (0, 4):
                    block.keep(at + 4 * i, *(variable.get() for variable in acc[i : i + 4]))
                with w.when(self.part.equals(0)):
                    block.keep(start + (4 * dim * group) + head * 8, peak.get(), total.get())

    def join_warps(self, item: Item, tag: Val) -> None:
        """What this block has found: the attention if nobody shares its keys, or words for those who do."""
        w, block, step, plan = self.w, self.block, self.step, self.plan
        dim, group = step.head_dim, step.group
        with w.loop(block.thread, w.value(group * dim), CONSUMERS) as number:
            head, element = number // dim, number % dim
            starts = [self.found + warp * plan.found_bytes for warp in range(WARPS)]
            both = [block.load(s + (4 * dim * group) + head * 8, 2, "float") for s in starts]
            values = [block.load(s + (number << 2), 1, "float")[0] for s in starts]
            peak = both[0][0]
            for other, _ in both[1:]:
                peak = block.larger(peak, other)
            factors = [block.exp2(p - peak) for p, _ in both]
            total = added([f * x for f, (_, x) in zip(factors[1:], both[1:])], factors[0] * both[0][1])
            value = added([f * x for f, x in zip(factors[1:], values[1:])], factors[0] * values[0])
            if plan.splits == 1:
                block.post("att", item.head * (group * dim) + number, value * block.share(total), tag)
            else:
                line = (item.head * group + head) * (dim + 2)
                block.post("part", (line + element) * plan.splits + item.split, value, tag)
                with w.when(element.equals(0)):
                    block.post("part", (line + dim) * plan.splits + item.split, peak, tag)
                    block.post("part", (line + dim + 1) * plan.splits + item.split, total, tag)

    def join_blocks(self, item: Item, layer: Val, tag: Val) -> None:
        """Neighbouring lanes have what the splits of a head have found of an element."""
        w, block, step, plan = self.w, self.block, self.step, self.plan
        dim, group, splits = step.head_dim, step.group, plan.splits
        block.everyone()
        with w.when(block.thread.equals(0)):
            block.arrive("part", item.head)
        block.await_hint("part", layer, item.head)
        block.mark("attend", "joins", layer)
        at_a_time = CONSUMERS // splits
        split = block.thread % splits
        owned = [block.thread // splits + start for start in range(0, plan.joined, at_a_time)]
        places = []
        for own in owned:
            place = w.least(item.split * plan.joined + own, group * dim - 1)
            line = (item.head * group + place // dim) * (dim + 2)
            of_head = block.word("part", (line + dim) * splits + split)
            places.append([(block.word("part", (line + place % dim) * splits + split), 0), (of_head, 0)])
            places[-1].append((of_head, 8 * splits))
        for start in range(0, len(owned), MOST_POLLED // 2):
            together = range(start, min(start + MOST_POLLED // 2, len(owned)))
            found = block.poll([place for i in together for place in places[i]], tag)
            for i, own in enumerate(owned[start : start + len(together)]):
                value, peak, total = found[3 * i : 3 * i + 3]
                highest, distance = peak, splits // 2
                while distance:
                    highest = block.larger(highest, block.from_lane(highest, distance))
                    distance //= 2
                factor = block.exp2(peak - highest)
                value, total = (block.summed(x * factor, splits) for x in (value, total))
                number = item.split * plan.joined + own
                is_mine = split.equals(0) & (own < plan.joined) & (number < group * dim)
                with w.when(is_mine):
                    block.post("att", item.head * (group * dim) + number, value * block.share(total), tag)


def added(values: Sequence[Val], start: Val) -> Val:
    """The values one after the other."""
    for value in values:
        start = start + value
    return start
