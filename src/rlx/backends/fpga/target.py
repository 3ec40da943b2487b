"""Circuits: integer programs as Verilog."""

from __future__ import annotations

from rlx.compile.target import Absence, Absent, Target

TARGET = Target(
    name="fpga",
    about="circuits, as Verilog",
    probe=lambda: Absent(
        Absence.ExportOnly,
        "programs are written for it as circuits and do not run from here",
        "the export itself does not exist yet",
    ),
    extra="fpga",
)
