"""Texts of a form: grammars over bytes, and `Guide`, which says which tokens a text may go on with.

    grammar = Grammar({"digits": [[ONE_TO_NINE], [ONE_TO_NINE, "digits"]]}, "digits")
    guide = Guide(grammar, tokenizer.token_bytes, tokenizer.eos_ids)
    guide.permits(token); guide.advance(token); guide.is_over

A rule is a list of alternatives, each a sequence of sets of bytes and names of rules; no rule may begin with itself. A
state of a text is the set of all stacks of items that may still follow. Stacks and states have numbers, however deep a
text is nested, and what a byte does to a state is computed once, so that all tokens of a vocabulary are looked at
together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from rlx.errors import OpError

if TYPE_CHECKING:
    from rlx.models.token_bytes import TokenBytes

Bytes: TypeAlias = frozenset[int]
Item: TypeAlias = Bytes | str
Rules: TypeAlias = Mapping[str, Sequence[Sequence[Item]]]
States: TypeAlias = npt.NDArray[np.int32]
# The number of the stack on which nothing is left.
_EMPTY = 0
# The number of the state from which no text goes on, and what stands for a state that was not computed yet.
DEAD, _UNKNOWN = 0, -1


class Grammar:
    """Rules, and what each byte does to a text."""

    def __init__(self, rules: Rules, start: str, marks: Sequence[str] = ()) -> None:
        """`marks` are tokens that the texts have as text, though they may stand for none elsewhere."""
        self._rules, self.marks = _with_end(rules), tuple(marks)
        # Each stack is its first item and the number of the stack below.
        self._stacks: list[tuple[Item, int]] = [("", _EMPTY)]
        self._stack_numbers: dict[tuple[Item, int], int] = {}
        self._states: list[frozenset[int]] = []
        self._state_numbers: dict[frozenset[int], int] = {}
        self._table = np.full((16, 256), _UNKNOWN, np.int32)
        self._number(frozenset())
        self.start = self._opened([self._push([start], _EMPTY)])

    def step(self, state: int, byte: int) -> int:
        """The state behind one more byte."""
        found = int(self._table[state, byte])
        if found == _UNKNOWN:
            stacks = [self._stacks[number] for number in self._states[state] - {_EMPTY}]
            # In a state every first item is a set of bytes.
            found = self._opened([rest for item, rest in stacks if byte in item])
            self._table[state, byte] = found
        return found

    def steps(self, states: States, read: npt.NDArray[np.uint8]) -> States:
        """`step` of many states, with a byte for each."""
        found = self._table[states, read]
        unknown = found == _UNKNOWN
        if unknown.any():
            for pair in np.unique(states[unknown] * 256 + read[unknown]):
                self.step(*divmod(int(pair), 256))
            found = self._table[states, read]
        return found

    def walk(self, state: int, text: bytes) -> int:
        """The state behind several bytes."""
        for byte in text:
            if (state := self.step(state, byte)) == DEAD:
                break
        return state

    def may_end(self, state: int) -> bool:
        """Whether a text may end in this state."""
        return _EMPTY in self._states[state]

    def must_end(self, state: int) -> bool:
        """Whether a text of the form is complete, and nothing may follow."""
        return self._states[state] == {_EMPTY}

    def _number(self, stacks: frozenset[int]) -> int:
        if stacks not in self._state_numbers:
            if len(self._states) == len(self._table):
                self._table = np.concatenate([self._table, np.full_like(self._table, _UNKNOWN)])
            self._state_numbers[stacks] = len(self._states)
            self._states.append(stacks)
        return self._state_numbers[stacks]

    def _push(self, items: Sequence[Item], below: int) -> int:
        for item in reversed(items):
            key = (item, below)
            below = self._stack_numbers.get(key, -1)
            if below < 0:
                below = self._stack_numbers[key] = len(self._stacks)
                self._stacks.append(key)
        return below

    def _opened(self, stacks: Collection[int]) -> int:
        """The state of these stacks, with rules in the first place replaced by what they may be."""
        found, waiting, seen = set(), list(stacks), set(stacks)
        while waiting:
            number = waiting.pop()
            item, rest = self._stacks[number]
            if number == _EMPTY or not isinstance(item, str):
                found.add(number)
                continue
            for alternative in self._rules[item]:
                if (opened := self._push(alternative, rest)) not in seen:
                    seen.add(opened)
                    waiting.append(opened)
        return self._number(frozenset(found))


def _with_end(rules: Rules) -> Rules:
    """The rules without alternatives that lead to no text, because they come back to themselves for ever."""
    ending: set[str] = set()

    def ends(alternative: Sequence[Item]) -> bool:
        return all(not isinstance(item, str) or item in ending for item in alternative)

    before = -1
    while len(ending) > before:
        before = len(ending)
        ending.update(name for name, several in rules.items() if name not in ending and any(map(ends, several)))
    return {name: [one for one in several if ends(one)] for name, several in rules.items()}


class Guide:
    """Which tokens one text may go on with. The tokens `ends` end it."""

    def __init__(self, grammar: Grammar, vocabulary: TokenBytes, ends: Collection[int]) -> None:
        self._grammar, self._vocabulary, self._ends = grammar, vocabulary, frozenset(ends)
        self._state = grammar.start
        # Most tokens of a string leave its state as it is, so that the next one asks for the same.
        self._last: tuple[int, int, npt.NDArray[np.bool_]] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the text is complete and cannot go on."""
        return self._grammar.must_end(self._state)

    def permits(self, token: int) -> bool:
        if token in self._ends:
            return self._grammar.may_end(self._state)
        text = self._vocabulary.of(token)
        return bool(text) and self._grammar.walk(self._state, text) != DEAD

    def permitted(self, count: int) -> npt.NDArray[np.bool_]:
        """`permits` of the first `count` tokens: of all together, one byte after the other."""
        if self._last is None or self._last[:2] != (self._state, count):
            self._last = self._state, count, self._asked(count)
        return self._last[2]

    def _asked(self, count: int) -> npt.NDArray[np.bool_]:
        vocabulary = self._vocabulary
        # A tokenizer may have more tokens than its model has logits, or fewer.
        found = np.zeros(max(count, len(vocabulary.tokens), *(end + 1 for end in self._ends)), np.bool_)
        tokens = np.flatnonzero(vocabulary.lengths)
        states, read = np.full(len(tokens), self._state, np.int32), 0
        while len(tokens):
            states = self._grammar.steps(states, vocabulary.joined[vocabulary.begins[tokens] + read])
            read += 1
            is_alive = states != DEAD
            has_more = vocabulary.lengths[tokens] > read
            found[tokens[is_alive & ~has_more]] = True
            tokens, states = tokens[is_alive & has_more], states[is_alive & has_more]
        found[list(self._ends)] = self._grammar.may_end(self._state)
        return found[:count]

    def advance(self, token: int) -> None:
        """Go on with a token that is permitted."""
        self._state = self._grammar.walk(self._state, self._vocabulary.of(token))
        if self._state == DEAD:
            raise OpError(f"token {token} does not belong to a text of this form")
