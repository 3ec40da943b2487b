"""The text of a program that is being compiled, printed once: both caches have keys that are made of it.

with printed(graph, text):
    text_of(graph)      # the text, as long as nobody asks for that of another graph
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rlx.ir.graph import Graph

_printed: ContextVar[tuple[Graph, str] | None] = ContextVar("rlx_printed", default=None)


@contextmanager
def printed(graph: Graph, text: str) -> Iterator[None]:
    """Let `text_of` know the text of a graph that nobody changes inside."""
    token = _printed.set((graph, text))
    try:
        yield
    finally:
        _printed.reset(token)


def text_of(graph: Graph) -> str:
    """The text of a graph."""
    known = _printed.get()
    return known[1] if known is not None and known[0] is graph else str(graph)
