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

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rlx.errors import BindingError, ParseError, ShapeError
from rlx.ir.dim_algebra import (
    MOST_FACTORS,
    Dim,
    at_most,
    bind_dim,
    ceildiv,
    dim_max,
    dim_min,
    dims_equal,
    floordiv,
    mod,
    product,
)
from rlx.ir.dim_text import LARGEST_SIZE, parse_dim

__all__ = [
    "LARGEST_SIZE",
    "MOST_FACTORS",
    "Dim",
    "DimConstraint",
    "DimEnv",
    "as_dim",
    "as_offset",
    "bind_dim",
    "ceildiv",
    "collect_constraints",
    "dim_max",
    "dim_min",
    "dims_equal",
    "distinct",
    "floordiv",
    "mod",
    "parse_dim",
    "product",
    "require_again",
    "require_at_most",
    "require_equal",
    "sym",
]


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
    answer = at_most(left, right)
    if answer is None:
        _record(left, right, reason, "<=")
        return True
    return answer


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
