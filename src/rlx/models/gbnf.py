"""Grammars in the notation of llama.cpp (GBNF).

    grammar = gbnf_grammar('root ::= "yes" | "no, " [a-z]+ "."')

A rule is `name ::= alternatives`; its parts are texts in quotation marks, sets of characters such as `[a-z]` and
`[^\\n]`, `.` for any character, names of rules and groups in parentheses, each of which may be followed by `*`, `+`,
`?` or `{2,5}`. Texts begin at the rule `root`. A rule may not begin with itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from rlx.errors import RlxError
from rlx.models.grammar import DEAD, Bytes, Grammar, Item

_Sequences = list[list[Item]]
_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n]+|\#[^\n]*)
      | (?P<begin>[A-Za-z0-9_-]+)[ \t\r\n]*::=
      | (?P<name>[A-Za-z0-9_-]+)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<set>\[\^?(?:[^\]\\\n]|\\.)*\])
      | (?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
      | (?P<sign>[.()|*+?])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
_LAST = 0x10FFFF
_HALVES = (0xD800, 0xDFFF)
# The last characters of one, two, three and four bytes.
_ENDS = (0x7F, 0x7FF, 0xFFFF, _LAST)
_MORE: Bytes = frozenset(range(0x80, 0xC0))
_MOST_COUNTED, _MOST_RULES, _MOST_DEPTH = 4096, 100_000, 100


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def gbnf_grammar(text: str) -> Grammar:
    """The grammar that a text describes."""
    rules = _Reader(text).rules()
    for several in rules.values():
        for item in (item for one in several for item in one):
            if isinstance(item, str) and item not in rules:
                raise RlxError(f"grammar: the rule {item.split()[0]!r} is used and not defined")
    _require_progress(rules)
    if "root" not in rules:
        raise RlxError("grammar: there is no rule 'root', at which texts begin")
    grammar = Grammar(rules, "root")
    if grammar.start == DEAD:
        raise RlxError("grammar: no text follows it, since its rules refer to each other without an end")
    return grammar


def _require_progress(rules: Mapping[str, _Sequences]) -> None:
    """Refuse a rule that may begin with itself."""
    empty = _empty_rules(rules)
    begins = {name: {item for one in several for item in _first_rules(one, empty)} for name, several in rules.items()}
    # Rules that begin with nothing that is left are left out; a circle stays.
    users: dict[str, list[str]] = {name: [] for name in rules}
    for name, first in begins.items():
        for other in first:
            users[other].append(name)
    waiting = [name for name, first in begins.items() if not first]
    while waiting:
        for user in users[done := waiting.pop()]:
            begins[user].discard(done)
            if not begins[user]:
                waiting.append(user)
    path: list[str] = []
    at = next((name for name, first in begins.items() if first), None)
    while at is not None and at not in path:
        path.append(at)
        at = min(begins[at])
    if at is not None:
        circle = [one for one in path[path.index(at) :] if " " not in one]
        raise RlxError(f"grammar: the rule {(circle or path)[0]!r} begins with itself; repeat with * or +")


def _first_rules(alternative: Sequence[Item], empty: Collection[Item]) -> Iterator[str]:
    """The rules that texts of an alternative may begin with."""
    for item in alternative:
        if isinstance(item, str):
            yield item
        if item not in empty:
            return


def _empty_rules(rules: Mapping[str, _Sequences]) -> set[Item]:
    """The rules that allow a text of no length."""
    found: set[Item] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        found.update(name for name, several in rules.items() if any(found.issuperset(one) for one in several))
    return found


class _Reader:
    """Reads the rules of one text; groups and repetitions have rules of their own."""

    def __init__(self, text: str) -> None:
        self._tokens, self._at = list(_tokens(text)), 0
        self._rules: dict[str, _Sequences] = {}

    def rules(self) -> dict[str, _Sequences]:
        while (token := self._next()).kind != "end":
            if token.kind != "begin":
                raise _wrong(token, "a rule, name ::= ..")
            if token.text in self._rules:
                raise RlxError(f"grammar: line {token.line}: there is a rule {token.text!r} already")
            self._rules[token.text] = []
            self._rules[token.text] = self._alternatives(0)
            if (after := self._tokens[self._at]).kind not in ("begin", "end"):
                raise _wrong(after, "the next rule")
        return self._rules

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _add(self, alternatives: _Sequences) -> str:
        if len(self._rules) >= _MOST_RULES:
            raise RlxError(f"grammar: it needs more than {_MOST_RULES} rules; count less")
        # No name of a rule has a space.
        name = f"part {len(self._rules)}"
        self._rules[name] = alternatives
        return name

    def _alternatives(self, depth: int) -> _Sequences:
        if depth > _MOST_DEPTH:
            raise RlxError(f"grammar: groups are nested deeper than {_MOST_DEPTH}")
        found = [self._sequence(depth)]
        while self._tokens[self._at][:2] == ("sign", "|"):
            self._at += 1
            found.append(self._sequence(depth))
        return found

    def _sequence(self, depth: int) -> list[Item]:
        found: list[Item] = []
        while (token := self._tokens[self._at]).kind in ("text", "set", "name") or token.text in (".", "("):
            self._at += 1
            items = self._items(token, depth)
            while (after := self._tokens[self._at]).kind == "count" or after.text in ("*", "+", "?"):
                self._at += 1
                items = [self._repeated(items, *_counts(after))]
            found += items
        return found

    def _items(self, token: _Token, depth: int) -> list[Item]:
        if token.kind == "name":
            return [token.text]
        if token.kind == "text":
            return [frozenset([byte]) for byte in _text(token)]
        if token.text == "(":
            inside = self._alternatives(depth + 1)
            if (end := self._next()).text != ")":
                raise _wrong(end, "a closing parenthesis")
            return [self._add(inside)]
        ranges = [(0, _LAST)] if token.text == "." else _ranges(token)
        sequences = [one for low, high in ranges for one in _spelled(low, high)]
        return sequences[0] if len(sequences) == 1 else [self._add(sequences)]

    def _repeated(self, items: list[Item], least: int, most: int | None) -> str:
        rule = self._add([[]])
        if most is None:
            self._rules[rule].append([*items, rule])
        else:
            for _ in range(most - least):
                rule = self._add([[], [*items, rule]])
        for _ in range(least):
            rule = self._add([[*items, rule]])
        return rule


def _tokens(text: str) -> Iterator[_Token]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _wrong(_Token("", text[at : at + 20].split("\n")[0], line), "a rule or a part of one")
        kind = found.lastgroup or ""
        if kind != "skip":
            yield _Token(kind, found[kind], line)
        at, line = found.end(), line + found[0].count("\n")
    yield _Token("end", "", line)


def _wrong(token: _Token, wanted: str) -> RlxError:
    return RlxError(f"grammar: line {token.line}: {wanted} is needed, got {token.text or 'the end'!r:.80}")


def _counts(token: _Token) -> tuple[int, int | None]:
    """How often at least and at most."""
    if token.kind == "sign":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token.text]
    least, comma, most = token.text.strip("{} ").partition(",")
    found = int(least), int(most) if most.strip() else None if comma else int(least)
    if max(found[0], found[1] or 0) > _MOST_COUNTED or (found[1] is not None and found[1] < found[0]):
        raise RlxError(f"grammar: line {token.line}: {token.text} must count upwards, to at most {_MOST_COUNTED}")
    return found


def _unescaped(token: _Token, text: str) -> list[tuple[str, bool]]:
    """The characters of a text, and whether each was written as an escape."""
    found, at = [], 0
    while at < len(text):
        escape = _ESCAPE.match(text, at)
        if escape is None:
            found.append((text[at], False))
            at += 1
            continue
        code = escape[1] or escape[2] or escape[3]
        if code is not None and (int(code, 16) > _LAST or _HALVES[0] <= int(code, 16) <= _HALVES[1]):
            raise RlxError(f"grammar: line {token.line}: {escape[0]} is no character")
        found.append((chr(int(code, 16)) if code else _LETTERS.get(escape[4], escape[4]), True))
        at = escape.end()
    return found


def _text(token: _Token) -> bytes:
    return "".join(letter for letter, _ in _unescaped(token, token.text[1:-1])).encode("utf-8", "replace")


def _ranges(token: _Token) -> list[tuple[int, int]]:
    """The characters of a set, as ranges in order."""
    is_not = token.text.startswith("[^")
    letters = _unescaped(token, token.text[1 + is_not : -1])
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(letters):
        low = high = ord(letters[at][0])
        if at + 2 < len(letters) and letters[at + 1] == ("-", False):
            high = ord(letters[at + 2][0])
            at += 2
        if high < low:
            raise RlxError(f"grammar: line {token.line}: the range {chr(low)}-{chr(high)} is empty")
        found.append((low, high))
        at += 1
    if not is_not:
        return found
    others, begin = [], 0
    for low, high in sorted(found):
        if low > begin:
            others.append((begin, low - 1))
        begin = max(begin, high + 1)
    return [*others, (begin, _LAST)] if begin <= _LAST else others


def _spelled(low: int, high: int) -> Iterator[list[Item]]:
    """Sequences of sets of bytes that are the characters of a range in UTF-8."""
    begin = 0
    for end in _ENDS:
        # Halves of characters are none.
        for first, last in ((begin, min(end, _HALVES[0] - 1)), (max(begin, _HALVES[1] + 1), end)):
            a, b = max(low, first), min(high, last)
            if a <= b:
                yield from _between(chr(a).encode(), chr(b).encode())
        begin = end + 1


def _between(low: bytes, high: bytes) -> Iterator[list[Item]]:
    """Texts of one length from one to another."""
    a, b, rest = low[0], high[0], len(low) - 1
    if not rest or a == b:
        tails: Sequence[list[Item]] = list(_between(low[1:], high[1:])) if rest else [[]]
        for tail in tails:
            yield [frozenset(range(a, b + 1)), *tail]
        return
    for tail in _between(low[1:], b"\xbf" * rest):
        yield [frozenset([a]), *tail]
    if b > a + 1:
        yield [frozenset(range(a + 1, b)), *[_MORE] * rest]
    for tail in _between(b"\x80" * rest, high[1:]):
        yield [frozenset([b]), *tail]
