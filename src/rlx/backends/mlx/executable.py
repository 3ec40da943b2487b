"""`MlxExecutable`: a program that MLX runs, in one of three ways, which the knob `mlx_mode` chooses.

- lazy: every run tells MLX the ops and then lets it compute;
- compiled: `mlx.compile` is told the ops once for each combination of sizes, fuses them and runs the result. Programs
  in which the host decides (loops, branches) are told at every run, their bodies compiled;
- eager: every op is computed before MLX is told the next, to find the one that goes wrong.

Runs do not wait for their results in any but the last. What follows from params alone is computed when they are set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from rlx.backends.api import Array, Prepared
from rlx.backends.by_sizes import ExecutableBySizes, PlacedParams, leaves_of, require_memory
from rlx.backends.mlx.arrays import MlxSpace, MlxValue, Outcome
from rlx.backends.mlx.device import has_gpu, in_stream, most_bytes, mx
from rlx.backends.mlx.dtypes import LONGEST
from rlx.backends.mlx.lowering import LOWERING
from rlx.backends.mlx.quantized_weights import packed, weights_to_pack
from rlx.backends.mlx.rules_control import driven_from_host, is_traceable
from rlx.backends.mlx.walk import Constant, Traced, Walk
from rlx.backends.op_lowering import has_checks
from rlx.compile.weights.split import split_prepare
from rlx.errors import OutOfMemory
from rlx.ir.graph import Graph
from rlx.ir.index_checks import check_ids, id_checks
from rlx.ir.rewrite.rebuild import all_bodies
from rlx.knobs import knobs

MODES = ("lazy", "compiled", "eager")


def mode() -> str:
    """How programs run: as the knob says; else compiled on a GPU, and lazy on a CPU, where MLX calls a C++ compiler
    that takes seconds for each fused kernel."""
    return knobs.mlx_mode or ("compiled" if has_gpu() else "lazy")


class _Program:
    """The program for one combination of sizes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.shapes = [graph.shape(o) for o in graph.outputs]
        self._lowered = LOWERING.lowered(graph)
        require_memory(self._lowered, most_bytes())
        self._keys = [key for key, _ in leaves_of(graph)]
        self._constants: dict[int, Constant] = {}
        self._bodies: dict[int, Any] = {}
        self.driven = driven_from_host(self._lowered)
        self._traced: Traced | None = None

    @cached_property
    def is_nothing(self) -> bool:
        """Whether no result has an element and nothing is checked, so that there is nothing to compute."""
        return all(0 in shape.static_dims for shape in self.shapes) and not has_checks(self._lowered)

    @cached_property
    def _is_traceable(self) -> bool:
        return is_traceable(self._lowered)

    def require_short_axes(self) -> None:
        """MLX counts the elements of an axis in 32 bits."""
        for part in (self._lowered, *all_bodies(self._lowered)):
            for node in part.nodes:
                if any(d > LONGEST for shape in node.shapes for d in shape.static_dims):
                    raise OutOfMemory(f"@{self.graph.name}: MLX has no axes of more than {LONGEST} elements: {node!r}")

    def run(self, arrays: list[Any]) -> tuple[list[Any], Outcome | None]:
        """The outputs, on their way, and how the run ends."""
        how = mode()
        walk = Walk(self._constants, is_eager=how == "eager", by_body=self._bodies if how == "compiled" else None)
        if how == "compiled" and self._is_traceable:
            self._traced = self._traced or Traced(self._lowered, self._keys, self._constants)
            results = self._traced.run(walk, arrays)
        else:
            results = walk.outputs(self._lowered, dict(zip(self._keys, arrays, strict=True)))
        mx.async_eval(*results, *(check.holds for check in walk.checks))
        return results, Outcome(walk.checks) if walk.checks else None


class MlxParams(PlacedParams[MlxValue]):
    """Params, and what follows from them alone, once all of them are set."""

    def __init__(self, values: Mapping[str, Array], placed: Mapping[str, MlxValue], prepare: _Prepare | None) -> None:
        super().__init__(values, placed)
        self._prepare = prepare
        self._ready: dict[str, MlxValue] | None = None

    @property
    def ready(self) -> Mapping[str, MlxValue]:
        """What runs read, by name."""
        if self._ready is None:
            made = {} if self._prepare is None else self._prepare.run(self.placed)
            self._ready = {**self.placed, **made}
        return self._ready


