"""Show what a model or a graph is compiled to: which ops became which kernel, where they run, and what was not fused.

examples:
  rlx explain smollm2
  rlx explain minilm --html report.html
  rlx explain smollm2 --html report.html --profile
  rlx explain smollm2 --passes
  rlx explain model.onnx
  rlx explain graph.rlx --json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import add_device_argument
from rlx.cli.arguments import path as path_argument
from rlx.cli.waiting import Waiting
from rlx.errors import RlxError
from rlx.models.config_hf_encoders import is_encoder
from rlx.models.model_files import read_json
from rlx.models.pull import find_model

if TYPE_CHECKING:
    from rlx.cli import Subparsers
    from rlx.compile.report.report import CompileReport
    from rlx.models.language_model import LanguageModel
    from rlx.models.text_encoder import TextEncoder


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "explain", __doc__)
    parser.add_argument("path", metavar="MODEL", help="a model (file, directory or name), or a file with a graph")
    add_device_argument(parser, "compile for")
    parser.add_argument(
        "--profile", action="store_true", help="also run the model once and show the time of each kernel"
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument(
        "--html", type=path_argument, metavar="PATH", help="write the report as a page, with a drawing of the graph"
    )
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    output.add_argument(
        "--passes", action="store_true", help="print every compiler pass: its time, node counts and purpose"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    with Waiting(f"compiling {args.path}"):
        report, model = _report(find_model(args.path), args.device)
    profile = None
    if args.profile:
        if model is None:
            raise RlxError(
                "--profile is for language models and encoders; others have no inputs here: see CompiledGraph.profile"
            )
        profile = model.profile()
    if args.html is not None:
        report.html(args.html, profile)
        print(args.html)
    elif args.passes:
        print("\n".join(_passes(report)))
    else:
        print(report.json() if args.json else report)
        if profile is not None and not args.json:
            print(profile)
    return 0


def _passes(report: CompileReport) -> Iterator[str]:
    from rlx.compile.pipeline import STEPS

    reasons = {step.name: step.reason for step in STEPS}
    for record in report.found.passes:
        yield str(record)
        if not record.within and not record.part:
            yield f"    {reasons[record.name]}"


def _report(path: Path, device: str) -> tuple[CompileReport, LanguageModel | TextEncoder | None]:
    """The report of what a file holds, and the model if it is one."""
    from rlx.models.language_model import load
    from rlx.models.text_encoder import load_encoder

    if holds_encoder(path):
        encoder = load_encoder(path, device)
        return encoder.report, encoder
    if path.is_dir() or path.suffix == ".gguf":
        model = load(path, device)
        return model.report, model
    if path.suffix == ".onnx":
        from rlx.onnx import load as load_onnx

        return load_onnx(path, device).report, None
    return _graph_report(path, device), None


def holds_encoder(path: Path) -> bool:
    """Whether a directory is that of a text encoder."""
    config = path / "config.json"
    return config.is_file() and is_encoder(read_json(config))


def _graph_report(path: Path, device: str) -> CompileReport:
    """The report of a graph in a file."""
    from rlx.cli.graph_files import read_graph
    from rlx.runtime.session import Session

    return Session(device).compile(read_graph(path)).report
