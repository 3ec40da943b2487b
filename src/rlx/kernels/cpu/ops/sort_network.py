"""Rows sorted side by side, one in each lane, by a network of exchanges that is the same for all of them.

    network = RowNetwork(k, machine, DType.U32, most)
    network.sort(length, load, store)      # load(r, i, mask): words from the i-th one of row r on, a vector of them

What is exchanged does not depend on the words, so that nothing is foreseen wrongly: a row of a hundred takes as long as
a few of its words do where branches are guessed. Words are turned into columns, sorted in groups that registers hold,
and merged: a run and the next one, read backwards, hold the smaller and the larger half after one exchange of each
pair, and halves of halves after the next ones (Batcher's bitonic merge). Rows end in the largest word up to a whole
group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlx.ir.dtype import DType
from rlx.ir.shape import Size
from rlx.kernels.cpu.matmul.tiles import transposed
from rlx.kernels.cpu.ops.strips import whole_rows
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.loop_ir import Value
from rlx.kernels.machines import Machine

# The longest rows, by the bytes of all of them: a tile should stay in the second cache.
MOST_BYTES = 512 << 10
# Rows of which the length is not known beforehand are sorted so up to this one.
LONGEST_OF_ANY = 1024
# Rows that are worth a network: a part of the lanes.
FEWEST = 4
FEWEST_LANES = 4
MANY_REGISTERS = 32

Load = Callable[[int, Value, Value], Value]
Store = Callable[[int, Value, Value, Value], None]


def deal_out_rows(
    k: KernelBuilder,
    machine: Machine,
    word: DType,
    rows: Value,
    size: Size,
    length: Value,
    beside: Callable[[RowNetwork, Value, Value], None],
    alone: Callable[[Value], None],
) -> None:
    """Rows of a length, which may be a symbol, for all threads: `beside(network, first, count)` sorts so many rows in
    the lanes of a network, `alone(row)` one, where there are few or where it is long."""
    lanes = machine.lanes(word)
    longest = 0 if machine.is_gpu or lanes < FEWEST_LANES else MOST_BYTES // (lanes * word.size_bytes)
    most = min(longest, size if isinstance(size, int) else LONGEST_OF_ANY)
    if not most or (isinstance(size, int) and size > longest):
        with whole_rows(k, rows, length * 8) as row:
            alone(row)
        return
    network = RowNetwork(k, machine, word, most)
    # Lanes up to the longest, and 1 behind it: arithmetic alone, which a plan computes for the sizes of a run.
    together = k.min(k.max((most + 1 - length) * lanes, 1), lanes)
    with k.parallel("rows", (rows + (together - 1)) // together) as number:
        first = number * together
        count = k.min(together, rows - first)
        with k.when((length <= most) & (count >= FEWEST)):
            beside(network, first, count)
        with k.otherwise(), k.loop("row", first, first + count) as row:
            alone(row)


class RowNetwork:
    def __init__(self, k: KernelBuilder, machine: Machine, word: DType, most: int) -> None:
        self.k, self.word, self.lanes = k, word, machine.lanes(word)
        self.group = 16 if machine.vector_registers >= MANY_REGISTERS else 8
        self.unit = max(self.group, self.lanes)
        size = -(-most // self.unit) * self.unit
        self.merges = max(0, (size - 1) // self.group).bit_length()
        self.tile = k.local("tile", word, size * self.lanes)

    def sort(self, length: Value, load: Load, store: Store) -> None:
        """Sort rows of `length` words, which `load` gives for each lane and `store` takes back in order."""
        k = self.k
        padded = k.ceildiv(length, self.unit) * self.unit
        self._read(length, padded, load)
        self._groups(padded, [*batcher(self.group)])
        with k.loop("merge", 0, self.merges) as merge:
            run = k.as_index(self.group) << merge
            with k.when(run < padded):
                self._merge(merge, run, padded)
        with k.loop("i", 0, length, self.lanes) as i:
            columns = [self._at(i + j) for j in range(self.lanes)]
            mask = k.lane_mask(length - i, self.lanes)
            for r, words in enumerate(transposed(k, columns)):
                store(r, i, words, mask)

    def _read(self, length: Value, padded: Value, load: Load) -> None:
        k = self.k
        last = (1 << (8 * self.word.size_bytes)) - 1
        with k.loop("i", 0, padded, self.lanes) as i:
            mask = k.lane_mask(length - i, self.lanes)
            lines = [k.select(mask, load(r, i, mask), last) for r in range(self.lanes)]
            for j, column in enumerate(transposed(k, lines)):
                k.store(self.tile, (i + j) * self.lanes, column)

    def _at(self, place: Value) -> Value:
        return self.k.load(self.tile, place * self.lanes, lanes=self.lanes)

    def _groups(self, padded: Value, exchanges: list[tuple[int, int]]) -> None:
        """Exchange words of each group in registers."""
        k = self.k
        with k.loop("group", 0, padded, self.group) as start:
            words = [self._at(start + j) for j in range(self.group)]
            for low, high in exchanges:
                words[low], words[high] = k.min(words[low], words[high]), k.max(words[low], words[high])
            for j, word in enumerate(words):
                k.store(self.tile, (start + j) * self.lanes, word)

    def _merge(self, merge: Value, run: Value, padded: Value) -> None:
        """Runs of a length in pairs. The last one may be shorter, or lack the other: what it lacks would be last."""
        k = self.k
        with k.loop("pair", 0, padded - run, run * 2) as start:
            end = start + run * 2 - 1
            with k.loop("i", k.max(0, end + 1 - padded), run) as i:
                self._exchange(start + i, end - i)
        with k.loop("step", 1, merge + 1) as step:
            half = run >> step
            with (
                k.loop("pair", 0, padded - half, half * 2) as start,
                k.loop("i", start, k.min(start + half, padded - half)) as i,
            ):
                self._exchange(i, i + half)
        self._groups(padded, [*halves(self.group)])

    def _exchange(self, low: Value, high: Value) -> None:
        k = self.k
        a, b = self._at(low), self._at(high)
        k.store(self.tile, low * self.lanes, k.min(a, b))
        k.store(self.tile, high * self.lanes, k.max(a, b))


def batcher(count: int) -> Iterator[tuple[int, int]]:
    """The exchanges of Batcher's odd-even merge sort of so many words, a power of two."""
    run = 1
    while run < count:
        step = run
        while step:
            for start in range(step % run, count - step, 2 * step):
                for i in range(start, min(start + step, count - step)):
                    if i // (2 * run) == (i + step) // (2 * run):
                        yield i, i + step
            step //= 2
        run *= 2


def halves(count: int) -> Iterator[tuple[int, int]]:
    """The exchanges that sort what first falls and then rises, or the other way round."""
    step = count // 2
    while step:
        yield from ((i, i + step) for i in range(count) if not i & step)
        step //= 2
