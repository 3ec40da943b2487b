"""`in_words`: a kernel over vectors and types of all sizes, as one over scalars of 32 bits.

What comes out has values of bool, i32, u32 and f32, and positions (i64, of which 32 bits count); buffers of words; no
vectors. It is loop IR like what went in, so the interpreter runs both. Every buffer parameter `x` gets a scalar
parameter `x_at`: the element of its memory at which it begins. Parameters are buffers, then these, then scalars.

    kernel @half(x: read f16, y: write f16, %n: i64)
    ->
    kernel @half(x: read u32, y: read write u32, %x_at: i64, %y_at: i64, %n: i64)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.ir.dtype import DType
from rlx.kernels.ir.group_builder import GroupBuilder
from rlx.kernels.ir.groups import OWN_WIDTH, Exchange, SubgroupPlace, refuse_groups
from rlx.kernels.ir.loop_ir import (
    HALVES,
    INDEX,
    INTS,
    Atomic,
    Barrier,
    Block,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Space,
    Statement,
    Store,
    Value,
    ValueType,
    walk,
)
from rlx.kernels.ir.operations import COMPARISONS
from rlx.kernels.ir.subgroups import TYPES as SUBGROUP_TYPES
from rlx.kernels.legalize import KernelRefused, refuse_missing_types
from rlx.kernels.machines import WGSL, Machine
from rlx.kernels.words import pairs
from rlx.kernels.words.memory import F32, I32, U32, WORD, Memory, Parts, Place, part_type, unpacked
from rlx.kernels.words.pairs import Pair
from rlx.kernels.words.ranges import LONG, is_wide, wide_values

FOUR_BYTES = ValueType(DType.I8, 4)


def in_words(kernel: Kernel, trusts_alignment: bool = True, machine: Machine = WGSL) -> Kernel:
    """The same kernel, legalised before, for a machine with 32-bit words. Without trust in alignment it is also right
    where memory does not begin at the multiples of bytes that the kernel asks for."""
    refuse_groups(kernel, f"the machine {machine.name}", with_own_subgroups=machine.has_subgroups)
    refuse_missing_types(kernel, has_f64=False)
    return _Pass(kernel, trusts_alignment).build()


class _Pass:
    def __init__(self, kernel: Kernel, trusts_alignment: bool) -> None:
        self.kernel, self.trusts_alignment = kernel, trusts_alignment
        self.wide = wide_values(kernel)
        k = self.k = GroupBuilder(kernel.name)
        self.made = {s.result: s for s in walk(kernel.body) if isinstance(s, Let)}
        # Words that dot products take as they are; what else reads them as bytes takes them apart itself.
        factors = {a for let in self.made.values() if let.op == "dot4" for a in let.args[1:] if a in self.made}
        self.in_dots = {a for a in factors if self.made[a].op == "bitcast" and _is_word_of_bytes(self.made[a])}
        # The lanes of each value of the old kernel, each in one or two parts.
        self.lanes: dict[Value, list[Parts]] = {}
        places: dict[Buffer, Place] = {}
        given = [p for p in kernel.params if isinstance(p, Buffer)]
        made = {b: k.pointer(b.name, U32, write=b.writes, read=True, noalias=b.noalias) for b in given}
        for buffer, words in made.items():
            places[buffer] = Place(words, k.index(f"{buffer.name}_at"))
        for param in kernel.params:
            if isinstance(param, Value):
                self.lanes[param] = [(k.index(param.name),)]
        for array in kernel.arrays:
            places[array] = Place(k._array(unpacked(array)), None)
        self.memory = Memory(k, places)

    def build(self) -> Kernel:
        self.block(self.kernel.body)
        return self.k.build()

    # Values.

    def is_wide(self, value: Value) -> bool:
        """Whether a value has two parts."""
        return is_wide(value, self.wide)

    def part_types(self, value: Value, wide: bool) -> list[ValueType]:
        if value.dtype in LONG:
            return [ValueType(U32)] * 2 if wide else [INDEX]
        return [ValueType(part_type(value.dtype))]

    def parts(self, value: Value, lane: int, wide: bool | None = None) -> Parts:
        """A lane of a value, in two parts if `wide`, by default as it is. A scalar has the same in every lane."""
        wide = self.is_wide(value) if wide is None else wide
        if isinstance(value, Const):
            return self.literal(value, wide)
        lanes = self.bitcast(self.made[value]) if value in self.in_dots else self.lanes[value]
        found = lanes[lane if len(lanes) > 1 else 0]
        # Indices of loops have one part, whatever is computed from them.
        if value.dtype not in LONG or wide == (len(found) == 2):
            return found
        return self.widened(found[0]) if wide else (self.position(found[0]),)

    def widened(self, position: Value) -> Parts:
        return pairs.from_word(self.k, self.k.cast(position, I32))

    def position(self, low: Value) -> Value:
        """The low word of a number that is known to be a position."""
        return self.k.cast(self.k.bitcast(low, I32), DType.I64)

    def literal(self, value: Const, wide: bool) -> Parts:
        k, dtype = self.k, value.dtype
        if dtype in LONG:
            return Pair.of(k, int(value.literal)) if wide else (k.const(value.literal, INDEX),)
        if dtype in HALVES:
            import numpy as np

            return (k.const(int(np.asarray(value.literal, dtype.numpy).view(np.uint16)), U32),)
        return (k.const(value.literal, part_type(dtype)),)

    def pair(self, value: Value, lane: int) -> Pair:
        return Pair(*self.parts(value, lane, wide=True))

    def one(self, value: Value, lane: int = 0) -> Value:
        """A lane that has one part: a position, or a type of 32 bits."""
        (found,) = self.parts(value, lane, wide=False)
        return found

    # Statements.

    def block(self, block: Block) -> None:
        for statement in block.statements:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Let() if statement.result not in self.in_dots:
                self.lanes[statement.result] = [tuple(x) for x in self.let(statement)]
            case Load():
                self.lanes[statement.result] = self.load(statement)
            case Store():
                self.store(statement)
            case Atomic(op, buffer, _, _):
                raise KernelRefused(f"kernel {self.kernel.name}: atomic {op} on {buffer.name} has no form in words")
            case Barrier():
                self.k.barrier()
            case Exchange(result, how, value, _, _):
                if value.dtype not in SUBGROUP_TYPES:
                    raise KernelRefused(f"kernel {self.kernel.name}: subgroups do not combine {value.dtype} in words")
                self.lanes[result] = [(self.k.exchange(how, self.one(value), width=OWN_WIDTH),)]
            case SubgroupPlace():
                found = self.k.subgroup_place()
                self.lanes.update((old, [(new,)]) for old, new in zip(statement.results(), found.results()))
            case For():
                self.loop(statement)
            case If():
                self.branch(statement)

    def flat(self, value: Value, wide: bool) -> list[Value]:
        return [part for lane in range(value.lanes) for part in self.parts(value, lane, wide)]

    def take(self, value: Value, flat: Sequence[Value]) -> None:
        """The parts of all lanes, in order."""
        size = len(flat) // value.lanes
        self.lanes[value] = [tuple(flat[i : i + size]) for i in range(0, len(flat), size)]

    def loop(self, loop: For) -> None:
        init = [p for v, c in zip(loop.inits, loop.carried) for p in self.flat(v, self.is_wide(c))]
        bounds = (self.one(loop.start), self.one(loop.stop), self.one(loop.step))
        with self.k.loop_of(loop.kind, loop.index.name, *bounds, init=init) as fold:
            self.lanes[loop.index] = [(fold.index,)]
            self.spread(loop.carried, fold.values)
            self.block(loop.body)
            yields = [p for v, c in zip(loop.body.yields, loop.carried) for p in self.flat(v, self.is_wide(c))]
            again = loop.body.again
            fold.next(*yields, again=None if again is None else self.one(again))
        self.spread(loop.results, fold.results)

    def branch(self, branch: If) -> None:
        made = If(self.one(branch.condition), Block(), Block(), ())
        for old, new in ((branch.then, made.then), (branch.otherwise, made.otherwise)):
            with self.k.inside(new):
                self.block(old)
                pairs_of = zip(old.yields, branch.results)
                new.yields = tuple(p for v, r in pairs_of for p in self.flat(v, self.is_wide(r)))
        kinds = [t for r in branch.results for _ in range(r.lanes) for t in self.part_types(r, self.is_wide(r))]
        made.results = tuple(Value(self.k, kind) for kind in kinds)
        self.k.append(made)
        self.spread(branch.results, made.results)

    def spread(self, values: Sequence[Value], flat: Sequence[Value]) -> None:
        start = 0
        for value in values:
            count = value.lanes * len(self.part_types(value, self.is_wide(value)))
            self.take(value, flat[start : start + count])
            start += count

    # Memory.

    def places(self, offset: Value, lanes: int) -> list[Value]:
        if offset.lanes > 1:
            return [self.one(offset, lane) for lane in range(lanes)]
        first = self.one(offset)
        return [first + lane for lane in range(lanes)]

    def fills_words(self, access: Load | Store, lanes: int) -> bool:
        """Whether neighbours are known to begin and end with a word."""
        size = access.buffer.dtype.size_bytes
        if not self.trusts_alignment or access.mask is not None or access.offset.lanes > 1:
            return False
        return (
            access.buffer.space is Space.GLOBAL
            and size < WORD
            and access.align % WORD == 0
            and lanes * size % WORD == 0
        )

    def load(self, load: Load) -> list[Parts]:
        lanes = load.result.lanes
        if self.fills_words(load, lanes):
            return self.memory.load_whole(load.buffer, self.one(load.offset), lanes)
        found: list[Parts] = []
        for lane, place in enumerate(self.places(load.offset, lanes)):
            if load.mask is None or load.other is None:
                found.append(self.memory.load(load.buffer, place, None))
                continue
            mask = self.one(load.mask, lane)
            parts = self.memory.load(load.buffer, place, mask)
            other = self.parts(load.other, lane, wide=len(parts) == 2)
            is_zero = isinstance(load.other, Const) and load.other.literal == 0
            found.append(parts if is_zero else tuple(self.k.select(mask, x, y) for x, y in zip(parts, other)))
        return found

    def store(self, store: Store) -> None:
        lanes = store.value.lanes
        has_two = store.buffer.dtype in LONG
        elements = [self.parts(store.value, lane, has_two) for lane in range(lanes)]
        if self.fills_words(store, lanes):
            self.memory.store_whole(store.buffer, self.one(store.offset), elements)
            return
        for lane, (place, parts) in enumerate(zip(self.places(store.offset, lanes), elements)):
            mask = None if store.mask is None else self.one(store.mask, lane)
            self.memory.store(store.buffer, place, parts, mask)

    # Operations.

    def let(self, let: Let) -> list[Parts]:
        lanes = range(let.result.lanes)
        match let.op:
            case "splat":
                return [self.parts(let.args[0], 0, self.is_wide(let.result)) for _ in lanes]
            case "extract":
                assert isinstance(let.attr, int)
                return [self.parts(let.args[0], let.attr, self.is_wide(let.result))]
            case "shuffle":
                assert isinstance(let.attr, tuple)
                wide = self.is_wide(let.result)
                both = [self.parts(v, i, wide) for v in let.args for i in range(v.lanes)]
                return [both[i] for i in let.attr if isinstance(i, int)]
            case "iota":
                kind = ValueType(let.result.dtype)
                return [self.literal(self.k.const(i, kind), self.is_wide(let.result)) for i in lanes]
            case "lane_mask":
                count = self.one(let.args[0])
                return [(self.k.as_index(lane) < count,) for lane in lanes]
            case "bitcast":
                return self.bitcast(let)
            case "dot4":
                total, *factors = let.args
                words = (self.k.bitcast(self.packed(factor), FOUR_BYTES) for factor in factors)
                return [(self.k.dot4(self.one(total), *words),)]
        return [self.lane(let, lane) for lane in lanes]

    def lane(self, let: Let, lane: int) -> Parts:
        """One lane of an operation that does the same in each."""
        k, op, args = self.k, let.op, let.args
        source = args[0].dtype
        if op == "select":
            wide = self.is_wide(let.result)
            both = zip(self.parts(args[1], lane, wide), self.parts(args[2], lane, wide))
            return tuple(k.select(self.one(args[0], lane), x, y) for x, y in both)
        if op == "cast":
            return self.cast(let, lane)
        if op in COMPARISONS:
            if any(map(self.is_wide, args)):
                a, b = (self.pair(x, lane) for x in args)
                return (pairs.compare(k, op, a, b, source.is_signed),)
            return (k.pure(op, tuple(self.one(a, lane) for a in args)),)
        if self.is_wide(let.result):
            return self.in_pairs(op, [self.pair(a, lane) for a in args], source.is_signed)
        # Wide operands of a position are positions themselves.
        found = k.pure(op, tuple(self.one(a, lane) for a in args))
        return (self.wrapped(let.result.dtype, found),)

    def packed(self, value: Value) -> Value:
        """Four bytes in a word: as they came, or put together."""
        if value in self.in_dots:
            return self.k.bitcast(self.one(self.made[value].args[0]), U32)
        word: Value | None = None
        for lane in range(value.lanes):
            bits = self.memory.bits(value.dtype, self.one(value, lane))
            word = bits if word is None else word | (bits << (8 * lane))
        assert word is not None
        return word

    def wrapped(self, dtype: DType, value: Value) -> Value:
        """A result of 32 bits as what is left of it in a type with fewer."""
        bits = 8 * dtype.size_bytes
        if dtype not in INTS or bits >= 32:
            return value
        return (value << (32 - bits)) >> (32 - bits) if dtype.is_signed else value & ((1 << bits) - 1)

    def in_pairs(self, op: str, args: Sequence[Pair], is_signed: bool) -> Pair:
        k = self.k
        simple: dict[str, Callable[..., Pair]] = {
            "add": pairs.add,
            "sub": pairs.sub,
            "mul": pairs.mul,
            "neg": pairs.neg,
            "not": pairs.invert,
        }
        if op in simple:
            return simple[op](k, *args)
        match op:
            case "and" | "or" | "xor":
                return pairs.bitwise(k, op, *args)
            case "shl":
                return pairs.shl(k, args[0], args[1].low)
            case "shr":
                return pairs.shr(k, args[0], args[1].low, is_signed)
            case "min" | "max":
                a, b = args
                first = pairs.less(k, a, b, is_signed) if op == "min" else pairs.less(k, b, a, is_signed)
                return pairs.choose(k, first, a, b)
            case "abs":
                return pairs.magnitude(k, args[0])
            case "div" | "rem":
                return pairs.divide(k, args[0], args[1], is_signed)[op == "rem"]
        raise KernelRefused(f"kernel {self.kernel.name}: {op} of 64-bit integers has no form in words")

    def cast(self, let: Let, lane: int) -> Parts:
        k, (x,), to = self.k, let.args, let.result.dtype
        source = x.dtype
        if self.is_wide(x):
            pair = self.pair(x, lane)
            if to is DType.BOOL:
                return (k.ne(pair.low | pair.high, 0),)
            if to is F32:
                return (pairs.to_f32(k, pair, source.is_signed),)
            if to in LONG:
                return pair if self.is_wide(let.result) else (self.position(pair.low),)
            return (self.wrapped(to, k.bitcast(pair.low, part_type(to))),)
        value = self.one(x, lane)
        if source is DType.I64:
            value = k.cast(value, I32)
        # Only for machines that have f16: legalisation takes these casts apart for all others.
        if source is DType.F16:
            return (k.cast(k.bitcast(k.cast(value, DType.U16), DType.F16), F32),)
        if to is DType.F16:
            return (k.cast(k.bitcast(k.cast(value, DType.F16), DType.U16), U32),)
        if to in LONG and not self.is_wide(let.result):
            return (k.cast(value, DType.I64),)
        if to in LONG:
            if source is F32:
                return pairs.from_f32(k, value, to.is_signed)
            return pairs.from_word(k, k.cast(value, U32) if source is DType.BOOL else value)
        if source is F32 and to in INTS and to.size_bytes < WORD:
            bits = 8 * to.size_bytes - to.is_signed
            whole = k.min(k.cast(value, part_type(to)), (1 << bits) - 1)
            return (k.max(whole, -(1 << bits)) if to.is_signed else whole,)
        return (self.wrapped(to, k.cast(value, part_type(to))),)

    def bitcast(self, let: Let) -> list[Parts]:
        """Bits in pieces as large as the smaller of the two types."""
        k, (x,), to = self.k, let.args, let.result.dtype
        size = min(x.dtype.size_bytes, to.size_bytes, WORD)
        pieces: list[Value] = []
        for lane in range(x.lanes):
            for word in self.parts(x, lane, wide=x.dtype in LONG):
                bits = k.bitcast(word, U32)
                count = min(x.dtype.size_bytes, WORD) // size
                for i in range(count):
                    piece = bits >> (8 * size * i) if i else bits
                    pieces.append(piece if size == WORD else piece & ((1 << 8 * size) - 1))
        per_word = min(to.size_bytes, WORD) // size
        words: list[Value] = []
        for start in range(0, len(pieces), per_word):
            word = pieces[start]
            for i in range(1, per_word):
                word = word | (pieces[start + i] << (8 * size * i))
            words.append(word)
        if to in LONG:
            found: list[Parts] = [(words[i], words[i + 1]) for i in range(0, len(words), 2)]
            return found if self.is_wide(let.result) else [(self.position(low),) for low, _ in found]
        return [(self.element(to, word),) for word in words]

    def element(self, dtype: DType, word: Value) -> Value:
        return self.memory.element(dtype, word) if dtype.size_bytes < WORD else self.k.bitcast(word, part_type(dtype))


def _is_word_of_bytes(let: Let) -> bool:
    return let.args[0].lanes == 1 and let.args[0].dtype.size_bytes == WORD and let.result.dtype.size_bytes == 1
