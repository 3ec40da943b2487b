"""`pure_callback` and `debug_callback`: a Python function on NumPy arrays as a part of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlx.ir.tensor import target_graph
from rlx.ops.control.effects import host_callback
from rlx.trace.pytree import tree_flatten, tree_leaves
from rlx.trace.tracing import spec_of


def pure_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, vmap_method: str | None = None, **kwargs: Any
) -> Any:
    """callback(*args, **kwargs) on NumPy arrays while the program runs; arguments and results are trees.

    `result_shape_dtypes` is a tree of `Spec`s or arrays like the result. Under `vmap` the function is called for every
    element (as `vmap_method="sequential"`; others are accepted and mean the same). It has no derivative: see
    `rlx.custom_vjp`.
    """
    leaves, tree = tree_flatten((args, kwargs))
    if target_graph(leaves) is None:
        return callback(*args, **kwargs)
    types, out_tree = tree_flatten(result_shape_dtypes)

    def run(*arrays: Any) -> Any:
        given, named = tree.unflatten(arrays)
        return tuple(tree_leaves(callback(*given, **named)))

    run.__qualname__ = getattr(callback, "__qualname__", type(callback).__name__)
    run.__module__ = getattr(callback, "__module__", __name__)
    found = host_callback(run, [spec_of(t, "pure_callback: a result").type for t in types], *leaves)
    return out_tree.unflatten(found if isinstance(found, tuple) else (found,))


def debug_callback(callback: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """callback(*args, **kwargs) on NumPy arrays, when the program gets to this place; what it returns is dropped.

    Effects keep their order, so that `ordered` changes nothing. Outside of a program it is called at once. Derivatives
    and `vmap` leave the call in place; under `vmap` it is made for every element.
    """
    leaves, tree = tree_flatten((args, kwargs))
    if target_graph(leaves) is None:
        callback(*args, **kwargs)
        return

    def run(*arrays: Any) -> None:
        given, named = tree.unflatten(arrays[: len(leaves)])
        callback(*given, **named)

    run.__qualname__ = getattr(callback, "__qualname__", type(callback).__name__)
    run.__module__ = getattr(callback, "__module__", __name__)
    # The op passes its first operand on; without one, a constant stands in.
    host_callback(run, None, *(leaves or [np.int32(0)]))