class _Prepare:
    """The program that is run once for each change of weights; `names` are those of its outputs."""

    def __init__(self, graph: Graph, names: tuple[str, ...], space: MlxSpace) -> None:
        self._program, self._names, self._space = _Program(graph), names, space
        self._keys = [key for key, _ in leaves_of(graph)]

    def run(self, placed: Mapping[str, MlxValue]) -> dict[str, MlxValue]:
        if any(key not in placed for key in self._keys):
            return {}
        with in_stream():
            results, outcome = self._program.run([placed[key].array for key in self._keys])
        types = self._program.shapes
        return {
            name: MlxValue(self._space, array, shape.static_dims, shape.dtype.numpy, outcome)
            for name, array, shape in zip(self._names, results, types, strict=True)
        }


class MlxExecutable(ExecutableBySizes[_Program, MlxValue]):
    """A program for MLX's device."""

    name = "mlx"

    def __init__(self, graph: Graph, space: MlxSpace) -> None:
        self._space = space
        self._ids = id_checks(graph)
        parts = split_prepare(graph)
        self._prepare = None if parts.prepare is None else _Prepare(parts.prepare.freeze(), parts.prepared, space)
        read_before = {key for key, _ in leaves_of(parts.prepare)} if parts.prepare is not None else set()
        self._to_pack = {key: how for key, how in weights_to_pack(parts.main).items() if key not in read_before}
        # Loops and branches in the program that was made last.
        self._driven = 0
        super().__init__(parts.main.freeze(), space)
        self._programs.make_if_fixed()

    def prepare(self, changed: Mapping[str, Array], before: Prepared | None = None, source: str = "") -> MlxParams:
        params = super().prepare(changed, before, source)
        return MlxParams(params.values, self._packed(params, changed), self._prepare)

    def _packed(self, params: PlacedParams[MlxValue], changed: Mapping[str, Array]) -> dict[str, MlxValue]:
        """Params with weights as products read them, once all that belongs to one is there."""
        placed = dict(params.placed)
        for name, how in self._to_pack.items():
            parts = {name, *how.sides}
            if not parts <= placed.keys() or (isinstance(placed[name].array, tuple) and not parts & changed.keys()):
                continue
            value = placed[name]
            raw = self._space.put(params.values[name]) if isinstance(value.array, tuple) else value
            with in_stream():
                made = packed(how.form, raw.array, [placed[side].array for side in how.sides], how.k, how.n)
                mx.async_eval(*made)
            placed[name] = MlxValue(self._space, made, value.shape, value.dtype)
        return placed

    def run(  # type: ignore[override]  # values of the device in and out
        self, inputs: Mapping[str, Array | MlxValue], params: Mapping[str, Array] | Prepared
    ) -> list[MlxValue]:
        """The outputs where they are computed. Nothing waits for them: reading one does."""
        if not isinstance(params, MlxParams):
            params = self.prepare(params.values if isinstance(params, Prepared) else params)
        given = self._given(inputs, PlacedParams(params.values, params.ready))
        values = [given[name] for name, _ in self._leaves]
        program = self._programs.at([v.shape for v in values])
        self._check_ids(program.graph, given)
        if program.is_nothing:
            arrays: list[Any] = [None] * len(program.shapes)
            outcome = None
        else:
            program.require_short_axes()
            with in_stream():
                arrays, outcome = program.run([v.array for v in values])
        return [
            self._value(array, shape.static_dims, shape.dtype.numpy, outcome)
            for array, shape in zip(arrays, program.shapes, strict=True)
        ]

    def _value(self, array: Any, dims: tuple[int, ...], dtype: Any, outcome: Outcome | None) -> MlxValue:
        if not math.prod(dims):
            array = self._space.put(np.empty(dims, dtype)).array
        return MlxValue(self._space, array, dims, dtype, outcome)

    def _check_ids(self, graph: Graph, given: Mapping[str, MlxValue]) -> None:
        """Ids from outside are errors where they are not valid; memory is the host's, so they can be looked at."""
        if self._ids:
            for check in id_checks(graph):
                check_ids(check.op, given[check.key].numpy(), check.sizes, check.key)

    def _compiled(self, graph: Graph) -> _Program:
        made = _Program(graph)
        self._driven = made.driven
        return made

    def _where(self) -> str:
        loops = f", {self._driven} loops and branches driven from the host" if self._driven else ""
        return f"{self._space.about}, {mode()}{loops}"
