"""Programs as files for a target: what `rlx export TARGET MODEL OUT` calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlx.ir.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]


class Exported(NamedTuple):
    """The files that were written, the main one first, and a line for each figure that a user wants to know."""

    files: tuple[Path, ...]
    figures: Mapping[str, str]


class Exporter(ABC):
    """Writes a program with its weights. Nothing is left behind when it fails: files appear whole or not at all."""

    # Option -> what it is for; `rlx export TARGET --help` shows them.
    options: Mapping[str, str] = {}

    @abstractmethod
    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported: ...
