"""Memory that is not the host's: what a device must offer so that arrays can live on it.

Work on a device is queued: a value may be named before its content is there, and whoever looks at the content waits.
What went wrong in between is raised by the first who waits, with the name of the program that failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.errors import ShardingError
from rlx.sharding import MeshDevice, NamedSharding
from rlx.sharding.named_sharding import Index

HostArray = np.ndarray[Any, np.dtype[Any]]


class DeviceValue(ABC):
    """Elements side by side in row-major order in the memory of a device, freed when nobody holds them."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def space(self) -> MemorySpace: ...

    @abstractmethod
    def wait(self) -> None:
        """Return when the content is there; raises what the work that makes it has raised."""

    @abstractmethod
    def numpy(self) -> HostArray:
        """A copy on the host; waits for what computes it."""

    def view(self) -> HostArray | None:
        """The memory itself, not to be written, where the host can read it; waits like `numpy`. None elsewhere."""
        return None


@dataclass(frozen=True)
class Shard:
    """One part of a divided array: on which device, which part, its content, and which copy of it this is."""

    device: MeshDevice
    index: Index
    data: Any
    replica_id: int


class MemorySpace(ABC):
    """The memory of one device. All methods may be called from any thread."""

    # What users call it: `cuda:1`.
    device: str

    @abstractmethod
    def put(self, array: HostArray) -> DeviceValue:
        """A copy of an array of the host, which may change as soon as this returns. An RlxError with the numbers, and
        nothing lost, if there is not enough memory."""

    def adopt(self, value: Any) -> DeviceValue | None:
        """An array of another library that lies in this memory, without a copy; None if it is none."""
        return None

    def put_parts(
        self, part: Callable[[Index], HostArray], dims: tuple[int, ...], sharding: NamedSharding
    ) -> DeviceValue:
        """An array divided over a mesh, of the parts that belong to devices of this process."""
        raise ShardingError(f"arrays on {self.device} are not divided over devices; those on xla are")

    @abstractmethod
    def copy(self, value: DeviceValue) -> DeviceValue:
        """Another value with the same content, without a way through the host."""
