"""LIR to executables, one folder per backend. Backends register here by name and are loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

from rlx.backends.api import Backend, register_backend
from rlx.compile.generators import Generator, register_generator


def _reference() -> Backend:
    from rlx.backends.reference import ReferenceBackend

    return ReferenceBackend()


def _cpu() -> Backend:
    from rlx.backends.cpu import CpuBackend

    return CpuBackend()


def _cuda() -> Backend:
    from rlx.backends.cuda.backend import CudaBackend

    return CudaBackend()


def _generator() -> Generator:
    from rlx.kernels.from_lir import GENERATOR

    return GENERATOR


register_backend("reference", _reference)
register_backend("cpu", _cpu)
register_backend("cuda", _cuda)
# Both get their kernels from rlx.kernels.
register_generator("cpu", _generator)
# Panels are laid out for the lanes of this machine's CPU.
register_generator("cuda", lambda: _generator()._replace(panel_width=None))


def __getattr__(name: str) -> Any:
    """`rlx.backends.cuda` and its like, imported when they are asked for."""
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.backends' has no attribute {name!r}")
    try:
        return importlib.import_module(f"rlx.backends.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"there is no backend module {name!r}") from None
