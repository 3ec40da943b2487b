"""Programs for Arm Cortex-M microcontrollers.

Nothing is here yet: a name that is asked for says so. `rlx doctor cortex-m` tells the state of the target.
"""

from __future__ import annotations

from typing import Any

from rlx.errors import RlxError

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.cortexm' has no attribute {name!r}")
    raise RlxError(f"rlx.cortexm.{name}: programs cannot be written for microcontrollers yet; see rlx doctor cortex-m")
