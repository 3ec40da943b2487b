"""Integer programs as circuits.

Nothing is here yet: a name that is asked for says so. `rlx doctor fpga` tells the state of the target.
"""

from __future__ import annotations

from typing import Any

from rlx.errors import RlxError

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.fpga' has no attribute {name!r}")
    raise RlxError(f"rlx.fpga.{name}: programs cannot be written as circuits yet; see rlx doctor fpga")
