"""What groups of threads do in the loop IR: roles, asynchronous copies and products, phases, fragments, exchange.

A group is the threads of a block that run one body together: a role's warp group, or the whole block where there are no
roles. Outside thread loops a group acts as one: a scalar is the same in all its threads, and a load or store
happens once.

- `Roles`: groups of one block run different bodies at the same time; where it ends, all have ended.
- `Copy` and `Mma` may be asynchronous: they start, and go on beside the group that started them. Their results are
  poison, and what they read must stay as it is, until their token is awaited, or a barrier phase that they complete.
  Products of one group run in the order in which they were started: who awaits one has awaited those before it.
- Barriers with phases (`Space.PHASES`): a phase completes when as many arrivals as the barrier was declared with have
  come and all bytes that arrivals announced have been copied. `AwaitPhases` waits until so many phases in all are
  complete. Hardware knows only whether that number is even, so a wait must not be a phase late or two early.
- Tokens (`Space.TOKEN`), each group has its own: `AwaitToken` waits for everything started under the token, or for
  all but what was started last.
- Fragments (`Space.FRAGMENT`), each group has its own: a tile spread over the registers of the group's threads, in a
  layout nobody knows. They are copied as a whole, are operands of products, reduce along rows, and inside a loop over
  `elements` each element is loaded and stored by whoever has it.
- `rlx.kernels.ir.pair_calls` gives neighbouring elements of fragments to a function; `rlx.kernels.ir.regions` are the
  rectangles of memory that are copied and multiplied.
- `Exchange`: the threads of a subgroup see each other's values. A subgroup has a width that the kernel says, or the
  machine's own, which only the run knows: `SubgroupPlace` tells a thread where it is.
- `Peers`: which threads of a subgroup have the same number, and a meeting of them.
- `WaveMma`: the threads of a wave multiply matrices that lie in their registers as the machine's unit has them. Where
  nobody knows how they lie there, `wave_fragments` loads and stores them as a whole.
- A `walk` loop is a block's share of iterations: those of its own number, and every so many blocks one more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlx.errors import BackendError
from rlx.kernels.ir.loop_ir import Block, Buffer, For, GroupStatement, Kernel, LoopKind, Statement, Value, walk
from rlx.kernels.ir.regions import Region, Renew, Use
from rlx.kernels.machines import MatrixUnit


@dataclass(frozen=True, eq=False)
class Signal:
    """Where the end of an asynchronous operation is noted: a token, or the bytes of the phase of a barrier."""

    buffer: Buffer
    index: Value

    def text(self, use: Use) -> str:
        return f"{self.buffer.name}[{use(self.index)}]"


@dataclass(eq=False, slots=True)
class Copy(GroupStatement):
    """`target = source`, element by element; with a signal it is only started here."""

    target: Region
    source: Region
    signal: Signal | None

    def operands(self) -> tuple[Value, ...]:
        signal = () if self.signal is None else (self.signal.index,)
        return (*self.target.operands(), *self.source.operands(), *signal)

    def text(self, use: Use) -> str:
        word = "copy" if self.signal is None else "start copy"
        tail = "" if self.signal is None else f" signal {self.signal.text(use)}"
        return f"{word} {self.target.text(use)}, {self.source.text(use)}{tail}"

    def renewed(self, new: Renew) -> Copy:
        signal = None if self.signal is None else replace(self.signal, index=new(self.signal.index))
        return Copy(self.target.renewed(new), self.source.renewed(new), signal)


@dataclass(eq=False, slots=True)
class Mma(GroupStatement):
    """`total = total * keeps + a @ b`, in the type of the fragment `total`; factors are given as their transpose if
    they are said to be. Where `keeps` is false the old total is not read. With a token it is only started here."""

    total: Buffer
    a: Region
    b: Region
    b_transposed: bool
    keeps: Value
    signal: Signal | None
    a_transposed: bool = False

    def operands(self) -> tuple[Value, ...]:
        return (*self.a.operands(), *self.b.operands(), self.keeps)

    def text(self, use: Use) -> str:
        word = "mma" if self.signal is None else "start mma"
        tail = "" if self.signal is None else f" signal {self.signal.text(use)}"
        a, b = (
            tile.text(use) + (" transposed" if turned else "")
            for tile, turned in ((self.a, self.a_transposed), (self.b, self.b_transposed))
        )
        return f"{word} {self.total.name} keep {use(self.keeps)}, {a}, {b}{tail}"

    def renewed(self, new: Renew) -> Mma:
        return replace(self, a=self.a.renewed(new), b=self.b.renewed(new), keeps=new(self.keeps))


@dataclass(eq=False, slots=True)
class Fill(GroupStatement):
    """Every element of a fragment becomes one number."""

    fragment: Buffer
    literal: float

    def text(self, use: Use) -> str:
        return f"fill {self.fragment.name}, {self.literal}"

    def renewed(self, new: Renew) -> Fill:
        return self


@dataclass(eq=False, slots=True)
class Assume(GroupStatement):
    """What always holds when a group comes here: emitters may build on it, and the interpreter complains otherwise."""

    condition: Value

    def operands(self) -> tuple[Value, ...]:
        return (self.condition,)

    def text(self, use: Use) -> str:
        return f"assume {use(self.condition)}"

    def renewed(self, new: Renew) -> Assume:
        return Assume(new(self.condition))


@dataclass(eq=False, slots=True)
class RowReduce(GroupStatement):
    """Each row of a fragment combined by add, min or max, into a fragment of one column."""

    op: str
    target: Buffer
    source: Buffer

    def text(self, use: Use) -> str:
        return f"rows {self.op} {self.target.name}, {self.source.name}"

    def renewed(self, new: Renew) -> RowReduce:
        return self


@dataclass(eq=False, slots=True)
class Arrive(GroupStatement):
    """One arrival at a barrier, which announces that `bytes` more will be copied before the phase is complete."""

    barrier: Signal
    bytes: int

    def operands(self) -> tuple[Value, ...]:
        return (self.barrier.index,)

    def text(self, use: Use) -> str:
        return f"arrive {self.barrier.text(use)}" + (f" bytes {self.bytes}" if self.bytes else "")

    def renewed(self, new: Renew) -> Arrive:
        return Arrive(replace(self.barrier, index=new(self.barrier.index)), self.bytes)


@dataclass(eq=False, slots=True)
class AwaitPhases(GroupStatement):
    """Wait until `count` phases of a barrier, in all, are complete."""

    barrier: Signal
    count: Value

    def operands(self) -> tuple[Value, ...]:
        return (self.barrier.index, self.count)

    def text(self, use: Use) -> str:
        return f"await {self.barrier.text(use)} phases {use(self.count)}"

    def renewed(self, new: Renew) -> AwaitPhases:
        return AwaitPhases(replace(self.barrier, index=new(self.barrier.index)), new(self.count))


@dataclass(eq=False, slots=True)
class AwaitToken(GroupStatement):
    """Wait for all that was started under a token, but for the `running` that were started last."""

    token: Buffer
    running: int = 0

    def text(self, use: Use) -> str:
        return f"await {self.token.name}" + (f" but {self.running}" if self.running else "")

    def renewed(self, new: Renew) -> AwaitToken:
        return self


EXCHANGES = ("lane", "xor", "add", "min", "max")
# The width of subgroups that are as wide as the machine has them.
OWN_WIDTH = 0


@dataclass(eq=False, slots=True)
class Exchange(GroupStatement):
    """What the threads of a subgroup of `width` neighbours, or with `OWN_WIDTH` of the machine's subgroups, give each
    other: `value` as the thread numbered `lane` has it, or the one whose number differs from one's own by the bits of
    `lane` (`xor`), or all values combined by add, min or max, as `reduce` combines lanes. All threads of the subgroup
    take part."""

    result: Value
    how: str
    value: Value
    lane: Value
    width: int

    def operands(self) -> tuple[Value, ...]:
        return (self.value, self.lane)

    def results(self) -> tuple[Value, ...]:
        return (self.result,)

    def text(self, use: Use) -> str:
        lane = f", {use(self.lane)}" if self.how in ("lane", "xor") else ""
        return f"exchange {self.how} {use(self.value)}{lane} {{{self.width}}}"

    def renewed(self, new: Renew) -> Exchange:
        result = Value(self.result.builder, self.result.type, self.result.name)
        return Exchange(result, self.how, new(self.value), new(self.lane), self.width)


@dataclass(eq=False, slots=True)
class Peers(GroupStatement):
    """How many threads of a subgroup of 32 have the same `value` (u8) as oneself: those with a smaller number, and all;
    and the number of the first of them. All threads of the subgroup take part and meet here: what one has stored before
    the others see after."""

    before: Value
    count: Value
    first: Value
    value: Value

    @property
    def width(self) -> int:
        return 32

    def operands(self) -> tuple[Value, ...]:
        return (self.value,)

    def results(self) -> tuple[Value, ...]:
        return (self.before, self.count, self.first)

    def text(self, use: Use) -> str:
        return f"peers {use(self.value)}"

    def renewed(self, new: Renew) -> Peers:
        before, count, first = (Value(v.builder, v.type, v.name) for v in self.results())
        return Peers(before, count, first, new(self.value))


@dataclass(eq=False, slots=True)
class SubgroupPlace(GroupStatement):
    """Where a thread is among subgroups as wide as the machine has them: its number in its own, how many threads that
    has, the number of the subgroup in the block, and how many of them there are."""

    lane: Value
    width: Value
    number: Value
    count: Value

    def results(self) -> tuple[Value, ...]:
        return (self.lane, self.width, self.number, self.count)

    def text(self, use: Use) -> str:
        return "subgroup place"

    def renewed(self, new: Renew) -> SubgroupPlace:
        return SubgroupPlace(*(Value(v.builder, v.type, v.name) for v in self.results()))


class WaveStatement(GroupStatement):
    """What the threads of a wave do together by instructions for whole matrices."""

    __slots__ = ()
    unit: MatrixUnit

    @property
    def width(self) -> int:
        return self.unit.threads


@dataclass(eq=False, slots=True)
class WaveMma(WaveStatement):
    """`result = total + a @ b` for 16x16 matrices of which each thread of a wave has the elements that `unit` says, in
    the lanes of its vectors. All threads of the wave take part."""

    result: Value
    a: Value
    b: Value
    total: Value
    unit: MatrixUnit

    def operands(self) -> tuple[Value, ...]:
        return (self.a, self.b, self.total)

    def results(self) -> tuple[Value, ...]:
        return (self.result,)

    def text(self, use: Use) -> str:
        unit = self.unit
        form = f"{unit.threads}, {unit.factor_lanes}, {unit.sum_lanes}{', in turns' if unit.interleaves_rows else ''}"
        return f"wave mma {use(self.total)}, {use(self.a)}, {use(self.b)} {{{form}}}"

    def renewed(self, new: Renew) -> WaveMma:
        result = Value(self.result.builder, self.result.type, self.result.name)
        return WaveMma(result, new(self.a), new(self.b), new(self.total), self.unit)


@dataclass(eq=False, slots=True)
class Role:
    """`copies` groups of `threads` threads that run one body; `index` tells them apart. `registers` is how many each
    thread may have, 0 for no preference."""

    name: str
    copies: int
    threads: int
    registers: int
    index: Value
    body: Block


@dataclass(eq=False, slots=True)
class Roles(GroupStatement):
    """The groups of a block, each with its own body, at the same time."""

    roles: tuple[Role, ...]

    def blocks(self) -> tuple[Block, ...]:
        return tuple(role.body for role in self.roles)


def has_groups(kernel: Kernel) -> bool:
    """Whether the kernel does anything of what this file names."""
    return any(isinstance(s, GroupStatement) or _is_group_loop(s) for s in walk(kernel.body))


def _is_group_loop(statement: Statement) -> bool:
    return isinstance(statement, For) and statement.kind in (LoopKind.ELEMENTS, LoopKind.WALK)


def is_own_subgroup(statement: Statement) -> bool:
    """Whether subgroups are as wide as the machine has them."""
    return isinstance(statement, SubgroupPlace) or (isinstance(statement, Exchange) and statement.width == OWN_WIDTH)


def refuse_groups(
    kernel: Kernel,
    emitter: str,
    with_exchange: bool = False,
    matrix: MatrixUnit | None = None,
    with_own_subgroups: bool = False,
    with_peers: bool = False,
) -> None:
    """Emitters that know no groups say so before they write anything; some know what threads exchange, in subgroups of
    a width that the kernel says or that the machine has, who has the same number, and products of one unit."""
    for statement in walk(kernel.body):
        is_own = is_own_subgroup(statement)
        spelled = (isinstance(statement, Exchange) and with_exchange and not is_own) or (with_own_subgroups and is_own)
        spelled |= isinstance(statement, WaveStatement) and statement.unit == matrix
        spelled |= isinstance(statement, Peers) and with_peers
        if not spelled and (isinstance(statement, GroupStatement) or _is_group_loop(statement)):
            raise BackendError(
                f"kernel {kernel.name} has roles, fragments, or asynchronous or exchanging threads, which {emitter} "
                "does not spell; interpret it, or make a kernel without them for this target"
            )
