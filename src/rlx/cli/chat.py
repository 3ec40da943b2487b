"""Talk to a language model. Without a message this is a conversation; an empty line or Ctrl-D ends it.

examples:
  rlx chat
  rlx chat smollm2 "What is the capital of France?"
  rlx chat model.gguf --system "Answer in one sentence." --temperature 0.7
"""

from __future__ import annotations

import argparse
import json
import sys
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
    from rlx.models.language_model import LanguageModel


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "chat", __doc__)
    add_model_arguments(parser, default="smollm2")
    question = parser.add_mutually_exclusive_group()
    question.add_argument("text", metavar="TEXT", nargs="?", help="ask this and end")
    question.add_argument("--message", metavar="TEXT", help="the same, for questions that begin with a dash")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    add_sampling_arguments(parser, max_tokens=512)
    parser.add_argument("--json", action="store_true", help="print one JSON object per answer")
    return parser


def run(args: argparse.Namespace) -> int:
    lm = load_model(args)
    messages = [{"role": "system", "content": args.system}] if args.system else []
    message = args.text if args.message is None else args.message
    if message is not None:
        _answer(lm, messages, message, args)
        return 0
    while question := _ask():
        _answer(lm, messages, question, args)
    return 0


def _ask() -> str:
    """The next question; nothing at the end of input."""
    if sys.stdin.isatty():
        try:
            return input("> ").strip()
        except EOFError:
            return ""
    return sys.stdin.readline().strip()


def _answer(lm: LanguageModel, messages: list[dict[str, str]], question: str, args: argparse.Namespace) -> None:
    """Answer a question, and add both to the conversation."""
    messages.append({"role": "user", "content": question})
    options = sampling_options(args)
    if args.json:
        (answer,) = lm.complete([lm.chat_ids(messages)], args.max_tokens, **options)
        text = answer.text
        facts = {"finish_reason": answer.finish_reason, "tokens": len(answer.token_ids)}
        print(json.dumps({"question": question, "answer": text, **facts}), flush=True)
    else:
        text = print_pieces(lm.chat(messages, args.max_tokens, stream=True, **options)).text
    messages.append({"role": "assistant", "content": text})
