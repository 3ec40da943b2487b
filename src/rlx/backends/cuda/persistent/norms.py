"""Vectors of all blocks and their norms: what a product multiplies, and what a half of a layer adds to x.

Words are waited for pair by pair, each thread has every so-manieth. Warps note what they have summed up of a row in
shared memory, from where everybody has the mean and the factor of its norm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.backends.cuda.hopper.writer import Val, Var
from rlx.backends.cuda.persistent.exchange import Block
from rlx.backends.cuda.persistent.phases import Product, Settle
from rlx.backends.cuda.persistent.plan import CONSUMERS, WARPS

# Pairs of words that a thread waits for together: each wait is a trip to memory behind all weights on their way.
POLLED = 16
# What follows a pair of a row's elements: their values, which pair of this thread it is, and whether it is one, if not
# always.
Follow = Callable[[list[Val], int, "Val | None"], None]


class Norms:
    """Vectors as one block reads them, for the warps that multiply."""

    def __init__(self, block: Block) -> None:
        self.block, self.w, self.plan = block, block.w, block.plan

    def fetch(self, product: Product | Settle, row: Val | int, tag: Val, follow: Follow) -> None:
        """All pairs of words of one row of the vector, shared out over the threads."""
        w, block = self.w, self.block
        vector = self.plan.vectors[product.reads]
        pairs, type = vector.words // 2, "i32" if vector.pairs else "float"
        whole = pairs // CONSUMERS
        base = w.value(row) * vector.words
        for first in range(0, whole, POLLED):
            numbers = range(first, min(whole, first + POLLED))
            start = block.word(product.reads, base + block.thread * 2 + first * CONSUMERS * 2)
            found = block.poll([(start, 16 * CONSUMERS * (n - first)) for n in numbers], tag, 2, type)
            for i, number in enumerate(numbers):
                follow(found[2 * i : 2 * i + 2], number, None)
        if pairs % CONSUMERS:
            pair = block.thread + whole * CONSUMERS
            start = block.word(product.reads, base + w.least(pair, pairs - 1) * 2)
            follow(block.poll([(start, 0)], tag, 2, type), whole, pair < pairs)

    def each_row(self, do: Callable[[Val], None]) -> None:
        if self.plan.batch == 1:
            do(self.w.value(0))
            return
        with self.w.loop(0, self.w.value(self.plan.batch)) as row:
            do(row)

    def keep(self, product: Product, layer: Val | None, version: Val | int) -> None:
        """Wait for the vector of a product, and keep it in shared memory, rounded, with its norm taken or with all but
        its factor."""
        block, norm = self.block, product.norm
        # They are on their way while the vector is waited for.
        gains, shifts = (
            self.halves(product, block.entry(f"{product.norm_name}_{name}", layer))
            if norm is not None and asked
            else []
            for name, asked in (("gain", True), ("shift", norm is not None and norm.shift))
        )
        block.mark(product.name, "begins", layer)
        block.await_hint(product.reads, version)
        block.mark(product.name, "hinted", layer)
        tag = block.tag(version)
        if norm is None:
            self.each_row(lambda row: self.fetch(product, row, tag, self.keeps(product, row)))
        elif self.plan.is_delayed(product):
            self.normed(product, gains, tag)
        else:
            self.measured(product, gains, shifts, tag)

    def halves(self, product: Product, at: Val) -> list[Val]:
        """This thread's pairs of a vector of the model; behind the last pair stands the last one."""
        w, block, pairs = self.w, self.block, product.depth // 2
        found = []
        for start in range(0, pairs, CONSUMERS):
            pair = block.thread + start
            pair = w.least(pair, pairs - 1) if start + CONSUMERS > pairs else pair
            found += block.load(at + (w.wide(pair) << 2), space="global")
        return found

    def keeps(self, product: Product, row: Val, change: Callable[[list[Val], int], list[Val]] | None = None) -> Follow:
        """Stores pairs to the operand, rounded."""
        block = self.block
        line = block.shared("scratch") + row * self.plan.operand_pitch
        is_packed = self.plan.vectors[product.reads].pairs

        def follow(values: list[Val], number: int, is_there: Val | None) -> None:
            if change is not None:
                values = change(values, number)
            words = values if is_packed else [block.pair(*values)]

            def store() -> None:
                block.keep(line + (block.thread + number * CONSUMERS << (3 if is_packed else 2)), *words)

            self.guarded(is_there, store)

        return follow

    def guarded(self, condition: Val | None, do: Callable[[], None]) -> None:
        if condition is None:
            do()
            return
        with self.w.when(condition):
            do()

    def both(self, word: Val) -> list[Val]:
        return [self.block.unpacked(word, which) for which in range(2)]

    def normed(self, product: Product, gains: Sequence[Val], tag: Val) -> None:
        """Elements times gains, and the sum of their squares, whose factor is applied to sums."""
        w = self.w

        def one(row: Val) -> None:
            squares = Var(w, 0.0, "float")
            stored = self.keeps(product, row, lambda v, n: [x * g for x, g in zip(v, self.both(gains[n]))])

            def follow(values: list[Val], number: int, is_there: Val | None) -> None:
                both = values[0] * values[0] + values[1] * values[1]
                if is_there is not None:
                    both = w.select(is_there, both, 0.0, "float")
                squares.set(squares.get() + both)
                stored(values, number, is_there)

            self.fetch(product, row, tag, follow)
            self.note(row, 0, squares.get())

        self.each_row(one)

    def note(self, row: Val, which: int, x: Val) -> None:
        """What a warp has summed up of a row: squares (0), or elements (1)."""
        block = self.block
        total = block.summed(x)
        with self.w.when(block.lane.equals(0)):
            block.keep(self.noted(row, which) + (block.warp << 2), total)

    def noted(self, row: Val, which: int) -> Val:
        return self.block.shared("squares") + row * (8 * WARPS) + which * (4 * WARPS)

    def sum_of(self, row: Val, which: int) -> Val:
        words = [x for i in range(0, WARPS, 4) for x in self.block.load(self.noted(row, which) + 4 * i, 4, "float")]
        total = words[0]
        for word in words[1:]:
            total = total + word
        return total

    def factor(self, product: Product | Settle, row: Val) -> Val:
        """One over the root of the mean of squares."""
        assert product.norm is not None
        mean = self.sum_of(row, 0) * (1.0 / product.depth) + product.norm.eps
        return self.w.call("llvm.nvvm.rsqrt.approx.f", "float", mean)

    def mean(self, product: Product | Settle, row: Val) -> Val:
        return self.sum_of(row, 1) * (1.0 / product.depth)

    def summed_up(self, product: Product | Settle, row: Val, tag: Val, which: int, of: Callable[[Val], Val]) -> None:
        """Note the sum of something over all elements of a row."""
        w = self.w
        total = Var(w, 0.0, "float")

        def follow(values: list[Val], number: int, is_there: Val | None) -> None:
            both = of(values[0]) + of(values[1])
            total.set(total.get() + (both if is_there is None else w.select(is_there, both, 0.0, "float")))

        self.fetch(product, row, tag, follow)
        self.note(row, which, total.get())

    def measured(self, product: Product, gains: Sequence[Val], shifts: Sequence[Val], tag: Val) -> None:
        """A norm whose factor is known before elements are kept: words are read again, when all are there."""
        block, w, norm = self.block, self.w, product.norm
        assert norm is not None

        def one(row: Val) -> None:
            center = w.value(0.0, "float")
            if not norm.is_rms:
                self.summed_up(product, row, tag, 1, lambda x: x)
                block.everyone()
                center = self.mean(product, row)
            self.summed_up(product, row, tag, 0, lambda x: (x - center) * (x - center))
            block.everyone()
            factor = self.factor(product, row)

            def change(values: list[Val], number: int) -> list[Val]:
                found = [(x - center) * factor * g for x, g in zip(values, self.both(gains[number]))]
                return [x + s for x, s in zip(found, self.both(shifts[number]))] if shifts else found

            self.fetch(product, row, tag, self.keeps(product, row, change))

        self.each_row(one)

    # Norms behind the halves of a layer.

    def settle(self, phase: Settle, layer: Val) -> None:
        """x grows by a vector whose norm is taken first, in blocks that have elements of it."""
        w, block, plan = self.w, self.block, self.plan
        first, count = block.owned("x", layer)
        tag, written = block.tag(layer), block.tag(layer + phase.next_version)
        with w.when(count > 0):
            block.mark(phase.name, "begins", layer)
            block.await_hint(phase.reads, layer)
            block.mark(phase.name, "hinted", layer)

            def looked_at(row: Val) -> None:
                center = w.value(0.0, "float")
                if not phase.norm.is_rms:
                    self.summed_up(phase, row, tag, 1, lambda x: x)
                    block.everyone()
                    center = self.mean(phase, row)
                self.summed_up(phase, row, tag, 0, lambda x: (x - center) * (x - center))

            self.each_row(looked_at)
            block.everyone()
            block.mark(phase.name, "ready", layer)
            unit = plan.x_unit
            gain_at, columns = block.entry(f"{phase.norm_name}_gain", layer), count * unit
            shift_at = block.entry(f"{phase.norm_name}_shift", layer) if phase.norm.shift else gain_at
            most = max(plan.owned_by("x", 0).units) * unit * plan.batch
            for start in range(0, most, CONSUMERS):
                number = block.thread + start
                is_there = number < columns * plan.batch
                number = w.least(number, columns * plan.batch - 1)
                row, column = number // columns, number % columns
                place = first * unit + column
                gain = block.load_half(gain_at + (w.wide(place) << 1))
                shift = block.load_half(shift_at + (w.wide(place) << 1)) if phase.norm.shift else None
                (value,) = block.poll([(block.word(phase.reads, row * phase.depth + place), 0)], tag)
                with w.when(is_there):
                    at = block.shared("residual") + column // unit * plan.unit_bytes + row * (4 * unit)
                    at = at + (column % unit << 2)
                    (old,) = block.load(at, 1, "float")
                    if not phase.norm.is_rms:
                        value = value - self.mean(phase, row)
                    new = old + value * self.factor(phase, row) * gain
                    new = new if shift is None else new + shift
                    block.keep(at, new)
                    block.post(phase.writes, row * phase.depth + place, new, written)
            block.everyone()
        with w.when(block.thread.equals(0)):
            block.arrive(phase.writes)
        block.mark(phase.name, "done", layer)
