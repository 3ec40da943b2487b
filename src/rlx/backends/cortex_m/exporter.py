"""`rlx export cortex-m PROGRAM.rlxq FOLDER`: C of an integer program with all that is needed to build and run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlx.backends.cortex_m.c_program import CProgram, c_program
from rlx.backends.cortex_m.checking import check_export
from rlx.backends.cortex_m.firmware import BOARDS, LINES, board_named, firmware_files
from rlx.backends.cortex_m.host_programs import stream_files
from rlx.backends.cortex_m.learning import last_layer, learning_files
from rlx.backends.cortex_m.project import core_named, project_files
from rlx.backends.cortex_m.report_page import report_page
from rlx.backends.cortex_m.thumb import thumb_object
from rlx.backends.export import Exported, Exporter, new_folder, page_name, require_new_folder
from rlx.errors import ExportOnly, RlxError
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.quantized import Program

Array = np.ndarray[Any, np.dtype[Any]]


class CortexMExporter(Exporter):
    """Writes a folder: NAME.h, NAME.c, main.c, startup.c, link.ld, Makefile, CMakeLists.txt."""

    options: ClassVar[Mapping[str, str]] = {
        "cpu": "the core: cortex-m0plus, m3, m4 (default), m7, m33, m55",
        "form": "c (default), or object: Thumb code straight from LLVM, for which no C compiler is needed",
        "ram": "refuse an arena of more bytes than this",
        "flash": "refuse weights and tables of more bytes than this",
        "check": "host or qemu (yes): build it, run it on random inputs, and compare every output",
        "stream": "rows that are pushed at a time: also C that runs the network on the last rows of a stream",
        "learn": "yes: also C that trains the last layer on the device",
        "serial": "uart (yes), or usb on a board: also firmware that takes inputs as raw bytes from the serial line and"
        " answers with results",
        "board": f"the memory and serial line (usb) of a board ({', '.join(BOARDS)}) instead of those that QEMU has",
        "report": "the name of an HTML page to write beside the C: memory map, work of each step, flash, RAM, stack",
    }
    of_integers = True

    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported:
        raise ExportOnly("cortex-m: floats have no C here; make an integer program (.rlxq) with rlx quantize-graph")

    def export_integers(self, program: Program, out: Path, options: Mapping[str, str] | None = None) -> Exported:
        chosen = self.checked(options)
        core, board = core_named(chosen.get("cpu", "cortex-m4")), chosen.get("board")
        if board is not None:
            core = board_named(board, core)
        check = "qemu" if chosen.get("check") == "yes" else chosen.get("check")
        if check not in (None, "host", "qemu"):
            raise RlxError(f"cortex-m: check=host or check=qemu is known, got {check!r}")
        if board is not None and check == "qemu":
            raise RlxError(f"cortex-m: QEMU has no {board}; check with check=host, or without the board")
        form = chosen.get("form", "c")
        if form not in ("c", "object"):
            raise RlxError(f"cortex-m: form=c or form=object is known, got {form!r}")
        if form == "object" and check == "host":
            raise RlxError("cortex-m: an object runs on its core alone; check it with check=qemu")
        report = page_name(chosen.get("report"))
        require_new_folder(out)
        extras: dict[str, str] = {}
        learn = chosen.get("learn", "no")
        if learn not in ("yes", "no") or (learn == "yes" and form == "object"):
            raise RlxError(f"cortex-m: learn=yes or learn=no is known, in the form c alone, got {learn!r}")
        made = c_program(program, last_layer(program)[0] if learn == "yes" else None)
        if learn == "yes":
            extras |= learning_files(made.name, program)
        serial = chosen.get("serial", "no" if board is None else "usb")
        if serial not in ("yes", "no", *LINES):
            raise RlxError(f"cortex-m: serial=uart, serial=usb or serial=no is known, got {serial!r}")
        if serial != "no":
            is_label = program.result.dtype is DType.I32 and program.result.size == 1
            extras |= firmware_files(made.name, core, is_label, board, "uart" if serial == "yes" else serial)
        if "stream" in chosen:
            extras |= stream_files(made.name, *_stream_sizes(program, chosen["stream"]))
        _require_room(program, made, "ram", chosen.get("ram"), made.arena.size)
        _require_room(program, made, "flash", chosen.get("flash"), made.weight_bytes + made.table_bytes)
        files = {f"{made.name}.h": made.header.encode("ascii")}
        if form == "object":
            files[f"{made.name}.o"] = thumb_object(program, core)
        else:
            files[f"{made.name}.c"] = made.source.encode("ascii")
        texts = project_files(made.name, core, is_object=form == "object") | extras
        files |= {name: text.encode("ascii") for name, text in texts.items()}
        with new_folder(out) as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            figures = _figures(program, made)
            if check is not None:
                figures["checked"] = check_export(program, folder, made.name, core, in_qemu=check == "qemu")
            if report is not None:
                files[report] = report_page(program, made, core, folder).encode()
                (folder / report).write_bytes(files[report])
        return Exported(tuple(out / name for name in files), figures)


def _stream_sizes(program: Program, given: str) -> tuple[int, int, int]:
    """Rows of a window, codes of a row, rows per push."""
    x = program.input
    if len(x.dims) < 2:
        raise RlxError(f"cortex-m: a stream needs an input of several rows, and {program.name} takes {x.dims}")
    if not given.isascii() or not given.isdigit() or not 0 < int(given) <= x.dims[0]:
        raise RlxError(f"cortex-m: stream is a number of rows from 1 to {x.dims[0]}, got {given!r}")
    return x.dims[0], x.size // x.dims[0], int(given)


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
