"""`TextGpu`: one device at work: its memory, its queue, the kernels that were compiled for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlx.backends.text_gpu.memory import Array, DeviceBuffer, Pool
from rlx.locks import fork_safe_lock

if TYPE_CHECKING:
    from rlx.backends.text_gpu.code import TextCode, TextLoader


class Commands(Protocol):
    """Work for a device in order; used under its lock."""

    def call(self, code: Any, words: Sequence[int], blocks: int, label: str) -> None:
        """A kernel on one argument per parameter: an address, or a size."""

    def copy(self, source: int, to: int, size: int) -> None:
        """Bytes from one place to another that does not overlap it; all of them words."""

    def flush(self) -> None:
        """Send what has been collected. Nothing waits for it."""


class TextGpu(ABC):
    """A device. Runs of all threads follow each other under its `lock`."""

    name: str  # that of its target, for messages
    about: str  # which device it is
    pool: Pool
    commands: Commands
    loader: TextLoader

    def __init__(self) -> None:
        self.lock = fork_safe_lock()

    def allocate(self, size: int, what: str) -> DeviceBuffer:
        with self.lock:
            return self.pool.allocate(size, what)

    @abstractmethod
    def load(self, codes: Iterable[TextCode]) -> None:
        """Compile the code of a program, where that can be done before it is known how memory is bound."""

    @abstractmethod
    def write(self, address: int, array: Array) -> None:
        """Copy an array of the host; it may change as soon as this returns."""

    @abstractmethod
    def read(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy on the host, when all work before it is done."""

    def view(self, address: int, dims: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        """The memory itself, when all work before it is done, where the host shares it."""
        return None

    @abstractmethod
    def wait(self) -> None:
        """Return when all work is done."""
