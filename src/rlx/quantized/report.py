"""What is lost: a network in floats, with fake quantisation and in integers, on the same examples.

>>> print(Report("digits", 5000, {"float": 0.99, "fake-quantised": 0.988, "integer": 0.988}, ()))
digits on 5000 examples: float 99.00 %, fake-quantised 98.80 %, integer 98.80 %
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.graph import Graph
from rlx.quantized.float_graphs import FloatGraph
from rlx.quantized.program import Program
from rlx.quantized.values import ACTIVATIONS, Array, QuantizedError
from rlx.trace.jit import compile_graph


@dataclass(frozen=True)
class ChangedCodes:
    """How many codes of a step differ between the simulation in floats and the program, and by how much at most."""

    step: str
    count: int
    total: int
    largest: int


@dataclass(frozen=True)
class Report:
    """Shares of labels that are right (with labels), or that are the float network's (without)."""

    name: str
    examples: int
    right: Mapping[str, float]
    changed: tuple[ChangedCodes, ...]

    @property
    def lost_points(self) -> float:
        """Percentage points from float to integer."""
        return 100 * (self.right["float"] - self.right["integer"])

    def __str__(self) -> str:
        shares = ", ".join(f"{what} {share * 100:.2f} %" for what, share in self.right.items())
        lines = [f"{self.name} on {self.examples} examples: {shares}"]
        lines += [
            f"  {c.step}: {c.count} of {c.total} codes ({c.count / c.total:.3%}) differ from the simulation, "
            f"by at most {c.largest}"
            for c in self.changed
            if c.total
        ]
        return "\n".join(lines)


def compare(
    program: Program,
    graph: Graph,
    params: Mapping[str, Any],
    x: Any,
    labels: Any = None,
    *,
    device: str | None = None,
    batch: int = 250,
) -> Report:
    """Run the float graph, the simulation and the program on `x`, which lies as in the graph.

    The label of an example is what an argmax at the end gives, or else the place of the largest output.
    """
    source, x = FloatGraph(graph, params), np.asarray(x)
    if not len(x) or (labels is not None and len(labels) != len(x)):
        raise QuantizedError(f"compare: needs examples and one label each, got {len(x)} and {np.shape(labels)}")
    run_float = compile_graph(source.of_inputs(), device)
    run_simulation = compile_graph(program.simulation(every_value=True), device)
    found: dict[str, list[Array]] = {"float": [], "fake-quantised": [], "integer": []}
    counts = np.zeros((len(program.steps), 3), np.int64)
    for start in range(0, len(x), batch):
        part = x[start : start + batch]
        codes = program.run_all(part)
        simulated = [np.asarray(v) for v in run_simulation([codes[0]])]
        found["float"].append(_labels(_channels_last(run_float(source.leaves(part))[0])))
        found["fake-quantised"].append(_labels(simulated[-1]))
        found["integer"].append(_labels(codes[-1]))
        for row, one, other in zip(counts, simulated[1:], codes[1:]):
            apart = np.abs(one.astype(np.int64) - other.astype(np.int64))
            row[:2] += np.array([np.count_nonzero(apart), apart.size])
            row[2] = max(row[2], apart.max(initial=0))
    joined = {what: np.concatenate(parts) for what, parts in found.items()}
    truth = joined["float"] if labels is None else np.asarray(labels)
    right = {what: float(np.mean(one == truth)) for what, one in joined.items()}
    changed = tuple(
        ChangedCodes(s.name, *map(int, row)) for s, row in zip(program.steps, counts) if s.out.dtype in ACTIVATIONS
    )
    return Report(program.name, len(x), right, changed)


def _channels_last(result: Any) -> Array:
    array = np.asarray(result)
    return np.moveaxis(array, 1, -1) if array.ndim == 4 else array


def _labels(result: Any) -> Array:
    array = np.asarray(result)
    return array if array.ndim == 1 else array.reshape(len(array), -1).argmax(axis=1)
