"""The macros of the Rust RLX as functions: models and schedules.

Nothing is here yet: a name that is asked for says so.
"""

from __future__ import annotations

from typing import Any

from rlx.errors import RlxError

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.macros' has no attribute {name!r}")
    raise RlxError(f"rlx.macros.{name}: the macros do not exist yet; use rlx.jit")
