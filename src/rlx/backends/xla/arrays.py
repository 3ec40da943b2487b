"""`XlaValue`, `ShardedValue` and `XlaSpace`: values in the memory of a device of XLA, or of several."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from rlx.backends.memory_space import DeviceValue, HostArray, MemorySpace, Shard
from rlx.backends.xla.adapter import Buffer, Client, open_client
from rlx.errors import RlxError, ShardingError
from rlx.sharding import MeshDevice, NamedSharding
from rlx.sharding.named_sharding import Index


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


class ShardedValue(DeviceValue):
    """An array divided over the devices of a mesh. This process holds the parts that lie on its own devices."""

    def __init__(
        self,
        space: XlaSpace,
        buffer: Buffer,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        sharding: NamedSharding,
        outcome: Outcome | None = None,
    ) -> None:
        self._space, self.buffer, self.shape, self.dtype = space, buffer, shape, dtype
        self.sharding, self._outcome = sharding, outcome

    @property
    def space(self) -> XlaSpace:
        return self._space

    @property
    def is_fully_addressable(self) -> bool:
        return len(self._space.client.local_positions(self.sharding.mesh)) == self.sharding.mesh.size

    def wait(self) -> None:
        for part in self._space.client.parts(self.buffer):
            self._space.client.wait(part)
        if self._outcome is not None:
            self._outcome.check()

    def numpy(self) -> HostArray:
        self.wait()
        client = self._space.client
        if self.sharding.is_fully_replicated:
            return client.fetch(client.parts(self.buffer)[0])
        if not self.is_fully_addressable:
            raise ShardingError(
                f"parts of this array {self.dtype}{list(self.shape)} lie in other processes; let all processes call "
                "rlx.distributed.gather(x), or read x.addressable_shards"
            )
        whole = np.empty(self.shape, self.dtype)
        for index, part in zip(self.sharding.indices(self.shape), client.parts(self.buffer)):
            whole[index] = client.view(part)
        return whole

    def look(self) -> HostArray:
        return self.numpy()

    @property
    def addressable_shards(self) -> list[Shard]:
        """The parts of this process."""
        client, mesh = self._space.client, self.sharding.mesh
        indices = self.sharding.indices(self.shape)
        dims = self.sharding.shard_shape(self.shape)
        seen: dict[Any, int] = {}
        copies = []
        for index in indices:
            key = tuple((s.start, s.stop) for s in index)
            copies.append(seen.get(key, 0))
            seen[key] = copies[-1] + 1
        devices = {device.id: device for device in client.mesh_devices}
        found = []
        for position, part in zip(client.local_positions(mesh), client.parts(self.buffer)):
            number = mesh.flat_ids[position]
            space = open_space(client.local_index(number))
            value = XlaValue(space, part, dims, self.dtype, self._outcome)
            found.append(Shard(devices[number], indices[position], value, copies[position]))
        return found


class XlaSpace(MemorySpace):
    """The memory of one device."""

    def __init__(self, client: Client, index: int, target: str = "xla") -> None:
        self.client, self.index, self.target = client, index, target
        self.device = f"{target}:{index}" if index else target

    @property
    def mesh_devices(self) -> list[MeshDevice]:
        """The devices of all processes."""
        return self.client.mesh_devices

    def put(self, array: HostArray) -> XlaValue:
        return XlaValue(self, self.client.put(array, self.index), array.shape, array.dtype)

    def put_parts(
        self, part: Callable[[Index], HostArray], dims: tuple[int, ...], sharding: NamedSharding
    ) -> ShardedValue:
        if sharding.is_open:
            raise ShardingError(
                f"device_put: {sharding.spec} leaves an axis open; an array needs a place for each part"
            )
        indices = sharding.indices(dims)
        wanted = sharding.shard_shape(dims, "device_put")
        parts, known = [], {}
        for position in self.client.local_positions(sharding.mesh):
            index = indices[position]
            key = tuple(s.start for s in index)
            if key not in known:
                known[key] = np.asarray(part(index))
                if known[key].shape != wanted:
                    raise ShardingError(f"a part {list(known[key].shape)} was given where {list(wanted)} is wanted")
            # XLA may read the memory of the host for as long as the value lives, so each device gets its own.
            parts.append(np.array(known[key], order="C", copy=True))
        buffer = self.client.put_parts(parts, dims, sharding)
        return ShardedValue(self, buffer, dims, parts[0].dtype, sharding)

    def copy(self, value: DeviceValue) -> XlaValue | ShardedValue:
        if isinstance(value, ShardedValue):
            local = dict(zip((str(s.index) for s in value.addressable_shards), value.addressable_shards))
            return self.put_parts(lambda index: local[str(index)].data.numpy(), value.shape, value.sharding)
        assert isinstance(value, XlaValue)
        return self.put(value.look())


@cache
def open_space(index: int) -> XlaSpace:
    """The memory of a device with a number, the same object for all who ask."""
    return XlaSpace(open_client(), index)
