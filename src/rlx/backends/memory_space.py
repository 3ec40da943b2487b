"""Memory that is not the host's: what a device must offer so that arrays can live on it.

A `Buffer` is a piece of such memory. Work on it is queued: a buffer may be named before its content is there, and
whoever looks at the content waits. What went wrong in between is raised by the first who waits, with the name of the
program that failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

HostArray = np.ndarray[Any, np.dtype[Any]]


class Buffer(ABC):
    """Bytes on a device, freed when nobody holds them."""

    space: MemorySpace
    nbytes: int

    @abstractmethod
    def wait(self) -> None:
        """Return when the content is there; raises what the work that makes it has raised."""


class MemorySpace(ABC):
    """The memory of one device. All methods may be called from any thread."""

    # What users call it: `cuda:0`.
    device: str

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Memory with undefined content. An RlxError with the numbers, and nothing lost, if there is not enough."""

    @abstractmethod
    def upload(self, array: HostArray) -> Buffer:
        """The bytes of a contiguous array; the array may change as soon as this returns."""

    @abstractmethod
    def download(self, buffer: Buffer, into: HostArray) -> None:
        """Wait for a buffer, and copy it into a contiguous array of as many bytes."""

    @abstractmethod
    def copy(self, buffer: Buffer) -> Buffer:
        """Another buffer with the same content, without a way through the host."""
