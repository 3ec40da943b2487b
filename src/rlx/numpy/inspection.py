"""Questions about values and about this namespace itself, among them those of the array API standard."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import OpError
from rlx.ir.dtype import DType
from rlx.numpy.dtypes import isdtype

__all__ = ["__array_api_version__", "__array_namespace_info__", "index_exp", "isscalar", "iterable", "s_"]

__array_api_version__ = "2023.12"

# Objects that turn what is written in brackets into an index: s_[1:3, ::2].
index_exp, s_ = np.index_exp, np.s_

isscalar, iterable = np.isscalar, np.iterable

_STANDARD = (
    ("bool", DType.BOOL),
    *((f"int{n}", DType.of(f"i{n}")) for n in (8, 16, 32, 64)),
    *((f"uint{n}", DType.of(f"u{n}")) for n in (8, 16, 32, 64)),
    ("float32", DType.F32),
    ("float64", DType.F64),
    ("complex64", DType.C64),
    ("complex128", DType.C128),
)


class __array_namespace_info__:
    """What the array API standard lets a library ask: capabilities, devices, dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """Masks as indices need a size bound inside programs, so neither kind of data-dependence is promised."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": None}

    def default_device(self) -> str:
        return "cpu"

    def devices(self) -> list[str]:
        return ["cpu"]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of Python numbers and of indices."""
        return {
            "real floating": DType.of(float),
            "complex floating": DType.of(complex),
            "integral": DType.I32,
            "indexing": DType.I32,
        }

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, DType]:
        """The dtypes of the standard, all of them or those of a kind."""
        if device not in (None, "cpu"):
            raise OpError(f"__array_namespace_info__: the device must be 'cpu', got {device!r}")
        return {name: dtype for name, dtype in _STANDARD if kind is None or isdtype(dtype, kind)}
