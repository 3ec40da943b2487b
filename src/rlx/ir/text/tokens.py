"""The tokens of programs' text, with the numbers of their lines, and the errors that name these.

`graph_text` has the grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from rlx.errors import ParseError

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*)|(?P<newline>\n)
    |(?P<bytes>x"[0-9a-fA-F]*")|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)
    |(?P<name>[A-Za-z_][\w.]*)|(?P<symbol>//|[-+*%@(){}\[\],:=>])""",
    re.VERBOSE,
)
_END = "end of text"


class Reader:
    """Tokens with line numbers, and the errors that name them."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str, int]] = []
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ParseError(f"line {line}: unexpected character {text[position]!r}")
            position = match.end()
            kind = match.lastgroup or ""
            if kind == "newline":
                line += 1
            elif kind != "space":
                self.tokens.append((kind, match.group(), line))
        self.tokens.append(("end", _END, line))
        self.position = 0

    @property
    def line(self) -> int:
        return self.tokens[self.position][2]

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)][1]

    def kind(self) -> str:
        return self.tokens[self.position][0]

    def take(self, wanted: str | None = None) -> str:
        _, text, line = self.tokens[self.position]
        if wanted is not None and text != wanted:
            raise ParseError(f"line {line}: expected {wanted!r}, got {text!r}")
        if text == _END:
            raise ParseError(f"line {line}: the text ends in the middle of a program")
        self.position += 1
        return text

    def accept(self, text: str) -> bool:
        if self.peek() == text:
            self.position += 1
            return True
        return False

    def fail(self, message: str, line: int | None = None) -> ParseError:
        return ParseError(f"line {self.line if line is None else line}: {message}")

    def identifier(self) -> str:
        kind, text, line = self.tokens[self.position]
        if kind not in ("name", "string", "number"):
            raise ParseError(f"line {line}: expected a name, got {text!r}")
        self.position += 1
        return unquote(text, line) if kind == "string" else text

    def list_until(self, end: str) -> Iterator[None]:
        """Yields before each item of a comma-separated list, and takes the closing token."""
        while not self.accept(end):
            yield
            if self.peek() != end:
                self.take(",")


def unquote(text: str, line: int) -> str:
    """What a token of the kind `string` stands for."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ParseError(f"line {line}: {text} is not a valid string: {error}") from None
    return str(value)


_CLOSING = {"(": ")", "[": "]", "{": "}"}


def missing_bracket(reader: Reader) -> ParseError | None:
    """The error of a text that could not be read because a bracket is missing, at the line where that one opens.

    Brackets close on their line, but for those of bodies; what holds a body goes on in the line where the body ends.
    """
    # Bracket, line, whether it holds the lines of a body, line that it has come to.
    opened: list[tuple[str, int, bool, int]] = []
    for position, (kind, token, line) in enumerate(reader.tokens):
        if opened:
            bracket, where, is_body, reached = opened[-1]
            is_late = not is_body and line > reached and reader.line <= line + 1
            if kind == "end" or is_late or (token in _CLOSING.values() and token != _CLOSING[bracket]):
                return ParseError(f"line {where}: {bracket!r} is not closed; {_CLOSING[bracket]!r} is missing")
        if token in _CLOSING:
            is_body = token == "{" and reader.tokens[position + 1][1] in ("%", "return")
            opened.append((token, line, is_body, line))
        elif token in _CLOSING.values():
            if not opened:
                return ParseError(f"line {line}: {token!r} closes nothing")
            opened.pop()
            if opened:
                opened[-1] = (*opened[-1][:3], line)
    return None
