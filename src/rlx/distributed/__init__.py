"""Training on many devices and in many processes, through XLA.

    rlx.distributed.initialize()                                            # one of the processes of `rlx launch`
    layout = rlx.distributed.Layout(mesh, data="data", tensor="tensor")     # what each mesh axis divides
    rlx.distributed.report(step, state, batch)                              # bytes moved and memory, before a run

See docs/distributed.md; meshes and shardings themselves are in `rlx.sharding`. Names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it.
_HOME: dict[str, str] = {
    **dict.fromkeys(("Layout", "layout_of"), "layouts"),
    **dict.fromkeys(("gather", "initialize", "is_initialized", "process_count", "process_index"), "processes"),
    "wait_for_all": "processes",
    **dict.fromkeys(("ProgramReport", "report"), "reports"),
    **dict.fromkeys(("RankReport", "RankWatch"), "stragglers"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rlx.distributed' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rlx.distributed.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
