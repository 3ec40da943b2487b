"""Download a model and print its path.

NAME is smollm2 (a small chat model), minilm (a sentence encoder), or a Hugging Face id: org/name or org/name/file.gguf.

examples:
  rlx pull smollm2
  rlx pull sentence-transformers/all-MiniLM-L6-v2
  rlx generate "$(rlx pull smollm2)" --prompt "The capital of France is"
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.models.pull import pull

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "pull", __doc__)
    parser.add_argument("names", metavar="NAME", nargs="+", help="the model to download")
    parser.add_argument("--json", action="store_true", help="print a JSON object from name to path")
    return parser


def run(args: argparse.Namespace) -> int:
    paths = {name: str(pull(name)) for name in args.names}
    if args.json:
        print(json.dumps(paths, indent=2))
    else:
        print("\n".join(paths.values()))
    return 0
