"""The word with the highest logit of every sequence: that of each block, then that of all, which a step goes on with.

Of equal logits the word that comes first is chosen. Blocks post what they have found when they have read the last
vector of a step, so whoever has read all of it may write the first vector of the next. All blocks read it, also those
without rows: nobody is more than a step ahead, so two places for each word are enough.
"""

from __future__ import annotations

from rlx.backends.cuda.hopper.writer import Val, Var
from rlx.backends.cuda.persistent.exchange import Block
from rlx.backends.cuda.persistent.plan import WARPS

LOWEST = float("-inf")


class Choosing:
    """For the warps that multiply. Neighbouring lanes, half a unit of them, finish the logits of a sequence."""

    def __init__(self, block: Block) -> None:
        self.block, self.w, self.plan = block, block.w, block.plan
        self.best, self.word = Var(block.w, LOWEST, "float"), Var(block.w, 0)

    def begin(self) -> None:
        self.best.set(LOWEST)
        self.word.set(0)

    def look(self, column: Val, values: list[Val]) -> None:
        """Logits of neighbouring words, of which there may be fewer; they come in ascending order."""
        count = self.plan.logits.counts[0]
        for i, value in enumerate(values):
            is_better = self.above(value, self.best.get())
            if count % self.plan.logits.unit:
                is_better = is_better & (column + i < count)
            self.take(is_better, value, column + i)

    def above(self, a: Val, b: Val) -> Val:
        return self.w.emit(f"fcmp ogt float {a.name}, {b.name}", "i1")

    def take(self, condition: Val, value: Val, word: Val) -> None:
        w = self.w
        self.best.set(w.select(condition, value, self.best.get(), "float"))
        self.word.set(w.select(condition, word, self.word.get()))

    def among(self, lanes: int) -> None:
        """Over neighbouring lanes, a power of two of them; all get it."""
        w, block, distance = self.w, self.block, lanes // 2
        while distance:
            value = block.from_lane(self.best.get(), distance)
            bits = w.emit(f"bitcast i32 {self.word.get().name} to float", "float")
            other = block.from_lane(bits, distance)
            word = w.emit(f"bitcast float {other.name} to i32", "i32")
            same = w.emit(f"fcmp oeq float {value.name}, {self.best.get().name}", "i1")
            self.take(self.above(value, self.best.get()) | (same & (word < self.word.get())), value, word)
            distance //= 2

    def end(self) -> None:
        """Post what this block has found, and learn what all have, if a step follows or this block stores it."""
        w, block, plan = self.w, self.block, self.plan
        pairs = plan.logits.unit // 2
        self.among(pairs)
        row, tag = block.thread // pairs, block.tag(0)
        with w.when((row < plan.batch) & (block.thread % pairs).equals(0)):
            place = self.line(row) + block.block * 2
            bits = w.emit(f"bitcast i32 {self.word.get().name} to float", "float")
            block.post("best", place, self.best.get(), tag)
            block.post("best", place + 1, bits, tag)
        block.together()
        with w.when(block.thread.equals(0)):
            block.arrive("best")
        assert block.number is not None
        is_first = block.block.equals(0)
        with w.when(is_first | (block.number + 1 < block.steps)):
            block.await_hint("best", 0)
            # A warp for each sequence.
            with w.when(block.warp < plan.batch):
                self.of_all(tag)
                with w.when(block.lane.equals(0)):
                    block.keep(block.token_at(block.warp), self.word.get())
                with w.when(block.lane.equals(0) & is_first):
                    at = block.at["chosen"] + (w.wide(block.number * plan.batch + block.warp) << 2)
                    w.asm("st.global.b32 [<a>], <x>;", a=at, x=self.word.get())
            block.everyone()

    def line(self, row: Val) -> Val:
        """Where the words of a sequence begin: steps take turns."""
        return ((self.block.launch & 1) * self.plan.batch + row) * self.plan.vectors["best"].words

    def of_all(self, tag: Val) -> None:
        w, block, plan = self.w, self.block, self.plan
        assert plan.batch <= WARPS
        line = self.line(block.warp)
        numbers = [w.least(block.lane + start, plan.blocks - 1) for start in range(0, plan.blocks, 32)]
        self.begin()
        for start in range(0, len(numbers), 8):
            places = [(block.word("best", line + number * 2), 0) for number in numbers[start : start + 8]]
            found = block.poll(places, tag, 2)
            for value, bits in zip(found[::2], found[1::2]):
                word = w.emit(f"bitcast float {bits.name} to i32", "i32")
                same = w.emit(f"fcmp oeq float {value.name}, {self.best.get().name}", "i1")
                self.take(self.above(value, self.best.get()) | (same & (word < self.word.get())), value, word)
        self.among(32)
