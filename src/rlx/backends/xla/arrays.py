"""`XlaValue` and `XlaSpace`: values in the memory of a device of XLA."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from rlx.backends.memory_space import DeviceValue, HostArray, MemorySpace
from rlx.backends.xla.adapter import Buffer, Client, open_client
from rlx.errors import RlxError


class Outcome:
    """How a run ended: `code` is the number of a check that did not hold, counted from 1, or 0."""

    def __init__(self, client: Client, code: Buffer, failures: tuple[RlxError, ...]) -> None:
        self._client, self._code, self._failures = client, code, failures

    def check(self) -> None:
        number = int(self._client.view(self._code))
        if number:
            raise self._failures[number - 1]


class XlaValue(DeviceValue):
    """A buffer of XLA, and how the run ended that made it."""

    def __init__(
        self,
        space: XlaSpace,
        buffer: Buffer,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        outcome: Outcome | None = None,
    ) -> None:
        # Without jax a buffer does not say its own shape.
        self._space, self.buffer, self.shape, self.dtype, self._outcome = space, buffer, shape, dtype, outcome

    @property
    def space(self) -> XlaSpace:
        return self._space

    def wait(self) -> None:
        self._space.client.wait(self.buffer)
        if self._outcome is not None:
            self._outcome.check()

    def numpy(self) -> HostArray:
        self.wait()
        return self._space.client.fetch(self.buffer)

    def look(self) -> HostArray:
        """The content, to be read at once."""
        self.wait()
        return self._space.client.view(self.buffer)

    def __dlpack__(self, **options: Any) -> Any:
        self.wait()
        return self._space.client.dlpack(self.buffer)

    def __dlpack_device__(self) -> tuple[int, int]:
        # kDLCPU of the protocol.
        return 1, 0


class XlaSpace(MemorySpace):
    """The memory of one device."""

    def __init__(self, client: Client, index: int, target: str = "xla") -> None:
        self.client, self.index, self.target = client, index, target
        self.device = f"{target}:{index}" if index else target

    def put(self, array: HostArray) -> XlaValue:
        return XlaValue(self, self.client.put(array, self.index), array.shape, array.dtype)

    def copy(self, value: DeviceValue) -> XlaValue:
        assert isinstance(value, XlaValue)
        return self.put(value.look())


@cache
def open_space(index: int) -> XlaSpace:
    """The memory of a device with a number, the same object for all who ask."""
    return XlaSpace(open_client(), index)
