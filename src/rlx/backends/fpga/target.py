"""Circuits: integer programs as Verilog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.compile.target import Absence, Absent, Target

if TYPE_CHECKING:
    from rlx.backends.export import Exporter


def _exporter() -> Exporter:
    from rlx.backends.fpga.exporter import FpgaExporter

    return FpgaExporter()


TARGET = Target(
    name="fpga",
    about="circuits, as Verilog",
    probe=lambda: Absent(
        Absence.ExportOnly,
        "programs are written for it as circuits and do not run from here",
        "write an integer program as Verilog with: rlx export fpga PROGRAM.rlxq FOLDER",
    ),
    exporter=_exporter,
    extra="fpga",
)
