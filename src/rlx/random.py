"""Random numbers from explicit keys, with the names and argument order that JAX users expect.

    key = rlx.random.key(0)
    key, sub = rlx.random.split(key)
    x = rlx.random.normal(sub, (3, 4))

A key gives the same numbers every time and everywhere; `rlx.ops.random.randomness` defines them bit by bit. Use every
key once.
"""

from __future__ import annotations

import typing as _typing
from typing import Any

from rlx.foreign_names import no_attribute as _no_attribute
from rlx.ops.random import randomness
from rlx.ops.random.randomness import (
    bernoulli,
    bits,
    categorical,
    choice,
    exponential,
    fold_in,
    gumbel,
    key,
    normal,
    permutation,
    randint,
    split,
    truncated_normal,
    uniform,
)
from rlx.random_distributions import *  # noqa: F403
from rlx.random_distributions import __all__ as _distributions

__all__ = [
    "PRNGKey",
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "dropout",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "randint",
    "split",
    "truncated_normal",
    "uniform",
    *_distributions,
]

PRNGKey = key


def dropout(key: Any, x: Any, rate: Any) -> Any:
    """x with every element set to 0 with probability `rate`, the others divided by 1 - rate."""
    return randomness.dropout(x, rate, key)


# Type checkers must go on to find names that do not exist.
if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        _no_attribute("rlx.random", name)
