"""The records that Python and the native executor share: arrays of 64-bit words, by word number.

Words that different threads write lie 128 bytes apart, so that no two of them ever share a cache line (or the pair of
lines that some processors fetch together).
"""

from __future__ import annotations

WORD = 8
LINE = 16  # words


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


class Job:
    """One run of one table: how far it is, and what it consists of. Tickets are numbered through the whole run; those
    of the segment at work begin at `BASE` and end before `LIMIT`, or at `TICKETS`, where the run ends."""

    NEXT, STOP = 0, 1  # the next ticket; whether no more are to be taken
    COMPLETED = LINE
    LIMIT, BASE, COMMANDS, TICKETS = range(2 * LINE, 2 * LINE + 4)
    START, SLOTS, VALUES, DEADLINE = range(3 * LINE, 3 * LINE + 4)
    WORDS = 4 * LINE


class Spot:
    """Where threads sleep. A mutex and a condition variable of the system fit into a line each."""

    SLEEPERS, MUTEX, CONDITION = 0, LINE, 2 * LINE
    WORDS = 3 * LINE


class Mailbox:
    """What a worker watches: the number of the last job it was invited to."""

    MAIL, SPOT = 0, LINE
    WORDS = LINE + Spot.WORDS


class PoolState:
    """`OWNER` is 1 while somebody's job has the workers. `OPEN` is the number of the job that workers may enter, or 0.
    `ABSENT` counts down when a worker enters and up when it leaves: no worker is inside when it is 0.
    """

    OWNER, GENERATION = 0, 1
    OPEN, JOB = LINE, LINE + 1
    ABSENT = 2 * LINE
    PROGRESS = 3 * LINE  # the spot of those who wait for others inside a run
    MAILBOXES = PROGRESS + Spot.WORDS


def pool_words(workers: int) -> int:
    return PoolState.MAILBOXES + workers * Mailbox.WORDS
