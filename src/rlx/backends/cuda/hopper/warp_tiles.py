"""Tiles in shared memory that threads bring (`cp.async`) and warps read as fragments of `mma` (`ldmatrix`): from sm_80
on."""

from __future__ import annotations

from typing import NamedTuple

from rlx.backends.cuda.hopper.writer import Val, Writer

# Elements of a line of a slab, which has 128 bytes in pieces of 16.
SLAB = 64


def slab_count(width: int) -> int:
    """Slabs of a tile of rows that are so wide."""
    return -(-width // SLAB)


def copy_piece(w: Writer, to: Val, line: Val, place: Val, limit: Val | int) -> None:
    """16 bytes from an element of a line on, or zeros if it is not below the limit."""
    inside = place < limit
    source = line + (w.wide(w.select(inside, place, 0)) << 1)
    size = w.select(inside, 16, 0)
    named: dict[str, Val | int] = {"from": source, "to": to, "n": size}
    w.asm("cp.async.cg.shared.global [<to>], [<from>], 16, <n>;", named=named)


class WarpTile(NamedTuple):
    """Rows of elements of two bytes, slab by slab of 64 columns: a piece of 16 bytes lies where its number and the
    lowest bits of its row's say, so that eight rows are read at once."""

    w: Writer
    start: Val
    rows: int

    def piece(self, row: Val, number: Val) -> Val:
        """Where a piece of the first slab lies."""
        return self.start + row * 128 + ((number ^ (row & 7)) << 4)

    def bring(self, thread: Val, threads: int, at: Val, pitch: Val, first: Val, count: Val, width: int) -> None:
        """Start the copies of rows from `first` on, which are `width` elements at an address and a number of bytes
        apart; what is behind the last row and the last column becomes 0."""
        w = self.w
        piece, line = thread & 7, thread >> 3
        to = self.piece(line, piece)
        for start in range(0, self.rows, threads // 8):
            number = first + line + start
            source = at + w.wide(w.most(w.least(number, count - 1), 0)) * pitch
            limit = w.select(number < count, width, 0)
            for slab in range(slab_count(width)):
                copy_piece(w, to + (slab * self.rows + start) * 128, source, piece * 8 + slab * SLAB, limit)

    # Fragments of sixteen rows and sixteen columns, both multiples of 16.

    def of_a(self, lane: Val, row: Val | int, column: int) -> list[Val]:
        """As the first operand, rows as rows."""
        return self._read(lane & 15, lane >> 4, row, column)

    def of_a_turned(self, lane: Val, row: Val | int, column: int) -> list[Val]:
        """As the first operand, columns as rows."""
        return self._read((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1, row, column, ".trans")

    def along(self, lane: Val, row: Val | int, column: int) -> list[Val]:
        """Rows as columns of the second operand, two times eight."""
        return self._read((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1, row, column)

    def across(self, lane: Val, row: Val | int, column: int) -> list[Val]:
        """Columns as columns of the second operand, two times eight."""
        return self._read(lane & 15, lane >> 4, row, column, ".trans")

    def _read(self, line: Val, piece: Val, row: Val | int, column: int, turned: str = "") -> list[Val]:
        inside = line * 128 + (((piece ^ (line & 7)) << 4) ^ (column % SLAB * 2))
        offset = column // SLAB * self.rows * 128
        if isinstance(row, Val):
            inside = inside + row * 128
        else:
            offset += row * 128
        text = f"ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 {{$0, $1, $2, $3}}, [<a>+{offset}];"
        return self.w.asm(text, results=["i32"] * 4, a=self.start + inside)
