"""`Plan`: a decode step shared out over blocks, as plain data. Kernel, interpreter and launch all read it.

A step is a list of phases. A phase reads a vector that other blocks have computed, multiplies it with the rows that a
block owns, and writes words of another vector. Vectors lie in the memory of the GPU as words of 8 bytes, {value, tag}:
the tag says which version of the vector a value belongs to, and that is all that readers wait for. Layer i reads
version i of every vector; the last phase of a layer writes version i + 1 of `x`.

    plan = Plan(step, batch=1, blocks=132, shared_bytes=232448)
    [phase.name for phase in plan.layer_phases]     # ['qkv', 'attend', 'out', 'up', 'down']
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from rlx.backends.cuda.hopper.stored_codes import RECORDS
from rlx.backends.cuda.hopper.stream_rows import CONSUMERS, STAGE_BYTES, THREADS, UNIT, WARPS
from rlx.backends.cuda.hopper.stream_rows import ROWS as MOST_BATCH
from rlx.backends.cuda.persistent.panel_rows import CHUNK, SUMMED, check_panels, row_bytes
from rlx.backends.cuda.persistent.phases import Attend, Phase, Product, Settle, Vector
from rlx.backends.cuda.persistent.step import Layer, Norm, Rope, Rows, Step, Unfit
from rlx.quant.panels import PANEL_ROWS
from rlx.quant.schemes import QuantScheme

__all__ = ["CONSUMERS", "MOST_BATCH", "STAGE_BYTES", "THREADS", "UNIT", "WARPS", "Plan"]

# Stages of the ring: with fewer memory stands still while blocks wait for others; more were not measured to help.
LEAST_STAGES, MOST_STAGES = 4, 13
# Keys and values of one stage at most, and blocks that share the keys of one head at most: lanes of a warp join them.
MOST_KEYS, MOST_SPLITS = 32, 32
# Chunks of one stage at most: two lanes copy each.
MOST_CHUNKS = 4
# Elements of a norm at most, of which each thread holds its gains.
MOST_HIDDEN = 32 * CONSUMERS
# Words from counter to counter: each has a line of memory of its own.
COUNTER_WORDS = 16

# Where blocks note the time: a phase begins, its vector is said to be there, is there, was multiplied or looked at.
PRODUCT_MARKS = ("begins", "hinted", "ready", "done")
ATTEND_MARKS = ("begins", "hinted", "ready", "looked", "joins", "done")


class Entry(NamedTuple):
    """A word of the table: an address `offset` bytes into a leaf, or without a name the number `offset`."""

    name: str
    offset: int


class Ownership(NamedTuple):
    """First unit and number of units of every block."""

    first: tuple[int, ...]
    units: tuple[int, ...]


def _even(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class Plan:
    """Who does what, and where it lies."""

    def __init__(
        self,
        step: Step,
        batch: int,
        blocks: int,
        shared_bytes: int,
        is_marked: bool = False,
        chooses: bool = False,
    ) -> None:
        """With `is_marked` blocks note the time at places of every phase, to be read behind the words. With `chooses`
        a launch is any number of steps: each goes on with the token of the highest logit of the one before."""
        self.step, self.batch, self.blocks, self.shared_limit = step, batch, blocks, shared_bytes
        self.is_marked, self.chooses = is_marked, chooses
        _check(step, batch)
        self.layer_phases: tuple[Phase, ...] = self._phases(step.layers[0])
        head = step.head
        self.logits = Product(
            "logits", "x", "", ("head",), (head.height,), head.depth, "logits", "logits", step.final_norm, "final",
            ("head_bias" if head.bias else "",), 0, () if head.scheme is None else (head.scheme,),
        )  # fmt: skip
        self.products = tuple(p for p in (*self.layer_phases, self.logits) if isinstance(p, Product))
        for product in self.products:
            if len({stored.order for stored in product.formats}) > 1:
                raise Unfit(f"{product.name} with stored blocks whose codes come in different orders")
        # Rows that elements of x are shared out by.
        self.x_unit = next(p.unit for p in self.products if p.owner == "x")
        self.owners = self._shared_out()
        self.layer_entries = tuple(name for name, _ in self._layer_words(step.layers[0]))
        self.global_entries = tuple(name for name, _ in self._global_words())
        self._lay_out()

    def _phases(self, layer: Layer) -> tuple[Phase, ...]:
        step = self.step
        qkv, out, down = (layer.q, layer.k, layer.v), layer.out, layer.down
        ups = (layer.up,) if layer.gate is None else (layer.gate, layer.up)
        up_names = ("up",) if layer.gate is None else ("gate", "up")

        def schemes(*names: str) -> tuple[QuantScheme, ...]:
            """Those that matrices of these names have in any layer."""
            found = dict.fromkeys(getattr(layer, name).scheme for layer in step.layers for name in names)
            if None in found and len(found) > 1:
                raise Unfit(f"{' and '.join(names)} of stored blocks and of numbers")
            return tuple(scheme for scheme in found if scheme is not None)

        def added(name: str, reads: str, writes: str, rows: Rows, norm: Norm | None, more: int) -> list[Phase]:
            """A half of a layer is added to x, or first normed."""
            biases = (_bias_name(name, rows),)
            if norm is None:
                return [
                    Product(
                        name, reads, writes, (name,), (rows.height,), rows.depth, "add", "x", None, "", biases, more,
                        schemes(name),
                    )
                ]  # fmt: skip
            sums = f"{name}_sums"
            norm_name = "post_attention" if name == "out" else "post_ffn"
            return [
                Product(
                    name, reads, sums, (name,), (rows.height,), rows.depth, "post", "x", None, "", biases, 0,
                    schemes(name),
                ),
                Settle(f"{name}_settles", sums, writes, step.hidden, norm, norm_name, more),
            ]  # fmt: skip

        return (
            Product(
                "qkv", "x", "qkv", ("q", "k", "v"), tuple(r.height for r in qkv), step.hidden, "post", "qkv",
                layer.attention_norm, "attention", tuple(_bias_name(n, r) for n, r in zip("qkv", qkv)), 0,
                schemes("q", "k", "v"),
            ),
            Attend(),
            *added("out", "att", "mid", out, layer.post_attention_norm, 0),
            Product(
                "up", "mid", "h", up_names, tuple(r.height for r in ups), step.hidden,
                "act" if layer.gate is None else "gated", "up", layer.ffn_norm, "ffn",
                tuple(_bias_name(n, r) for n, r in zip(up_names, ups)), 0, schemes(*up_names),
            ),
            *added("down", "h", "x", down, layer.post_ffn_norm, 1),
        )  # fmt: skip

    def is_delayed(self, product: Product) -> bool:
        """Whether the factor of a norm is applied to sums, so that nobody waits for it before: where elements without
        it have a range to spare."""
        return product.norm is not None and product.norm.is_rms and self.step.element == "bf16"

    # Attention.

    @cached_property
    def splits(self) -> int:
        """Blocks that share the keys of one head of one sequence: a power of two."""
        most = min(MOST_SPLITS, self.blocks // (self.batch * self.step.kv_heads))
        return 1 << (most.bit_length() - 1) if most else 1

    @property
    def heads(self) -> int:
        """Of k, in all sequences."""
        return self.batch * self.step.kv_heads

    @property
    def items(self) -> int:
        """Item i is done by block i modulo blocks: split i % splits of head i // splits."""
        return self.heads * self.splits

    @property
    def keys(self) -> int:
        """Of a chunk, whose keys and values fill a stage at most: as many for each warp."""
        return min(MOST_KEYS, self.stage_bytes // (4 * self.step.head_dim) // WARPS * WARPS)

    @property
    def chunks_of_stage(self) -> int:
        """Chunks that are brought together: stages that are not full are room that the ring lacks."""
        return max(1, min(MOST_CHUNKS, self.stage_bytes // (4 * self.step.head_dim * self.keys)))

    @property
    def joined(self) -> int:
        """Elements of a head's group that each of its blocks joins."""
        return -(-self.step.group * self.step.head_dim // self.splits)

    # Who owns what.

    def _shared_out(self) -> dict[str, tuple[Ownership, ...]]:
        """Of every owner in every layer; logits come behind the last. Units are dealt out evenly; one more goes to
        blocks that have had the fewest bytes so far, so that who has more in one layer has less in the next. Elements
        of x stay where they are: blocks keep them."""
        weight, found = [0] * self.blocks, dict[str, list[Ownership]]()

        def deal(product: Product, rows: list[Rows]) -> None:
            dealt = found.setdefault(product.owner, [])
            if product.owner == "x" and dealt:
                owned = dealt[0]
            else:
                base, more = divmod(product.units, self.blocks)
                order = sorted(range(self.blocks), key=lambda b: (weight[b], b))
                counts = [base] * self.blocks
                for block in order[:more]:
                    counts[block] += 1
                owned = Ownership(tuple(sum(counts[:b]) for b in range(self.blocks)), tuple(counts))
            dealt.append(owned)
            each = sum(row_bytes(r) * r.height for r in rows) // product.units
            for block, count in enumerate(owned.units):
                weight[block] += count * each

        for layer in self.step.layers:
            for product in self.products[:-1]:
                deal(product, [getattr(layer, name) for name in product.matrices])
        deal(self.logits, [self.step.head])
        layers = len(self.step.layers)
        # Two phases of a layer add to x.
        found["x"] = found["x"][:1] * layers
        found["logits"] *= layers
        return {owner: (*dealt, dealt[-1]) for owner, dealt in found.items()}

    def owned_by(self, owner: str, layer: int) -> Ownership:
        return self.owners[owner][layer]

    @property
    def owned_names(self) -> tuple[str, ...]:
        return tuple(self.owners)

    def owned(self) -> list[list[int]]:
        """For every block first unit and number of units of each owner, layer by layer."""
        each = [self.owned_by(name, layer) for layer in range(len(self.step.layers) + 1) for name in self.owners]
        return [[n for o in each for n in (o.first[b], o.units[b])] for b in range(self.blocks)]

    # The table of addresses.

    def _layer_words(self, layer: Layer) -> list[tuple[str, Entry]]:
        rows = {"q": layer.q, "k": layer.k, "v": layer.v, "out": layer.out, "up": layer.up, "down": layer.down}
        if layer.gate is not None:
            rows["gate"] = layer.gate
        words = [word for name, r in rows.items() for word in _row_words(name, r)]
        for product in self.products:
            if len(product.schemes) > 1:
                # Which of its forms a matrix has in this layer.
                forms = [(name, product.schemes.index(rows[name].scheme)) for name in product.matrices]
                words += [(f"{name}_form", Entry("", form)) for name, form in forms]
        for name, norm in (
            ("attention", layer.attention_norm),
            ("ffn", layer.ffn_norm),
            ("post_attention", layer.post_attention_norm),
            ("post_ffn", layer.post_ffn_norm),
        ):
            words += _norm_words(name, norm)
        for name, norm in (("q_norm", layer.q_norm), ("k_norm", layer.k_norm)):
            words += _norm_words(name, norm)
        words += [("keys", Entry(layer.keys, 0)), ("values", Entry(layer.values, 0))]
        if self.has_windows:
            words.append(("window", Entry("", (1 << 30) if layer.window is None else layer.window)))
        if layer.rope is not None:
            words.append(("rope", Entry("", self.ropes.index((layer.rope.cos, layer.rope.sin)))))
        return words

    def _global_words(self) -> list[tuple[str, Entry]]:
        step = self.step
        words = [
            ("embed", Entry(step.embed, 0)),
            *_row_words("head", step.head),
            *_norm_words("final", step.final_norm),
        ]
        for number, (cos, sin) in enumerate(self.ropes):
            words += [(f"cos{number}", Entry(cos, 0)), (f"sin{number}", Entry(sin, 0))]
        return words

    @property
    def has_windows(self) -> bool:
        return any(layer.window is not None for layer in self.step.layers)

    @cached_property
    def ropes(self) -> list[tuple[str, str]]:
        """The different tables of positions that layers use."""
        return list(dict.fromkeys((r.cos, r.sin) for r in (layer.rope for layer in self.step.layers) if r is not None))

    @property
    def table(self) -> list[Entry]:
        """Words of all layers, one after the other, then those of the whole."""
        layers = [[entry for _, entry in self._layer_words(layer)] for layer in self.step.layers]
        words = [*(entry for words in layers for entry in words), *(entry for _, entry in self._global_words())]
        # Two are read at a time.
        return [*words, *[Entry("", 0)] * (len(words) % 2)]

    # Times of phases: [block, layer, mark]; those of logits stand behind the last layer.

    @cached_property
    def marks(self) -> tuple[str, ...]:
        if not self.is_marked:
            return ()
        phases = [*self.layer_phases, self.logits]
        return tuple(
            f"{p.name} {m}" for p in phases for m in (ATTEND_MARKS if isinstance(p, Attend) else PRODUCT_MARKS)
        )

    @property
    def block_marks(self) -> int:
        return (len(self.step.layers) + 1) * len(self.marks)

    # Memory.

    def _lay_out(self) -> None:
        step, at = self.step, 0
        width = step.heads * step.head_dim
        lengths = {"x": step.hidden, "mid": step.hidden, "qkv": width + 2 * step.kv_heads * step.head_dim, "att": width}
        lengths |= {"h": step.layers[0].down.depth}
        lengths |= {phase.reads: step.hidden for phase in self.layer_phases if isinstance(phase, Settle)}
        self.vectors: dict[str, Vector] = {}
        for name, length in lengths.items():
            self.vectors[name] = Vector(at, length, name == "h")
            at += self.batch * self.vectors[name].words
        if self.splits > 1:
            # [head of k, head of its group, element or peak or sum, split]
            self.vectors["part"] = Vector(at, self.heads * step.group * (step.head_dim + 2) * self.splits)
            at += self.vectors["part"].length
        if self.chooses:
            # [step modulo 2, sequence, block, highest logit or its word]; two are read at a time. A block without rows
            # may be a step ahead of those who read its words.
            self.vectors["best"] = Vector(_even(at, 2), 2 * self.blocks)
            at = _even(at, 2) + 2 * self.batch * self.vectors["best"].words
        at = _even(at, COUNTER_WORDS)
        # How often blocks have written a vector; of parts for every head.
        counted = (*lengths, *["best"] * self.chooses, "part")
        self.counters = {name: at + i * COUNTER_WORDS for i, name in enumerate(counted)}
        self.marks_at = at + COUNTER_WORDS * (len(self.counters) - 1 + self.heads)
        self.exchange_words = self.marks_at + self.blocks * self.block_marks
        self._lay_out_shared()

    def _lay_out_shared(self) -> None:
        step, batch = self.step, self.batch
        deepest = max(p.depth for p in self.products)
        stored = max((p.depth for p in self.products if p.schemes), default=0)
        self.formats = {f: None for p in self.products for f in p.formats}
        # Rows of an operand begin at other banks than their neighbours.
        self.operand_pitch = _even(2 * deepest, 128) + 64
        self.head_bytes = 4 * step.head_dim
        # q, k and v of a head, then what each warp has found for each head of the group: elements, peak, sum.
        self.found_bytes = _even(step.group * (self.head_bytes + 8), 16)
        attention = (step.group + 2) * self.head_bytes + WARPS * self.found_bytes
        most_owned = max(self.owned_by("x", 0).units)
        pairs = max((layer.rope.pairs for layer in step.layers if layer.rope is not None), default=0)
        self.rope_bytes = 8 * pairs  # cosines and sines of one sequence
        self.unit_bytes = 4 * max(p.unit for p in self.products) * batch
        self.summed_bytes, self.factor_bytes = 4 * stored // SUMMED, 4 * stored // CHUNK
        # Of a warp: steps of a chunk, then what is subtracted for each of its groups.
        self.step_bytes = max((RECORDS * f.groups * 4 * PANEL_ROWS for f in self.formats), default=0)
        sizes = {
            "owned": 8 * len(self.owners) * (len(step.layers) + 1),
            "places": 16 * batch,  # of every sequence position, length, by how much both grow, and its token
            "appended": 4,  # layers whose new keys and values the caches have
            "squares": 4 * WARPS * batch * 2,
            "table": 8 * len(self.table),
            "rope": len(self.ropes) * batch * self.rope_bytes,
            "sums": 2 * WARPS * 2 * self.unit_bytes,
            "residual": most_owned * self.unit_bytes,
            "scratch": max(batch * self.operand_pitch, attention),
            "summed": batch * self.summed_bytes,  # of every sequence the sums of groups of the operand
            "factors": batch * self.factor_bytes,  # and what its integers are multiplied by
            "steps": 2 * WARPS * self.step_bytes,
            "barriers": 16 * MOST_STAGES,
        }
        at, self.shared = 0, dict[str, int]()
        for name, size in sizes.items():
            self.shared[name] = at
            at = _even(at + size, 128)
        self.shared["ring"] = at
        # A stage of stored blocks has a chunk for every warp, or where there is no room for half of them.
        for self.stage_chunks in (WARPS, WARPS // 2):
            plain = [STAGE_BYTES] if any(not p.schemes for p in self.products) else []
            sizes_of_stages = [*plain, *(_even(self.stage_chunks * f.chunk_bytes, 128) for f in self.formats)]
            self.stage_bytes = max(sizes_of_stages)
            self.stages = min(MOST_STAGES, (self.shared_limit - at) // self.stage_bytes)
            if self.stages >= LEAST_STAGES:
                break
        else:
            raise Unfit(
                f"{batch} rows of {deepest} elements take {at} of {self.shared_limit} bytes that a block may share, "
                f"which leaves no room for {LEAST_STAGES} stages of weights"
            )
        self.shared_bytes = at + self.stages * self.stage_bytes


def _bias_name(name: str, rows: Rows) -> str:
    return f"{name}_bias" if rows.bias else ""


def _row_words(name: str, rows: Rows) -> list[tuple[str, Entry]]:
    words = [(name, Entry(rows.weight, rows.first * row_bytes(rows)))]
    return [*words, (f"{name}_bias", Entry(rows.bias, 2 * rows.bias_first))] if rows.bias else words


def _norm_words(name: str, norm: Norm | None) -> list[tuple[str, Entry]]:
    if norm is None:
        return []
    words = [(f"{name}_gain", Entry(norm.gain, 0))]
    return [*words, (f"{name}_shift", Entry(norm.shift, 0))] if norm.shift else words


def _form(layer: Layer) -> list[object]:
    """A layer without what may differ between layers: names, windows and tables."""
    found: list[object] = []
    for name, part in layer._asdict().items():
        if isinstance(part, Rows):
            found.append((part.height, part.depth, bool(part.bias), part.scheme is None))
        elif isinstance(part, Norm):
            found.append((part.eps, part.is_rms, bool(part.shift)))
        elif isinstance(part, Rope):
            found.append((part.pairs, part.is_split))
        elif name != "window":
            found.append(part is None)
    return found


def _check(step: Step, batch: int) -> None:
    """What the kernel is written for."""
    if not 1 <= batch <= MOST_BATCH:
        raise Unfit(f"{batch} sequences; up to {MOST_BATCH} are multiplied together")
    if step.head_dim % 16 or not 16 <= step.head_dim <= 256:
        raise Unfit(f"heads of {step.head_dim} elements; multiples of 16 up to 256 are read")
    first = step.layers[0]
    for number, layer in enumerate(step.layers):
        if _form(layer) != _form(first):
            raise Unfit(f"layer {number} has another form than layer 0")
    depths = {step.hidden, first.out.depth, first.down.depth}
    if any(depth % 8 for depth in depths):
        raise Unfit(f"products over {sorted(depths)} elements; multiples of 8 are read")
    widths = {r.height for r in (first.q, first.k, first.v, first.out, first.up, first.down)}
    if any(width % UNIT for width in widths):
        raise Unfit(f"weights of {sorted(widths)} rows; multiples of {UNIT} are multiplied")
    check_panels(step)
    if first.out.height != step.hidden or first.down.height != step.hidden:
        raise Unfit("halves of a layer that give another width than they read")
    if step.hidden > MOST_HIDDEN:
        raise Unfit(f"norms of {step.hidden} elements; threads hold gains of up to {MOST_HIDDEN}")
