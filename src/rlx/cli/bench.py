"""Measure rlx beside its peers on this machine, all in one run: a process for each engine, rounds in turn, results
checked first. Peers are used where they are installed, in this Python or in another one.

suites:
  ops       matrix products, fused rows, attention
  minilm    an encoder of 6 layers at several batch sizes
  startup   import, first compile, compile from disk, one small call
  llm       prefill and decode of a GGUF model, in its own type and in others
  embed     256 sentences to vectors, with tokenisation

examples:
  rlx bench ops --peers torch jax --threads 2
  rlx bench minilm --peer-python path/to/other/env/bin/python --json minilm.json --plot minilm.svg
  rlx bench ops --only attention --rounds 15
  rlx bench llm --model smollm2 --peers llama.cpp
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.bench import BenchResult, run_suite
from rlx.bench.report import plot, table, to_json
from rlx.bench.startup import run_startup
from rlx.bench.suites import SUITES
from rlx.cli import add_command
from rlx.cli.arguments import path, positive, threads
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "bench", __doc__)
    parser.add_argument("suite", choices=["ops", "minilm", "startup", "llm", "embed"])
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="only these peers (default: all that are installed)")
    parser.add_argument("--peer-python", metavar="PATH", help="the Python in which peers are installed")
    parser.add_argument("--only", metavar="TEXT", help="only cases with this in their name")
    parser.add_argument(
        "--model",
        metavar="PATH",
        help="a model or the name of a pulled one: a GGUF file for llm (default smollm2), a Hugging Face directory for "
        "embed (default minilm)",
    )
    parser.add_argument("--rounds", type=positive, default=7, metavar="N", help="rounds of every engine (default 7)")
    parser.add_argument("--threads", type=threads, metavar="N", help="threads of every engine (default: all)")
    parser.add_argument(
        "--json", type=path, metavar="FILE", help="write everything that was measured, - for standard output"
    )
    parser.add_argument("--plot", type=path, metavar="FILE", help="write a picture (SVG)")
    return parser


def run(args: argparse.Namespace) -> int:
    try:
        result = _measured(args)
    finally:
        _progress("")
    if args.plot:
        args.plot.write_text(plot(result), encoding="utf-8")
    if args.json:
        text = json.dumps(to_json(result), indent=2) + "\n"
        if str(args.json) == "-":
            sys.stdout.write(text)
            return 0
        args.json.write_text(text, encoding="utf-8")
    print(table(result))
    return 0


def _measured(args: argparse.Namespace) -> BenchResult:
    threads = args.threads or _processors()
    if args.suite == "startup":
        return run_startup(
            peers=args.peers,
            peer_python=args.peer_python,
            rounds=min(args.rounds, 3),
            threads=threads,
            progress=_progress,
        )
    suite = SUITES[args.suite]
    cases = [c for c in suite.cases if args.only is None or args.only in c.name]
    if not cases:
        names = ", ".join(c.name for c in suite.cases)
        raise RlxError(f"no case of {args.suite} has {args.only!r} in its name; there are: {names}")
    return run_suite(
        args.suite,
        cases,
        family=suite.family,
        peers=args.peers,
        peer_python=args.peer_python,
        model=_model(args.model or suite.model),
        rounds=args.rounds,
        threads=threads,
        progress=_progress,
    )


def _model(name: str) -> Path | None:
    """The file of a language model, or the directory of another one."""
    if not name:
        return None
    from rlx.models.pull import locate

    path = locate(name)
    return next(iter(sorted(path.glob("*.gguf"))), path) if path.is_dir() else path


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _progress(text: str) -> None:
    """What is being done now, in place of what was done before."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
