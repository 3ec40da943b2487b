"""Targets for which rlx writes the kernels itself, and what their generators have kernels for.

Generators stand after this folder. They make themselves known here, which `rlx.backends` does when it is imported, and
are loaded when a compile asks for them.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node


class OwnKernel(NamedTuple):
    """A kernel that computes one op as a whole: attention, a sort, a scatter.

    Operands numbered in `strided` are read by a stride per axis, so that views of them need no copy; all others lie in
    memory as their shapes say. The result may be stored over the operand `updates`, of which the op changes a part.
    """

    kind: str
    strided: frozenset[int] = frozenset()
    updates: int | None = None


class Generator(NamedTuple):
    """What a generator can do with a node: compute it inside a map, a row or an epilogue, or by a kernel of its own.

    `panel_width(dtype, n)` is how many columns of a weight with n of them its products read side by side, for sums of
    a type; None if they have no use for panels. `has_pairs(dtype)` says that products of a type read them in panels of
    pairs, as `rlx.compile.panels` has them.
    """

    is_pointwise: Callable[[Graph, Node], bool]
    own_kernel: Callable[[Graph, Node], OwnKernel | None]
    panel_width: Callable[[DType, int], int] | None = None
    has_pairs: Callable[[DType], bool] = lambda dtype: False


_lock = threading.Lock()
# Replaced as a whole when one is added: readers need no lock.
_generators: dict[str, Callable[[], Generator]] = {}


def register_generator(target: str, generator: Callable[[], Generator]) -> None:
    """Compile programs for `target` by grouping ops into generated kernels."""
    global _generators
    with _lock:
        _generators = {**_generators, target: generator}


def generator_for(target: str) -> Generator | None:
    """The generator of a target; None for targets with kernels of their own."""
    if not _generators:
        # A program may be compiled by those who never run one, and have not imported what runs it.
        importlib.import_module("rlx.backends")
    found = _generators.get(str(target))
    return None if found is None else found()
