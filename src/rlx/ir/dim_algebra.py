"""The algebra of symbolic sizes: polynomials over symbols and atoms, in one normal form.

In: ints, dims, symbols. Out: an int, or a `Dim` in normal form: what is equal by these rules prints and hashes alike.

    >>> s = Dim.symbol("S")
    >>> (s + 1) * 2 - 2 * s, (s * 4) // 4, s - dim_min(s, 1)
    (2, S, max(0, S - 1))
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from rlx.errors import ShapeError, TraceError

# What a dim may hold, more than programs need: files come from anywhere, and the time that a dim takes grows with its
# factors and with those inside of its atoms (splatting in training has 2,456).
MOST_FACTORS, MOST_INNER_FACTORS = 1024, 2**17

# Larger atoms and sums are not looked into, and comparisons go this deep: what a program writes is small, and
# the time that both take multiplies with each level.
_SMALL, _DEEP, _MOST_TERMS = 24, 2, 64

# The lowest or highest value of a dim: an int, since floats round large ones, or an infinity.
_Bound = int | float


class DimAtom:
    """An opaque function of dims: floordiv, ceildiv, mod, max or min of two arguments."""

    __slots__ = ("_bounds", "_hash", "_text", "args", "factors", "kind")

    def __init__(self, kind: str, args: tuple[int | Dim, ...]) -> None:
        self.kind = kind
        self.args = args
        self.factors = 1 + sum(_count_factors(m) for a in args for m, _ in _terms(a))
        if self.factors > MOST_INNER_FACTORS:
            raise _too_long()
        self._hash = hash((kind, args))
        self._text: str | None = None
        self._bounds: tuple[_Bound, _Bound] | None = None

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
        if not NAME.fullmatch(name) or name in _RESERVED:
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
                    product = product * FUNCTIONS[factor.kind](*(bind_dim(a, binding) for a in factor.args))
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


def _decided(a: Dim, sign: str, b: int | Dim, decide: Callable[[_Bound, _Bound], bool | None]) -> bool:
    answer = decide(*_bounds(a - b))
    if answer is None:
        _undecided(f"whether {a} {sign} {b}")
    return answer


def _bounds(d: int | Dim) -> tuple[_Bound, _Bound]:
    """Lowest and highest value of `d`, given only that symbols are >= 0; of several terms each by itself."""
    if isinstance(d, int):
        return d, d
    low: _Bound = 0
    high: _Bound = 0
    for monomial, coefficient in d.terms:
        lowest, highest = _product_bounds(monomial)
        if coefficient < 0:
            lowest, highest = highest, lowest
        low, high = _plus(low, _times(lowest, coefficient)), _plus(high, _times(highest, coefficient))
    return low, high


# A low bound is never +inf, and a high one never -inf, so that sums are never NaN. Ints may be too large for a float.


def _plus(a: _Bound, b: _Bound) -> _Bound:
    return a if isinstance(a, float) else b if isinstance(b, float) else a + b


def _times(a: _Bound, b: _Bound) -> _Bound:
    if a == 0 or b == 0:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return math.inf if (a > 0) == (b > 0) else -math.inf


def _product_bounds(monomial: _Monomial) -> tuple[_Bound, _Bound]:
    if len(monomial) == 1:
        return _factor_bounds(monomial[0])
    low: _Bound = 1
    high: _Bound = 1
    for factor in monomial:
        lowest, highest = _factor_bounds(factor)
        if lowest < 0:
            return -math.inf, math.inf
        low, high = _times(low, lowest), _times(high, highest)
    return low, high


def _factor_bounds(factor: _Factor) -> tuple[_Bound, _Bound]:
    if isinstance(factor, str):
        return 0, math.inf
    if factor._bounds is None:
        factor._bounds = _atom_bounds(factor)
    return factor._bounds


def _atom_bounds(factor: DimAtom) -> tuple[_Bound, _Bound]:
    (low, high), (other_low, other_high) = (_bounds(a) for a in factor.args)
    if factor.kind == "max":
        return max(low, other_low), max(high, other_high)
    if factor.kind == "min":
        return min(low, other_low), min(high, other_high)
    by = factor.args[1]
    if factor.kind == "mod":
        return 0, _plus(other_high, -1)
    if isinstance(by, int):
        up = by - 1 if factor.kind == "ceildiv" else 0
        quotients = [b if isinstance(b, float) else (b + up) // by for b in (low, high)]
        return quotients[0], quotients[1]
    return (0, max(high, 0)) if low >= 0 and other_low >= 0 else (-math.inf, math.inf)


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
    has_many = len(table) > _MOST_TERMS
    if not has_many and any(len(m) == 1 and isinstance(m[0], DimAtom) and m[0].kind in _OPPOSITE for m in table):
        table = _with_complements(table)
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


_OPPOSITE = {"max": "min", "min": "max"}


def _with_complements(table: dict[_Monomial, int]) -> dict[_Monomial, int]:
    """The sum with what max and min of the same two make up: S - min(1, S) is max(0, S - 1).

    Sizes of slices of slices would double each time otherwise. By max(k, d) + min(k, d) = k + d, each can be added and
    the other two taken away, which is done as often as it makes their numbers smallest: the median is where the sum of
    three distances is. It is always the same form, whatever the order in which a sum was built.
    """
    for (k, rest), members in sorted(_limited(table).items(), key=lambda found: (found[0][0], str(found[0][1]))):
        counts = {"max": 0, "min": 0}
        constant = 0
        for monomial, kind, sign, offset in members:
            counts[kind] += sign * table.get(monomial, 0)
            constant += offset * table.get(monomial, 0)
        own = {m for m, *_ in members}
        others = {m: c for m, c in table.items() if m not in own}
        times = sorted((-counts["max"], -counts["min"], _whole_times(others, rest)))[1]
        if times == 0:
            continue
        parts = [tuple(others.items()), _terms(constant - times * k), _terms(rest * -times)]
        if count := counts["max"] + times:
            parts += [_terms(dim_max(0, rest - k) * count), _terms(k * count)]
        if count := counts["min"] + times:
            parts.append(_terms(dim_min(k, rest) * count))
        table = _sum(*parts)
    return table


def _limited(table: dict[_Monomial, int]) -> dict[tuple[int, Dim], list[tuple[_Monomial, str, int, int]]]:
    """Atoms that are offset + sign·max(k, rest), or min, by (k, rest): rest has no constant and begins with +."""
    found: dict[tuple[int, Dim], list[tuple[_Monomial, str, int, int]]] = {}
    for monomial in table:
        if len(monomial) != 1 or not isinstance(monomial[0], DimAtom) or monomial[0].kind not in _OPPOSITE:
            continue
        if monomial[0].factors > _SMALL:
            continue
        kind, (k, d) = monomial[0].kind, sorted(monomial[0].args, key=lambda a: isinstance(a, Dim))
        if not isinstance(k, int) or isinstance(d, int):
            continue
        offset = dict(d.terms).get((), 0)
        rest, sign = d - offset, 1
        assert isinstance(rest, Dim)
        k -= offset
        if rest.terms[0][1] < 0:
            kind, k, rest, sign = _OPPOSITE[kind], -k, rest * -1, -1
            assert isinstance(rest, Dim)
        found.setdefault((k, rest), []).append((monomial, kind, sign, offset))
    return found


def _whole_times(table: dict[_Monomial, int], rest: Dim) -> int:
    """How often `rest` is contained in a sum; negative when -rest is."""
    times = []
    for monomial, coefficient in rest.terms:
        size, contained = abs(coefficient), table.get(monomial, 0) * (1 if coefficient > 0 else -1)
        times.append(contained // size if contained > 0 else -(-contained // size))
    return min(times) if min(times) > 0 else max(times) if max(times) < 0 else 0


def _count_factors(monomial: _Monomial) -> int:
    return 1 + sum(1 if isinstance(f, str) else f.factors for f in monomial)


def _too_long() -> ShapeError:
    return ShapeError(
        f"a dimension would have more than {MOST_FACTORS} factors, or {MOST_INNER_FACTORS} inside of floordiv, mod, "
        "max and the like; give a part of it a name of its own"
    )


def _atom(kind: str, *args: int | Dim) -> Dim:
    return Dim((((DimAtom(kind, args),), 1),))


def _times_a_sum(a: int | Dim, divisor: Sequence[tuple[_Monomial, int]]) -> int | None:
    """The number that every term of a sum was multiplied by to give `a`; None where there is none."""
    given, wanted = dict(_terms(a)), dict(divisor)
    if given.keys() != wanted.keys():
        return None
    monomial, coefficient = divisor[0]
    times, left = divmod(given[monomial], coefficient)
    return times if not left and all(given[m] == times * c for m, c in divisor) else None


def _split_quotient(a: int | Dim, b: int | Dim) -> tuple[int | Dim, int | Dim]:
    """(q, r) with a = q*b + r, q taking every term of a that b divides; a sum divides whole multiples of itself."""
    divisor = _terms(b)
    if len(divisor) != 1:
        times = _times_a_sum(a, divisor)
        return (0, a) if times is None else (times, 0)
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
    return quotient + _quotient("floordiv", rest, b)


def ceildiv(a: int | Dim, b: int | Dim) -> int | Dim:
    _check_divisor(a, b)
    quotient, rest = _split_quotient(a, b)
    if isinstance(rest, int) and (rest == 0 or isinstance(b, int)):
        return quotient + (-(-rest // b) if rest else 0)
    return quotient + _quotient("ceildiv", rest, b)


def _quotient(kind: str, a: int | Dim, b: int | Dim) -> Dim:
    """A quotient of a quotient is one by the product."""
    inner = _single_atom(a)
    if inner is not None and inner.kind == kind and isinstance(b, int) and isinstance(inner.args[1], int):
        return _atom(kind, inner.args[0], inner.args[1] * b)
    return _atom(kind, a, b)


def mod(a: int | Dim, b: int | Dim) -> int | Dim:
    _check_divisor(a, b)
    _, rest = _split_quotient(a, b)
    if isinstance(rest, int) and (rest == 0 or isinstance(b, int)):
        return rest % b if rest else 0
    return _atom("mod", rest, b)


def dim_max(a: int | Dim, b: int | Dim) -> int | Dim:
    return _extreme("max", a, b)


def dim_min(a: int | Dim, b: int | Dim) -> int | Dim:
    return _extreme("min", a, b)


def _extreme(kind: str, a: int | Dim, b: int | Dim) -> int | Dim:
    """The larger or the smaller one of two; what is known to be neither, here or inside of an operand, is left out."""
    if _is_beside(kind, a, b):
        return a
    if _is_beside(kind, b, a):
        return b
    for one, other in ((a, b), (b, a)):
        sides = _sides(kind, one)
        for side, left in (sides, sides[::-1]) if sides else ():
            if _is_beside(kind, other, side):
                return _extreme(kind, left, other)
            if _is_beside(kind, side, other):
                return one
    return _atom(kind, *sorted((a, b), key=str))


def _is_beside(kind: str, a: int | Dim, b: int | Dim) -> bool:
    """Whether max(a, b), or min(a, b), is a."""
    return (at_most(b, a) if kind == "max" else at_most(a, b)) is True


def _sides(kind: str, d: int | Dim) -> tuple[int | Dim, int | Dim] | None:
    """u and v of a dim that is max(u, v), or min(u, v), but for a constant and its sign."""
    if isinstance(d, int):
        return None
    terms = dict(d.terms)
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, coefficient),) = terms.items()
    if len(monomial) != 1 or not isinstance(monomial[0], DimAtom):
        return None
    atom = monomial[0]
    if (
        atom.factors > _SMALL
        or atom.kind not in _OPPOSITE
        or atom.kind != (kind if coefficient > 0 else _OPPOSITE[kind])
    ):
        return None
    u, v = (a * coefficient + constant for a in atom.args)
    return u, v


def _single_atom(d: int | Dim) -> DimAtom | None:
    """The atom that `d` consists of, when it is nothing else."""
    if isinstance(d, int) or len(d.terms) != 1 or d.terms[0][1] != 1 or len(d.terms[0][0]) != 1:
        return None
    (factor,) = d.terms[0][0]
    return factor if isinstance(factor, DimAtom) else None


FUNCTIONS: dict[str, Callable[[int | Dim, int | Dim], int | Dim]] = {
    "floordiv": floordiv,
    "ceildiv": ceildiv,
    "mod": mod,
    "max": dim_max,
    "min": dim_min,
}

NAME = re.compile(r"[A-Za-z_]\w*")
# Words that mean something else where dims are written.
_RESERVED = frozenset(FUNCTIONS) | {"True", "False", "None", "inf", "nan"}


def bind_dim(value: int | Dim, binding: Mapping[str, int | Dim]) -> int | Dim:
    return value if isinstance(value, int) else value.bind(binding)


def product(dims: Iterable[int | Dim]) -> int | Dim:
    total: int | Dim = 1
    for d in dims:
        total = total * d
    return total


def dims_equal(a: int | Dim, b: int | Dim) -> bool | None:
    """True or False when the answer holds for every binding, None when only a binding can tell.

    >>> s = Dim.symbol("S")
    >>> dims_equal(s, s + 1), dims_equal(s, Dim.symbol("B"))
    (False, None)
    """
    low, high = _bounds(a - b)
    if low == high == 0:
        return True
    return False if low > 0 or high < 0 else None


def at_most(left: int | Dim, right: int | Dim, depth: int = _DEEP) -> bool | None:
    """Whether left <= right holds for every binding or for none; None when only a binding can tell."""
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    difference = left - right
    low, high = _bounds(difference)
    if high <= 0:
        return True
    if low > 0:
        return False
    if depth == 0:
        return None
    # What both have in common may hide an atom, and what an atom is made of may be lost in the difference.
    added, removed = ({m: c for m, c in _terms(difference * sign) if c > 0} for sign in (1, -1))
    is_less = _is_less(_small_atom(left), left, _small_atom(right), right, depth - 1)
    if not is_less and len(added) == len(removed) == 1:
        less, more = _normal(added), _normal(removed)
        is_less = _is_less(_small_atom(less), less, _small_atom(more), more, depth - 1)
    return True if is_less else None


def _small_atom(d: int | Dim) -> DimAtom | None:
    atom = _single_atom(d)
    return None if atom is None or atom.factors > _SMALL else atom


def _is_less(small: DimAtom | None, left: int | Dim, large: DimAtom | None, right: int | Dim, depth: int) -> bool:
    """Whether left <= right by what the atoms mean that they consist of, if they do."""
    if small is not None and small.kind in _OPPOSITE:
        # The larger one of two is at most `right` when both are, the smaller one when either is.
        sides = [at_most(a, right, depth) is True for a in small.args]
        if all(sides) or (small.kind == "min" and any(sides)):
            return True
    if large is not None and large.kind in _OPPOSITE:
        sides = [at_most(left, a, depth) is True for a in large.args]
        if all(sides) or (large.kind == "max" and any(sides)):
            return True
    if small is not None and small.kind in ("floordiv", "ceildiv") and isinstance(small.args[1], int):
        # A part of what is not negative is at most the whole, and at most a larger part.
        whole, by = small.args
        if large is not None and large.kind == small.kind and large.args[0] == whole and isinstance(large.args[1], int):
            return large.args[1] <= by and _bounds(whole)[0] >= 0
        return _bounds(whole)[0] >= 0 and at_most(whole, right, depth) is True
    return False
