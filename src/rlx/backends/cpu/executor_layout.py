"""The records that Python and the native executor share besides the tables that it walks, as arrays of 64-bit words.

Words that different threads write lie 128 bytes apart, so that no two of them ever share a cache line (or the pair of
lines that some processors fetch together).
"""

from __future__ import annotations

LINE = 16  # words
# The functions that the executor has.
EXPORTS = ("rlx.run", "rlx.serve", "rlx.dismiss", "rlx.call")


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
    """What a worker watches: the number of the last job it was invited to. Behind it what callers know of the worker:
    its thread's number for the system, 0 where it may run anywhere, and the CPU that it keeps off, plus 1."""

    MAIL, THREAD, AVOIDED, SPOT = 0, 1, 2, LINE
    WORDS = LINE + Spot.WORDS


class PoolState:
    """`OWNER` is 1 while somebody's job has the workers. `OPEN` is the number of the job that workers may enter, or 0.
    `ABSENT` counts down when a worker enters and up when it leaves: no worker is inside when it is 0.
    """

    OWNER, GENERATION = 0, 1
    OPEN, JOB = LINE, LINE + 1
    ABSENT = 2 * LINE
    PROGRESS = 3 * LINE  # the spot of those who wait for others inside a run
    CPUS = PROGRESS + Spot.WORDS  # a bit for each CPU that the process may use
    MAILBOXES = CPUS + LINE


def pool_words(workers: int) -> int:
    return PoolState.MAILBOXES + workers * Mailbox.WORDS
