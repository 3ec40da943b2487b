"""What the commands that write text share: arguments, sampling options, and the line about speed."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from rlx.models.generation import Completion
from rlx.models.language_model import LanguageModel, Pieces, load
from rlx.ops.lowered.int8_products import ACTIVATIONS


def add_model_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The model and how it runs."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if default else None,
        default=default,
        help="a GGUF file, a Hugging Face directory or a name such as smollm2" + (" (the default)" if default else ""),
    )
    parser.add_argument("--device", default="cpu", help="where to run it; see `rlx devices` (default: cpu)")
    parser.add_argument("--weights", metavar="TYPE", help="quantise float matrices to this GGUF type, such as q8_0")
    parser.add_argument(
        "--activations",
        choices=tuple(ACTIVATIONS),
        default="f32",
        help="int8 is fastest, and not exact; int16 is between (default: f32)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: all that this process may use)")
    parser.add_argument("--no-mmap", action="store_true", help="read the file into memory, so that it may change")


def add_sampling_arguments(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """How tokens are chosen, and when to stop."""
    parser.add_argument("--kv-dtype", choices=("f32", "f16", "bf16", "q8"), default="f32", help="how the cache is kept")
    parser.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help=f"default: {max_tokens}")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the most probable token")
    parser.add_argument("--top-k", type=int, metavar="K", help="choose among the K most probable tokens")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="choose among the tokens that have P of the probability"
    )
    parser.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the most probable one")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1 repeats less")
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the same choices")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end at this text; may be repeated")


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options as `LanguageModel.complete` takes them."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "stop")
    return {name: getattr(args, name) for name in names}


def load_model(args: argparse.Namespace) -> LanguageModel:
    kv_dtype = getattr(args, "kv_dtype", "f32")
    return load(
        args.model,
        device=args.device,
        threads=args.threads,
        activations=args.activations,
        kv_dtype=kv_dtype,
        weights=args.weights,
        mmap=not args.no_mmap,
    )


def print_pieces(pieces: Pieces) -> Completion:
    """Show text as it comes, and on a terminal how fast it came."""
    started, first = time.perf_counter(), 0.0
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            answer: Completion = end.value
            break
        first = first or time.perf_counter()
        sys.stdout.write(piece)
        sys.stdout.flush()
    ended = time.perf_counter()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if sys.stderr.isatty() and first:
        # The first token belongs to the prompt's time.
        speed = max(len(answer.token_ids) - 1, 0) / max(ended - first, 1e-9)
        print(f"[first text after {first - started:.2f} s, then {speed:.1f} tokens/s]", file=sys.stderr)
    return answer
