"""Questions about fixed shapes that model code can settle when it is imported.

static_assert(matmul_compat((4, 8), (8, 2)), "the projection does not fit the hidden size")
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import prod

from rlx.errors import VerificationError


def rank_eq(dims: Sequence[int], rank: int) -> bool:
    return len(dims) == rank


def rank_at_least(dims: Sequence[int], rank: int) -> bool:
    return len(dims) >= rank


def shape_elements(dims: Sequence[int]) -> int:
    """The element count; 1 for a scalar."""
    return prod(dims)


def broadcastable(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether the shapes broadcast as in NumPy.

    >>> broadcastable((4, 1, 3), (5, 3)), broadcastable((4, 2), (3,))
    (True, False)
    """
    pairs = zip_longest(reversed(a), reversed(b), fillvalue=1)
    return all(x == y or x == 1 or y == 1 for x, y in pairs)


def matmul_compat(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether `[.., M, K] @ [.., K, N]` is defined: both of rank 2 or more, equal K, batch axes broadcast."""
    if len(a) < 2 or len(b) < 2:
        return False
    return a[-1] == b[-2] and broadcastable(a[:-2], b[:-2])


def static_assert(condition: bool, message: str) -> None:
    """Raise unless `condition` holds; unlike `assert` it is not removed by `python -O`."""
    if not condition:
        raise VerificationError(f"static assertion failed: {message}")
