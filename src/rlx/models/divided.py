"""`DividedProgram`: a model's program over the devices of a mesh, with its weights on them.

    program = divide(session, layout, config, file, built.graph, built.weights, built.caches)
    print(program.exchanges({"B": 1, "S": 1, "R": 1, "C": 256}))     # what a run moves and needs, before it runs

It is run as a `CompiledGraph` is. Weights are arguments that lie on the devices from the start, each in the parts that
`rlx.models.layouts` says; a process reads only the parts of its own devices. Caches go where their heads do. Results
that are no caches come as NumPy arrays, in every process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.compile.simplify.promote_params import promote_params_to_inputs
from rlx.distributed.layouts import Layout, layout_of
from rlx.distributed.processes import gather
from rlx.distributed.reports import ProgramReport, report_of
from rlx.errors import ShardingError
from rlx.ir.dims import bind_dim
from rlx.ir.graph import Graph
from rlx.ir.shape import Shape
from rlx.models.config import DecoderConfig, EncoderConfig
from rlx.models.layouts import cache_sharding, weight_shardings
from rlx.models.weights import Weight, WeightFile
from rlx.runtime.compiled_graph import CompiledGraph
from rlx.runtime.device_arrays import DeviceArray, device_put, make_array_from_callback
from rlx.runtime.session import Session
from rlx.sharding import Mesh, NamedSharding

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


def mesh_layout(mesh: Mesh | Layout | str, what: str) -> Layout:
    """The layout that a model is divided by: axes of a mesh have the roles that they are named after."""
    layout = mesh if isinstance(mesh, Layout) else layout_of(Mesh.of(mesh))
    for role in ("data", "sequence"):
        if getattr(layout, role) is not None:
            raise ShardingError(f"{what}: {role} divides texts of training; use fsdp, tensor and expert for a model")
    return layout.checked()


def divide(
    session: Session,
    layout: Layout,
    config: DecoderConfig | EncoderConfig,
    file: WeightFile,
    graph: Graph,
    weights: Mapping[str, Weight],
    caches: Sequence[str] = (),
) -> DividedProgram:
    """Compile a program and put its weights on the devices."""
    shardings = weight_shardings(layout, config, file, weights)
    types = {str(node.name): node.shape for node in graph.params}
    program = session.compile(promote_params_to_inputs(graph, weights))
    cache = cache_sharding(layout, config) if isinstance(config, DecoderConfig) else layout.sharding()
    return DividedProgram(program, placed_weights(weights, shardings, types), caches, cache)


class DividedProgram:
    """A compiled program whose inputs called as weights are given in every run."""

    def __init__(
        self, program: CompiledGraph, weights: Mapping[str, DeviceArray], caches: Sequence[str], cache: NamedSharding
    ) -> None:
        self._program, self._weights = program, dict(weights)
        self._caches, self._cache = frozenset(caches), cache
        self.device = program.device

    @property
    def input_types(self) -> dict[str, Shape]:
        """The inputs that are no weights."""
        return {name: shape for name, shape in self._program.input_types.items() if name not in self._weights}

    @property
    def report(self) -> CompileReport:
        return self._program.report

    @property
    def weight_bytes(self) -> tuple[int, int]:
        """Of all weights, and of those parts that one device has."""
        whole = sum(array.nbytes for array in self._weights.values())
        return whole, sum(_part_bytes(array) for array in self._weights.values())

    def exchanges(self, sizes: Mapping[str, int]) -> ProgramReport:
        """What a run with such sizes of symbolic axes moves and needs; nothing runs."""
        arguments: list[tuple[tuple[int, ...], NamedSharding | None]] = []
        for name, shape in self._program.input_types.items():
            if name in self._weights:
                arguments.append((self._weights[name].shape, self._weights[name].sharding))
            else:
                dims = tuple(int(bind_dim(d, sizes)) for d in shape.dims)
                arguments.append((dims, self._cache if name in self._caches else None))
        return report_of(self._program.executable, arguments)

    def run(self, inputs: Mapping[str, Any]) -> list[Any]:
        placed = {name: device_put(x, self._cache) if name in self._caches else x for name, x in inputs.items()}
        results = self._program.run({**placed, **self._weights})
        plain = len(results) - len(self._caches)
        return [*map(np.asarray, results[:plain]), *results[plain:]]

    def profile_while(self, run: Callable[[], object], runs: int = 5) -> Profile:
        return self._program.profile_while(run, runs)


def on_host(value: Any) -> Array:
    """An array as NumPy's, also where other processes hold parts of it; all of them ask for it."""
    is_elsewhere = isinstance(value, DeviceArray) and not value.is_fully_addressable
    return np.asarray(gather(value) if is_elsewhere else value)


def _part_bytes(array: DeviceArray) -> int:
    sharding = array.sharding
    assert sharding is not None
    return math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
