"""Quantise a GGUF file.

Matrices get the new type; vectors, norms and routers keep theirs. Where a row is not a whole number of blocks of the
new type, one with smaller blocks is used, such as Q5_0 for Q4_K, or F16. Requantising a quantised file loses more
than quantising the original.

examples:
  rlx quantize model-f16.gguf model-q4.gguf --type Q4_K
  rlx quantize "$(rlx pull smollm2)" small.gguf --type Q8_0 --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import path, require_new
from rlx.formats.gguf import quantize_file
from rlx.models.pull import locate
from rlx.models.pull_progress import ProgressBar

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "quantize", __doc__)
    parser.add_argument("source", help="the GGUF file to read, or the name of a pulled model")
    parser.add_argument("target", type=path, help="the GGUF file to write")
    parser.add_argument("--type", required=True, help="the new type, such as Q4_K, Q8_0 or F16")
    parser.add_argument("--force", action="store_true", help="overwrite the target")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    return parser


def run(args: argparse.Namespace) -> int:
    source, target = locate(args.source), args.target
    require_new(target, args.force, source)
    with ProgressBar() as bar:
        types = quantize_file(source, target, args.type, bar)
    before, after = source.stat().st_size, target.stat().st_size
    if args.json:
        document = {"path": str(target), "bytes": after, "source_bytes": before, "tensors": types}
        print(json.dumps(document, indent=2))
        return 0
    listed = ", ".join(f"{count} {name}" for name, count in types.items())
    print(f"{target}: {after / 1e6:,.1f} MB ({after / before:.0%} of {before / 1e6:,.1f} MB); {listed}")
    return 0
