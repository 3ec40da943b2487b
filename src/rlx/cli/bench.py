"""Benchmark rlx beside other libraries on this machine, in one run: a process for each engine, rounds interleaved,
results checked first. Peers are used where they are installed, in this Python or in another one.

suites:
  ops       matrix products, fused rows, attention
  minilm    an encoder of 6 layers at several batch sizes
  conv      convolutions of ResNet-50 and MobileNetV2, and their gradients
  fft       Fourier transforms: one line, many, two axes, real signals
  loops     while_loop and scan of small bodies, functions that differ in a constant
  startup   import, first compile, compile from disk, one small call
  llm       prefill and decode of a GGUF model, in its own type and in others
  embed     256 sentences to vectors, with tokenisation
  linalg    factorisations, solves, eigenvalues and singular values in f64
  sparse    products with sparse matrices of five classes, conjugate gradients with IC(0) and their gradient
  scans     sort, top-k, sampling, cumulative sums, a selective scan
  train     training steps of a GPT, of LoRA and of a convnet, the optimiser alone, compile times, scans; with memory

With --tier a device is measured by itself: single ops (L1) or small compositions (L2), each checked first, with the
median and p95 of its times, operations and bytes per second beside the limits of the machine, and memory. Without
--device all available devices are measured.

examples:
  rlx bench --tier L1 --device cpu --json
  rlx bench ops --peers torch jax --threads 2
  rlx bench minilm --peer-python path/to/other/env/bin/python --json minilm.json --plot minilm.svg
  rlx bench ops --only attention --rounds 15
  rlx bench llm --model smollm2 --peers llama.cpp
  rlx bench train --only GPT --peer-python path/to/other/env/bin/python --json train.json
  rlx bench train --device cuda
  rlx bench llm --shape 1b --type Q4_K --peer-python path/to/other/env/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.bench import BenchmarkResult, BenchResult, run_suite
from rlx.bench.report import plot, table, to_json
from rlx.bench.startup import run_startup
from rlx.bench.suites import SUITES
from rlx.bench.training import run_training, training_table
from rlx.cli import add_command
from rlx.cli.arguments import not_negative, path, positive, threads
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.cli import Subparsers


# Those of users; `calls` and others are for the makers of rlx.
SHOWN_SUITES = (
    "ops",
    "minilm",
    "conv",
    "fft",
    "linalg",
    "sparse",
    "scans",
    "loops",
    "startup",
    "llm",
    "embed",
    "train",
)


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "bench", __doc__)
    parser.add_argument("suite", nargs="?", choices=SHOWN_SUITES)
    parser.add_argument(
        "--tier", choices=["L1", "L2"], help="measure a device by itself: single ops (L1) or small compositions (L2)"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="with --tier (default: all available) or train (default: cpu): the device"
    )
    parser.add_argument("--warmup", type=not_negative, metavar="N", help="with --tier: warm-up runs (default 10)")
    parser.add_argument(
        "--runs", type=positive, metavar="N", help="with --tier: measured runs (default 100, or as many as fit in 5 s)"
    )
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="only these peers (default: all that are installed)")
    parser.add_argument("--peer-python", metavar="PATH", help="the Python interpreter that has the peers installed")
    parser.add_argument("--only", metavar="TEXT", help="only cases whose name contains this")
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="a model or the name of a pulled one: a GGUF file for llm and the LoRA step of train (default smollm2), "
        "a Hugging Face directory for embed (default minilm)",
    )
    parser.add_argument(
        "--shape", metavar="SIZE", help="llm: 1b, 4b or 8b: random weights with real widths, instead of a file"
    )
    parser.add_argument(
        "--type", metavar="TYPE", help="with --shape: the type of matrices: Q6_K, Q4_K_M, F16 ... (default Q4_K)"
    )
    parser.add_argument("--rounds", type=positive, metavar="N", help="rounds of every engine (default 7)")
    parser.add_argument("--threads", type=threads, metavar="N", help="threads of every engine (default: all)")
    parser.add_argument(
        "--json",
        type=path,
        nargs="?",
        const=Path("-"),
        metavar="FILE",
        help="write all measurements as JSON to FILE, or to standard output",
    )
    parser.add_argument("--plot", type=path, metavar="FILE", help="write a chart (SVG)")
    return parser


# Options that mean nothing to the other kind of measurement.
OF_SUITES = ("suite", "peers", "peer_python", "model", "shape", "type", "rounds", "plot")
OF_TIERS = ("tier", "device", "warmup", "runs")
# Devices that training is measured on.
TRAINED_ON = ("cpu", "cuda")
# Of the matrices of models with random weights.
DEFAULT_TYPE = "Q4_K"
# How long the runs of a pattern may take when their number is not given.
TIER_SECONDS = 5.0


def run(args: argparse.Namespace) -> int:
    _check_kind(args)
    try:
        found, text = _tier(args) if args.tier else _suite(args)
    finally:
        _progress("")
    if args.json:
        written = json.dumps(found, indent=2) + "\n"
        if str(args.json) == "-":
            sys.stdout.write(written)
            return 0
        args.json.write_text(written, encoding="utf-8")
    print(text)
    return 0


def _check_kind(args: argparse.Namespace) -> None:
    if not args.suite and not args.tier:
        raise RlxError(f"name a suite ({', '.join(SHOWN_SUITES)}), or a tier: --tier L1, --tier L2")
    others: tuple[str, ...] = OF_SUITES if args.tier else OF_TIERS
    if args.suite == "train" and args.device is not None:
        others = tuple(name for name in others if name != "device")
        if args.device not in TRAINED_ON:
            raise RlxError(f"bench train: --device must be one of {', '.join(TRAINED_ON)}, got {args.device!r}")
    wrong = [name for name in others if getattr(args, name) is not None]
    if wrong:
        named = ", ".join(name if name == "suite" else f"--{name.replace('_', '-')}" for name in wrong)
        kind = "a tier measures one device by itself" if args.tier else "these belong to --tier"
        raise RlxError(f"{named} cannot be used here; {kind}")
    if (args.shape and (args.suite != "llm" or args.model)) or (args.type and not args.shape):
        raise RlxError("--shape belongs to the suite llm and stands in for --model; --type belongs to --shape")


def _suite(args: argparse.Namespace) -> tuple[object, str]:
    result = _measured(args)
    if args.plot:
        args.plot.write_text(plot(result), encoding="utf-8")
    return to_json(result), _title(args) + (training_table(result) if args.suite == "train" else table(result))


def _title(args: argparse.Namespace) -> str:
    """What a model with random weights is, where one was asked for."""
    if not args.shape:
        return ""
    from rlx.bench.synthetic_models import described

    return f"{(args.type or DEFAULT_TYPE).upper()}, {described(args.shape)}\n\n"


def _tier(args: argparse.Namespace) -> tuple[object, str]:
    """All patterns of a tier on a device, or on all of them."""
    from rlx.bench.patterns import patterns_of
    from rlx.bench.tiers import benchmark_devices, limits_of, run_benchmark, tier_table
    from rlx.compile.target import require, select
    from rlx.knobs import knobs

    chosen = [p for p in patterns_of(args.tier) if args.only is None or args.only in p.name]
    if not chosen:
        names = ", ".join(p.name for p in patterns_of(args.tier))
        raise RlxError(f"no pattern of {args.tier} has {args.only!r} in its name; there are: {names}")
    if args.device:
        require(select(args.device))
    devices = [args.device] if args.device else benchmark_devices()
    count = args.threads or _processors()
    warmup = 10 if args.warmup is None else args.warmup
    runs, seconds = args.runs or 100, None if args.runs else TIER_SECONDS
    results: list[BenchmarkResult] = []
    problems: dict[str, RlxError] = {}
    with knobs(threads=count):
        _progress("measuring what the machine can do")
        limits = {device: limits_of(device, count) for device in devices}
        for device in devices:
            for pattern in chosen:
                _progress(f"{pattern.name} on {device}")
                bound = limits[device]
                try:
                    results.append(run_benchmark(pattern, device, warmup, runs, limits=bound, seconds=seconds))
                except RlxError as problem:
                    # The others can still be measured.
                    problems[f"{pattern.name} on {device}"] = problem
    if not results:
        raise next(iter(problems.values()))
    missing = {what: str(problem) for what, problem in problems.items()}
    found = {"tier": args.tier, "threads": count, "results": [r.to_json() for r in results], "missing": missing}
    lines = [tier_table(results), *(f"not measured: {what} ({why})" for what, why in missing.items())]
    return found, "\n".join(lines)


def _measured(args: argparse.Namespace) -> BenchResult:
    threads = args.threads or _processors()
    if args.suite == "startup":
        return run_startup(
            peers=args.peers,
            peer_python=args.peer_python,
            rounds=min(args.rounds or 3, 3),
            threads=threads,
            progress=_progress,
        )
    if args.suite == "train":
        return run_training(
            peers=args.peers,
            peer_python=args.peer_python,
            model=_lora_model(args.model),
            only=args.only,
            rounds=args.rounds or 7,
            threads=threads,
            device=_training_device(args.device),
            progress=_progress,
        )
    name = "llm-shapes" if args.shape else args.suite
    suite = SUITES[name]
    cases = [c for c in suite.cases if args.only is None or args.only in c.name]
    if not cases:
        names = ", ".join(c.name for c in suite.cases)
        raise RlxError(f"no case of {args.suite} has {args.only!r} in its name; there are: {names}")
    return run_suite(
        name,
        cases,
        family=suite.family,
        peers=args.peers,
        peer_python=args.peer_python,
        model=_synthetic(args.shape, args.type or DEFAULT_TYPE) if args.shape else _model(args.model or suite.model),
        rounds=args.rounds or 7,
        threads=threads,
        progress=_progress,
    )


def _training_device(name: str | None) -> str:
    from rlx.compile.target import require, select

    if name is not None:
        require(select(name))
    return name or "cpu"


def _model(name: str) -> Path | None:
    """The file of a language model, or the directory of another one."""
    if not name:
        return None
    from rlx.models.pull import locate

    path = locate(name)
    return next(iter(sorted(path.glob("*.gguf"))), path) if path.is_dir() else path


def _lora_model(name: str | None) -> Path | None:
    """The model that was named, or SmolLM2 where it has been pulled."""
    if name is not None:
        return _model(name)
    try:
        return _model("smollm2")
    except RlxError:
        return None


def _synthetic(shape: str, type: str) -> Path:
    from rlx.bench.synthetic_models import synthetic_model

    return synthetic_model(shape, type, _progress)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _progress(text: str) -> None:
    """What is being done now, in place of what was done before."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
