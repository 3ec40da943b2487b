"""Quantise a float graph to an integer program (.rlxq).

GRAPH is the text of a graph (.rlx) or a file of `rlx.save_graph`. WEIGHTS has values for all its inputs and params but
one; DATA has typical values of that one, from which scales are calibrated. A graph with fake quantisation brings its
own scales and needs no data. With labels, the command says how many are right in floats and in integers.

examples:
  rlx quantize-graph digits.rlx digits.rlxq --weights digits.safetensors --data images.npy --labels labels.npy
  rlx quantize-graph trained.graph trained.rlxq --bits 4 --json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.cli import add_command
from rlx.cli.arguments import path, require_new
from rlx.cli.graph_files import read_graph
from rlx.errors import FormatError, RlxError

if TYPE_CHECKING:
    import numpy as np

    from rlx.cli import Subparsers
    from rlx.quantized import Program

    Array = np.ndarray[Any, np.dtype[Any]]

_BATCH = 100


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "quantize-graph", __doc__)
    parser.add_argument("graph", type=path, help="the float graph")
    parser.add_argument("out", type=path, help="the integer program to write (.rlxq)")
    parser.add_argument("--weights", type=path, help="values of inputs and params by name: .safetensors or .npz")
    parser.add_argument("--data", type=path, help="calibration data: typical inputs, [N, ...] as .npy")
    parser.add_argument("--labels", type=path, help="the right label of each input, as .npy")
    parser.add_argument("--bits", type=int, default=8, choices=(8, 4, 2), help="bits of the weights (default: 8)")
    parser.add_argument(
        "--activations", default="i8", choices=("i8", "i16"), help="integer type of activations (default: i8)"
    )
    parser.add_argument(
        "--method", default="max_abs", help="calibration: max_abs, percentile, mse or entropy (default: max_abs)"
    )
    parser.add_argument(
        "--fraction-bits",
        type=int,
        default=31,
        choices=(31, 15),
        help="bits of the requantisation multipliers (default: 31)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx import quantized
    from rlx.quantized.float_graphs import FloatGraph

    require_new(args.out, args.force, args.graph)
    if args.labels is not None and args.data is None:
        raise RlxError("--labels are those of --data, which is missing")
    graph, weights = read_graph(args.graph), _weights(args.weights)
    data = None if args.data is None else _array(args.data)
    name = FloatGraph(graph, weights).input_name
    batches = [] if data is None else [{name: data[n : n + _BATCH]} for n in range(0, len(data), _BATCH)]
    program = quantized.quantize(
        graph,
        weights,
        batches,
        bits=args.bits,
        activations=args.activations,
        method=args.method,
        fraction_bits=args.fraction_bits,
    )
    labels = None if args.labels is None else _array(args.labels)
    report = None if data is None else quantized.compare(program, graph, weights, data, labels)
    quantized.save(program, args.out)
    _print(args, program, report)
    return 0


def _print(args: argparse.Namespace, program: Program, report: Any) -> None:
    size = args.out.stat().st_size
    if args.json:
        steps = [{"name": s.name, "kind": type(s).__name__, "dims": s.out.dims, "macs": s.macs} for s in program.steps]
        document = {"path": str(args.out), "bytes": size, "macs": program.macs, "steps": steps}
        print(json.dumps(document if report is None else {**document, "right": dict(report.right)}, indent=2))
        return
    print(f"{args.out}: {size:,} bytes, {program.macs:,} products per example")
    for step in program.steps:
        print(f"  {step.name:12} {type(step).__name__:9} {'x'.join(map(str, step.out.dims)) or 'label'}")
    if report is not None:
        print(report)


def _weights(place: Path | None) -> dict[str, Array]:
    import numpy as np

    if place is None:
        return {}
    if place.suffix == ".npz":
        with _opened(place) as file:
            return {name: np.asarray(file[name]) for name in file.files}
    from rlx.formats.safetensors import open_safetensors

    return {name: np.asarray(tensor.array()) for name, tensor in open_safetensors(place).tensors.items()}


def _array(place: Path) -> Array:
    import numpy as np

    loaded = _opened(place)
    if not isinstance(loaded, np.ndarray) or loaded.ndim < 1 or not len(loaded):
        raise FormatError(f"{place}: an array [N, ...] with examples is needed (.npy)")
    return loaded


def _opened(place: Path) -> Any:
    import numpy as np

    try:
        return np.load(place, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"{place}: this is no file of NumPy: {error}") from None
