"""LIR to executables, one folder per target. A folder with a module `target` is found by its name and loaded when asked
for; see `rlx.compile.target`."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """`rlx.backends.cuda` and its like, imported when they are asked for."""
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.backends' has no attribute {name!r}")
    try:
        return importlib.import_module(f"rlx.backends.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"there is no backend module {name!r}") from None
