"""Write a Hugging Face model as a GGUF file: weights, tokenizer and chat template, as llama.cpp reads them.

The type is that of the matrices: F32, F16, BF16, Q8_0, Q6_K and so on, or a mix that spends more bits where they
matter, Q4_K_M or Q5_K_M. A model that the format cannot describe is refused.

With --adapter an adapter is merged into the model, which may then be a GGUF file too; --type is the type of the merged
matrices (default: their own). With --base the source is an adapter, which is written in the form that llama.cpp reads.

examples:
  rlx convert path/to/hf_dir model.gguf
  rlx convert smollm2 merged.gguf --adapter run --type Q8_0
  rlx convert run adapter.gguf --base smollm2
  rlx convert HuggingFaceTB/SmolLM2-135M-Instruct small.gguf --type Q4_K_M --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import path, require_new
from rlx.errors import RlxError
from rlx.models.adapter_files import read_adapter, write_gguf_adapter
from rlx.models.convert import convert
from rlx.models.merging import write_merged
from rlx.models.model_files import open_decoder
from rlx.models.pull import find_model
from rlx.models.pull_progress import ProgressBar

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "convert", __doc__)
    parser.add_argument("source", metavar="MODEL", help="a Hugging Face directory, or the name of a model")
    parser.add_argument("target", type=path, help="the GGUF file to write")
    parser.add_argument("--type", help="the type of matrices (default: F16)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--adapter", action="append", default=[], metavar="PATH", help="merge this adapter in; may be repeated"
    )
    how.add_argument("--base", metavar="MODEL", help="MODEL is an adapter; this is the model that it belongs to")
    parser.add_argument("--force", action="store_true", help="overwrite the target")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    return parser


def run(args: argparse.Namespace) -> int:
    target = args.target
    require_new(target, args.force)
    if args.base is not None:
        return _write_adapter(args)
    source = find_model(args.source)
    with ProgressBar() as bar:
        if args.adapter:
            types = write_merged(source, target, args.adapter, args.type, bar)
        else:
            types = convert(source, target, args.type or "F16", bar)
    size = target.stat().st_size
    if args.json:
        print(json.dumps({"path": str(target), "bytes": size, "tensors": types}, indent=2))
        return 0
    listed = ", ".join(f"{count} {name}" for name, count in types.items())
    print(f"{target}: {size / 1e6:,.1f} MB; {listed}")
    return 0


def _write_adapter(args: argparse.Namespace) -> int:
    if args.type is not None:
        raise RlxError("--type is for models; adapters are written as F32")
    files = open_decoder(find_model(args.base))
    adapter = read_adapter(args.source, files.config, files.weights)
    write_gguf_adapter(args.target, adapter, files.config, files.weights)
    size = args.target.stat().st_size
    facts = {"path": str(args.target), "bytes": size, "layers": len(adapter.pairs)}
    print(
        json.dumps(facts, indent=2)
        if args.json
        else f"{args.target}: {size / 1e6:,.1f} MB; {len(adapter.pairs)} layers"
    )
    return 0
