"""Write a Hugging Face model as a GGUF file: weights, tokenizer and chat template, as llama.cpp reads them.

The type is that of the matrices: F32, F16, BF16, Q8_0, Q6_K and so on, or a mix that spends more bits where they
matter, Q4_K_M or Q5_K_M. A model that the format cannot describe is refused.

examples:
  rlx convert path/to/hf_dir model.gguf
  rlx convert HuggingFaceTB/SmolLM2-135M-Instruct small.gguf --type Q4_K_M --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import path, require_new
from rlx.models.convert import convert
from rlx.models.pull import find_model
from rlx.models.pull_progress import ProgressBar

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "convert", __doc__)
    parser.add_argument("source", metavar="MODEL", help="a Hugging Face directory, or the name of a model")
    parser.add_argument("target", type=path, help="the GGUF file to write")
    parser.add_argument("--type", default="F16", help="the type of matrices (default: F16)")
    parser.add_argument("--force", action="store_true", help="overwrite the target")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    return parser


def run(args: argparse.Namespace) -> int:
    source, target = find_model(args.source), args.target
    require_new(target, args.force)
    with ProgressBar() as bar:
        types = convert(source, target, args.type, bar)
    size = target.stat().st_size
    if args.json:
        print(json.dumps({"path": str(target), "bytes": size, "tensors": types}, indent=2))
        return 0
    listed = ", ".join(f"{count} {name}" for name, count in types.items())
    print(f"{target}: {size / 1e6:,.1f} MB; {listed}")
    return 0
