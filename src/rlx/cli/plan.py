"""Plan the training of a model on many chips, on paper: what each layout needs on each device, what it moves, and how
long a step takes; the fastest that fits is picked. Nothing runs, and no weights are read.

MODEL is a published shape (llama-3-8b, llama-3-70b, mistral-7b, qwen2.5-7b, ...) or what rlx.load takes. A number for
--mesh compares all layouts of so many devices; axes such as data=8,tensor=8 look at that one alone.

examples:
  rlx plan llama-3-8b --mesh 64 --chip h100 --batch 256 --length 4096
  rlx plan llama-3-70b --mesh 512 --chip v5p --batch 512 --length 4096 --html plan.html
  rlx plan llama-3-8b --mesh fsdp=8,tensor=8 --chip v5p --json
  rlx plan smollm2 --mesh 8 --chip a100 --lora 16
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import path, positive

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "plan", __doc__)
    parser.add_argument(
        "model", metavar="MODEL", help="a published shape, a GGUF file, a Hugging Face directory or a name"
    )
    parser.add_argument("--mesh", required=True, metavar="MESH", help="a number of devices, or axes such as data=8")
    parser.add_argument(
        "--chip", required=True, metavar="NAME", help="one of v4, v5e, v5p, v6e, a100, h100, h200, mi300x"
    )
    parser.add_argument("--batch", type=positive, metavar="B", help="texts per step (default: one per device)")
    parser.add_argument("--length", type=positive, metavar="L", help="tokens of each text (default: 2048)")
    parser.add_argument("--lora", type=positive, metavar="R", help="train an adapter of this rank, not all weights")
    parser.add_argument(
        "--roles", metavar="NAMES", help="kinds of parallelism to combine, such as data,tensor,sequence"
    )
    parser.add_argument("--html", type=path, metavar="FILE", help="write a page with a picture of the mesh")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    from rlx.planning import plan

    made = plan(
        args.model,
        int(args.mesh) if args.mesh.isascii() and args.mesh.isdigit() else args.mesh,
        args.chip,
        batch=args.batch,
        length=args.length,
        lora=args.lora,
        roles=None if args.roles is None else [name.strip() for name in args.roles.split(",")],
    )
    if args.html is not None:
        made.html(args.html)
    print(json.dumps(made.json()) if args.json else made)
    return 0
