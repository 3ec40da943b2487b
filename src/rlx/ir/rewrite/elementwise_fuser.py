"""How chains of element-wise ops are joined, told to those who come before the fusion passes."""

from __future__ import annotations

from collections.abc import Callable

from rlx.ir.graph import Graph

_fuser: list[Callable[[Graph], Graph]] = []


def set_elementwise_fuser(fuse: Callable[[Graph], Graph]) -> None:
    """Called by the fusion package when it is loaded."""
    _fuser[:] = [fuse]


def fuse_elementwise(graph: Graph) -> Graph:
    """The graph with its elementwise chains fused, if the fusion package is loaded."""
    return _fuser[0](graph) if _fuser else graph
