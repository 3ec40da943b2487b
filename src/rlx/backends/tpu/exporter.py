"""`rlx export tpu MODEL FOLDER`: an executable for a TPU, made where there is none."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlx.backends.export import Exported, Exporter
from rlx.backends.tpu.ahead import DEFAULT_TOPOLOGY, compile_ahead
from rlx.errors import RlxError
from rlx.ir.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]


class TpuExporter(Exporter):
    """Writes a folder: the executable, its StableHLO, its HLO and a report. Weights are arguments, which the report
    lists in their order, and stay in the file of the model."""

    options: ClassVar[Mapping[str, str]] = {
        "topology": f"the chips and their arrangement, by default {DEFAULT_TOPOLOGY}; the program is for one of them",
        "sizes": "the symbolic sizes of the program, as in B=1,S=128",
    }

    def needs_weights(self, options: Mapping[str, str]) -> bool:
        return False

    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported:
        chosen = self.checked(options)
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RlxError(f"{out} exists already; give a new folder, or an empty one")
        made = compile_ahead(graph, chosen.get("topology", DEFAULT_TOPOLOGY), sizes=_sizes(chosen.get("sizes", "")))
        out.parent.mkdir(parents=True, exist_ok=True)
        # Built beside the folder, so that it appears whole or not at all.
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as temporary:
            files = made.save(Path(temporary) / "export")
            if out.exists():
                out.rmdir()
            shutil.move(Path(temporary) / "export", out)
        memory = made.program.memory
        figures = {
            "chip": made.program.device_kind,
            "memory": f"{made.needed_bytes} of {made.chip_bytes} bytes",
            "scratch": f"{memory['scratch']} bytes",
            "compiled in": f"{made.seconds:.1f} s",
        }
        return Exported(tuple(out / file.name for file in files), figures)


def _sizes(text: str) -> dict[str, int]:
    sizes = {}
    for part in filter(None, text.split(",")):
        name, separator, number = part.partition("=")
        if not separator or not (number.isascii() and number.isdigit()):
            raise RlxError(f"tpu: sizes are NAME=NUMBER with commas between, got {part!r}")
        sizes[name.strip()] = int(number)
    return sizes
