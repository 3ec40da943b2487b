"""Files and text, by NumPy's own readers, writers and printers: what is read is an `rlx.Array`, what is written is one.

>>> import numpy as np
>>> array_repr(np.float32([1, 2]))
'Array([1., 2.], dtype=float32)'
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.ir.dtype import DType, DTypeLike
from rlx.numpy.creation import asarray

__all__ = [
    "array_repr",
    "array_str",
    "fromfile",
    "fromstring",
    "get_printoptions",
    "load",
    "printoptions",
    "save",
    "savez",
    "set_printoptions",
]

get_printoptions, set_printoptions, printoptions = np.get_printoptions, np.set_printoptions, np.printoptions


def array_repr(arr: Any) -> str:
    """How an array shows itself."""
    return repr(asarray(arr))


def array_str(a: Any) -> str:
    """The values of an array as text."""
    return str(asarray(a))


def fromfile(file: Any, dtype: DTypeLike = float, count: int = -1, sep: str = "", offset: int = 0) -> Any:
    """The values in a binary or text file."""
    return asarray(np.fromfile(file, DType.of(dtype).numpy, count, sep, offset))


def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Any:
    """The values in a text."""
    return asarray(np.fromstring(string, DType.of(dtype).numpy, count, sep=sep))


def load(file: Any, **options: Any) -> Any:
    """What `save` or `savez` wrote: an array, or arrays by name. Python objects are not read."""
    found = np.load(file, **{**options, "allow_pickle": False})
    return asarray(found) if isinstance(found, np.ndarray) else {name: asarray(found[name]) for name in found.files}


def save(file: Any, arr: Any) -> None:
    """Write an array as a .npy file."""
    np.save(file, np.asarray(asarray(arr)), allow_pickle=False)


def savez(file: Any, *args: Any, **kwargs: Any) -> None:
    """Write arrays, by name or as arr_0, arr_1, .., as an .npz file."""
    plain = [np.asarray(asarray(a)) for a in args]
    np.savez(file, *plain, allow_pickle=False, **{name: np.asarray(asarray(a)) for name, a in kwargs.items()})
