"""What a backend is, and the registry through which the runtime finds one. The core names no vendor.

A backend turns a graph into an `Executable`. An executable is immutable and shared: it holds code and plans, no weights
and no state of a run, so that any number of threads may run it at once.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.errors import BackendError
from rlx.ir.graph import Graph

if TYPE_CHECKING:
    from rlx.compile.report import CompileReport

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class CompileOptions:
    """What a caller may ask of a compile; backends ignore what does not concern them."""

    verify: bool = True
    threads: int | None = None


class Prepared:
    """The params of a program in the form in which an executable reads them; `values` are the params by name."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self.values = values


class Executable(ABC):
    """A compiled program."""

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None) -> Prepared:
        """What `run` takes as params: those of `before`, with the changed ones in their place. Work that depends on
        params alone is done here, once for each change of weights."""
        return Prepared({**(before.values if before is not None else {}), **changed})

    @abstractmethod
    def run(self, inputs: Mapping[str, Array], params: Mapping[str, Array] | Prepared) -> list[Array]:
        """The outputs for inputs and params. The arrays returned belong to the caller."""

    @property
    @abstractmethod
    def report(self) -> CompileReport:
        """What runs where, and why: text that can also be written as JSON and as a page."""


class Backend(ABC):
    """Compiles graphs for one kind of device."""

    name: str

    def is_available(self) -> bool:
        """Whether this machine can run what the backend compiles."""
        return True

    @abstractmethod
    def supported_ops(self) -> frozenset[str]:
        """Names of the op classes that run natively; all others are decomposed first."""

    @abstractmethod
    def compile(self, graph: Graph, options: CompileOptions) -> Executable: ...


_factories: dict[str, Callable[[], Backend]] = {}
_backends: dict[str, Backend] = {}
_lock = threading.Lock()


def register_backend(name: str, factory: Callable[[], Backend]) -> None:
    """Make a backend known; a second registration under the same name replaces the first."""
    with _lock:
        _factories[name] = factory
        _backends.pop(name, None)


def registered_devices() -> list[str]:
    return sorted(_factories)


def backend_for(name: str) -> Backend:
    """The backend called `name`, created on first use."""
    with _lock:
        if name not in _factories:
            raise BackendError(f"there is no device {name!r}; known devices: {', '.join(sorted(_factories))}")
        if name not in _backends:
            _backends[name] = _factories[name]()
        return _backends[name]
