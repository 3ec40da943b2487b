"""`rlx export cortex-m PROGRAM.rlxq FOLDER`: C of an integer program with all that is needed to build and run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlx.backends.cortex_m.c_program import CProgram, c_program
from rlx.backends.cortex_m.checking import check_export
from rlx.backends.cortex_m.project import core_named, project_files
from rlx.backends.export import Exported, Exporter, new_folder, require_new_folder
from rlx.errors import ExportOnly, RlxError
from rlx.ir.graph import Graph
from rlx.quantized import Program

Array = np.ndarray[Any, np.dtype[Any]]


class CortexMExporter(Exporter):
    """Writes a folder: NAME.h, NAME.c, main.c, startup.c, link.ld, Makefile, CMakeLists.txt."""

    options: ClassVar[Mapping[str, str]] = {
        "cpu": "the core: cortex-m0plus, m3, m4 (default), m7, m33, m55",
        "ram": "refuse an arena of more bytes than this",
        "flash": "refuse weights and tables of more bytes than this",
        "check": "host or qemu: build it, run it on random inputs, and compare every output",
    }
    of_integers = True

    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported:
        raise ExportOnly("cortex-m: floats have no C here; make an integer program (.rlxq) with rlx quantize-graph")

    def export_integers(self, program: Program, out: Path, options: Mapping[str, str] | None = None) -> Exported:
        chosen = self.checked(options)
        core = core_named(chosen.get("cpu", "cortex-m4"))
        check = chosen.get("check")
        if check not in (None, "host", "qemu"):
            raise RlxError(f"cortex-m: check=host or check=qemu is known, got {check!r}")
        require_new_folder(out)
        made = c_program(program)
        _require_room(program, made, "ram", chosen.get("ram"), made.arena.size)
        _require_room(program, made, "flash", chosen.get("flash"), made.weight_bytes + made.table_bytes)
        texts = {f"{made.name}.h": made.header, f"{made.name}.c": made.source, **project_files(made.name, core)}
        with new_folder(out) as folder:
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="ascii")
            figures = _figures(program, made)
            if check is not None:
                figures["checked"] = check_export(program, folder, made.name, core, in_qemu=check == "qemu")
        return Exported(tuple(out / name for name in texts), figures)


def _figures(program: Program, made: CProgram) -> dict[str, str]:
    return {
        "arena": f"{made.arena.size} bytes ({made.arena.lower_bound} are alive at once)",
        "weights": f"{made.weight_bytes} bytes",
        "tables": f"{made.table_bytes} bytes",
        "products": f"{program.macs} per run",
    }


def _require_room(program: Program, made: CProgram, what: str, given: str | None, needed: int) -> None:
    if given is None:
        return
    if not given.isascii() or not given.isdigit():
        raise RlxError(f"cortex-m: {what} is a number of bytes, got {given!r}")
    if needed > int(given):
        values = list(zip(made.arena.offsets, program.values))
        largest = max((v for _, v in values), key=lambda v: v.size_bytes)
        weighty = max(program.steps, key=lambda s: len(s.weights.packed) if hasattr(s, "weights") else 0)
        where = (
            f"the largest value is that of {largest.name}, {largest.size_bytes} bytes"
            if what == "ram"
            else f"{weighty.name} has most of it"
        )
        raise RlxError(f"cortex-m: {program.name} needs {needed} bytes of {what}, and {given} are allowed; {where}")
