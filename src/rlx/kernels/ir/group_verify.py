"""The rules of `groups`: what `verify` asks of roles, regions, signals, fragments and exchange."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.ir.dtype import BYTE_FLOATS, DType
from rlx.kernels.ir.groups import (
    EXCHANGES,
    OWN_WIDTH,
    Arrive,
    Assume,
    AwaitPhases,
    AwaitToken,
    Copy,
    Exchange,
    Fill,
    Mma,
    Peers,
    Roles,
    RowReduce,
    Signal,
    SubgroupPlace,
    WaveMma,
    WaveStatement,
)
from rlx.kernels.ir.loop_ir import (
    FLOATS,
    HALVES,
    INDEX,
    NUMBERS,
    Buffer,
    Const,
    For,
    GroupStatement,
    Let,
    Space,
    Value,
    ValueType,
)
from rlx.kernels.ir.pair_calls import PairCall
from rlx.kernels.ir.regions import Box, Region, Slabs
from rlx.kernels.ir.wave_fragments import FragmentLoad, FragmentMma, fragments_of, region_of

Require = Callable[[bool, str], None]


def check_group_statement(statement: GroupStatement, buffers: set[Buffer], require: Require) -> None:
    """What holds for one statement by itself; that its operands are defined is checked elsewhere."""
    rules = _Rules(buffers, require)
    match statement:
        case Copy():
            rules.copy(statement)
        case Mma():
            rules.mma(statement)
        case RowReduce():
            rules.row_reduce(statement)
        case Arrive(barrier, count):
            rules.signal(barrier, (Space.PHASES,), "barrier")
            require(count >= 0, f"{count} bytes are announced")
        case AwaitPhases(barrier, phases):
            rules.signal(barrier, (Space.PHASES,), "barrier")
            require(phases.type == INDEX, "a number of phases is i64")
        case AwaitToken(token, running):
            require(running >= 0, f"{running} operations are not awaited")
            require(token in buffers and token.space is Space.TOKEN, f"{token.name} is no declared token")
        case Fill(target):
            rules.fragment(target)
        case Assume(condition):
            require(condition.type == ValueType(DType.BOOL), "what is assumed is a scalar bool")
        case PairCall():
            rules.pair_call(statement)
        case Exchange():
            rules.exchange(statement)
        case Peers(before, count, first, value):
            require(value.type == ValueType(DType.U8), f"peers have the same u8, got {value.type}")
            counts = before.type == count.type == ValueType(DType.I32)
            require(counts and first.type == INDEX, "peers are two i32 and an i64")
        case SubgroupPlace():
            require(all(v.type == INDEX for v in statement.results()), "places of subgroups are i64")
        case WaveMma():
            rules.wave_mma(statement)
        case WaveStatement():
            rules.wave_fragments(statement)
        case Roles(roles):
            names = [r.name for r in roles]
            require(len(set(names)) == len(names) > 0, f"roles need different names, got {names}")
            for role in roles:
                require(role.copies >= 1 and role.threads >= 1, f"role {role.name} has no threads")


@dataclass(frozen=True)
class _Rules:
    """Operands that several kinds of statements have, and then the kinds with rules of more than a line or two."""

    buffers: set[Buffer]
    require: Require

    def region(self, tile: Region, reads: bool) -> None:
        require, buffer = self.require, tile.buffer
        require(buffer in self.buffers, f"{buffer.name} is not declared")
        require(buffer.space not in (Space.PHASES, Space.TOKEN), f"{buffer.name} is no memory")
        require(buffer.reads if reads else buffer.writes, f"{buffer.name} is {'write' if reads else 'read'} only")
        require(tile.rows >= 1 and tile.cols >= 1, f"a region of {tile.rows}x{tile.cols}")
        require(tile.offset.type == INDEX and tile.stride.type == INDEX, "an offset and a stride are i64")
        if buffer.space is Space.FRAGMENT:
            is_whole = (tile.rows, tile.cols) == (buffer.rows, buffer.cols) and _is_zero(tile.offset)
            require(is_whole, f"{buffer.name} is a fragment, which is used as a whole")
        if isinstance(tile, Box):
            require(buffer.space is Space.GLOBAL and reads, f"{buffer.name}: only a matrix is read beyond its end")
        if isinstance(tile, Slabs):
            width = int(tile.stride.literal) if isinstance(tile.stride, Const) else 0
            require(width > 0 and tile.cols % width == 0, f"{tile.cols} columns of {buffer.name} are no whole slabs")

    def signal(self, where: Signal, spaces: tuple[Space, ...], what: str) -> None:
        self.require(where.buffer in self.buffers, f"{where.buffer.name} is not declared")
        self.require(where.buffer.space in spaces, f"{where.buffer.name} is no {what}")
        self.require(where.index.type == INDEX, "the number of a barrier is i64")

    def fragment(self, buffer: Buffer) -> None:
        is_fragment = buffer in self.buffers and buffer.space is Space.FRAGMENT
        self.require(is_fragment, f"{buffer.name} is no declared fragment")

    def copy(self, copy: Copy) -> None:
        require, target, source = self.require, copy.target, copy.source
        self.region(target, reads=False)
        self.region(source, reads=True)
        require((target.rows, target.cols) == (source.rows, source.cols), "a copy has two regions of one shape")
        require(target.buffer.dtype is source.buffer.dtype, "a copy has two regions of one type; cast elements")
        if copy.signal is not None:
            self.signal(copy.signal, (Space.PHASES, Space.TOKEN), "barrier or token")
            pair = {target.buffer.space, source.buffer.space}
            require(pair == {Space.GLOBAL, Space.SHARED}, "asynchronous copies are between global and shared memory")

    def mma(self, mma: Mma) -> None:
        require, total, a, b = self.require, mma.total, mma.a, mma.b
        self.fragment(total)
        self.region(a, reads=True)
        self.region(b, reads=True)
        depth, width = (b.cols, b.rows) if mma.b_transposed else (b.rows, b.cols)
        height, along = (a.cols, a.rows) if mma.a_transposed else (a.rows, a.cols)
        shapes = f"{total.rows}x{total.cols} from {height}x{along} and {depth}x{width}"
        require((total.rows, along, total.cols) == (height, depth, width), f"a product of {shapes}")
        kinds = {a.buffer.dtype, b.buffer.dtype}
        require(len(kinds) == 1 or kinds <= BYTE_FLOATS, f"factors are {a.buffer.dtype} and {b.buffer.dtype}")
        known = kinds <= FLOATS | HALVES | BYTE_FLOATS and total.dtype in FLOATS
        require(known, f"no product of {a.buffer.dtype} here")
        require(not mma.a_transposed or not a.is_fragment, "a fragment is not transposed")
        require(b.buffer.space is Space.SHARED, f"the right factor {b.buffer.name} lies in shared memory")
        require(a.buffer.space in (Space.SHARED, Space.FRAGMENT), f"the left factor {a.buffer.name} does not")
        require(mma.keeps.type == ValueType(DType.BOOL), "keep is a scalar bool")
        if mma.signal is not None:
            self.signal(mma.signal, (Space.TOKEN,), "token")

    def row_reduce(self, reduce: RowReduce) -> None:
        op, target, source = reduce.op, reduce.target, reduce.source
        self.fragment(target)
        self.fragment(source)
        self.require(op in ("add", "min", "max") and source.dtype in NUMBERS, f"rows cannot be combined by {op}")
        fits = target.cols == 1 and target.rows == source.rows and target.dtype is source.dtype
        self.require(fits, f"{target.name} must be one {source.dtype} column of {source.rows} rows")

    def pair_call(self, call: PairCall) -> None:
        fragments, function = call.fragments, call.function
        for part in fragments:
            self.fragment(part)
        forms = {(f.rows, f.cols, f.dtype) for f in fragments}
        self.require(len(forms) == 1 and fragments[0].cols % 2 == 0, "pairs are of fragments of one even shape")
        self.require(not function.arrays, f"{function.name} has memory of its own")
        known_here = {b.name for b in self.buffers}
        for buffer in (p for p in function.params if isinstance(p, Buffer)):
            self.require(buffer.name in known_here, f"{buffer.name} of {function.name} is no parameter here")

    def exchange(self, exchange: Exchange) -> None:
        require, how, value, width = self.require, exchange.how, exchange.value, exchange.width
        is_same = value.lanes == 1 and exchange.result.type == value.type
        require(how in EXCHANGES, f"unknown exchange {how!r}")
        require(is_same, f"exchange of {value.type} as {exchange.result.type}")
        is_whole = width == OWN_WIDTH or (width >= 1 and width & (width - 1) == 0)
        require(exchange.lane.type == INDEX and is_whole, f"a subgroup of {width} threads")
        require(width != OWN_WIDTH or how not in ("lane", "xor"), f"exchange {how} needs a width that is known")
        require(how in ("lane", "xor") or value.dtype in NUMBERS, f"{value.type} cannot be combined")

    def wave_mma(self, mma: WaveMma) -> None:
        a, b, unit = mma.a, mma.b, mma.unit
        factor, sums = ValueType(a.dtype, unit.factor_lanes), ValueType(DType.F32, unit.sum_lanes)
        self.require(a.dtype in HALVES and a.type == b.type == factor, f"a wave's product of {a.type} and {b.type}")
        got = f"{mma.total.type} to {mma.result.type}"
        self.require(mma.total.type == mma.result.type == sums, f"a wave's sums are {sums}, got {got}")

    def wave_fragments(self, statement: WaveStatement) -> None:
        """A wave fills, moves or multiplies whole fragments, square tiles as large as its unit has them."""
        require, side, tile = self.require, statement.unit.side, region_of(statement)
        fragments = fragments_of(statement)
        for part in fragments:
            self.fragment(part)
            require((part.rows, part.cols) == (side, side), f"{part.name} is {part.rows}x{part.cols}, not {side}")
        if tile is not None:
            self.region(tile, reads=isinstance(statement, FragmentLoad))
            require(tile.buffer.space is Space.SHARED, f"{tile.buffer.name} is not shared between threads")
            require((tile.rows, tile.cols) == (side, side), f"a wave moves {side}x{side}")
            require(tile.buffer.dtype is fragments[0].dtype, "a wave moves elements of one type")
        if isinstance(statement, FragmentMma):
            sum_type, *factors = (f.dtype for f in fragments)
            known = sum_type is DType.F32 and factors[0] is factors[1] and factors[0] in statement.unit.factors
            require(known, f"no product of {factors[0]} and {factors[1]} in {sum_type} here")


def check_element_access(
    buffer: Buffer, offset: Value, loop: For | None, lets: dict[Value, Let], require: Require
) -> None:
    """A fragment is loaded and stored at the elements that a loop gives, and a column at their rows."""
    if buffer.space in (Space.PHASES, Space.TOKEN):
        require(False, f"{buffer.name} is no memory")
    if buffer.space is not Space.FRAGMENT:
        return
    require(loop is not None, f"{buffer.name} is a fragment: its elements are known only in a loop over elements")
    assert loop is not None and isinstance(loop.stop, Const)
    count = int(loop.stop.literal)
    let = lets.get(offset)
    if offset is loop.index:
        require(buffer.size == count, f"{buffer.name} has {buffer.size} elements, the loop {count}")
        return
    is_row = (
        let is not None
        and let.op == "div"
        and let.args[0] is loop.index
        and isinstance(let.args[1], Const)
        and buffer.cols == 1
        and buffer.rows * int(let.args[1].literal) == count
    )
    require(is_row, f"{buffer.name} is a fragment: only the element of the loop, or its row of a column, is at hand")


def _is_zero(value: Value) -> bool:
    return isinstance(value, Const) and value.literal == 0
