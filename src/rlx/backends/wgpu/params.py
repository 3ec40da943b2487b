"""Params in the memory of a GPU. Copied there when weights change, not at each run."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from rlx.backends.api import Array, Prepared
from rlx.backends.program.params import checked_param
from rlx.backends.program.program import Program
from rlx.backends.wgpu.arrays import DeviceArray
from rlx.backends.wgpu.device import Gpu


class WgpuParams(Prepared):
    """The params of a program: those `given` by the caller, as copies, and those `made` of them on the GPU."""

    def __init__(
        self,
        program: Program,
        gpu: Gpu,
        given: Mapping[str, Array],
        made: Mapping[str, DeviceArray] | None = None,
        before: WgpuParams | None = None,
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
                self.arrays[leaf.name] = DeviceArray.of(gpu, array, f"the weight {leaf.name!r}")
        self.addresses = [self.arrays[leaf.name].address for leaf in program.params]
        self.symbolic_shapes = tuple(self.arrays[p.name].shape for p in program.params if not p.shape.is_static)

    @property
    def byte_size(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())

    def without_originals(self) -> WgpuParams:
        twin = copy.copy(self)
        twin.values = {name: value for name, value in self.values.items() if name in self._read}
        return twin
