"""Continue a text. The text is the prompt, a file, or standard input; what follows is written as it comes. A model
that reads one text and writes another, such as T5, writes its answer.

examples:
  rlx generate smollm2 "The capital of France is" --max-tokens 16
  rlx generate model.gguf --file story.txt --temperature 0.8 --top-p 0.95 --seed 1
  echo "1, 2, 3," | rlx generate smollm2 --json --logprobs 3
  rlx generate smollm2 "Once upon a time" --n 3 --temperature 0.9
  rlx generate smollm2 "Paris in JSON:" --schema schema.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlx.cli import add_command
from rlx.cli.arguments import not_negative, path, positive, read_text
from rlx.cli.generate_options import (
    add_model_arguments,
    add_sampling_arguments,
    load_writer,
    print_pieces,
    sampling_options,
)
from rlx.errors import RlxError
from rlx.models.writing_options import OPTIONS

if TYPE_CHECKING:
    from rlx.cli import Subparsers
    from rlx.models.generation import Completion
    from rlx.models.language_model import LanguageModel
    from rlx.models.seq2seq_model import Seq2SeqModel


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "generate", __doc__)
    add_model_arguments(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("text", metavar="TEXT", nargs="?", help="the text to continue")
    source.add_argument("--prompt", metavar="TEXT", help="the same, for texts that begin with a dash")
    source.add_argument("--file", type=path, metavar="PATH", help="a file with the text to continue")
    add_sampling_arguments(parser, max_tokens=128)
    parser.add_argument("--n", type=positive, metavar="N", help="write N continuations, one after the other")
    parser.add_argument("--logprobs", type=not_negative, metavar="K", help=f"{OPTIONS['logprobs'].doc}; with --json")
    parser.add_argument("--json", action="store_true", help="print one JSON object with text, tokens and times")
    return parser


def run(args: argparse.Namespace) -> int:
    if args.logprobs is not None and not args.json:
        raise RlxError("--logprobs is for --json, which has a place for them")
    prompt = read_text(args.text if args.prompt is None else args.prompt, args.file)
    started = time.perf_counter()
    lm = load_writer(args)
    loaded = time.perf_counter()
    options = sampling_options(args)
    if args.json or args.n is not None:
        answers = lm.complete([prompt], args.max_tokens, n=args.n, **options)
        if args.json:
            print(
                json.dumps(
                    _document(lm, prompt, answers, loaded - started, time.perf_counter() - loaded, args.n), indent=2
                )
            )
        else:
            print("\n\n".join(answer.text for answer in answers))
        return 0
    if sys.stderr.isatty():
        print(f"[loaded in {loaded - started:.2f} s]", file=sys.stderr)
    print_pieces(lm.stream(prompt, args.max_tokens, **options))
    return 0


def _document(
    lm: LanguageModel | Seq2SeqModel,
    prompt: str,
    answers: Sequence[Completion],
    load: float,
    seconds: float,
    n: int | None,
) -> dict[str, object]:
    """One answer and its times; with `--n` a list of answers."""
    written = sum(len(answer.token_ids) for answer in answers)
    times = {
        "prompt_tokens": answers[0].prompt_tokens,
        "load_seconds": round(load, 4),
        "seconds": round(seconds, 4),
        "tokens_per_second": round(written / seconds, 2),
    }
    described = [_answer(lm, answer) for answer in answers]
    return {"prompt": prompt, **(described[0] if n is None else {"answers": described}), **times}


def _answer(lm: LanguageModel | Seq2SeqModel, answer: Completion) -> dict[str, object]:
    facts: dict[str, object] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
    }
    if answer.logprobs is not None:
        facts["logprobs"] = [
            {
                "token_id": entry.token_id,
                "token": lm.tokenizer.token(entry.token_id),
                "logprob": entry.logprob,
                "top": [{"token_id": i, "token": lm.tokenizer.token(i), "logprob": p} for i, p in entry.top],
            }
            for entry in answer.logprobs
        ]
    return facts
