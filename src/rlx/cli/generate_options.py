"""What the commands that write text share: arguments, sampling options, and the line about speed."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.cli.arguments import add_device_argument, not_negative, positive, read_text, threads
from rlx.cli.waiting import Waiting
from rlx.errors import RlxError
from rlx.models.config_hf_seq2seq import is_seq2seq
from rlx.models.decoder import MODEL_ACTIVATIONS
from rlx.models.generation import Completion, Pieces
from rlx.models.language_model import LanguageModel, load
from rlx.models.model_files import read_json
from rlx.models.pull import find_model
from rlx.models.writing_options import OPTIONS

if TYPE_CHECKING:
    from rlx.models.seq2seq_model import Seq2SeqModel

# Where it is not the first letter of the option.
_METAVARS = {"top_k": "K", "top_p": "P", "min_p": "P"}


def add_model_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The model and how it runs."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if default else None,
        default=default,
        help="a GGUF file, a Hugging Face directory or a name such as smollm2" + (" (the default)" if default else ""),
    )
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="PATH",
        help="a LoRA adapter: a PEFT folder, as `rlx finetune` writes, or a GGUF adapter; may be repeated",
    )
    add_device_argument(parser)
    parser.add_argument("--weights", metavar="TYPE", help="quantise float matrices to this GGUF type, such as q8_0")
    parser.add_argument(
        "--activations",
        choices=MODEL_ACTIVATIONS,
        default="auto",
        help="precision of activations in products with quantised weights. auto: int16 where that is fast, else f32; "
        "f32: exact; int8: fastest on CPUs, but less accurate; bf16, f16: for GPUs (default: auto)",
    )
    parser.add_argument(
        "--threads", type=threads, metavar="N", help="CPU threads (default: all that this process may use)"
    )
    parser.add_argument(
        "--no-mmap",
        action="store_true",
        help="read the file into memory instead of mapping it, so that it may be changed meanwhile",
    )


def add_sampling_arguments(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """How tokens are chosen, and when to stop."""
    kinds: dict[str, Callable[[str], Any]] = {
        "temperature": float,
        "top_k": positive,
        "top_p": float,
        "min_p": float,
        "repetition_penalty": float,
        "presence_penalty": float,
        "frequency_penalty": float,
        "seed": not_negative,
    }
    parser.add_argument(
        "--kv-dtype", choices=("f32", "f16", "bf16", "q8"), default="f32", help="type of the KV cache (default: f32)"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=max_tokens,
        metavar="N",
        help=f"stop after N tokens (default: {max_tokens})",
    )
    for name, kind in kinds.items():
        default, doc = OPTIONS[name]
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=default,
            metavar=_METAVARS.get(name, name[0].upper()),
            help=doc,
        )
    parser.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        type=_bias,
        metavar="ID=VALUE",
        help="add this to the logit of a token, -inf for never; may be repeated",
    )
    parser.add_argument("--schema", type=Path, metavar="FILE", help="a JSON schema that the answer follows, in a file")
    parser.add_argument(
        "--grammar-file", type=Path, metavar="FILE", help="a grammar (GBNF) that the answer follows, in a file"
    )
    add_draft_argument(parser)
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop before this text; may be repeated"
    )


def _bias(text: str) -> tuple[int, float]:
    token, sign, value = text.partition("=")
    if not sign or not token.isdecimal():
        raise argparse.ArgumentTypeError(f"a token id and a number are needed, such as 42=-5, got {text!r}")
    return int(token), float(value)


def add_draft_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draft",
        metavar="MODEL",
        help="a smaller model with the same tokens that guesses ahead, or `prompt` for what stood in the text before; "
        "the model still decides on each",
    )


def load_draft(args: argparse.Namespace, name: str | None) -> LanguageModel | str | None:
    """What guesses for another model."""
    if name in (None, "prompt"):
        return name
    return load(find_model(name), args.device, args.threads, args.activations)


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options as `LanguageModel.complete` takes them."""
    options = {name: getattr(args, name) for name in OPTIONS if hasattr(args, name)}
    if "draft" in options:
        options["draft"] = load_draft(args, args.draft)
    if "logit_bias" in options:
        options["logit_bias"] = dict(args.logit_bias)
    if getattr(args, "grammar_file", None) is not None:
        options["grammar"] = read_text(None, args.grammar_file)
    if (file := options.get("schema")) is not None:
        options["schema"] = read_json_option(file, "a JSON schema")
    return options


def read_json_option(file: Path, wanted: str) -> Any:
    """The JSON of a file that an option names."""
    try:
        return json.loads(read_text(None, file))
    except (ValueError, RecursionError) as error:
        raise RlxError(f"{file}: {wanted} is needed: {error}") from None


def load_model(args: argparse.Namespace) -> LanguageModel:
    kv_dtype = getattr(args, "kv_dtype", "f32")
    path = find_model(args.model)
    with Waiting(f"loading {args.model}"):
        return load(
            path,
            device=args.device,
            threads=args.threads,
            activations=args.activations,
            kv_dtype=kv_dtype,
            weights=args.weights,
            mmap=not args.no_mmap,
            adapter=args.adapter or None,
        )


def load_writer(args: argparse.Namespace) -> LanguageModel | Seq2SeqModel:
    """A model that continues a text, or one that reads a text and writes another."""
    path = find_model(args.model)
    config = path / "config.json"
    if not config.is_file() or not is_seq2seq(read_json(config)):
        return load_model(args)
    if args.adapter or args.kv_dtype != "f32":
        raise RlxError(f"{args.model} reads one text and writes another: --adapter and --kv-dtype are not for it")
    from rlx.models.seq2seq_model import load_seq2seq  # most models are language models

    activations = "f32" if args.activations == "auto" else args.activations
    with Waiting(f"loading {args.model}"):
        return load_seq2seq(path, args.device, args.threads, args.weights, activations, not args.no_mmap)


def print_pieces(pieces: Pieces, may_stop: bool = False) -> Completion:
    """Show text as it comes, and on a terminal how fast it came. With `may_stop` Ctrl-C ends the text, and what was
    shown until then is the answer."""
    started, first, shown, answer = time.perf_counter(), 0.0, "", None
    try:
        with Waiting("reading the prompt"):
            piece = next(pieces)
        while True:
            first = first or time.perf_counter()
            shown += piece
            sys.stdout.write(piece)
            sys.stdout.flush()
            piece = next(pieces)
    except StopIteration as end:
        answer = end.value
    except KeyboardInterrupt:
        if not may_stop:
            raise
        pieces.close()
    ended = time.perf_counter()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if answer is None:
        return Completion(text=shown)
    if sys.stderr.isatty() and first:
        # The first token belongs to the prompt's time.
        speed = max(len(answer.token_ids) - 1, 0) / max(ended - first, 1e-9)
        print(f"[first text after {first - started:.2f} s, then {speed:.1f} tokens/s]", file=sys.stderr)
    return answer
