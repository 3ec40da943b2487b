"""Continue a text. The text is the prompt, a file, or standard input; what follows is written as it comes.

examples:
  rlx generate smollm2 "The capital of France is" --max-tokens 16
  rlx generate model.gguf --file story.txt --temperature 0.8 --top-p 0.95 --seed 1
  echo "1, 2, 3," | rlx generate smollm2 --json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.generate_options import (
    add_model_arguments,
    add_sampling_arguments,
    load_model,
    print_pieces,
    sampling_options,
)

if TYPE_CHECKING:
    from rlx.cli import Subparsers


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "generate", __doc__)
    add_model_arguments(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("text", metavar="TEXT", nargs="?", help="the text to continue")
    source.add_argument("--prompt", metavar="TEXT", help="the same, for texts that begin with a dash")
    source.add_argument("--file", type=Path, metavar="PATH", help="a file with the text to continue")
    add_sampling_arguments(parser, max_tokens=128)
    parser.add_argument("--json", action="store_true", help="print one JSON object with text, tokens and times")
    return parser


def run(args: argparse.Namespace) -> int:
    prompt = read_text(args.text if args.prompt is None else args.prompt, args.file)
    started = time.perf_counter()
    lm = load_model(args)
    loaded = time.perf_counter()
    if not args.json:
        if sys.stderr.isatty():
            print(f"[loaded in {loaded - started:.2f} s]", file=sys.stderr)
        print_pieces(lm.stream(prompt, args.max_tokens, **sampling_options(args)))
        return 0
    (answer,) = lm.complete([prompt], args.max_tokens, **sampling_options(args))
    seconds = time.perf_counter() - loaded
    print(
        json.dumps(
            {
                "prompt": prompt,
                "text": answer.text,
                "token_ids": answer.token_ids,
                "finish_reason": answer.finish_reason,
                "prompt_tokens": answer.prompt_tokens,
                "load_seconds": round(loaded - started, 4),
                "seconds": round(seconds, 4),
                "tokens_per_second": round(len(answer.token_ids) / seconds, 2),
            },
            indent=2,
        )
    )
    return 0


def read_text(text: str | None, file: Path | None) -> str:
    """The text that a command works on: given, in a file, or on standard input."""
    if text is not None:
        return text
    if file is not None:
        return file.read_text(encoding="utf-8")
    return sys.stdin.read().removesuffix("\n")
