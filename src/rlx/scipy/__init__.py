"""`rlx.scipy`: functions under the names of SciPy; a module is loaded on first use.

`special` holds functions of numbers, `linalg` those of matrices, `stats` distributions, `signal` and `fft` what is done
to signals, `ndimage` and `interpolate` values between pixels and grid points, `optimize` minima, `integrate` integrals,
and `sparse.linalg` solvers of linear systems.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NoReturn

_MODULES = frozenset(
    {"fft", "integrate", "interpolate", "linalg", "ndimage", "optimize", "signal", "sparse", "special", "stats"}
)


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"rlx.scipy.{name}")
    _refuse(name)


def _refuse(name: str) -> NoReturn:
    from rlx.foreign_names import no_attribute

    no_attribute("rlx.scipy", name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
