"""`ScoreRows`: the scores of sixteen queries that a warp has in its registers, and their softmax over all keys so far.

`mma` and wgmma leave sums the same way: of two rows that are eight apart a thread has the columns 8j + 2 (lane % 4) +
e, e = 0, 1, and four neighbouring lanes have a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.writer import Val, Var


class ScoreRows:
    """Scores of a tile of so many keys. `is_finished` says that they come as powers of 2 already, `polynomials` is that
    of the shape."""

    def __init__(self, lanes: Lanes, keys: int, is_finished: bool) -> None:
        self.lanes, self.keys = lanes, keys
        self.scale = 1.0 if is_finished else lanes.attention.scale * math.log2(math.e)
        w = lanes.w
        self.scores = [Var(w, 0.0, "float") for _ in range(keys // 2)]
        self.highest = [Var(w, -math.inf, "float") for _ in range(2)]
        self.total = [Var(w, 0.0, "float") for _ in range(2)]

    def forget(self) -> None:
        """Before the first tile of other queries."""
        for highest, total in zip(self.highest, self.total):
            highest.set(-math.inf)
            total.set(0.0)

    def keep(self, scores: Sequence[Val]) -> None:
        """Products of queries and keys."""
        cap = self.lanes.attention.softcap
        for variable, value in zip(self.scores, scores, strict=True):
            variable.set(value if cap is None else self.lanes.capped(value, cap))

    def hide(self, start: Val, limits: Sequence[tuple[Val, Val | None]]) -> None:
        """What rows do not see of the keys from `start` on, which is the first one of this thread."""
        w = self.lanes.w
        ends = [end - start for end, _ in limits]
        firsts = [None if first is None else first - start for _, first in limits]
        for i, variable in enumerate(self.scores):
            column, r = i // 4 * 8 + i % 2, i % 4 // 2
            seen = ends[r] > column
            first = firsts[r]
            if first is not None:
                seen = seen & (first < column + 1)
            variable.set(w.select(seen, variable.get(), -math.inf, "float"))

    def softmax(self, is_clean: bool, is_first: bool = False) -> tuple[list[Val], list[Val]]:
        """Scores to powers, and what earlier sums are multiplied by, for both rows of this thread. In a clean tile
        every row sees something."""
        lanes, w = self.lanes, self.lanes.w
        polynomials = lanes.attention.polynomials
        powers: dict[int, Val] = {}
        factors: list[Val] = []
        scores = [s.get() for s in self.scores]
        rows = [[i for i in range(len(scores)) if i % 4 // 2 == r] for r in range(2)]
        before = [x.get() for x in self.highest]
        bases: list[Val] = []
        # Both rows before the first power: the assembler then has this to do while the product of the values runs.
        for r, own in enumerate(rows):
            highest = _joined(lanes.larger, [scores[i] for i in own])
            if not is_first:
                highest = lanes.larger(highest, before[r])
            # Four neighbouring lanes have a row.
            highest = lanes.larger(highest, lanes.from_lane(highest, 1))
            highest = lanes.larger(highest, lanes.from_lane(highest, 2))
            self.highest[r].set(highest)
            base = highest * -self.scale
            if not is_clean:
                base = w.select(lanes.is_seen(highest), base, 0.0, "float")
            bases.append(base)
        for r, own in enumerate(rows):
            for number, i in enumerate(own):
                power = lanes.exp2
                # Evenly among the others, so that both units have something to do.
                if is_clean and number * polynomials % 8 < polynomials:
                    power = lanes.exp2_by_polynomial
                powers[i] = power(scores[i] * self.scale + bases[r])
            total = _joined(lambda a, b: a + b, [powers[i] for i in own])
            if not is_first:
                factors.append(lanes.exp2(before[r] * self.scale + bases[r]))
                total = self.total[r].get() * factors[r] + total
            self.total[r].set(total)
        return [powers[i] for i in range(len(scores))], factors

    def totals(self) -> list[Val]:
        """The sums of powers of whole rows."""
        found = []
        for variable in self.total:
            part = variable.get()
            part = part + self.lanes.from_lane(part, 1)
            found.append(part + self.lanes.from_lane(part, 2))
        return found

    def store_logs(self, address: Callable[[Val], Val], first_row: Val, queries: Val, totals: Sequence[Val]) -> None:
        """The logarithms of base 2 of `totals` of scores, where a row has its own."""
        lanes, w = self.lanes, self.lanes.w
        lane = w.register("tid.x") & 3
        for r, total in enumerate(totals):
            row = first_row + 8 * r
            highest = self.highest[r].get()
            log = w.call("llvm.nvvm.lg2.approx.ftz.f", "float", total) + highest * self.scale
            # A query that sees nothing has no weights.
            log = w.select(lanes.is_seen(highest), log, math.inf, "float")
            with w.when(lane.equals(0) & (row < queries)):
                w.asm("st.global.f32 [<a>], <x>;", a=address(row), x=log)


def _joined(function: Callable[[Val, Val], Val], values: Sequence[Val]) -> Val:
    """Four chains: enough that does not wait for each other, in few registers."""
    chains = list(values[:4])
    for i, value in enumerate(values[4:]):
        chains[i % 4] = function(chains[i % 4], value)
    return function(function(chains[0], chains[1]), function(chains[2], chains[3]))
