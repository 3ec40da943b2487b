"""Dims as text: what users and files write, read as an int or a `Dim`.

>>> parse_dim("2*(S + 3)"), parse_dim("max(S, S + 1)"), parse_dim("7 // 2")
(2*S + 6, S + 1, 3)
"""

from __future__ import annotations

import re
from functools import cache

from rlx.errors import ParseError
from rlx.ir.dim_algebra import FUNCTIONS, NAME, Dim, floordiv, mod

# How deep text may nest, and the largest number in it: files come from anywhere.
MOST_NESTED, LARGEST_SIZE = 64, 2**63 - 1

_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*%(),]))")


@cache
def parse_dim(text: str) -> int | Dim:
    """The dim written as `text`: integers, names, + - * // %, parentheses, floordiv ceildiv mod max min."""
    tokens: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ParseError(f"{text[:80]!r} is not a dimension: unexpected {text[position:].strip()[:1]!r}")
        tokens.append(match.group().strip())
        position = match.end()
    reader = _DimReader(text, tokens)
    result = reader.sum()
    if reader.peek():
        raise ParseError(f"{text[:80]!r} is not a dimension: unexpected {reader.peek()[:80]!r}")
    return result


class _DimReader:
    """Recursive descent over the tokens of one dim."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text, self.tokens, self.position, self.depth = text, tokens, 0, 0

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise self.fail(f"expected {wanted or 'a number or a name'}")
        self.position += 1
        return token

    def fail(self, what: str) -> ParseError:
        return ParseError(f"{self.text[:80]!r} is not a dimension: {what}")

    def sum(self) -> int | Dim:
        value = self.product()
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value = value + sign * self.product()
        return value

    def product(self) -> int | Dim:
        value = self.factor()
        while self.peek() in ("*", "//", "%"):
            operator = self.take()
            right = self.factor()
            value = value * right if operator == "*" else (floordiv if operator == "//" else mod)(value, right)
        return value

    def factor(self) -> int | Dim:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.fail(f"it nests more than {MOST_NESTED} deep")
        value = self.nested_factor()
        self.depth -= 1
        return value

    def nested_factor(self) -> int | Dim:
        token = self.take()
        if token == "-":
            return -self.factor()
        if token == "(":
            value = self.sum()
            self.take(")")
            return value
        if token.isdigit():
            if len(token) > 19 or int(token) > LARGEST_SIZE:
                raise self.fail("sizes are less than 2**63")
            return int(token)
        if self.peek() == "(" and token in FUNCTIONS:
            self.take("(")
            left = self.sum()
            self.take(",")
            right = self.sum()
            self.take(")")
            return FUNCTIONS[token](left, right)
        if not NAME.fullmatch(token):
            raise self.fail(f"unexpected {token[:80]!r}")
        return Dim.symbol(token)
