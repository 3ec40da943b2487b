"""Programs as files for a target: what `rlx export TARGET MODEL OUT` calls."""

from __future__ import annotations

import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from rlx.errors import RlxError
from rlx.ir.graph import Graph

if TYPE_CHECKING:
    from rlx.quantized import Program

Array = np.ndarray[Any, np.dtype[Any]]


class Exported(NamedTuple):
    """The files that were written, the main one first, and a line for each figure that a user wants to know."""

    files: tuple[Path, ...]
    figures: Mapping[str, str]


# What a program does not say of its model: how texts become its inputs, and its outputs texts. A JSON object; see
# `rlx.models.exporting`.
ModelNotes: TypeAlias = Mapping[str, Any]


class Exporter(ABC):
    """Writes a program with its weights. Nothing is left behind when it fails: files appear whole or not at all."""

    # Whether it writes integer programs (`rlx.quantized`) instead of float graphs.
    of_integers: ClassVar[bool] = False
    # Option -> what it is for; `rlx export TARGET --help` shows them.
    options: ClassVar[Mapping[str, str]] = {}
    # Whether `export_model` makes use of the notes of a model, which need its tokenizer.
    wants_notes: ClassVar[bool] = False

    def checked(self, options: Mapping[str, str] | None) -> Mapping[str, str]:
        """The options, all of which are known."""
        for name in options or {}:
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise RlxError(f"export: there is no option {name!r}; known: {known}")
        return options or {}

    def needs_weights(self, options: Mapping[str, str]) -> bool:
        """Whether what is written has the values of weights in it."""
        return True

    @abstractmethod
    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported: ...

    def export_model(
        self,
        graph: Graph,
        params: Mapping[str, Array],
        notes: ModelNotes,
        out: Path,
        options: Mapping[str, str] | None = None,
    ) -> Exported:
        """The same for the program of a model. Targets that take numbers and give numbers have no use for `notes`."""
        return self.export(graph, params, out, options)

    def export_integers(self, program: Program, out: Path, options: Mapping[str, str] | None = None) -> Exported:
        """The same for an integer program; for targets `of_integers`."""
        raise RlxError("export: this target takes float graphs and no integer programs")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder that appears as `out` when the block ends well; however else it ends, nothing is left."""
    require_new_folder(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Built beside the folder, so that it appears whole or not at all.
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
        folder = Path(temporary) / "export"
        folder.mkdir()
        yield folder
        if out.exists():
            out.rmdir()
        shutil.move(folder, out)


def require_new_folder(out: Path) -> None:
    """Raise if something is there already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RlxError(f"{out} exists already; give a new folder, or an empty one")


def page_name(given: str | None) -> str | None:
    """The name of the page that the option `report` asks for, which is written beside the other files."""
    if given is not None and (Path(given).name != given or not given.endswith(".html")):
        raise RlxError(f"report is the name of a page such as report.html, got {given!r}")
    return given


def identifier(text: str, taken: Collection[str] = ()) -> str:
    """A name of C and Verilog that resembles the text, and is none of those that are taken."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII).lower()[:60]
    return name if name[:1].isalpha() and name not in taken else f"model_{name}"
