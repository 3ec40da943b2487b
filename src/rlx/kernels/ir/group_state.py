"""What the interpreter of groups keeps: operations under way, barriers, who waits for what, and what a group sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rlx.kernels.ir.interpret import Frame
from rlx.kernels.ir.loop_ir import Buffer
from rlx.kernels.ir.races import Agent, Clock, join


@dataclass(eq=False)
class Operation:
    """An asynchronous copy or product under way."""

    agent: Agent
    act: Callable[[], None]
    after: Operation | None
    is_done: bool = False

    @property
    def is_ready(self) -> bool:
        return not self.is_done and (self.after is None or self.after.is_done)


@dataclass(eq=False)
class Phases:
    """The state of one barrier: what the phase under way still lacks, and what those who await it learn."""

    arrivals: int
    pending: int
    bytes: int = 0
    completed: int = 0
    gathered: Clock = field(default_factory=dict)
    known: Clock = field(default_factory=dict)

    def settle(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.completed += 1
            self.pending = self.arrivals
            join(self.known, self.gathered)
            self.gathered = {}

    def __str__(self) -> str:
        lacking = f", {self.bytes} bytes to come" if self.bytes else ""
        return f"{self.completed} complete, {self.arrivals - self.pending} of {self.arrivals} arrivals{lacking}"


@dataclass(eq=False)
class Wait:
    is_over: Callable[[], bool]
    what: Callable[[], str]


class GroupFrame(Frame):
    """What a group or a thread sees, and who it is."""

    agent: Agent
    locals: dict[int, Frame]
    thread: int | None = None
    products: Operation | None = None  # the group's last one
    tokens: dict[Buffer, list[Operation]]


def as_group(frame: Frame) -> GroupFrame:
    assert isinstance(frame, GroupFrame)
    return frame
