"""LIR to executables, one folder per backend. Backends register here by name and are loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlx.backends.api import Backend, register_backend
from rlx.compile.generators import register_generator

if TYPE_CHECKING:
    from rlx.compile.grouping import Pointwise


def _reference() -> Backend:
    from rlx.backends.reference import ReferenceBackend

    return ReferenceBackend()


def _cpu() -> Backend:
    from rlx.backends.cpu import CpuBackend

    return CpuBackend()


def _pointwise() -> Pointwise:
    from rlx.kernels.from_lir import is_pointwise

    return is_pointwise


register_backend("reference", _reference)
register_backend("cpu", _cpu)
# Both get their kernels from rlx.kernels.
register_generator("cpu", _pointwise)
register_generator("cuda", _pointwise)


def __getattr__(name: str) -> Any:
    """`rlx.backends.cuda` and its like, imported when they are asked for."""
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.backends' has no attribute {name!r}")
    try:
        return importlib.import_module(f"rlx.backends.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"there is no backend module {name!r}") from None
