"""The rule of Scan: its body is traced once, and runs for every entry."""

from __future__ import annotations

from typing import Any

import rlx
import rlx.numpy as rnp
from rlx.formats.onnx import OnnxGraph
from rlx.onnx.values import Call, rule


@rule("Scan")
def _scan(call: Call) -> Any:
    body, count = call.attribute("body"), int(call.attribute("num_scan_inputs", 0))
    if call.opset < 9:
        call.unsupported("Scan of opset 8")
    if not isinstance(body, OnnxGraph) or call.run_graph is None:
        call.fail("it has no body, or nothing to scan")
    run = call.run_graph
    carried = len(call.inputs) - count
    states, rows = call.all()[:carried], call.all()[carried:]
    outputs = len(body.outputs) - carried
    directions = call.attribute("scan_input_directions", [0] * count)
    axes = call.attribute("scan_input_axes", [0] * count)
    rows = [rnp.moveaxis(row, axis, 0) for row, axis in zip(rows, axes)]
    rows = [rnp.flip(row, 0) if backward else row for row, backward in zip(rows, directions)]

    def step(carry: Any, row: Any) -> Any:
        found = run(body, [*carry, *row])
        return tuple(found[:carried]), tuple(found[carried:])

    last, gathered = rlx.scan(step, tuple(states), tuple(rows))
    out_axes = call.attribute("scan_output_axes", [0] * outputs)
    out_directions = call.attribute("scan_output_directions", [0] * outputs)
    gathered = [rnp.flip(y, 0) if backward else y for y, backward in zip(gathered, out_directions)]
    return *last, *(rnp.moveaxis(y, 0, axis) for y, axis in zip(gathered, out_axes))
