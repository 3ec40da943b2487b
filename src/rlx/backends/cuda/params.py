"""Params in the memory of a GPU. Copied there when weights change, not at each run."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np

from rlx.backends.api import Array, Prepared
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.streams import Stream
from rlx.backends.program.params import checked_param
from rlx.backends.program.program import Program


class CudaParams(Prepared):
    """The params of a program: those `given` by the caller, as copies, and those `made` of them on the GPU."""

    def __init__(
        self,
        program: Program,
        stream: Stream,
        given: Mapping[str, Array],
        made: Mapping[str, DeviceArray] | None = None,
        before: CudaParams | None = None,
    ) -> None:
        super().__init__(given)
        self._read = {leaf.name for leaf in program.params}
        self.arrays: dict[str, DeviceArray] = {}
        for leaf in program.params:
            if made is not None and leaf.name in made:
                self.arrays[leaf.name] = made[leaf.name]
            elif before is not None and before.values.get(leaf.name) is given.get(leaf.name, before):
                # The same array as before: its copy is there.
                self.arrays[leaf.name] = before.arrays[leaf.name]
            else:
                array = checked_param(program, leaf, given)
                self.arrays[leaf.name] = DeviceArray.of(array, stream, f"the weight {leaf.name!r}")
        self.addresses = np.array([self.arrays[leaf.name].address for leaf in program.params], np.int64)
        self.symbolic_shapes = tuple(self.arrays[p.name].shape for p in program.params if not p.shape.is_static)

    @property
    def byte_size(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())

    def without_originals(self) -> CudaParams:
        twin = copy.copy(self)
        twin.values = {name: value for name, value in self.values.items() if name in self._read}
        return twin
