"""Float graph → integer program: `quantize`.

    graph = rlx.jit(network.apply).trace(params, rlx.Spec(("N", 1, 28, 28))).graph
    program = quantize(graph, weights_by_name, batches)

Products take the bias and the limits (relu) after them. Images are [N, C, H, W] in the graph and [H, W, C] in the
program, and the weights of a dense layer after a flattened image are reordered for it. The graph may be one of plain
floats, whose scales come from the batches, or one that was trained with fake quantisation, which has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rlx.compile.ptq.calibrate import calibrate
from rlx.compile.ptq.observers import LEVELS, Observer
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.graph import Graph, NodeId
from rlx.quantized.building import Building
from rlx.quantized.float_forms import in_integer_forms
from rlx.quantized.float_graphs import FloatGraph
from rlx.quantized.packing import largest_code
from rlx.quantized.planning import Plan
from rlx.quantized.program import Program
from rlx.quantized.values import ACTIVATIONS, QuantizedError


def quantize(
    graph: Graph,
    params: Mapping[str, Any],
    batches: Iterable[Mapping[str, Any]] = (),
    *,
    bits: int = 8,
    activations: DTypeLike = DType.I8,
    method: str | Callable[[], Observer] = "max_abs",
    fraction_bits: int = 31,
    name: str | None = None,
) -> Program:
    """The integer program of a float graph.

    `params` has the values of all leaves but one by name; `batches` are typical values of that one, {name: array}, for
    the scales that the graph does not have itself. `bits` (8, 4, 2) is for weights without rounding of their own,
    `activations` for values without; `method` is how thresholds are found, as for `Calibrator`.
    """
    largest_code(bits)
    dtype = DType.of(activations)
    if dtype not in ACTIVATIONS:
        raise QuantizedError(f"quantize: activations are i8 or i16, got {dtype}")
    if fraction_bits not in (15, 31):
        raise QuantizedError(f"quantize: multipliers have 31 or 15 bits, got {fraction_bits}")
    source = in_integer_forms(FloatGraph(graph, params))
    plan = Plan(source)
    thresholds = _thresholds(source, plan, list(batches), method)
    built = Building(source, plan, thresholds, bits, dtype, fraction_bits)
    return built.program(name or graph.name)


def _thresholds(
    source: FloatGraph, plan: Plan, batches: list[Mapping[str, Any]], method: str | Callable[[], Observer]
) -> dict[NodeId, float]:
    taps = [e.end.id for e in plan.epilogues.values() if e.rounding is None or e.rounding.scale is None]
    if not taps:
        return {}
    if not batches:
        node = source.graph.nodes[taps[0]]
        raise source.fail(node, "its scale must come from a calibration; give batches of typical inputs")
    record = calibrate(source.graph, batches, taps, source.params, method)
    return {tap: entry.scales[0] * LEVELS for tap, entry in record.items()}
