"""`Block`: what all parts of the kernel know of their block, and how blocks exchange words.

A word is {value, tag}, written and read whole: the tag vouches for the value, so nothing is fenced. A counter for every
vector says when reading pays; it is a hint, the tags decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cuda.hopper.attention_shape import AttentionShape
from rlx.backends.cuda.hopper.instructions import PATIENCE, sync_threads, sync_warp
from rlx.backends.cuda.hopper.lanes import Lanes
from rlx.backends.cuda.hopper.writer import Val, Writer
from rlx.backends.cuda.persistent.plan import CONSUMERS, COUNTER_WORDS, THREADS, Plan

ENTRY = "decode_step"
# Parameters of the kernel: addresses (i64), then numbers (i32).
ADDRESSES = ("table", "owned", "exchange", "tokens", "positions", "lengths", "logits", "moves", "chosen")
# `moves` are by how much positions and lengths grow from step to step, and `chosen` are the words that steps end with:
# those of a plan that chooses. `launch` counts steps.
NUMBERS = ("capacity", "launch", "steps")

# The end of a loop that waits for p: what waits too long is a fault, and the kernel stops instead of hanging the GPU.
UNTIL_P = (
    "@p bra DONE; mov.u64 t1, %globaltimer; sub.u64 t1, t1, t0; "
    f"setp.lt.u64 p, t1, {PATIENCE}; @p bra SPIN; trap; DONE:"
)


class Block(Lanes):
    """Writes instructions of one block."""

    def __init__(self, plan: Plan) -> None:
        step, w = plan.step, Writer(ENTRY, THREADS)
        d, element = step.head_dim, step.element
        shape = AttentionShape(d, d, element, step.heads, step.group, True, None, step.scale, step.softcap, None, None)
        super().__init__(w, shape)
        self.plan, self.step = plan, step
        self.at = {name: w.param(name, "i64") for name in ADDRESSES}
        self.capacity, self._launch, self.steps = (w.param(name, "i32") for name in NUMBERS)
        # Which step of this launch it is, in a plan that chooses.
        self.number: Val | None = None
        self.memory = w.emit("ptrtoint ptr addrspace(3) @smem to i32", "i32")
        self.thread = w.register("tid.x")
        self.lane, self.warp = self.thread & 31, self.thread >> 5
        self.block = w.register("ctaid.x")

    def shared(self, name: str) -> Val:
        return self.memory + self.plan.shared[name]

    # Memory.

    def load(self, at: Val, count: int = 1, type: str = "i32", space: str = "shared") -> list[Val]:
        names = ", ".join(f"${i}" for i in range(count))
        to, kind = (f"{{{names}}}", f".v{count}") if count > 1 else (names, "")
        return self.w.asm(f"ld.{space}{kind}.b32 {to}, [<a>];", results=[type] * count, a=at)

    def keep(self, at: Val, *values: Val) -> None:
        """Store to shared memory."""
        names = ", ".join(f"<v{i}>" for i in range(len(values)))
        source, kind = (f"{{{names}}}", f".v{len(values)}") if len(values) > 1 else (names, "")
        named: dict[str, Val | int] = {"a": at, **{f"v{i}": v for i, v in enumerate(values)}}
        self.w.asm(f"st.shared{kind}.b32 [<a>], {source};", named=named)

    def load_address(self, at: Val) -> Val:
        """A word of the table, which is in shared memory."""
        return self.w.asm("ld.shared.b64 $0, [<a>];", results=["i64"], a=at)[0]

    def entry(self, name: str, layer: Val | None = None) -> Val:
        """A word of a layer, or of the whole."""
        plan, table = self.plan, self.shared("table")
        if layer is None:
            first = len(plan.step.layers) * len(plan.layer_entries)
            return self.load_address(table + 8 * (first + plan.global_entries.index(name)))
        return self.load_address(table + layer * (8 * len(plan.layer_entries)) + 8 * plan.layer_entries.index(name))

    def load_half(self, at: Val) -> Val:
        """One element of 16 bits from the memory of the GPU, as f32."""
        text = "{ .reg .b16 x, z; mov.b16 z, 0; ld.global.b16 x, [<a>]; mov.b32 $0, {x, z}; }"
        return self.unpacked(self.w.asm(text, results=["i32"], a=at)[0], 0)

    def owned(self, owner: str, layer: Val | None) -> tuple[Val, Val]:
        """First unit and number of units in a layer, or behind the last."""
        names = self.plan.owned_names
        number = self.w.value(len(self.step.layers)) if layer is None else layer
        at = self.shared("owned") + number * (8 * len(names)) + 8 * names.index(owner)
        first, count = self.load(at, 2)
        return first, count

    def place(self, row: Val | int) -> tuple[Val, Val]:
        """Position and length of a sequence."""
        position, length, moves = self.load(self.shared("places") + self.w.value(row) * 16, 4)[:3]
        if self.number is None:
            return position, length
        return position + moves * self.number, length + moves * self.number

    def token_at(self, row: Val) -> Val:
        """Where the token of a sequence is kept."""
        return self.shared("places") + row * 16 + 12

    @property
    def launch(self) -> Val:
        """Steps before this one on the same memory of exchanges."""
        return self._launch if self.number is None else self._launch + self.number

    # Threads.

    def everyone(self) -> None:
        """All threads that multiply meet."""
        sync_threads(self.w, 1, CONSUMERS)

    def together(self) -> None:
        """The lanes of a warp meet."""
        sync_warp(self.w)

    def summed(self, x: Val, lanes: int = 32) -> Val:
        """Over neighbouring lanes, a power of two of them; all get it."""
        distance = lanes // 2
        while distance:
            x = x + self.from_lane(x, distance)
            distance //= 2
        return x

    # Words of other blocks.

    def tag(self, version: Val | int) -> Val:
        """No two versions of a vector have the same tag, in this launch or in those before; new memory has 0."""
        return self.launch * (len(self.step.layers) + 1) + self.w.value(version) + 1

    def word(self, vector: str, index: Val) -> Val:
        """The address of a word."""
        return self.at["exchange"] + (self.w.wide(index + self.plan.vectors[vector].at) << 3)

    def post(self, vector: str, index: Val, value: Val, tag: Val) -> None:
        self.w.asm(
            "{ .reg .b64 v; mov.b64 v, {<x>, <t>}; st.relaxed.gpu.global.b64 [<a>], v; }",
            x=value,
            t=tag,
            a=self.word(vector, index),
        )

    def poll(self, places: Sequence[tuple[Val, int]], tag: Val, per: int = 1, type: str = "float") -> list[Val]:
        """`per` words side by side, 1 or 2, at each place, an address and bytes behind it, as soon as all have the tag:
        one trip to memory for all of them. All lanes come here: they go on together."""
        count = len(places) * per
        starts = {start.name: start for start, _ in places}
        named = {name: f"a{number}" for number, name in enumerate(starts)}
        text = f"{{ .reg .pred p; .reg .b64 t0, t1, v<{count}>; .reg .b32 g, h; mov.u64 t0, %globaltimer; SPIN: "
        for i, (start, offset) in enumerate(places):
            to, kind = (f"{{v{2 * i}, v{2 * i + 1}}}", ".v2") if per == 2 else (f"v{i}", "")
            text += f"ld.relaxed.gpu.global{kind}.b64 {to}, [<{named[start.name]}>+{offset}]; "
        for i in range(count):
            both, other = (".and", ", p") if i else ("", "")
            text += f"mov.b64 {{g, h}}, v{i}; setp.eq{both}.u32 p, h, <t>{other}; "
        text += UNTIL_P + "".join(f" mov.b64 {{${i}, h}}, v{i};" for i in range(count)) + " }"
        given: dict[str, Val | int] = {named[name]: start for name, start in starts.items()}
        found = self.w.asm(text, results=[type] * count, t=tag, named=given)
        self.together()
        return found

    def mark(self, phase: str, what: str, layer: Val | int | None) -> None:
        """Note the time, in a plan that is marked."""
        w, plan = self.w, self.plan
        if not plan.is_marked:
            return
        number = w.value(len(self.step.layers) if layer is None else layer) * len(plan.marks)
        place = self.block * plan.block_marks + number + plan.marks_at + plan.marks.index(f"{phase} {what}")
        with w.when(self.thread.equals(0)):
            at = self.at["exchange"] + (w.wide(place) << 3)
            w.asm("{ .reg .b64 t; mov.u64 t, %globaltimer; st.global.b64 [<a>], t; }", a=at)

    def counter(self, vector: str, head: Val | None = None) -> Val:
        number = self.w.value(self.plan.counters[vector])
        if head is not None:
            number = head * COUNTER_WORDS + number
        return self.at["exchange"] + (self.w.wide(number) << 3)

    def arrive(self, vector: str, head: Val | None = None) -> None:
        """Count that this block has written its words. This is not ordered behind them: it is a hint."""
        self.w.asm("red.relaxed.gpu.global.add.u32 [<a>], 1;", a=self.counter(vector, head))

    def await_hint(self, vector: str, version: Val | int, head: Val | None = None) -> None:
        """One thread watches one counter until all writers have written a version: all threads watching all words would
        be as much traffic as the weights."""
        w, layers = self.w, len(self.step.layers)
        plan = self.plan
        writers = plan.splits if head is not None else plan.items if vector == "att" else plan.blocks
        before = self.launch * {"x": layers + 1, "best": 1}.get(vector, layers)
        with w.when(self.thread.equals(0)):
            w.asm(
                "{ .reg .pred p; .reg .b64 t0, t1; .reg .b32 h; mov.u64 t0, %globaltimer; SPIN: "
                f"ld.relaxed.gpu.global.u32 h, [<a>]; sub.u32 h, h, <g>; setp.ge.s32 p, h, 0; {UNTIL_P} }}",
                a=self.counter(vector, head),
                g=(before + w.value(version) + 1) * writers,
            )
        self.everyone()
