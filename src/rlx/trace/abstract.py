"""What a function makes of types, without running it: `eval_shape` and `make_graph`.

>>> import rlx.ops
>>> eval_shape(lambda x: {"sum": x.sum(), "twice": x * 2}, Spec(("B", 4)))
{'sum': Spec(f32[]), 'twice': Spec(f32[B,4])}
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from rlx.ir.graph import Graph
from rlx.trace.tracing import Spec as Spec
from rlx.trace.tracing import trace

__all__ = ["eval_shape", "make_graph"]


def eval_shape(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The types of what `fn` returns, as a tree of `Spec`s. Arguments are arrays, `Spec`s or types as text."""
    return trace(fn, *args, **kwargs).out_specs


def make_graph(
    fn: Callable[..., Any],
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    return_shape: bool = False,
) -> Callable[..., Any]:
    """A function that gives the graph of `fn` for its arguments, as `jax.make_jaxpr` gives a jaxpr.

    With `return_shape` the result is `(graph, tree of Specs)`.
    """

    @functools.wraps(fn, updated=())
    def made(*args: Any, **kwargs: Any) -> Graph | tuple[Graph, Any]:
        traced = trace(fn, *args, static_argnums=static_argnums, static_argnames=static_argnames, **kwargs)
        return (traced.graph, traced.out_specs) if return_shape else traced.graph

    return made
