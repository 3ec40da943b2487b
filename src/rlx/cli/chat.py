"""Talk to a language model. Without a message this is a conversation; an empty line or Ctrl-D ends it.

In a conversation Ctrl-C interrupts the answer, or leaves at the prompt. A backslash at the end of a line continues it
on the next one. Lines that begin with a slash are commands:

  /reset         begin anew; what the model was told before (--system) stays
  /system TEXT   begin anew, and tell the model this first
  /save FILE     write the conversation as JSON
  /help          show this
  /exit          leave

examples:
  rlx chat
  rlx chat smollm2 "What is the capital of France?"
  rlx chat path/to/smolvlm --image photo.jpg "What is this?"
  rlx chat model.gguf --system "Answer in one sentence." --temperature 0.7
  rlx chat model.gguf --tools functions.json "What is the weather in Paris?"

With --tools the model may call functions; each call is printed as a line of JSON, and what you type next is what the
function returns.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.cli import add_command
from rlx.cli.arguments import read_line
from rlx.cli.generate_options import (
    add_model_arguments,
    add_sampling_arguments,
    load_model,
    print_pieces,
    read_json_option,
    sampling_options,
)
from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.cli import Subparsers
    from rlx.models.language_model import LanguageModel

_COMMANDS = "/reset, /system TEXT, /save FILE, /help, /exit"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    parser = add_command(subparsers, "chat", __doc__)
    add_model_arguments(parser, default="smollm2")
    question = parser.add_mutually_exclusive_group()
    question.add_argument("text", metavar="TEXT", nargs="?", help="ask this, print the answer and exit")
    question.add_argument("--message", metavar="TEXT", help="the same as TEXT, for questions that begin with a dash")
    parser.add_argument(
        "--image",
        metavar="FILE",
        action="append",
        default=[],
        help="a picture before the first question, of a model that reads some; may be given several times",
    )
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    add_sampling_arguments(parser, max_tokens=512)
    parser.add_argument(
        "--tools", type=Path, metavar="FILE", help="functions that may be called: a JSON list as OpenAI's `tools`"
    )
    parser.add_argument(
        "--tool-choice", default="auto", metavar="CHOICE", help="auto, none, required or a function (default: auto)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per answer")
    return parser


def run(args: argparse.Namespace) -> int:
    conversation = Conversation(load_model(args), args, args.image)
    message = args.text if args.message is None else args.message
    if message is not None:
        conversation.answer(message)
    elif sys.stdin.isatty():
        conversation.talk()
    else:
        while question := read_line().strip():
            conversation.answer(question)
    return 0


class Conversation:
    """A model, what was said so far, and how answers are shown."""

    def __init__(self, lm: LanguageModel, args: argparse.Namespace, images: Sequence[Any] = ()) -> None:
        self.lm, self.args, self.system = lm, args, args.system
        self.messages: list[dict[str, Any]] = []
        # The calls whose results the model waits for.
        self.calls: list[dict[str, Any]] = []
        self.tools = None if args.tools is None else read_json_option(args.tools, "a list of functions")
        self.images = list(images)
        self.reset()

    def reset(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.calls = []

    def talk(self) -> None:
        """Answer what is typed until the user leaves."""
        threading.Thread(target=self._get_ready, name="rlx-chat", daemon=True).start()
        with suppress(ImportError):
            import readline  # noqa: F401 - gives input() line editing, and the arrow keys what was typed before
        while True:
            try:
                question = _typed()
            except (EOFError, KeyboardInterrupt):
                # An impatient second Ctrl-C must not interrupt the way out.
                with suppress(ValueError):  # of a thread that may not set it
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                print(file=sys.stderr)
                return
            if not question or question in ("/exit", "/quit", "/bye"):
                return
            try:
                if question.startswith("/"):
                    self._command(*question.split(maxsplit=1))
                else:
                    self.answer(question, may_stop=True)
            except (RlxError, OSError) as error:
                # What was wrong with one question or command is no reason to end the conversation.
                print(f"rlx chat: {error}", file=sys.stderr)
            except KeyboardInterrupt:
                # While the prompt was made, before there was an answer that could end.
                print(file=sys.stderr)
                _note("the question is forgotten")

    def _get_ready(self) -> None:
        """While the first question is typed: make the tokenizer, and start what renders the template."""
        # What is wrong with them is told to who asks the question.
        with suppress(RlxError, OSError):
            self.lm.chat_ids("Hello")

    def answer(self, question: str, may_stop: bool = False) -> None:
        """Answer a question, and add both to the conversation. With `may_stop` Ctrl-C ends the answer only."""
        asked = [*self.messages, self._said(question)]
        if self.calls:
            # Of several calls all results are needed.
            self.messages = asked
            return
        if self.tools is not None:
            self._answer_with_tools(question, asked)
            return
        options, most = sampling_options(self.args), self.args.max_tokens
        if self.args.json:
            (answer,) = self.lm.complete([self.lm.chat_ids(asked)], most, **options)
            facts = {"finish_reason": answer.finish_reason, "tokens": len(answer.token_ids)}
            print(json.dumps({"question": question, "answer": answer.text, **facts}), flush=True)
        else:
            answer = print_pieces(self.lm.chat(asked, most, stream=True, **options), may_stop)
        self.messages, self.images = [*asked, {"role": "assistant", "content": answer.text}], []

    def _with_images(self, question: str) -> str | list[dict[str, Any]]:
        """A question, behind the pictures that were not asked about yet."""
        pictures = [{"type": "image", "image": path} for path in self.images]
        return [*pictures, {"type": "text", "text": question}] if pictures else question

    def _said(self, text: str) -> dict[str, Any]:
        """What the user has said, or what the function returns that was called."""
        if not self.calls:
            return {"role": "user", "content": self._with_images(text)}
        call = self.calls.pop(0)
        return {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": text}

    def _answer_with_tools(self, question: str, asked: list[dict[str, Any]]) -> None:
        """Answer with text, or with calls of functions, for whose results the next lines are taken."""
        choice: Any = self.args.tool_choice
        if choice not in ("auto", "none", "required"):
            choice = {"type": "function", "function": {"name": choice}}
        options = sampling_options(self.args)
        answer = self.lm.answer(asked, self.tools or [], self.args.max_tokens, tool_choice=choice, **options)
        self.calls = list(answer.get("tool_calls", []))
        if self.args.json:
            print(json.dumps({"question": question, **answer}), flush=True)
        else:
            calls = [json.dumps(call["function"], ensure_ascii=False) for call in self.calls]
            print("\n".join([answer["content"]] if answer["content"] or not calls else calls), flush=True)
        self.messages, self.images = [*asked, answer], []

    def _command(self, name: str, rest: str = "") -> None:
        if name in ("/reset", "/clear"):
            self.reset()
            _note("the conversation begins anew")
        elif name == "/system":
            self.system = rest or None
            self.reset()
            _note("the conversation begins anew" + (", with this as its beginning" if rest else ", with no beginning"))
        elif name == "/save" and rest:
            self._save(Path(rest).expanduser())
        elif name == "/help":
            _note(_COMMANDS + "; Ctrl-C ends an answer, an empty line or Ctrl-D the conversation")
        else:
            raise RlxError(f"commands are {_COMMANDS}; got {name!r}{'' if rest else ' alone'}")

    def _save(self, path: Path) -> None:
        if path.exists():
            raise RlxError(f"{path} exists already; choose another name")
        path.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _note(f"{len(self.messages)} messages written to {path}")


def _note(text: str) -> None:
    print(f"[{text}]", file=sys.stderr)


def _typed() -> str:
    """What the user types at the prompt; a backslash at the end of a line asks for another one."""
    line = input("> ")
    while line.endswith("\\"):
        line = line[:-1] + "\n" + input(". ")
    return line.strip()
