"""Who reads and writes each element, and whether waits put that in an order: races found without having to happen.

Everybody who acts (a block, a group, a thread, an asynchronous operation) has a clock, which says how far it knows
of all others. A wait takes over what the one waited for knew. Two accesses of one element, at least one a
write, are in order only if the later one knows of the earlier; else another schedule may turn them round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Clock = dict[int, int]


def join(clock: Clock, other: Clock) -> None:
    """The first clock learns what the second knows."""
    for agent, time in other.items():
        clock[agent] = max(clock.get(agent, 0), time)


@dataclass(eq=False)
class Agent:
    """Somebody who acts; `number` is its own hand on every clock."""

    number: int
    name: str
    is_asynchronous: bool = False
    clock: Clock = field(default_factory=dict)

    def tick(self) -> None:
        """What comes now is later than what others have learned."""
        self.clock[self.number] = self.clock.get(self.number, 0) + 1


@dataclass(frozen=True)
class Race:
    """An access that nothing orders after an earlier one of the same element."""

    element: int
    earlier: Agent
    earlier_wrote: bool


class _History:
    """The last accesses of each element of one array."""

    def __init__(self, memory: Array, word: int) -> None:
        self.memory = memory  # kept, so that its id stays its own
        self.word = word
        self.writer = np.zeros(len(memory), np.int64)
        self.written = np.zeros(len(memory), np.int64)
        self.readers: dict[int, Array] = {}
        words = -(-len(memory) // word)
        self.word_writer, self.word_written = np.zeros(words, np.int64), np.zeros(words, np.int64)


class Races:
    """The histories of all memory. `word_bytes` is the least that the machine stores at once: two who write parts of
    one word race, too."""

    def __init__(self, word_bytes: int = 1) -> None:
        self.word_bytes = word_bytes
        self.agents: list[Agent] = [Agent(0, "nobody")]
        self._histories: dict[int, _History] = {}

    def agent(self, name: str, parent: Agent | None = None, is_asynchronous: bool = False) -> Agent:
        """A new agent, which knows what its parent knows now."""
        agent = Agent(len(self.agents), name, is_asynchronous, {} if parent is None else dict(parent.clock))
        self.agents.append(agent)
        agent.tick()
        if parent is not None:
            parent.tick()
        return agent

    def read(self, memory: Array, elements: Array, agent: Agent) -> Race | None:
        history = self._history(memory)
        race = self._unordered(history.writer, history.written, elements, agent, True)
        if race is None:
            times = history.readers.setdefault(agent.number, np.zeros(len(memory), np.int64))
            times[elements] = agent.clock[agent.number]
        return race

    def write(self, memory: Array, elements: Array, agent: Agent) -> Race | None:
        history = self._history(memory)
        race = self._unordered(history.writer, history.written, elements, agent, True)
        for number, times in history.readers.items():
            if race is None and number != agent.number:
                late = elements[times[elements] > agent.clock.get(number, 0)]
                race = Race(int(late[0]), self.agents[number], False) if len(late) else None
        words = np.unique(elements // history.word)
        if race is None and history.word > 1:
            race = self._unordered(history.word_writer, history.word_written, words, agent, True, history.word)
        if race is None:
            now = agent.clock[agent.number]
            history.writer[elements], history.written[elements] = agent.number, now
            history.word_writer[words], history.word_written[words] = agent.number, now
            for times in history.readers.values():
                times[elements] = 0  # the write is after them, and whoever is after the write is, too
        return race

    def _history(self, memory: Array) -> _History:
        word = max(1, self.word_bytes // memory.dtype.itemsize)
        return self._histories.setdefault(id(memory), _History(memory, word))

    def _unordered(
        self, who: Array, when: Array, places: Array, agent: Agent, wrote: bool, size: int = 1
    ) -> Race | None:
        for number in np.unique(who[places]).tolist():
            late = places[(who[places] == number) & (when[places] > agent.clock.get(number, 0))]
            if number and number != agent.number and len(late):
                return Race(int(late[0]) * size, self.agents[number], wrote)
        return None
