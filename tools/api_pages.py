"""Writes the reference of the public functions and classes: docs/api/, one page for each namespace.

The top of a page, with its example, is written by hand; what stands below the comment is written here, from the names
that `dir()` of the namespace shows, their signatures and their docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "api"
START = "<!-- What follows is written by tools/generate_docs.py (`make docs`). -->"

# Page -> its namespace.
NAMESPACES = {
    "rlx": "rlx",
    "numpy": "rlx.numpy",
    "nn": "rlx.nn",
    "lax": "rlx.lax",
    "random": "rlx.random",
    "linalg": "rlx.linalg",
    "special": "rlx.scipy.special",
    "stats": "rlx.scipy.stats",
    "signal": "rlx.scipy.signal",
    "fft": "rlx.scipy.fft",
    "ndimage": "rlx.scipy.ndimage",
    "interpolate": "rlx.scipy.interpolate",
    "optimize": "rlx.scipy.optimize",
    "sparse_linalg": "rlx.scipy.sparse.linalg",
    "image": "rlx.image",
    "tree": "rlx.tree",
    "optim": "rlx.optim",
    "train": "rlx.train",
    "finetune": "rlx.finetune",
    "onnx": "rlx.onnx",
    "quantized": "rlx.quantized",
    "sparse": "rlx.sparse",
    "audio": "rlx.audio",
    "rf": "rlx.rf",
    "splat": "rlx.splat",
    "debug": "rlx.debug",
}

# The sections of `rlx` itself: title -> the packages whose names stand there. What no package claims comes last.
SECTIONS = {
    "Functions: tracing, control flow, trees of arrays": ("rlx.trace",),
    "Derivatives and batching": ("rlx.autodiff",),
    "Graphs, types and sizes": ("rlx.ir", "rlx.hir", "rlx.quant"),
    "Compiling and running": ("rlx.compile", "rlx.runtime", "rlx.backends", "rlx.fusion"),
    "Models": ("rlx.models", "rlx.formats"),
    "Operations": ("rlx.ops",),
    "Everything else": ("",),
}


class Entry(NamedTuple):
    name: str
    value: object


def api_pages() -> dict[str, Callable[[], str]]:
    """Page -> how its text is made: the top as it is, and the reference below it."""
    return {f"docs/api/{page}.md": lambda page=page: _page(page) for page in NAMESPACES}  # type: ignore[misc]


def _page(page: str) -> str:
    path = FOLDER / f"{page}.md"
    top, start, _ = path.read_text().partition(START)
    if not start:
        raise ValueError(f"{path.name} needs the line {START!r} below its introduction")
    module = importlib.import_module(NAMESPACES[page])
    entries = list(public_entries(module))
    return f"{top}{start}\n\n" + (_by_section(entries) if page == "rlx" else _listed(entries)) + "\n"


def public_entries(module: ModuleType) -> Iterator[Entry]:
    """What a user finds in a namespace: functions, classes and constants of rlx, not what its module imports."""
    shown = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    for name in sorted(shown, key=lambda name: (name.lower(), name)):
        value = getattr(module, name)
        home = getattr(value, "__module__", None) or ""
        if inspect.ismodule(value) or name in ("annotations", "TYPE_CHECKING") or home in ("typing", "collections.abc"):
            continue
        yield Entry(name, value)


def _by_section(entries: list[Entry]) -> str:
    sections: dict[str, list[Entry]] = {title: [] for title in SECTIONS}
    for entry in entries:
        home = getattr(entry.value, "__module__", None) or ""
        sections[next(t for t, homes in SECTIONS.items() if any(home.startswith(h) for h in homes))].append(entry)
    return "\n\n".join(f"## {title}\n\n{_listed(found)}" for title, found in sections.items() if found)


def _listed(entries: list[Entry]) -> str:
    return "\n\n".join(_entry(entry) for entry in entries)


def _entry(entry: Entry) -> str:
    if inspect.isclass(entry.value):
        return "\n\n".join(filter(None, (f"### `{_head(entry)}`", _doc(entry.value), _methods(entry.value))))
    if callable(entry.value):
        return f"### `{_head(entry)}`\n\n{_doc(entry.value)}".rstrip()
    return f"### `{entry.name}`\n\n{_constant(entry.value)}"


def _constant(value: object) -> str:
    if "__doc__" in getattr(value, "__dict__", {}):
        return _doc(value)
    text = repr(value)
    return f"A constant: `{text}`." if len(text) < 60 and " at 0x" not in text else f"A `{type(value).__name__}`."


def _head(entry: Entry) -> str:
    word = "class " if inspect.isclass(entry.value) else ""
    return f"{word}{entry.name}{signature(entry.value)}"


def signature(value: object) -> str:
    """As written in the source; defaults that have no short text are dots."""
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    parameters = [p.replace(default=_Written(p.default)) for p in found.parameters.values() if p.name != "self"]
    # Annotations are left out: the docstrings say what is wanted, and aliases of types say little by their names.
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(plain))


class _Written:
    """A default as it is shown."""

    def __new__(cls, default: object) -> object:  # type: ignore[misc]
        return default if default is inspect.Parameter.empty else super().__new__(cls)

    def __init__(self, default: object) -> None:
        self._default = default

    def __repr__(self) -> str:
        if isinstance(self._default, type) or inspect.isfunction(self._default):
            return str(self._default.__name__)
        text = repr(self._default)
        return "..." if " at 0x" in text or len(text) > 40 else text


def _doc(value: object) -> str:
    """The docstring as Markdown: code that it indents stays code."""
    text = inspect.getdoc(value) or ""
    if not text or (not inspect.isclass(value) and text == inspect.getdoc(type(value))):
        return ""
    # Doctests and other indented lines are code; what stands in backquotes already is.
    return re.sub(r"(?m)^(>>> .*(?:\n(?!\n).*)*)", lambda found: f"```pycon\n{found[1]}\n```", text)


def _methods(cls: type) -> str:
    """Public methods and properties of a class, with the first sentence of what they say."""
    rows = []
    for name, member in inspect.getmembers_static(cls):
        if name.startswith("_") or not _is_described(cls, name, member):
            continue
        if isinstance(member, property):
            rows.append(f"- `{name}`: {_first_sentence(member)}")
        elif callable(getattr(cls, name)):
            rows.append(f"- `{name}{signature(getattr(cls, name))}`: {_first_sentence(member)}")
    return "\n".join(rows)


def _is_described(cls: type, name: str, member: object) -> bool:
    """Whether the class itself, or one of rlx that it derives from, defines and describes a member."""
    owner = next((base for base in cls.__mro__ if name in vars(base)), None)
    return owner is not None and owner.__module__.startswith("rlx") and bool(_first_sentence(member))


def _first_sentence(member: object) -> str:
    text = inspect.getdoc(member) or ""
    return re.split(r"(?<=[.:])\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0].rstrip(":")
