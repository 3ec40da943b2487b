"""The one way forward from `rlx.ir`: what users call on values may lead to the array functions."""

from __future__ import annotations

import importlib
from types import ModuleType


def array_functions() -> ModuleType:
    """`rlx.numpy`, loaded when it is first asked for."""
    return importlib.import_module("rlx.numpy")
