"""Python functions become graphs here: pytrees, `trace`, `jit`, and control flow over functions.

The package is itself callable: `rlx.trace(fn, *specs)` is `rlx.trace.tracing.trace`. A function of the same name
cannot be kept beside it, because importing any module of the package rebinds the name.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from rlx.trace.tracing import trace

        return trace(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
