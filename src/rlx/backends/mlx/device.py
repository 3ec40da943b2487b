"""MLX itself: whether it is here, its functions, and the streams that ops are put in.

    from rlx.backends.mlx.device import mx

`mx` is the module `mlx.core`, imported when one of its functions is first used: descriptions of what runs where are
read without it.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from rlx.errors import NotInstalled

# Streams of threads came with this release; before it, a program could be run by the thread only that imported MLX.
OLDEST = (0, 32)
REMEDY = 'pip install "rlx[mlx]"'


class _Mlx:
    """The module, imported when it is first asked for something."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            # Whoever looks at this object, as doctest does, asks nothing of MLX.
            raise AttributeError(name)
        import mlx.core

        value = getattr(mlx.core, name)
        setattr(self, name, value)
        return value


mx: Any = _Mlx()


class Installed(NamedTuple):
    """An MLX that can be used, by its version."""

    version: str


class Unusable(NamedTuple):
    """No MLX, or none that can be used: why, and what to do."""

    reason: str
    remedy: str


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def installed() -> Installed | Unusable:
    """Looks for the package without loading it."""
    found = _version_of("mlx")
    if found is None:
        return Unusable("the package mlx is not installed", REMEDY)
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return Unusable(f"mlx {found} is installed, and programs need {wanted} or later", REMEDY)
    # On a Mac the package is whole; elsewhere the part that computes is another one.
    if sys.platform != "darwin" and not any(map(_version_of, ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13"))):
        return Unusable("mlx is installed without the part that computes on this system", REMEDY)
    return Installed(found)


def require_installed() -> None:
    found = installed()
    if isinstance(found, Unusable):
        raise NotInstalled(f"mlx: {found.reason}; {found.remedy}")


@cache
def has_gpu() -> bool:
    """Whether MLX computes on a GPU unless it is told otherwise."""
    return bool(mx.default_device() == mx.Device(mx.gpu))


@cache
def _stream(of_cpu: bool) -> Any:
    """A stream that is another one in each thread: MLX runs nothing on the streams of other threads."""
    return mx.new_thread_local_stream(mx.cpu if of_cpu else mx.default_device())


def in_stream(of_cpu: bool = False) -> AbstractContextManager[Any]:
    """Inside the block, ops of this thread go to the device, or to the CPU beside it."""
    context: AbstractContextManager[Any] = mx.stream(_stream(of_cpu or not has_gpu()))
    return context


@cache
def most_bytes() -> int:
    """What one value may have. MLX ends the process where the system has no memory for it."""
    return int(mx.get_memory_limit())
