"""Arguments and texts that several commands read, with the reason when they are wrong."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rlx.errors import FormatError, RlxError
from rlx.knobs import knobs

if TYPE_CHECKING:
    from rlx.distributed.layouts import Layout


def add_device_argument(parser: argparse.ArgumentParser, verb: str = "run on") -> None:
    """The device, which is the one of the knob `backend` unless the command names another."""
    default = knobs.backend or "cpu"
    parser.add_argument(
        "--device", default=default, help=f"the device to {verb}; see `rlx devices` (default: {default})"
    )


def path(text: str) -> Path:
    """The path of a file."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"this is not a path: {text!r}")
    return Path(text)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed, got {text!r:.80}")
    return value


def not_negative(text: str) -> int:
    """A whole number from 0 on."""
    value = whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"a whole number from 0 on is needed, got {text!r:.80}")
    return value


def whole(text: str) -> int:
    """A whole number of a size that a machine counts with."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a whole number is needed, got {text!r:.80}") from None
    if abs(value) >= 2**63:
        raise argparse.ArgumentTypeError(f"this number is too large: {text!r:.80}")
    return value


def threads(text: str) -> int:
    """How many threads to run: at least one, and not more than a machine can have."""
    value = positive(text)
    most = max(256, 4 * (os.cpu_count() or 1))
    if value > most:
        raise argparse.ArgumentTypeError(f"at most {most} threads make sense here, got {value}")
    return value


def read_text(text: str | None, file: Path | None) -> str:
    """The text that a command works on: given, in a file, or on standard input."""
    if text is not None:
        return text
    if file is None:
        return read_input()
    if file.is_dir():
        raise FormatError(f"{file}: a file is needed; this is a directory")
    if not file.exists():
        from rlx.models.pull import missing_file

        raise missing_file(str(file))
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{file}: not UTF-8 text: byte {error.start} is {_byte(error)}") from None


def read_input() -> str:
    """All of standard input, without the newline at its end."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        print("[the text is read from here; Ctrl-D at the beginning of a line ends it]", file=sys.stderr)
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"standard input is not UTF-8 text: {_byte(error)} is no character") from None


def read_line() -> str:
    """The next line of standard input with its newline; empty at the end."""
    try:
        return sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise FormatError(f"standard input is not UTF-8 text: {_byte(error)} is no character") from None


def _byte(error: UnicodeDecodeError) -> str:
    return f"0x{error.object[error.start]:02x}"


def require_new(target: Path, force: bool, source: Path | None = None) -> None:
    """Refuse to write over a file, unless that is wanted, and over what is read in any case."""
    if target.is_dir():
        raise RlxError(f"{target} is a directory; give the name of a file")
    if target.exists() and (not force or (source is not None and target.samefile(source))):
        raise RlxError(f"{target} exists already; choose another name, or --force if it is not the source")


def joined_layout(mesh: str) -> Layout:
    """The layout that the axes of a mesh are named after; as one of many processes if a launcher has started this."""
    from rlx.distributed import initialize, is_initialized, layout_of
    from rlx.distributed.launchers import find_place
    from rlx.sharding import Mesh

    layout = layout_of(Mesh.of(mesh)).checked()
    if find_place(os.environ) is not None and not is_initialized():
        initialize()
    return layout
