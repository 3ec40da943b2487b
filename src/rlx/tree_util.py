"""`rlx.tree_util`: the functions of `rlx.tree` under the longer names that `jax.tree_util` has.

rlx.tree_util.tree_map(lambda x: 2 * x, {"a": 1, "b": (2, 3)})
"""

from __future__ import annotations

import functools
from typing import Any

from rlx.trace.pytree import (
    Path,
    path_text,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_static,
    tree_all,
    tree_broadcast,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_leaves_with_path,
    tree_map,
    tree_map_with_path,
    tree_reduce,
    tree_reduce_associative,
    tree_structure,
    tree_transpose,
    tree_unflatten,
)
from rlx.trace.pytree import TreeDef as PyTreeDef
from rlx.trace.pytree import are_leaves as all_leaves

__all__ = [
    "Partial",
    "PyTreeDef",
    "all_leaves",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
]


def keystr(keys: Path, *, simple: bool = False, separator: str = "") -> str:
    """A path as text, `p.layers.0.w`; with `simple`, its keys with a separator of one's own between them."""
    return separator.join(map(str, keys)) if simple else path_text(keys)


class Partial(functools.partial[Any]):
    """A function with some arguments given, as a tree: the arguments are its leaves, so that it can be an argument of
    a compiled function."""


register_pytree_node(
    Partial,
    lambda p: ((p.args, p.keywords), p.func),
    lambda func, parts: Partial(func, *parts[0], **parts[1]),
)
