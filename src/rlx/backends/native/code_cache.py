"""Where machine code comes from and is kept: one loader and one place on disk for the process."""

from __future__ import annotations

from functools import cache

from rlx.backends.native.kernels import Loader
from rlx.backends.native.object_cache import DiskCache, ObjectCache
from rlx.kernels.machines import host


@cache
def object_cache() -> ObjectCache | None:
    """Where code is kept for the next process; None where nothing can be written."""
    try:
        return DiskCache()
    except OSError:
        return None


@cache
def loader() -> Loader:
    """Kernels with the same text are one piece of code, whichever programs they belong to."""
    return Loader(host(), object_cache())
