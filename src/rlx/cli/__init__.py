"""The command `rlx`. Each subcommand is a module here with `add_parser(subparsers)` and `run(args) -> int`.

A module is imported when its command is used. Exit codes: 0 done, 1 the command could not do it (a message on stderr),
2 wrong usage, 130 stopped with Ctrl-C. `--json` prints one JSON document on stdout; progress goes to stderr, and only
when that is a terminal.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import rlx
from rlx.errors import RlxError
from rlx.knobs import knobs, report_unknown_variables

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

# Command -> what it does. The module has the same name, with _ for -.
COMMANDS: dict[str, str] = {
    "chat": "talk to a language model",
    "generate": "continue a text",
    "embed": "turn texts into vectors",
    "transcribe": "transcribe or translate speech in WAV files",
    "serve": "serve a model to programs that speak OpenAI's HTTP interface",
    "run": "run an ONNX model or a program once",
    "perplexity": "measure how well a model predicts a text",
    "finetune": "fine-tune a language model on your texts or chats",
    "train": "train a small language model from scratch",
    "launch": "run a training script in several processes",
    "plan": "estimate training on many chips, and pick a layout",
    "bench": "benchmark this machine, beside other libraries",
    "tune": "autotune the products of a model for this machine",
    "explain": "show which ops became which kernel, and why",
    "devices": "list the devices that can run programs here",
    "doctor": "show what a device needs and what is missing",
    "pull": "download a model",
    "inspect": "show what is in a model file or a graph",
    "export": "export a model or a program as files for a target",
    "compile": "compile a model into one file that starts without compiling",
    "serve-web": "serve an exported page, to try it in a browser",
    "cache": "show or delete what rlx keeps on disk",
    "quantize": "quantise a GGUF file",
    "quantize-graph": "quantise a float graph to an integer program",
    "convert": "convert a Hugging Face model or an adapter to GGUF",
    "splat": "train, render and show scenes of Gaussian splats",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    _print_whatever_comes()
    parser = _parser(given)
    _require_command(parser, given)
    args, late = parser.parse_known_args(given)
    if late and not _took_text(args, late):
        parser.error(f"unrecognized arguments: {' '.join(late)}")
    if args.command is None:
        parser.print_help()
        return 0
    report_unknown_variables()
    try:
        with _short_warnings(args.command):
            code: int = args.run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has gone, as in `rlx inspect ... | head`; a second error at exit would only confuse.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (RlxError, OSError) as error:
        return _failed(args.command, _text(error))
    except MemoryError:
        return _failed(args.command, "there is not enough memory for this")
    except Exception as error:
        if knobs.debug:
            raise
        # A fault of rlx, and no reason to show its insides to somebody who wants an answer.
        kind = type(error).__name__
        return _failed(args.command, f"{UNEXPECTED} {kind}: {error}; please report it; RLX_DEBUG=1 shows where it was")


def _require_command(parser: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """A command that does not exist is answered with one that does, if any is near."""
    word = next((word for word in given if not word.startswith("-")), None)
    if word is None or word in COMMANDS or "-h" in given or "--help" in given or "--version" in given:
        return
    import difflib  # only where something is wrong

    near = difflib.get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else "`rlx --help` lists the commands"
    parser.error(f"there is no command {word!r:.80}; {hint}")


def _took_text(args: argparse.Namespace, late: list[str]) -> bool:
    """`rlx generate MODEL --max-tokens 8 "a text"`: argparse looks for the text beside the model only."""
    given_otherwise = any(getattr(args, name, None) is not None for name in ("text", "prompt", "message", "file"))
    if len(late) > 1 or late[0].startswith("-") or given_otherwise or args.command not in ("chat", "generate"):
        return False
    args.text = late[0]
    return True


# What the message about a fault of rlx begins with.
UNEXPECTED = "an unexpected"
_LONGEST_LINE = 1500
# What commands call, and what the errors of those begin with.
_METHODS = (
    *("complete", "stream", "generate", "chat", "embed", "load", "load_encoder", "load_seq2seq"),
    *("pull", "convert", "quantize"),
)


def _failed(command: str, message: str) -> int:
    """Say in one line what was wrong. Methods put their own name first; here the name of the command says it."""
    name, _, rest = message.partition(": ")
    said = rest if name in (command, *_METHODS) else message
    line = " ".join(part.strip() for part in said.splitlines())
    # Long enough for any message; an argument of a megabyte is not repeated as a whole.
    shown = line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}"
    print(f"rlx {command}: {shown}", file=sys.stderr)
    return 1


def _text(error: RlxError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror and not isinstance(error, RlxError):
        reason = f"{error.strerror[0].lower()}{error.strerror[1:]}"
        return reason if error.filename is None else f"{os.fsdecode(error.filename)}: {reason}"
    return str(error)


@contextmanager
def _short_warnings(command: str) -> Iterator[None]:
    """Warnings as one line each: where in the code they come from is nothing to somebody who typed a command."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"rlx {command}: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _print_whatever_comes() -> None:
    """Names of files may hold bytes that are no characters, and terminals may not have all characters: show them as
    escapes instead of failing. Streams that were closed before the start (`rlx ... >&-`) take what is written."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the whole process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command line; only the command that is used loads its module."""
    parser = argparse.ArgumentParser(
        prog="rlx",
        description="ML models and programs, compiled and run.",
        epilog="`rlx COMMAND --help` shows the arguments and examples of a command.",
    )
    parser.add_argument("--version", action="version", version=f"rlx {rlx.__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")
    wanted = next((word for word in given if not word.startswith("-")), None)
    for name, line in COMMANDS.items():
        place = f"rlx.cli.{name.replace('-', '_')}"
        if not importlib.util.find_spec(place):
            continue
        if name == wanted:
            module = importlib.import_module(place)
            module.add_parser(commands).set_defaults(command=name, run=module.run)
        else:
            commands.add_parser(name, help=line)
    return parser


def add_command(subparsers: Subparsers, name: str, doc: str | None) -> argparse.ArgumentParser:
    """The parser of one command; `doc`, the docstring of its module, is what `--help` shows."""
    return subparsers.add_parser(name, help=COMMANDS[name], description=doc, formatter_class=_HelpFormatter)


class _HelpFormatter(argparse.HelpFormatter):
    """Sentences fit the terminal; lines that are indented, such as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        import textwrap  # for `--help` alone

        paragraphs: list[list[str]] = [[]]
        for line in text.strip().splitlines():
            if not line.strip() or line.startswith(" ") or paragraphs[-1][-1:] == [""]:
                paragraphs.append([])
            paragraphs[-1].append(line.rstrip())
            if not line.strip() or line.startswith(" ") or line.endswith(":"):
                paragraphs.append([])
        filled = (
            lines[0] if lines[0].startswith(" ") else textwrap.fill(" ".join(lines), width)
            for lines in paragraphs
            if lines
        )
        return "\n".join(filled)
