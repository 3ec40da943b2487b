"""Targets for which rlx writes the kernels itself, and what their generators can compute inside of one.

Generators stand after this folder; they make themselves known here, and are loaded when a compile asks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.compile.grouping import Pointwise

_lock = threading.Lock()
# Replaced as a whole when one is added: readers need no lock.
_generators: dict[str, Callable[[], Pointwise]] = {}


def register_generator(target: str, pointwise: Callable[[], Pointwise]) -> None:
    """Compile programs for `target` by grouping ops into generated kernels; `pointwise()` says which it can join."""
    global _generators
    with _lock:
        _generators = {**_generators, target: pointwise}


def generator_for(target: str) -> Pointwise | None:
    """What the generator of a target can compute inside of a kernel; None for targets with kernels of their own."""
    found = _generators.get(str(target))
    return None if found is None else found()
