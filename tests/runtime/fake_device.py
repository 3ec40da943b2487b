"""A device whose memory the host cannot read: values are handles, and every copy to the host is counted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from rlx.backends.api import Backend, Executable, Prepared
from rlx.backends.memory_space import DeviceValue, MemorySpace
from rlx.compile.target import DeviceInfo, Found, Target
from rlx.errors import BackendError
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES


class FakeValue(DeviceValue):
    """A handle; what it stands for is in the books of its space alone."""

    def __init__(self, space, array):
        self._space, self.shape, self.dtype = space, array.shape, array.dtype
        self.handle = next(space.handles)
        # Masked, so that a view of these bytes is no view of the value.
        space.memory[self.handle] = np.frombuffer(array.tobytes(), np.uint8) ^ 0x5A

    @property
    def space(self):
        return self._space

    def wait(self):
        self._space.waits += 1
        if self.handle in self._space.broken:
            raise BackendError(f"@{self._space.broken[self.handle]} failed on {self._space.device}")

    def numpy(self):
        self.wait()
        self._space.downloads += 1
        return self._space.content(self)

    def __del__(self):
        self._space.memory.pop(self.handle, None)


class FakeSpace(MemorySpace):
    def __init__(self, device):
        self.device, self.memory, self.broken = device, {}, {}
        self.handles = itertools.count()
        self.uploads = self.downloads = self.waits = self.runs = 0

    def put(self, array):
        self.uploads += 1
        return FakeValue(self, array)

    def copy(self, value):
        return FakeValue(self, self.content(value))

    def content(self, value):
        """What a kernel of the device sees."""
        assert value.space is self, "a value of another device"
        content = (self.memory[value.handle] ^ 0x5A).tobytes()
        return np.frombuffer(content, value.dtype).reshape(value.shape).copy()


class FakeExecutable(Executable):
    def __init__(self, graph, space):
        self._graph, self.space = graph, space

    def run(self, inputs: Mapping[str, object], params) -> list[FakeValue]:
        given = {**(params.values if isinstance(params, Prepared) else params), **inputs}
        values = {}
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                value = self.space.put(value)
            values[name] = self.space.content(value)
        self.space.runs += 1
        results = [FakeValue(self.space, np.array(r)) for r in interpret(self._graph, values)]
        if self._graph.name == "broken":
            self.space.broken.update({r.handle: "broken" for r in results})
        return results

    @property
    def report(self):
        raise BackendError("the fake device has no report")


class FakeBackend(Backend):
    name = "fake"

    def __init__(self, space):
        self._space = space

    def supported_ops(self):
        return frozenset(OP_CLASSES)

    def compile(self, graph, options):
        return FakeExecutable(graph.copy().freeze(), self._space)


def fake_target(name, spaces):
    """A target with a device for each space."""
    return Target(
        name=name,
        about="memory that the host cannot read",
        probe=lambda: Found(tuple(DeviceInfo(i, "fake") for i in range(len(spaces)))),
        open=lambda index: spaces[index],
        backend=lambda chosen: FakeBackend(spaces[chosen.index]),
    )
