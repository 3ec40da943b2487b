"""Autotune the products of a model on this machine, and keep the result for later compiles.

Schedules of products offer a few sets of parameters (block sizes, or tensor-core tiles). Each is compiled and its
kernels are timed, on one thread or on the GPU. A set that wins by more than 3 % is written to tuned.json in the cache
directory, and reports name it. Results do not change. Close other programs first: they disturb the timings.

examples:
  rlx tune minilm
  rlx tune model.gguf --tokens 128
  rlx tune graph.rlx --size B=32
  rlx tune model.onnx --size batch=8
  rlx tune model.gguf --device cuda --tokens 2048
  rlx tune --show
  rlx tune --forget
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx.cli import add_command
from rlx.cli.waiting import Waiting
from rlx.errors import FormatError, RlxError

if TYPE_CHECKING:
    from pathlib import Path

    from rlx.cli import Subparsers
    from rlx.compile.target import Selection
    from rlx.kernels.machines import Machine
    from rlx.runtime.compiled_graph import CompiledGraph


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "tune", __doc__)
    parser.add_argument(
        "path", metavar="MODEL", nargs="?", help="a model (file, directory or name), or a file with a graph's text"
    )
    parser.add_argument("--device", default="cpu", help="the device to tune for; see `rlx devices` (default: cpu)")
    parser.add_argument("--tokens", type=int, default=64, help="rows of the products of a language model (default: 64)")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="the value of a symbolic size of a graph, such as B=32",
    )
    parser.add_argument("--runs", type=int, default=5, help="measured runs of each set of parameters (default: 5)")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--show", action="store_true", help="print the kept results, and measure nothing")
    other.add_argument("--forget", action="store_true", help="delete the kept results")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx.kernels.tuning import tuned_file

    if args.forget:
        tuned_file().unlink(missing_ok=True)
        return 0
    if args.show:
        return _show(tuned_file())
    if args.path is None:
        raise RlxError("a model or the text of a graph is needed: rlx tune MODEL; or --show, or --forget")
    if args.runs < 1 or args.tokens < 2:
        raise RlxError(f"--runs is at least 1 and --tokens at least 2, got {args.runs} and {args.tokens}")
    return _tune(args)


def _show(path: Path) -> int:
    from rlx.kernels.tuning import read_document

    try:
        kept = read_document(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        kept = {}
    for choice in kept.values():
        parameters = ", ".join(f"{name}={value}" for name, value in choice["parameters"].items())
        print(f"{choice.get('schedule')} {choice.get('kernel')}: {parameters}")
    print(f"{len(kept)} choices in {path}")
    return 0


def _tune(args: argparse.Namespace) -> int:
    from rlx.compile.target import select
    from rlx.kernels.tuning import tuned_file
    from rlx.models.pull import find_model
    from rlx.runtime.tune import keep, tune

    machine = _machine(select(args.device))
    build, measure = _subject(find_model(args.path), args)
    with Waiting(f"measuring {args.path}"):
        winners = tune(build, measure, machine)
    changed = keep(winners, machine)
    if args.json:
        rows = [
            {
                "schedule": w.site.schedule,
                "kernel": w.site.signature,
                "parameters": w.best._asdict(),
                "usual": w.is_usual,
                "seconds": w.seconds,
                "usual_seconds": w.usual_seconds,
                "tried": w.tried,
            }
            for w in winners
        ]
        print(json.dumps({"file": str(tuned_file()), "kernels": rows}, indent=2))
        return 0
    for winner in winners:
        print(winner)
    if not winners:
        print(f"no kernel of {args.path} has parameters to choose")
        return 0
    print(f"{changed} of {len(winners)} kernels are faster with other sets than the usual; kept in {tuned_file()}")
    return 0


def _machine(device: Selection) -> Machine:
    """What kernels are made for on a device whose schedules offer parameters."""
    from rlx.kernels.machines import host, machine_named

    match device.target.name:
        case "cpu":
            return host()
        case "cuda":
            from rlx.backends.cuda.device import open_gpu

            return machine_named(open_gpu(device.index).info.arch)
    raise RlxError(
        f"rlx tune: no schedule for {device.target.name} offers parameters yet, so there is nothing to measure; use cpu"
        " or cuda"
    )


def _subject(path: Path, args: argparse.Namespace) -> tuple[Callable[[], Any], Callable[[Any], Sequence[float]]]:
    """How the program of a file is compiled, and how its kernels are timed."""
    from rlx.cli.explain import holds_encoder
    from rlx.cli.graph_files import read_graph
    from rlx.models.language_model import load
    from rlx.models.text_encoder import load_encoder
    from rlx.runtime.session import Session

    if holds_encoder(path):
        text = "How long does each kernel take? " * 8
        return lambda: load_encoder(path, args.device), lambda m: m.report.times(m.profile(text, args.runs))
    if path.is_dir() or path.suffix == ".gguf":
        return (
            lambda: load(path, args.device),
            lambda m: m.report.times(m.profile(context=0, runs=args.runs, new=args.tokens)),
        )
    graph, sizes = _onnx_graph(path) if path.suffix == ".onnx" else read_graph(path), _sizes(args.size)
    missing = sorted(set(graph.dynamic_symbols()) - set(sizes))
    if missing:
        raise RlxError(f"rlx tune: {path.name} has the sizes {', '.join(missing)}; give each: --size {missing[0]}=32")
    return lambda: Session(args.device).compile(graph), lambda c: _timed(c, graph, sizes, args.runs)


def _onnx_graph(path: Path) -> Any:
    from rlx.onnx import load

    return load(path).graph


def _sizes(given: Sequence[str]) -> dict[str, int]:
    sizes = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not value.isdecimal() or int(value) < 1:
            raise RlxError(f"--size takes a name and a number from 1 on, such as B=32, got {text!r}")
        sizes[name] = int(value)
    return sizes


def _timed(compiled: CompiledGraph, graph: Any, sizes: Mapping[str, int], runs: int) -> Sequence[float]:
    """The seconds of every kernel on made-up numbers; ids are 0, which is always valid."""
    import numpy as np

    source = np.random.default_rng(0)

    def made(leaf: Any) -> Any:
        shape = leaf.shape.bind(sizes)
        if not all(isinstance(d, int) for d in shape.dims):
            raise FormatError(f"rlx tune: {leaf.op.key} has the type {shape} with these sizes; give all of them")
        numbers = source.normal(size=shape.dims) if shape.dtype.is_float else np.zeros(shape.dims)
        return numbers.astype(shape.dtype.numpy)

    compiled.set_params({leaf.op.key: made(leaf) for leaf in graph.params})
    profile = compiled.profile({leaf.op.key: made(leaf) for leaf in graph.inputs}, runs)
    times: Sequence[float] = compiled.report.times(profile)
    return times
