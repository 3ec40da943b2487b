"""Which parameter sets of schedules won on this machine: measured by `rlx tune`, kept in a file, used by every compile.

A choice belongs to a kernel, by the signature of its spec, and to a machine. It names a set that the schedule offers
and nothing else, so that no file can make a kernel that is not one of ours: what a schedule no longer offers, and what
is damaged, counts as not there.

    with trying({key: {"tiles": 16, ...}}):      # instead of what the file says
        compile(program)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from rlx.cache_directory import cache_directory
from rlx.errors import FormatError
from rlx.kernels.machines import Machine

FORMAT, VERSION = "rlx.tuned", 1


class Parameters(Protocol):
    """One set of parameters: a NamedTuple of whole numbers."""

    def _asdict(self) -> dict[str, Any]: ...


# Key of a kernel -> the set that is used for it.
Choices = Mapping[str, Mapping[str, int]]

_trying: ContextVar[Choices | None] = ContextVar("rlx_trying", default=None)
# The file as it was when it was last read: its path, time and size, then what it said.
_read: tuple[object, Choices, str] = (None, {}, "")


def tuned_file() -> Path:
    """Where choices are kept: `tuned.json` in the cache directory."""
    return cache_directory() / "tuned.json"


def key_of(machine: Machine, schedule: str, signature: str) -> str:
    """What the choice for a kernel is kept under."""
    return hashlib.sha256("\0".join((repr(machine), schedule, signature)).encode()).hexdigest()


def chosen(machine: Machine, schedule: str, signature: str, sets: Sequence[Parameters]) -> Parameters:
    """The set to use for a kernel: what is being tried, else what has won here or where rlx was made, else the
    first."""
    trying = _trying.get()
    choices = _stored()[0] if trying is None else trying
    if len(sets) < 2:
        return sets[0]
    wanted = choices.get(key_of(machine, schedule, signature)) if choices else None
    if wanted is None and trying is None:
        wanted = shipped(machine).get((schedule, signature))
    return next((s for s in sets if s._asdict() == wanted), sets[0])


@cache
def shipped(machine: Machine) -> Mapping[tuple[str, str], Mapping[str, int]]:
    """What was measured where rlx was made, by schedule and signature; none for most machines."""
    path = Path(__file__).parent / "tuned" / f"{machine.name}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {(c["schedule"], c["kernel"]): c["parameters"] for c in found["choices"]}


@contextmanager
def trying(choices: Choices) -> Iterator[None]:
    """Inside, in this thread or task, these choices hold and no others; nothing compiled so is kept on disk."""
    token = _trying.set(choices)
    try:
        yield
    finally:
        _trying.reset(token)


def is_trying() -> bool:
    return _trying.get() is not None


def tuned_stamp() -> str:
    """Another text for other choices; empty without any."""
    return _stored()[1]


def document(choices: Mapping[str, Mapping[str, Any]]) -> str:
    """What the file holds; each choice has `parameters`, and beside it what was measured."""
    return json.dumps({"format": FORMAT, "version": VERSION, "choices": choices}, indent=1) + "\n"


def read_document(text: str) -> dict[str, dict[str, Any]]:
    """The choices of a file; an error if it is none of ours."""
    try:
        found = json.loads(text)
        if found["format"] != FORMAT or found["version"] != VERSION:
            raise FormatError(f"these are no choices of rlx tune: {found['format']!r}, version {found['version']!r}")
        return {
            str(key): {**choice, "parameters": dict(choice["parameters"])} for key, choice in found["choices"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"these are no choices of rlx tune: {type(error).__name__}: {error}") from None


def _stored() -> tuple[Choices, str]:
    """The choices of the file, read again when it has changed, and their stamp."""
    global _read
    path = tuned_file()
    try:
        info = path.stat()
    except OSError:
        return {}, ""
    state = (path, info.st_mtime_ns, info.st_size)
    if _read[0] != state:
        try:
            text = path.read_text(encoding="utf-8")
            choices: Choices = {key: choice["parameters"] for key, choice in read_document(text).items()}
        except (OSError, UnicodeDecodeError, FormatError):
            text, choices = "", {}
        _read = (state, choices, hashlib.sha256(text.encode()).hexdigest() if choices else "")
    return _read[1], _read[2]
