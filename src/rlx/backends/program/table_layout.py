"""The records that a plan and what walks its tables share: arrays of 64-bit words, by word number. The walk is the
native executor of the CPU, or `table_walk`."""

from __future__ import annotations

WORD = 8
ENDLESS = (1 << 63) - 1  # a number that no counter reaches


class Command:
    """One kernel over one set of arguments. Its iterations are dealt out in tickets of `GRAIN`; tickets are numbered
    through the whole segment. A ticket may run when all tickets below `AFTER` have been completed: that is the barrier.
    Without an entry (0) it is the end of a segment that is not the last one, and `ARGS` is its `Control`.
    """

    ENTRY, ARGS, FIRST, END, AFTER, GRAIN, ITERATIONS = range(7)
    WORDS = 8


class Segment:
    """Commands that run from the first to the last one, whatever happened before. The last command says where to go on,
    unless the table ends here. `IS_NARROW`: one thread is as fast as several, and needs no tickets."""

    COMMANDS, TICKETS, PATCHES, PATCH_COUNT, IS_LAST, IS_NARROW = range(6)
    WORDS = 8


class Control:
    """Where to go on. The word at `COUNTER` becomes 0 or, with `STEP`, one more, and all `MOVES` are done. If it is
    below `LIMIT` and the byte `PREDICATE_OFFSET` after `values[PREDICATE]` (-1: none) is not 0, `THEN` follows, else
    `ELSE`."""

    COUNTER, STEP, LIMIT, PREDICATE, PREDICATE_OFFSET, MOVES, MOVE_COUNT, THEN, ELSE = range(9)
    WORDS = 10


class Move:
    """An address that changes with the counter: `values[TO]` is `values[FIRST] + FIRST_OFFSET` in round 0, then that of
    `EVEN` or `ODD`, as the counter is; always plus `STRIDE * (counter * NUMERATOR // DENOMINATOR)`."""

    TO, FIRST, FIRST_OFFSET, EVEN, EVEN_OFFSET, ODD, ODD_OFFSET, STRIDE, NUMERATOR, DENOMINATOR = range(10)
    WORDS = 10


class Patch:
    """`slots[SLOT] = values[VALUE] + OFFSET`, done before a segment: how addresses get into argument slots."""

    SLOT, VALUE, OFFSET = range(3)
    WORDS = 3
