"""The driver layer of the Rust RLX: buffers, arenas, streams, symmetric memory.

Nothing is here yet: a name that is asked for says so. Programs run through `rlx.Session` and `rlx.jit`.
"""

from __future__ import annotations

from typing import Any

from rlx.errors import RlxError

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.driver' has no attribute {name!r}")
    raise RlxError(f"rlx.driver.{name}: the driver layer does not exist yet; use rlx.Session and rlx.jit")
