"""`DividedProgram`: a model's program over the devices of a mesh, with its weights on them.

    program = DividedProgram(session.compile(promoted), placed_weights(built.weights, shardings), caches, sharding)

It is run as a `CompiledGraph` is. Weights are arguments that lie on the devices from the start, each in the parts that
its sharding says; a process reads only the parts of its own devices. Caches go where their heads do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.distributed.processes import gather
from rlx.distributed.reports import ProgramReport, report_of
from rlx.ir.shape import Shape
from rlx.models.weights import Weight
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device_arrays import DeviceArray, device_put, make_array_from_callback
from rlx.sharding import NamedSharding

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport
    from rlx.runtime.inspection import Profile

Array = np.ndarray[Any, np.dtype[Any]]


def placed_weights(
    weights: Mapping[str, Weight], shardings: Mapping[str, NamedSharding], types: Mapping[str, Shape]
) -> dict[str, DeviceArray]:
    """Weights on the devices of a mesh, one after the other; of each only the parts of this process are read."""
    placed = {}
    for name, weight in weights.items():
        # A mapped file: what is not asked for stays on the disk.
        stored = weight.read()
        dtype = types[name].dtype.numpy

        def part(index: Any, stored: Array = stored, dtype: Any = dtype) -> Array:
            return np.asarray(stored[index], dtype)

        placed[name] = make_array_from_callback(weight.packed_dims, shardings[name], part)
    return placed


class DividedProgram:
    """A compiled program whose inputs called as weights are given in every run."""

    def __init__(
        self, program: CompiledGraph, weights: Mapping[str, DeviceArray], caches: Sequence[str], cache: NamedSharding
    ) -> None:
        self._program, self._weights = program, dict(weights)
        self._caches, self._cache = frozenset(caches), cache

    @property
    def device(self) -> str:
        return self._program.device

    @property
    def input_types(self) -> dict[str, Shape]:
        """The inputs that are no weights."""
        return {name: shape for name, shape in self._program.input_types.items() if name not in self._weights}

    @property
    def report(self) -> CompileReport:
        return self._program.report

    @property
    def mesh_report(self) -> str:
        """What each device holds of the weights."""
        held = sum(_part_bytes(array) for array in self._weights.values())
        whole = sum(array.nbytes for array in self._weights.values())
        return f"mesh {self._cache.mesh}; weights {whole / 1e6:.2f} MB, on each device {held / 1e6:.2f} MB"

    def exchanges(self, inputs: Mapping[str, tuple[int, ...]]) -> ProgramReport:
        """What a run with inputs of such sizes moves and needs, before it runs."""
        arguments = []
        for name in self._program.input_types:
            if name in self._weights:
                arguments.append((self._weights[name].shape, self._weights[name].sharding))
            else:
                arguments.append((inputs[name], self._cache if name in self._caches else None))
        return report_of(self._program.executable, arguments)

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        placed = {name: device_put(x, self._cache) if name in self._caches else x for name, x in inputs.items()}
        return self._program.run({**placed, **self._weights})

    def profile_while(self, run: Any, runs: int = 5) -> Profile:
        return self._program.profile_while(run, runs)


def on_host(value: Any) -> Array:
    """An array as NumPy's, also where other processes hold parts of it; all of them ask for it."""
    is_elsewhere = isinstance(value, DeviceArray) and not value.is_fully_addressable
    return np.asarray(gather(value) if is_elsewhere else value)


def _part_bytes(array: DeviceArray) -> int:
    sharding = array.sharding
    assert sharding is not None
    return int(np.prod(sharding.shard_shape(array.shape), dtype=np.int64)) * array.dtype.itemsize
