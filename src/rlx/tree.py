"""`rlx.tree`: functions on pytrees, under short names (`rlx.tree.map(f, tree)`). See `rlx.trace.pytree`."""

from rlx.trace.pytree import TreeDef as TreeDef
from rlx.trace.pytree import path_text as path_text
from rlx.trace.pytree import register_dataclass as register_dataclass
from rlx.trace.pytree import register_pytree_node as register_pytree_node
from rlx.trace.pytree import register_pytree_node_class as register_pytree_node_class
from rlx.trace.pytree import static as static
from rlx.trace.pytree import tree_all as all
from rlx.trace.pytree import tree_broadcast as broadcast
from rlx.trace.pytree import tree_flatten as flatten
from rlx.trace.pytree import tree_flatten_with_path as flatten_with_path
from rlx.trace.pytree import tree_leaves as leaves
from rlx.trace.pytree import tree_leaves_with_path as leaves_with_path
from rlx.trace.pytree import tree_map as map
from rlx.trace.pytree import tree_map_with_path as map_with_path
from rlx.trace.pytree import tree_reduce as reduce
from rlx.trace.pytree import tree_reduce_associative as reduce_associative
from rlx.trace.pytree import tree_structure as structure
from rlx.trace.pytree import tree_transpose as transpose
from rlx.trace.pytree import tree_unflatten as unflatten
from rlx.trace.ravel import ravel_pytree as ravel_pytree

__all__ = [
    "TreeDef",
    "all",
    "broadcast",
    "flatten",
    "flatten_with_path",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "path_text",
    "ravel_pytree",
    "reduce",
    "reduce_associative",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "static",
    "structure",
    "transpose",
    "unflatten",
]
