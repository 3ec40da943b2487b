"""The kernel of a decode step: set up, embeddings, layers, logits; one warp brings stages, eight read them."""

from __future__ import annotations

from collections.abc import Callable

from rlx.backends.cuda.hopper.instructions import barrier_init, barriers_made, sync_threads
from rlx.backends.cuda.persistent.attend import Attention, bring_keys
from rlx.backends.cuda.persistent.choosing import Choosing
from rlx.backends.cuda.persistent.exchange import Block
from rlx.backends.cuda.persistent.norms import Norms
from rlx.backends.cuda.persistent.panel_products import stored_element
from rlx.backends.cuda.persistent.panel_rows import panel_format
from rlx.backends.cuda.persistent.phases import Attend, Product
from rlx.backends.cuda.persistent.plan import CONSUMERS, THREADS, WARPS, Plan
from rlx.backends.cuda.persistent.products import Products, bring_rows
from rlx.backends.cuda.persistent.ring import BRINGING, Fill, Read


def kernel_text(plan: Plan, triple: str) -> str:
    """The LLVM module. Parameters are those of `exchange`: the table of addresses and first and number of units of
    every block (i64 and i32 words), memory of exchanges, which begins as zeros, inputs, and the result; places of a
    cache, and the number of launches before this one on the same memory of exchanges."""
    return _Kernel(plan).text(triple)


class _Kernel:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.step = plan, plan.step
        self.block = Block(plan)
        self.w = self.block.w

    def text(self, triple: str) -> str:
        w, block = self.w, self.block
        self.set_up()
        sync_threads(w, 0, THREADS)
        w.either(block.thread < CONSUMERS, self.consume, self.bring)
        return w.module(triple)

    def set_up(self) -> None:
        """What the block needs again and again, to shared memory: behind the weights memory is far away."""
        w, block, plan = self.w, self.block, self.plan
        with w.when(block.thread < plan.stages):
            barriers = block.shared("barriers") + block.thread * 16
            barrier_init(w, barriers, 1)
            barrier_init(w, barriers + 8, WARPS)
            barriers_made(w)
        owned = 2 * len(plan.owners) * (len(plan.step.layers) + 1)
        with w.loop(block.thread, w.value(owned), THREADS) as i:
            at = block.at["owned"] + (w.wide(block.block * owned + i) << 2)
            block.keep(block.shared("owned") + (i << 2), *block.load(at, space="global"))
        with w.when(block.thread < plan.batch):
            offset = w.wide(block.thread) << 2
            names = ("positions", "lengths", "moves" if plan.chooses else "lengths", "tokens")
            four = [block.load(block.at[name] + offset, space="global")[0] for name in names]
            block.keep(block.shared("places") + (block.thread << 4), *four)
        if plan.chooses:
            with w.when(block.thread.equals(0)):
                block.keep(block.shared("appended"), w.value(0))
        # Two words at a time, and all of them before the first is kept: one trip to memory.
        size = -(-len(plan.table) // 2)
        places = [w.least(block.thread + start, size - 1) << 4 for start in range(0, size, THREADS)]
        words = [block.load(block.at["table"] + w.wide(place), 4, space="global") for place in places]
        for place, four in zip(places, words):
            block.keep(block.shared("table") + place, *four)

    def set_up_angles(self) -> None:
        """Cosines and sines of the position of every sequence, for those who attend; weights are on their way."""
        w, block, plan = self.w, self.block, self.plan
        pairs = plan.rope_bytes // 8
        for number in range(len(plan.ropes)):
            starts = [block.entry(f"{name}{number}") for name in ("cos", "sin")]
            with w.loop(block.thread, w.value(plan.batch * pairs), CONSUMERS) as i:
                row, pair = i // pairs, i % pairs
                position, _ = block.place(row)
                # Rows of padding stand where there is a place for them.
                position = w.most(w.least(position, block.capacity - 1), 0)
                to = block.shared("rope") + row * plan.rope_bytes + number * plan.batch * plan.rope_bytes + (pair << 2)
                for part, start in enumerate(starts):
                    at = start + (w.wide(position * pairs + pair) << 2)
                    block.keep(to + part * 4 * pairs, *block.load(at, space="global"))

    # The warp that brings stages.

    def bring(self) -> None:
        w, block, plan = self.w, self.block, self.plan

        def step() -> None:
            with w.loop(0, w.value(len(self.step.layers))) as layer:
                for phase in plan.layer_phases:
                    if isinstance(phase, Product):
                        bring_rows(block, phase, layer, fill)
                    elif isinstance(phase, Attend):
                        bring_keys(block, layer, fill)
            bring_rows(block, plan.logits, None, fill)

        with w.when(block.lane < BRINGING):
            fill = Fill(block)
            self.each_step(step)

    def each_step(self, do: Callable[[], None]) -> None:
        """All steps of the launch; without choices there is one."""
        if not self.plan.chooses:
            do()
            return
        with self.w.loop(0, self.block.steps) as number:
            self.block.number = number
            do()
        self.block.number = None

    # The warps that multiply.

    def consume(self) -> None:
        w, block, plan = self.w, self.block, self.plan
        read = Read(block)
        norms = Norms(block)
        products, attention = Products(block, read, norms), Attention(block, read)
        choosing = Choosing(block) if plan.chooses else None

        def step() -> None:
            self.embed()
            self.set_up_angles()
            with w.loop(0, w.value(len(self.step.layers))) as layer:
                for phase in plan.layer_phases:
                    if isinstance(phase, Product):
                        products.run(phase, layer, layer)
                    elif isinstance(phase, Attend):
                        attention.run(layer)
                    else:
                        norms.settle(phase, layer)
            if choosing is not None:
                choosing.begin()
            products.run(plan.logits, None, len(self.step.layers), choosing)
            if choosing is not None:
                choosing.end()

        self.each_step(step)

    def embed(self) -> None:
        """This block's part of the embeddings: the first version of x."""
        w, block, plan, step = self.w, self.block, self.plan, self.step
        first, count = block.owned("x", w.value(0))
        columns, unit = count * plan.x_unit, plan.x_unit
        with w.loop(block.thread, columns * plan.batch, CONSUMERS) as i:
            row, column = i // columns, i % columns
            (token,) = block.load(block.token_at(row))
            token = w.most(w.least(token, step.head.height - 1), 0)
            place = first * unit + column
            if step.embed_scheme is not None:
                layout = panel_format(step.embed_scheme)
                value = stored_element(block, layout, block.entry("embed"), step.hidden, token, place)
            else:
                at = block.entry("embed") + ((w.wide(token) * step.hidden + w.wide(place)) << 1)
                value = block.load_half(at)
            if step.embed_scale != 1.0:
                value = value * step.embed_scale
            kept = block.shared("residual") + column // unit * plan.unit_bytes + row * (4 * unit)
            block.keep(kept + (column % unit << 2), value)
            block.post("x", row * step.hidden + place, value, block.tag(0))
        block.together()
        with w.when(block.thread.equals(0)):
            block.arrive("x")
