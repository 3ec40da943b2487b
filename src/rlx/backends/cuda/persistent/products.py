"""Products of a block's rows with a vector of all blocks: sums, and what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlx.backends.cuda.hopper.instructions import mma
from rlx.backends.cuda.hopper.stream_rows import DEPTH, PITCH, SHARE
from rlx.backends.cuda.hopper.stream_rows import STEP as LANE_STEP
from rlx.backends.cuda.hopper.writer import Val, Var
from rlx.backends.cuda.persistent.choosing import Choosing
from rlx.backends.cuda.persistent.exchange import Block
from rlx.backends.cuda.persistent.norms import Norms
from rlx.backends.cuda.persistent.panel_products import PanelProducts, bring_panels, forms_of
from rlx.backends.cuda.persistent.phases import Product
from rlx.backends.cuda.persistent.plan import UNIT, WARPS
from rlx.backends.cuda.persistent.ring import Fill, Read

# Sums of a row that do not wait for each other.
CHAINS = 4


def bring_rows(block: Block, product: Product, layer: Val | None, fill: Fill) -> None:
    """The rows of this block."""
    w = block.w
    first, count = block.owned(product.owner, layer)
    with w.when(count > 0):
        if product.parts > 1:
            _bring_units(block, product, product.matrices, layer, first, first + count, fill)
            return
        start = 0
        for matrix, rows in zip(product.matrices, product.counts):
            units = -(-rows // product.unit)
            # Units of this matrix, counted from its first one.
            low = w.most(first - start, 0)
            high = w.least(first + count - start, units)
            _bring_units(block, product, [matrix], layer, low, high, fill, rows)
            start += units


def _bring_units(
    block: Block,
    product: Product,
    matrices: Sequence[str],
    layer: Val | None,
    low: Val,
    high: Val,
    fill: Fill,
    rows: int = 0,
) -> None:
    if product.schemes:
        bring_panels(block, product, matrices, layer, low, high, fill)
        return
    w, depth = block.w, product.depth
    sources = [block.entry(matrix, layer) for matrix in matrices]
    with w.loop(low, high) as unit:
        for source in sources:
            row = unit * UNIT + block.lane
            if rows % UNIT:
                # Behind the last row is the last one.
                row = w.least(row, rows - 1)
            line = source + w.wide(row) * (2 * depth)
            with w.loop(0, w.value(depth), DEPTH) as start:
                size = w.least(w.value(depth) - start, DEPTH) << 1 if depth % DEPTH else w.value(2 * DEPTH)

                def copy(to: Val, full: Val, line: Val = line, start: Val = start, size: Val = size) -> None:
                    fill.copy_weights(to + block.lane * PITCH, line + (w.wide(start) << 1), size, full)

                fill.bring(size * UNIT, copy)


class Products:
    """Products of one block, for the warps that multiply."""

    def __init__(self, block: Block, read: Read, norms: Norms) -> None:
        self.block, self.w, self.plan, self.step, self.norms = block, block.w, block.plan, block.step, norms
        self.read, self.turn, self.panels = read, Var(block.w, 0), PanelProducts(block, read)

    def operand(self, product: Product, layer: Val | None, version: Val | int) -> None:
        """The vector as the tensor cores read it, in shared memory."""
        block = self.block
        self.norms.keep(product, layer, version)
        block.everyone()
        if product.schemes:
            self.panels.to_digits(product)
            block.everyone()
        block.mark(product.name, "ready", layer)

    # Sums.

    def run(self, product: Product, layer: Val | None, version: Val | int, choosing: Choosing | None = None) -> None:
        """The whole phase. Logits that are chosen from are not stored."""
        w, block = self.w, self.block
        first, count = block.owned(product.owner, layer)
        written = block.tag(w.value(version) + product.next_version)
        pairs = product.unit // 2
        with w.when(count > 0):
            self.operand(product, layer, version)
            forms = forms_of(block, product, layer)
            with w.loop(0, count) as number:
                unit = first + number
                # A thread for each pair of columns of a row finishes it.
                row, column = block.thread // pairs, unit * product.unit + block.thread % pairs * 2
                biases = self.biases(product, layer, unit, column)
                here = block.shared("sums") + self.turn.get() * (WARPS * 2 * self.plan.unit_bytes)
                if product.schemes:
                    self.multiply_panels(product, forms, unit, here)
                else:
                    totals = [[Var(w, 0.0, "float") for _ in range(4)] for _ in range(product.parts)]
                    for total in totals:
                        self.multiply(product.depth, total)
                    self.put(here, totals)
                block.everyone()
                with w.when(block.thread < self.plan.batch * pairs):
                    sums = self.finished(product, self.joined(here, product.parts), biases, row)
                    if choosing is not None:
                        choosing.look(column, self.logits(sums[0]))
                    else:
                        self.finish(product, sums, row, column, number, written)
                self.turn.set(self.turn.get() ^ 1)
        if product.writes:
            with w.when(block.thread.equals(0)):
                block.arrive(product.writes)
        block.mark(product.name, "done", layer)

    def multiply_panels(self, product: Product, forms: Mapping[str, Val], unit: Val, here: Val) -> None:
        """The sums of a unit whose weights are panels."""
        w, found = self.w, []
        for part in range(product.parts):
            form = forms.get(product.matrices[part])
            if form is not None and product.parts == 1:
                # That of the matrix which the unit belongs to.
                start = 0
                for matrix, rows in zip(product.matrices, product.counts):
                    form = w.select(unit > start - 1, forms[matrix], form)
                    start += rows // product.unit
            found.append(self.panels.sums())
            self.panels.multiply(product, form, found[-1])
        self.panels.put(here, found)

    def multiply(self, depth: int, total: Sequence[Var]) -> None:
        """One row of the weight for each column of a unit, over all of K."""
        w, whole = self.w, depth // DEPTH
        together = 2 if whole % 2 == 0 else 1
        chains = [total, *([Var(w, 0.0, "float") for _ in range(4)] for _ in range(CHAINS - 1))]
        if whole:
            with w.loop(0, w.value(whole), together) as chunk:
                self.chunks(chunk, [DEPTH] * together, chains)
        if depth % DEPTH:
            self.chunks(w.value(whole), [depth % DEPTH], chains)
        for chain in chains[1:]:
            for a, b in zip(total, chain):
                a.set(a.get() + b.get())

    def chunks(self, chunk: Val, depths: Sequence[int], chains: Sequence[Sequence[Var]]) -> None:
        """Stages, of which each warp has its columns: all are read before the first is multiplied."""
        w, block = self.w, self.block
        lane, warp = block.lane, block.warp
        own = (lane >> 2) * self.plan.operand_pitch + warp * (2 * SHARE) + (lane & 3) * 16
        x_at = block.shared("scratch") + own + chunk * (2 * DEPTH)
        held, loaded = [], []
        for number, depth in enumerate(depths):
            stage = self.read.take()
            held.append(stage)
            at = self.read.memory(stage) + (lane >> 2) * PITCH + warp * (2 * SHARE) + (lane & 3) * 16
            for i in range(SHARE // LANE_STEP):
                place = warp * SHARE + (lane & 3) * 8 + i * LANE_STEP
                is_there = None if depth == DEPTH else place < depth
                weights = block.load(at + i * 2 * LANE_STEP, 4)
                x = self.row_words(x_at + (number * 2 * DEPTH + i * 2 * LANE_STEP), is_there)
                if is_there is not None:
                    # Behind the end of K is what the stage had before.
                    weights = [w.select(is_there, word, 0) for word in weights]
                loaded.append((x, weights))
        self.read.release(*held)
        zero = w.value(0)
        for number, (x, weights) in enumerate(loaded):
            for i in (0, 2):
                total = chains[(2 * number + i // 2) % len(chains)]
                mma(w, self.step.element, total, (x[i], zero, x[i + 1], zero), (weights[i], weights[i + 1]))

    def row_words(self, at: Val, is_there: Val | None) -> list[Val]:
        """16 bytes of this lane's row of the operand; zeros where there is no row, or no such element."""
        w, batch = self.w, self.plan.batch
        row = self.block.lane >> 2
        if is_there is not None:
            row = w.select(is_there, row, batch)
        text = (
            f"{{ .reg .pred p; setp.lt.s32 p, <r>, {batch}; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;"
            " @p ld.shared.v4.b32 {$0, $1, $2, $3}, [<a>]; }"
        )
        return w.asm(text, results=["i32"] * 4, early=True, a=at, r=row)

    def put(self, here: Val, sums: Sequence[Sequence[Var]]) -> None:
        """What a warp has of a unit: two neighbouring columns of a row in each lane."""
        block, plan = self.block, self.plan
        row = block.lane >> 2
        with self.w.when(row < plan.batch):
            for part, total in enumerate(sums):
                at = here + (block.warp * 2 + part) * plan.unit_bytes + row * (4 * UNIT) + (block.lane & 3) * 8
                block.keep(at, total[0].get(), total[1].get())

    def joined(self, here: Val, parts: int) -> list[list[Val]]:
        """The sums of all warps for the two columns of this thread, of each part."""
        block, unit_bytes = self.block, self.plan.unit_bytes
        found = []
        for part in range(parts):
            at = here + (block.thread << 3) + part * unit_bytes
            both = block.load(at, 2, "float")
            for warp in range(1, WARPS):
                other = block.load(at + warp * 2 * unit_bytes, 2, "float")
                both = [a + b for a, b in zip(both, other)]
            found.append(both)
        return found

    # What becomes of them.

    def biases(self, product: Product, layer: Val | None, unit: Val, column: Val) -> list[list[Val]]:
        """For each part what is added to the two columns of this thread; read before the sums are waited for."""
        w, block = self.w, self.block
        if not any(product.biases):
            return []
        if product.parts > 1:
            ats = [block.entry(name, layer) for name in product.biases]
            return [self.bias_pair(product, at + (w.wide(column) << 1)) for at in ats]
        at, start = w.value(0, "i64"), 0
        for name, rows in zip(product.biases, product.counts):
            here = block.entry(name, layer) + (w.wide(column) << 1) - 2 * start if name else w.value(0, "i64")
            is_here = unit * product.unit > start - 1
            at = w.select(is_here, here, at, "i64")
            start += rows
        return [self.bias_pair(product, at)]

    def bias_pair(self, product: Product, at: Val) -> list[Val]:
        w, block = self.w, self.block
        found = [Var(w, 0.0, "float") for _ in range(2)]
        is_there = w.emit(f"icmp ne i64 {at.name}, 0", "i1")
        with w.when((block.thread < self.plan.batch * (product.unit // 2)) & is_there):
            (word,) = block.load(at, space="global")
            for which, variable in enumerate(found):
                variable.set(block.unpacked(word, which))
        return [variable.get() for variable in found]

    def finished(self, product: Product, sums: list[list[Val]], biases: list[list[Val]], row: Val) -> list[list[Val]]:
        """Sums with the factor of a norm, and biases."""
        if self.plan.is_delayed(product):
            factor = self.norms.factor(product, row)
            sums = [[x * factor for x in part] for part in sums]
        for i, bias in enumerate(biases):
            sums[i] = [x + b for x, b in zip(sums[i], bias)]
        return sums

    def finish(self, product: Product, sums: list[list[Val]], row: Val, column: Val, number: Val, tag: Val) -> None:
        block = self.block
        if product.finish == "logits":
            self.store_logits(product, sums[0], row, column)
            return
        vector = self.plan.vectors[product.writes]
        place = row * vector.words + (column >> 1 if vector.pairs else column)
        if vector.pairs:
            first = [self.activated(x) for x in sums[0]]
            both = [x * y for x, y in zip(first, sums[1])] if product.parts > 1 else first
            block.post(product.writes, place, block.pair(both[0], both[1]), tag)
            return
        values = sums[0]
        if product.finish == "add":
            at = block.shared("residual") + number * self.plan.unit_bytes + row * (4 * product.unit)
            at = at + block.thread % (product.unit // 2) * 8
            values = [x + y for x, y in zip(block.load(at, 2, "float"), values)]
            block.keep(at, *values)
        for i, value in enumerate(values):
            block.post(product.writes, place + i, value, tag)

    def store_logits(self, product: Product, values: list[Val], row: Val, column: Val) -> None:
        w, block, count = self.w, self.block, product.counts[0]
        for i, x in enumerate(self.logits(values)):
            at = block.at["logits"] + (w.wide(row * count + column + i) << 2)
            with w.when(column + i < count):
                w.asm("st.global.b32 [<a>], <x>;", a=at, x=x)

    def logits(self, values: list[Val]) -> list[Val]:
        scale = self.step.logit_scale
        return [self.capped(value * scale if scale != 1.0 else value) for value in values]

    def capped(self, x: Val) -> Val:
        """cap · tanh(x / cap), as 1 - 2 / (exp(2x) + 1)."""
        cap, block = self.step.logit_softcap, self.block
        if cap is None:
            return x
        power = block.exp2(x * (2 * math.log2(math.e) / cap))
        return block.reciprocal(power + 1.0) * (-2 * cap) + cap

    def activated(self, x: Val) -> Val:
        block, w = self.block, self.w
        match self.step.activation:
            case "silu":
                return x * self.sigmoid(x)
            case "sigmoid":
                return self.sigmoid(x)
            case "relu":
                return block.larger(x, w.value(0.0, "float"))
            case "gelu_tanh":
                # 0.5 (1 + tanh z) = sigmoid(2z)
                return x * self.sigmoid((x * x * x * 0.044715 + x) * (2 * math.sqrt(2 / math.pi)))

    def sigmoid(self, x: Val) -> Val:
        return self.block.reciprocal(self.block.exp2(x * -math.log2(math.e)) + 1.0)
