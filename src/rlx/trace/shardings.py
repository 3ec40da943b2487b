"""Shardings of trees: `with_sharding_constraint`, and what `jit(in_shardings=, out_shardings=)` means.

y = rlx.with_sharding_constraint({"w": w, "b": b}, rlx.NamedSharding(mesh, rlx.P("x")))     # one for all
"""

from __future__ import annotations

from typing import Any

from rlx.errors import ShardingError, TreeError
from rlx.ops.parallel.sharding_constraint import ShardingConstraint
from rlx.sharding import NamedSharding
from rlx.trace.pytree import broadcast_prefix, tree_flatten, tree_leaves


def is_entry(value: Any) -> bool:
    """A sharding, or None where the compiler chooses."""
    return value is None or isinstance(value, NamedSharding)


def shardings_of(prefix: Any, tree: Any, what: str) -> list[NamedSharding | None]:
    """One sharding per leaf of a tree; a sharding stands for everything below its place, None for a free choice."""
    for entry in tree_leaves(prefix, is_entry):
        if not is_entry(entry):
            raise ShardingError(
                f"{what}: a NamedSharding or None is needed, got {entry!r}; NamedSharding(mesh, P('x'))"
            )
    try:
        return broadcast_prefix(prefix, tree, is_entry)
    except TreeError as error:
        raise ShardingError(f"{what}: the shardings do not fit the values: {error}") from None


def constrained(x: Any, sharding: NamedSharding | None) -> Any:
    return x if sharding is None else ShardingConstraint(sharding)(x)


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """A tree of values whose parts lie as shardings say: one for all of them, or a tree of shardings above them.

    Where programs are not divided over devices, it changes nothing.
    """
    leaves, structure = tree_flatten(x)
    chosen = shardings_of(shardings, x, "with_sharding_constraint")
    return structure.unflatten([constrained(leaf, s) for leaf, s in zip(leaves, chosen)])
