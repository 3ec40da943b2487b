"""Dimensions: an int, or a polynomial over named symbols such as `B*S` or `S+1`.

`Dim` is always symbolic; arithmetic that ends in a constant gives a plain int, so `DimLike = int | Dim` is what shapes
hold. Floor and ceiling division, remainder, max and min are opaque atoms unless they can be simplified. Symbols stand
for sizes, so they are never negative; nothing else is assumed about them.

    >>> s = Dim.symbol("S")
    >>> (s + 1) * 2 - 2 * s, (s * 4) // 4, as_dim("B*S + 1")
    (2, S, B*S + 1)

Two dims are `==` when they are equal for every binding. Whether `B` and `S` agree, or whether `S` is at least 6, is
only known at run time: `require_equal` and `require_at_most` then record a constraint that the runtime checks (see
`collect_constraints`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NoReturn

from rlx.errors import BindingError, ParseError, ShapeError, TraceError

# What a dim may hold, more than programs need: files come from anywhere, and the time that a dim takes grows with its
# factors, with those inside of its atoms (splatting in training has 2,456), and with how deep its text nests.
MOST_FACTORS, MOST_INNER_FACTORS, MOST_NESTED, LARGEST_SIZE = 1024, 2**17, 64, 2**63 - 1


class DimAtom:
    """An opaque function of dims: floordiv, ceildiv, mod, max or min of two arguments."""

    __slots__ = ("_hash", "_text", "args", "factors", "kind")

    def __init__(self, kind: str, args: tuple[int | Dim, ...]) -> None:
        self.kind = kind
        self.args = args
        self.factors = 1 + sum(_count_factors(m) for a in args for m, _ in _terms(a))
        if self.factors > MOST_INNER_FACTORS:
            raise _too_long()
        self._hash = hash((kind, args))
        self._text: str | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DimAtom) and self.kind == other.kind and self.args == other.args

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        # Kept, because monomials are sorted by it.
        if self._text is None:
            self._text = f"{self.kind}({', '.join(str(a) for a in self.args)})"
        return self._text


_Factor = str | DimAtom
_Monomial = tuple[_Factor, ...]


class Dim:
    """A symbolic size: a sum of integer multiples of products of symbols and atoms, in one normal form."""

    __slots__ = ("_hash", "terms")

    # Sorted by _monomial_key; coefficients are never 0; the constant term has the empty monomial.
    terms: tuple[tuple[_Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[_Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    @staticmethod
    def symbol(name: str) -> Dim:
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise ShapeError(f"{name!r} cannot name a dimension; use letters, digits and _ (for example 'B' or 'seq')")
        return Dim((((name,), 1),))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names this dim depends on, sorted."""
        found: set[str] = set()
        for monomial, _ in self.terms:
            for factor in monomial:
                if isinstance(factor, str):
                    found.add(factor)
                else:
                    for arg in factor.args:
                        if isinstance(arg, Dim):
                            found.update(arg.symbols)
        return tuple(sorted(found))

    def bind(self, binding: Mapping[str, int | Dim]) -> int | Dim:
        """This dim with symbols replaced; symbols that are not in `binding` stay."""
        total: int | Dim = 0
        for monomial, coefficient in self.terms:
            product: int | Dim = coefficient
            for factor in monomial:
                if isinstance(factor, str):
                    product = product * binding.get(factor, Dim(((((factor,)), 1),)))
                else:
                    product = product * _FUNCTIONS[factor.kind](*(bind_dim(a, binding) for a in factor.args))
            total = total + product
        return total

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms:
            factors = [str(f) for f in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
            parts.append(sign + "*".join(factors))
        return "".join(parts)

    __repr__ = __str__

    def __add__(self, other: object) -> int | Dim:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return _normal(_sum(self.terms, _terms(other)))

    __radd__ = __add__

    def __neg__(self) -> int | Dim:
        return self * -1

    def __sub__(self, other: object) -> int | Dim:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return self + (-other)

    def __rsub__(self, other: object) -> int | Dim:
        if not isinstance(other, int | Dim):
            return NotImplemented
        return (-self) + other

    def __mul__(self, other: object) -> int | Dim:
        if not isinstance(other, int | Dim):
            return NotImplemented
        table: dict[_Monomial, int] = {}
        if isinstance(other, Dim) and len(self.terms) * len(other.terms) > MOST_FACTORS:
            raise _too_long()
        for m1, c1 in self.terms:
            for m2, c2 in _terms(other):
                monomial = tuple(sorted(m1 + m2, key=_factor_key))
                table[monomial] = table.get(monomial, 0) + c1 * c2
        return _normal(table)

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> int | Dim:
        return floordiv(self, other) if isinstance(other, int | Dim) else NotImplemented

    def __rfloordiv__(self, other: object) -> int | Dim:
        return floordiv(other, self) if isinstance(other, int | Dim) else NotImplemented

    def __mod__(self, other: object) -> int | Dim:
        return mod(self, other) if isinstance(other, int | Dim) else NotImplemented

    def __rmod__(self, other: object) -> int | Dim:
        return mod(other, self) if isinstance(other, int | Dim) else NotImplemented

    def __lt__(self, other: int | Dim) -> bool:
        return _decided(self, "<", other, lambda low, high: True if high < 0 else False if low >= 0 else None)

    def __le__(self, other: int | Dim) -> bool:
        return _decided(self, "<=", other, lambda low, high: True if high <= 0 else False if low > 0 else None)

    def __gt__(self, other: int | Dim) -> bool:
        return not self <= other

    def __ge__(self, other: int | Dim) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        if dims_equal(self, 0) is False:
            return True
        _undecided(f"whether the dimension {self} is zero")

    def __index__(self) -> int:
        _undecided(f"the size of the dimension {self}")

    __int__ = __index__


def _undecided(what: str) -> NoReturn:
    raise TraceError(
        f"{what} is not known while the program is being built; a Python branch, range() or int() cannot depend on it. "
        "Use rlx.cond / rlx.scan / rnp.where, or give the dimension a fixed size (graph.bind)"
    )


def _decided(a: Dim, sign: str, b: int | Dim, decide: Callable[[float, float], bool | None]) -> bool:
    answer = decide(*_bounds(a - b))
    if answer is None:
        _undecided(f"whether {a} {sign} {b}")
    return answer


def _bounds(d: int | Dim) -> tuple[float, float]:
    """Lowest and highest value of `d`, given only that symbols are >= 0."""
    if isinstance(d, int):
        return d, d
    low = high = 0.0
    for monomial, coefficient in d.terms:
        if not monomial:
            low, high = low + coefficient, high + coefficient
        elif not all(_never_negative(f) for f in monomial):
            return float("-inf"), float("inf")
        elif coefficient > 0:
            high = float("inf")
        else:
            low = float("-inf")
    return low, high


def _never_negative(factor: _Factor) -> bool:
    if isinstance(factor, str) or factor.kind == "mod":
        return True
    lows = [_bounds(a)[0] for a in factor.args]
    return max(lows) >= 0 if factor.kind == "max" else min(lows) >= 0


def _terms(value: int | Dim) -> tuple[tuple[_Monomial, int], ...]:
    if isinstance(value, Dim):
        return value.terms
    return (((), int(value)),) if value else ()


def _sum(*parts: tuple[tuple[_Monomial, int], ...]) -> dict[_Monomial, int]:
    table: dict[_Monomial, int] = {}
    for part in parts:
        for monomial, coefficient in part:
            table[monomial] = table.get(monomial, 0) + coefficient
    return table


def _factor_key(factor: _Factor) -> tuple[int, str]:
    return (0, factor) if isinstance(factor, str) else (1, str(factor))


def _monomial_key(monomial: _Monomial) -> tuple[int, list[tuple[int, str]]]:
    # Higher degree first and the constant last: B*S + S + 1.
    return -len(monomial), [_factor_key(f) for f in monomial]


def _normal(table: dict[_Monomial, int]) -> int | Dim:
    kept = [(m, c) for m, c in table.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    kept.sort(key=lambda term: _monomial_key(term[0]))
    # The first monomial is the longest one; only a dim that may be too long is counted.
    if len(kept) * (len(kept[0][0]) + 1) > 64:
        is_long = sum(1 + len(m) for m, _ in kept) > MOST_FACTORS
        if is_long or sum(_count_factors(m) for m, _ in kept) > MOST_INNER_FACTORS:
            raise _too_long()
    return Dim(tuple(kept))


def _count_factors(monomial: _Monomial) -> int:
    return 1 + sum(1 if isinstance(f, str) else f.factors for f in monomial)


def _too_long() -> ShapeError:
    return ShapeError(
        f"a dimension would have more than {MOST_FACTORS} factors, or {MOST_INNER_FACTORS} inside of floordiv, mod, "
        "max and the like; give a part of it a name of its own"
    )


def _atom(kind: str, *args: int | Dim) -> Dim:
    return Dim((((DimAtom(kind, args),), 1),))


def _split_quotient(a: int | Dim, b: int | Dim) -> tuple[int | Dim, int | Dim]:
    """(q, r) with a = q*b + r, q taking every term of a that b divides. `b` must be an int or a single term."""
    divisor = _terms(b)
    if len(divisor) != 1:
        return (1, 0) if a == b else (0, a)
    by, by_coefficient = divisor[0]
    quotient: dict[_Monomial, int] = {}
    rest: dict[_Monomial, int] = {}
    for monomial, coefficient in _terms(a):
        left = list(monomial)
        for factor in by:
            if factor not in left:
                break
            left.remove(factor)
        else:
            if coefficient % by_coefficient == 0:
                quotient[tuple(left)] = coefficient // by_coefficient
                continue
        rest[monomial] = coefficient
    return _normal(quotient), _normal(rest)


def _check_divisor(a: int | Dim, b: int | Dim) -> None:
    if isinstance(b, int) and b <= 0:
        raise ShapeError(f"cannot divide the dimension {a} by {b}; the divisor must be positive")


def floordiv(a: int | Dim, b: int | Dim) -> int | Dim:
    """a // b; whole multiples of b come out: (4*S + 6) // 4 is S + 1."""
    _check_divisor(a, b)
    quotient, rest = _split_quotient(a, b)
    if isinstance(rest, int) and (rest == 0 or isinstance(b, int)):
        return quotient + (rest // b if rest else 0)
    return quotient + _atom("floordiv", rest, b)


def ceildiv(a: int | Dim, b: int | Dim) -> int | Dim:
    _check_divisor(a, b)
    quotient, rest = _split_quotient(a, b)
    if isinstance(rest, int) and (rest == 0 or isinstance(b, int)):
        return quotient + (-(-rest // b) if rest else 0)
    return quotient + _atom("ceildiv", rest, b)


def mod(a: int | Dim, b: int | Dim) -> int | Dim:
    _check_divisor(a, b)
    _, rest = _split_quotient(a, b)
    if isinstance(rest, int) and (rest == 0 or isinstance(b, int)):
        return rest % b if rest else 0
    return _atom("mod", rest, b)


def dim_max(a: int | Dim, b: int | Dim) -> int | Dim:
    low, high = _bounds(a - b)
    if low >= 0:
        return a
    if high <= 0:
        return b
    absorbed = _absorbed("max", a, b)
    return _atom("max", *sorted((a, b), key=str)) if absorbed is None else absorbed


def dim_min(a: int | Dim, b: int | Dim) -> int | Dim:
    low, high = _bounds(a - b)
    if low >= 0:
        return b
    if high <= 0:
        return a
    absorbed = _absorbed("min", a, b)
    return _atom("min", *sorted((a, b), key=str)) if absorbed is None else absorbed


def _absorbed(kind: str, a: int | Dim, b: int | Dim) -> Dim | None:
    """max(x, max(x, y)) is max(x, y), and so for min."""
    for outer, inner in ((a, b), (b, a)):
        atom = _single_atom(inner)
        if atom is not None and atom.kind == kind and outer in atom.args and isinstance(inner, Dim):
            return inner
    return None


def _single_atom(d: int | Dim) -> DimAtom | None:
    """The atom that `d` consists of, when it is nothing else."""
    if isinstance(d, int) or len(d.terms) != 1 or d.terms[0][1] != 1 or len(d.terms[0][0]) != 1:
        return None
    (factor,) = d.terms[0][0]
    return factor if isinstance(factor, DimAtom) else None


_FUNCTIONS: dict[str, Callable[[int | Dim, int | Dim], int | Dim]] = {
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": mod,
    "max": dim_max,
    "min": dim_min,
}

_NAME = re.compile(r"[A-Za-z_]\w*")
# Words that mean something else where dims are written.
_RESERVED = frozenset(_FUNCTIONS) | {"True", "False", "None", "inf", "nan"}
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
        if self.peek() == "(" and token in _FUNCTIONS:
            self.take("(")
            left = self.sum()
            self.take(",")
            right = self.sum()
            self.take(")")
            return _FUNCTIONS[token](left, right)
        if not _NAME.fullmatch(token):
            raise self.fail(f"unexpected {token[:80]!r}")
        return Dim.symbol(token)


def as_dim(value: int | str | Dim) -> int | Dim:
    """A dim from what users write: 4, "B", "B*S + 1", or a Dim. Sizes are never negative."""
    if isinstance(value, Dim):
        return value
    if isinstance(value, str):
        value = parse_dim(value)
        if isinstance(value, Dim):
            return value
    try:
        size = value.__index__()
    except AttributeError:
        raise ShapeError(f"{value!r} is not a dimension; use an int, a name like 'B', or an expression") from None
    if not 0 <= size <= LARGEST_SIZE:
        if size > 0:
            raise ShapeError(f"a dimension must be less than 2**63, got one of {size.bit_length()} bits")
        raise ShapeError(f"a dimension cannot be negative, got {size if size >= -LARGEST_SIZE else 'a large number'}")
    return size


def as_offset(value: int | str | Dim) -> int | Dim:
    """Like `as_dim` for amounts that may be negative, such as padding."""
    if isinstance(value, str):
        value = parse_dim(value)
    if isinstance(value, Dim):
        return value
    if not -LARGEST_SIZE <= (amount := value.__index__()) <= LARGEST_SIZE:
        raise ShapeError(f"an amount must be between -2**63 and 2**63, got one of {amount.bit_length()} bits")
    return amount


def bind_dim(value: int | Dim, binding: Mapping[str, int | Dim]) -> int | Dim:
    return value if isinstance(value, int) else value.bind(binding)


def product(dims: Iterable[int | Dim]) -> int | Dim:
    total: int | Dim = 1
    for d in dims:
        total = total * d
    return total


def dims_equal(a: int | Dim, b: int | Dim) -> bool | None:
    """True or False when the answer holds for every binding, None when only a binding can tell.

    >>> dims_equal(as_dim("S"), as_dim("S+1")), dims_equal(as_dim("B"), as_dim("S"))
    (False, None)
    """
    low, high = _bounds(a - b)
    if low == high == 0:
        return True
    return False if low > 0 or high < 0 else None


@dataclass(frozen=True)
class DimConstraint:
    """`left == right` or `left <= right` must hold at run time; `reason` says which op needs it."""

    left: int | Dim
    right: int | Dim
    reason: str
    relation: str = "=="

    def __post_init__(self) -> None:
        if self.relation not in _RELATIONS:
            raise ParseError(f"{self.relation!r} does not relate two sizes; use {' or '.join(_RELATIONS)}")

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The names both sides depend on."""
        return frozenset(s for d in (self.left, self.right) if isinstance(d, Dim) for s in d.symbols)

    def bind(self, binding: Mapping[str, int | Dim]) -> DimConstraint:
        left, right = bind_dim(self.left, binding), bind_dim(self.right, binding)
        return DimConstraint(left, right, self.reason, self.relation)

    def check(self, binding: Mapping[str, int]) -> None:
        left, right = bind_dim(self.left, binding), bind_dim(self.right, binding)
        if not _RELATIONS[self.relation](left, right):
            sizes = ", ".join(f"{k}={v}" for k, v in sorted(binding.items()))
            raise BindingError(
                f"{self.reason} needs {self.left} {self.relation} {self.right}, but with {sizes} they are {left} and "
                f"{right}; pass arrays of sizes for which it holds"
            )


def distinct(constraints: Iterable[DimConstraint]) -> tuple[DimConstraint, ...]:
    """The constraints without those that an earlier one says already, as every layer of a model does."""
    found: dict[tuple[int | Dim, str, int | Dim], DimConstraint] = {}
    for c in constraints:
        found.setdefault((c.left, c.relation, c.right), c)
    return tuple(found.values())


# What a constraint demands of its two sides, both bound to ints.
_RELATIONS: dict[str, Callable[[int | Dim, int | Dim], bool]] = {
    "==": lambda left, right: left == right,
    "<=": lambda left, right: left <= right,
}

_collected: ContextVar[list[DimConstraint] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_constraints(into: list[DimConstraint]) -> Iterator[None]:
    """While active, undecided equalities and inequalities are recorded in `into`; otherwise they are let pass."""
    token = _collected.set(into)
    try:
        yield
    finally:
        _collected.reset(token)


def _record(left: int | Dim, right: int | Dim, reason: str, relation: str) -> None:
    collector = _collected.get()
    if collector is not None:
        collector.append(DimConstraint(left, right, reason, relation))


def require_equal(a: int | Dim, b: int | Dim, reason: str) -> bool:
    """False when a != b for certain; otherwise True, with a run-time constraint when it is not certain."""
    if a is b or a == b:
        return True
    answer = dims_equal(a, b)
    if answer is None:
        _record(a, b, reason, "==")
        return True
    return answer


def require_at_most(left: int | Dim, right: int | Dim, reason: str) -> bool:
    """False when left > right for certain; otherwise True, with a run-time constraint when it is not certain.

    >>> require_at_most(as_dim("S"), as_dim("S+1"), "narrow"), require_at_most(as_dim("S+1"), as_dim("S"), "narrow")
    (True, False)
    """
    answer = _at_most(left, right)
    if answer is None:
        _record(left, right, reason, "<=")
        return True
    return answer


def _at_most(left: int | Dim, right: int | Dim) -> bool | None:
    """Whether left <= right holds for every binding or for none; None when only a binding can tell."""
    if isinstance(left, int):
        if isinstance(right, int):
            return left <= right
        lowest, highest = _bounds(right)
        low, high = left - highest, left - lowest
    else:
        low, high = _bounds(left - right)
    if high <= 0:
        return True
    if low > 0:
        return False
    atom = _single_atom(left)
    if atom is not None and atom.kind in ("max", "min"):
        # The larger one of two is at most `right` when both are, the smaller one when either is.
        sides = [_at_most(a, right) is True for a in atom.args]
        if all(sides) or (atom.kind == "min" and any(sides)):
            return True
    return None


def require_again(constraint: DimConstraint) -> None:
    """A constraint of a body, demanded of the program that uses the body."""
    if isinstance(constraint.left, Dim) or isinstance(constraint.right, Dim):
        _record(constraint.left, constraint.right, constraint.reason, constraint.relation)


class sym:
    """The well-known dims of the seed documents; flattened rows are the product, not a symbol of their own."""

    BATCH = Dim.symbol("B")
    SEQ = Dim.symbol("S")
    ROWS = parse_dim("B*S")
    PAST_SEQ = Dim.symbol("P")


class DimEnv:
    """Hands out one Dim per name, so that equal names mean equal sizes."""

    def __init__(self) -> None:
        self._symbols: dict[str, Dim] = {}

    def sym(self, name: str) -> Dim:
        return self._symbols.setdefault(name, Dim.symbol(name))

    def name(self, symbol: Dim) -> str | None:
        return next((n for n, s in self._symbols.items() if s == symbol), None)

    def __contains__(self, name: Any) -> bool:
        return name in self._symbols
