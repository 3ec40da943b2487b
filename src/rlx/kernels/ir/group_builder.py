"""`GroupBuilder`: a `KernelBuilder` with roles, phases, asynchronous copies and products, fragments and exchange.

A copy by one group that another awaits:

>>> from rlx.ir.dtype import DType
>>> k = GroupBuilder("pass_on")
>>> x, y = k.pointer("x", DType.F32), k.pointer("y", DType.F32, write=True)
>>> tile, full = k.shared("tile", DType.F32, 64), k.phases("full", 1)
>>> with k.parallel("block", 4) as block, k.roles() as roles:
...     with roles.role("producer", threads=32):
...         k.arrive(full, 0, bytes=256)
...         k.start_copy(k.region(tile, 0, 1, 64), k.region(x, block * 64, 1, 64), full, 0)
...     with roles.role("consumer", threads=128):
...         k.await_phases(full, 0, 1)
...         k.copy(k.region(y, block * 64, 1, 64), k.region(tile, 0, 1, 64))
>>> print(k.build())
kernel @pass_on(x: read f32, y: write f32) {
  shared tile: f32[64] align 16
  phases full: u64[1] align 8 = [1]
  parallel for %block = 0 to 4 {
    roles {
      producer %producer = 0 to 1 threads 32 {
        arrive full[0] bytes 256
        %0: i64 = mul %block, 64
        start copy tile[0] 1x64 stride 64, x[%0] 1x64 stride 64 signal full[0]
      }
      consumer %consumer = 0 to 1 threads 128 {
        await full[0] phases 1
        %1: i64 = mul %block, 64
        copy y[%1] 1x64 stride 64, tile[0] 1x64 stride 64
      }
    }
  }
}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlx.errors import DTypeError, OpError
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import Fold, KernelBuilder
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
    Role,
    Roles,
    RowReduce,
    Signal,
    SubgroupPlace,
    WaveMma,
)
from rlx.kernels.ir.loop_ir import INDEX, Block, Buffer, Kernel, LoopKind, Operand, Space, Value, ValueType
from rlx.kernels.ir.pair_calls import PairCall, PairRead
from rlx.kernels.ir.regions import Box, Region, Slabs
from rlx.kernels.ir.wave_fragments import FragmentFill, FragmentLoad, FragmentMma, FragmentStore
from rlx.kernels.machines import MatrixUnit

_COUNT = ValueType(DType.I32)


class RoleList:
    """The roles of a block, while they are written."""

    def __init__(self, builder: GroupBuilder) -> None:
        self._builder = builder
        self.roles: list[Role] = []

    @contextmanager
    def role(self, name: str, *, threads: int, copies: int = 1, registers: int = 0) -> Iterator[Value]:
        """The body of one role; gives the number of the copy."""
        role = Role(name, copies, threads, registers, Value(self._builder, INDEX, name), Block())
        with self._builder.inside(role.body):
            yield role.index
        self.roles.append(role)


class GroupBuilder(KernelBuilder):
    """Builds a kernel for groups of threads; see `rlx.kernels.ir.groups` for what each statement means."""

    def phases(self, name: str, count: int, arrivals: int = 1) -> Buffer:
        """`count` barriers whose phases complete after `arrivals` arrivals and the bytes they announce."""
        barrier = Buffer(self._fresh(name), DType.U64, Space.PHASES, align=8, size=count, data=(arrivals,))
        return self._array(barrier)

    def token(self, name: str) -> Buffer:
        return self._array(Buffer(self._fresh(name), DType.U64, Space.TOKEN, align=8, size=1))

    def fragment(self, name: str, dtype: DType, rows: int, cols: int) -> Buffer:
        """A tile in the registers of a group; undefined at first."""
        size = dtype.size_bytes
        tile = Buffer(self._fresh(name), dtype, Space.FRAGMENT, True, True, True, size, rows * cols, cols=cols)
        return self._array(tile)

    def region(self, buffer: Buffer, offset: Operand, rows: int, cols: int, stride: Operand | None = None) -> Region:
        """A tile in memory; rows follow each other unless a stride is given."""
        return Region(buffer, self.as_index(offset), rows, cols, self.as_index(cols if stride is None else stride))

    def box(self, matrix: Region, row: Operand, col: Operand, rows: int, cols: int, *size: Operand) -> Box:
        """So many rows and columns of a matrix, of which only the start and the stride count, from a place on; what
        lies beyond its height and width, `size`, reads as 0."""
        row, col, height, width = (self.as_index(x) for x in (row, col, *size))
        return Box(matrix.buffer, matrix.offset, rows, cols, matrix.stride, row, col, height, width)

    def slabs(self, buffer: Buffer, offset: Operand, rows: int, cols: int, width: int) -> Slabs:
        """A tile in memory whose columns lie in pieces of one width, each with all rows."""
        return Slabs(buffer, self.as_index(offset), rows, cols, self.as_index(width))

    def tile(self, tile: Region | Buffer) -> Region:
        """A fragment as a region."""
        return tile if isinstance(tile, Region) else self.region(tile, 0, tile.rows, tile.cols)

    def copy(self, target: Region | Buffer, source: Region | Buffer) -> None:
        """Copy now; a fragment stands for itself as a whole."""
        self.append(Copy(self.tile(target), self.tile(source), None))

    def start_copy(self, target: Region, source: Region, signal: Buffer, index: Operand = 0) -> None:
        """Start a copy, and note its end at a token or in the bytes of a barrier's phase."""
        self.append(Copy(target, source, Signal(signal, self.as_index(index))))

    def mma(
        self,
        total: Buffer,
        a: Region | Buffer,
        b: Region,
        token: Buffer | None = None,
        *,
        keeps: Value | None = None,
        a_transposed: bool = False,
        b_transposed: bool = False,
    ) -> None:
        """`total += a @ b`, started under a token or done now; the old total counts only where `keeps` holds."""
        condition = self.const(1, DType.BOOL) if keeps is None else keeps
        signal = None if token is None else Signal(token, self.as_index(0))
        self.append(Mma(total, self.tile(a), b, b_transposed, condition, signal, a_transposed))

    def fill(self, fragment: Buffer, literal: float) -> None:
        self.append(Fill(fragment, literal))

    def assume(self, condition: Value) -> None:
        """Say what always holds here."""
        self.append(Assume(condition))

    def call_pairs(
        self,
        function: Kernel,
        fragments: Sequence[Buffer],
        place: tuple[Operand, Operand],
        size: tuple[Operand, Operand],
        reads: Sequence[PairRead] = (),
    ) -> None:
        """Give every two neighbours of fragments to a function: see `PairCall`."""
        row, col, height, width = (self.as_index(x) for x in (*place, *size))
        self.append(PairCall(tuple(fragments), row, col, height, width, tuple(reads), function))

    def row_reduce(self, op: str, target: Buffer, source: Buffer) -> None:
        """Rows of a fragment combined by add, min or max into a fragment of one column."""
        if op not in ("add", "min", "max"):
            raise OpError(f"kernel {self.name}: rows are combined by add, min or max, got {op!r}")
        self.append(RowReduce(op, target, source))

    def arrive(self, barrier: Buffer, index: Operand = 0, *, bytes: int = 0) -> None:
        self.append(Arrive(Signal(barrier, self.as_index(index)), bytes))

    def await_phases(self, barrier: Buffer, index: Operand, count: Operand) -> None:
        """Wait until `count` phases of the barrier, in all, are complete; 0 does not wait."""
        self.append(AwaitPhases(Signal(barrier, self.as_index(index)), self.as_index(count)))

    def await_token(self, token: Buffer, *, running: int = 0) -> None:
        """Wait for all that was started under a token, but for the last `running`."""
        self.append(AwaitToken(token, running))

    def exchange(self, how: str, value: Value, lane: Operand = 0, *, width: int = 32) -> Value:
        """What threads of a subgroup give each other: see `Exchange`."""
        if how not in EXCHANGES or value.lanes != 1:
            raise DTypeError(
                f"kernel {self.name}: exchange is one of {' '.join(EXCHANGES)}, of a scalar; got {how!r}, {value.type}"
            )
        if width != OWN_WIDTH and (width < 1 or width & (width - 1)):
            raise OpError(f"kernel {self.name}: a subgroup has a power of two of threads, got {width}")
        result = Value(self, value.type)
        self.append(Exchange(result, how, value, self.as_index(lane), width))
        return result

    def peers(self, value: Value) -> Peers:
        """Who of a subgroup has the same number: see `Peers`."""
        found = Peers(Value(self, _COUNT), Value(self, _COUNT), Value(self, INDEX), value)
        self.append(found)
        return found

    def subgroup_place(self) -> SubgroupPlace:
        """Where a thread is among subgroups as wide as the machine has them."""
        place = SubgroupPlace(*(Value(self, INDEX, name) for name in ("lane", "width", "subgroup", "subgroups")))
        self.append(place)
        return place

    def wave_mma(self, unit: MatrixUnit, a: Value, b: Value, total: Value) -> Value:
        """`total + a @ b` of matrices in the registers of a wave: see `WaveMma`."""
        result = Value(self, total.type)
        self.append(WaveMma(result, a, b, total, unit))
        return result

    def wave_fill(self, unit: MatrixUnit, fragment: Buffer, literal: float) -> None:
        """What waves do with fragments: see `wave_fragments`."""
        self.append(FragmentFill(unit, fragment, literal))

    def wave_load(self, unit: MatrixUnit, fragment: Buffer, source: Region, *, transposed: bool = False) -> None:
        self.append(FragmentLoad(unit, fragment, source, transposed))

    def wave_store(self, unit: MatrixUnit, target: Region, fragment: Buffer) -> None:
        self.append(FragmentStore(unit, target, fragment))

    def wave_product(self, unit: MatrixUnit, total: Buffer, a: Buffer, b: Buffer) -> None:
        self.append(FragmentMma(unit, total, a, b))

    @contextmanager
    def roles(self) -> Iterator[RoleList]:
        """The groups of a block, which run at the same time."""
        listed = RoleList(self)
        yield listed
        self.append(Roles(tuple(listed.roles)))

    @contextmanager
    def elements(self, fragment: Buffer) -> Iterator[tuple[Value, Value]]:
        """The elements of a fragment, each once, by whoever has it: where to load and store fragments of this shape,
        and those of one column with as many rows."""
        with self.loop_of(LoopKind.ELEMENTS, "e", 0, self.as_index(fragment.rows * fragment.cols)) as fold:
            yield fold.index, fold.index // fragment.cols
            fold.next()

    @contextmanager
    def walk(
        self, name: str, rows: Operand, cols: Operand, *, band: int = 1, init: Sequence[Value] = ()
    ) -> Iterator[tuple[Value, Value, Fold]]:
        """The tiles of a block that stays for many, by row and column: bands of so many rows, down each column of a
        band, so that tiles which run at the same time share rows and columns. Values may be carried on as in `fold`."""
        height, width = self.as_index(rows), self.as_index(cols)
        with self.loop_of(LoopKind.WALK, name, 0, height * width, init=init) as fold:
            first = fold.index // (width * band) * band
            lines = self.min(height - first, band)  # the last band may be lower
            inside = fold.index % (width * band)
            yield first + inside % lines, inside // lines, fold
            if not init:
                fold.next()
