"""Export a model or a program as files for a target.

MODEL is a GGUF file, a Hugging Face directory, the name of a pulled model, an ONNX file, or a graph (.rlx: its text, or
a file of `rlx.save_graph`). For the target cpu, OUT is one file with code and weights that `rlx.load_compiled(OUT)`
runs without compiling anything. For the target web it is a folder with a page that any file server can serve;
`rlx serve-web OUT` tries it. For rocm it is a folder with a code object for each chip.

Microcontrollers take integer programs (.rlxq, from `rlx quantize-graph`), or `mnist`, which comes with rlx; OUT is a
folder with C that needs no library. The target fpga takes them too; OUT is a folder with Verilog and a testbench. For
TPUs OUT is a folder with an executable and a report of its memory.

examples:
  rlx export cpu smollm2 smollm2.rlxc
  rlx export cpu model.onnx model.rlxc
  rlx export cpu graph.rlx graph.rlxc --option weights=none
  rlx export web smollm2 page --gpu
  rlx export rocm graph.rlx graph-amd --option arch=gfx942,gfx1100
  rlx export cortex-m digits.rlxq digits-m4 --cpu cortex-m4 --check host
  rlx export fpga mnist digits-up5k --part up5k --max-cycles 400000 --report --check
  rlx export tpu graph.rlx graph-v5e --topology v5e:2x4
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.errors import ExportOnly, RlxError

if TYPE_CHECKING:
    from rlx.backends.export import Exported, Exporter
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "export", __doc__)
    parser.add_argument("target", help="cpu, web, rocm, cortex-m, fpga, tpu, or a target of another package")
    add_arguments(parser)
    parser.add_argument("--cpu", help="cortex-m: the core, such as cortex-m4")
    parser.add_argument("--part", help="fpga: the chip, such as up5k or ecp5-25k")
    parser.add_argument("--max-cycles", metavar="N", help="fpga: at most this many clocks per inference")
    where = "cortex-m, fpga: run the result and compare it (host, qemu; icarus, verilator)"
    parser.add_argument("--check", nargs="?", const="yes", metavar="WHERE", help=where)
    parser.add_argument(
        "--report",
        nargs="?",
        const="report.html",
        metavar="PAGE",
        help="cortex-m, fpga: also write an HTML page about memory and work",
    )
    parser.add_argument("--topology", help="tpu: the chips to compile for, such as v5e:2x4")
    gpu = "web: also write WGSL, for browsers with WebGPU"
    parser.add_argument("--gpu", action="store_const", const="yes", help=gpu)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that all targets have."""
    parser.add_argument("model", help="a model (file, directory or name), or a file with a graph")
    parser.add_argument("out", type=Path, help="the file or folder to write")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the target; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def run(args: argparse.Namespace) -> int:
    return export(args.target, args)


_MOST_NAMED = 4


def export(target: str, args: argparse.Namespace) -> int:
    from rlx.cli.waiting import Waiting
    from rlx.compile.target import select

    chosen = select(target).target
    if chosen.exporter is None:
        raise ExportOnly(f"{chosen.name}: programs cannot be exported for it; see rlx doctor {chosen.name}")
    exporter, options = chosen.exporter(), {}
    for given in args.option:
        name, separator, value = given.partition("=")
        if not separator:
            raise RlxError(f"an option is NAME=VALUE, got {given!r}; known: {', '.join(exporter.options) or 'none'}")
        options[name] = value
    # `rlx compile` has the other arguments alone.
    for name in ("cpu", "part", "max-cycles", "report", "check", "topology", "gpu"):
        if (given := getattr(args, name.replace("-", "_"), None)) is not None:
            options[name] = given
    exporter.checked(options)
    with Waiting(f"exporting {args.model}"):
        if exporter.of_integers:
            from rlx.quantized import load

            done = exporter.export_integers(load(args.model), args.out, options)
        else:
            done = _exported(exporter, args.model, args.out, options)
    if args.json:
        print(json.dumps({"files": [str(f) for f in done.files], **done.figures}))
        return 0
    figures = ", ".join(f"{name} {value}" for name, value in done.figures.items())
    # A folder of many files is named instead of them; --json lists all.
    is_folder = len(done.files) > _MOST_NAMED and args.out.is_dir()
    named = f"{args.out}, {len(done.files)} files" if is_folder else ", ".join(str(f) for f in done.files)
    print(f"{named}: {figures}")
    return 0


def _exported(exporter: Exporter, model: str, out: Path, options: Mapping[str, str]) -> Exported:
    if model.endswith((".rlx", ".txt")):
        from rlx.cli.graph_files import read_graph

        graph = read_graph(Path(model))
        if graph.params and exporter.needs_weights(options):
            names = ", ".join(str(n.name) for n in graph.params[:3])
            raise RlxError(f"{model}: a graph has no values for its params ({names}); make them constants or inputs")
        return exporter.export(graph, {}, out, options)
    if model.endswith(".onnx"):
        import rlx.onnx

        loaded = rlx.onnx.load(model)
        return exporter.export(loaded.graph, loaded.params, out, options)
    from rlx.models.exporting import model_program

    found = model_program(model)
    notes = found.notes() if exporter.wants_notes else {}
    return exporter.export_model(found.graph, found.weights, notes, out, options)
