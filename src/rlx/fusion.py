"""The fusion passes under their public name: `rlx.fusion.FuseSwiGLU`, `rlx.fusion.run_fusion_passes`, ...

They stand in `rlx.compile.claims.fusion`, and are loaded when one of them is asked for.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module 'rlx.fusion' has no attribute {name!r}")
    return getattr(importlib.import_module("rlx.compile.claims.fusion.names"), name)


def __dir__() -> list[str]:
    return sorted(n for n in vars(importlib.import_module("rlx.compile.claims.fusion.names")) if not n.startswith("_"))
