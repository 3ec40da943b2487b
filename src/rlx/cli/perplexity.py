"""Measure how well a language model predicts a text: exp of the mean negative log probability of its tokens. Less is
better.

examples:
  rlx perplexity smollm2 --file book.txt
  rlx perplexity model.gguf --text "The quick brown fox jumps over the lazy dog." --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import path, positive, read_text
from rlx.cli.generate_options import add_model_arguments, load_model
from rlx.models.pull_progress import ProgressBar

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "perplexity", __doc__)
    add_model_arguments(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", metavar="TEXT", help="the text")
    source.add_argument("--file", type=path, metavar="PATH", help="a file with the text (default: standard input)")
    parser.add_argument("--context", type=positive, metavar="N", help="evaluate the text in windows of N tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def run(args: argparse.Namespace) -> int:
    text = read_text(args.text, args.file)
    lm = load_model(args)
    ids = lm.tokenizer.encode(text)
    with ProgressBar(unit="tokens", scale=1) as bar:
        found = lm.perplexity(ids, args.context, progress=lambda done, total: bar("reading", done, total))
    if args.json:
        print(json.dumps({"model": args.model, "tokens": len(ids), "perplexity": found}))
    else:
        print(f"perplexity {found:.4f} over {len(ids)} tokens")
    return 0
