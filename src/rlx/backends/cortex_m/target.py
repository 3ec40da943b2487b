"""Arm Cortex-M microcontrollers: programs as C or as Thumb code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.own_kernels import named_machine, own_generator
from rlx.compile.target import Absence, Absent, Target

if TYPE_CHECKING:
    from rlx.backends.export import Exporter


def _exporter() -> Exporter:
    from rlx.backends.cortex_m.exporter import CortexMExporter

    return CortexMExporter()


TARGET = Target(
    name="cortex-m",
    about="Arm Cortex-M microcontrollers",
    aliases=("cortexm",),
    probe=lambda: Absent(
        Absence.ExportOnly,
        "programs are written for it as files and do not run from here",
        "write an integer program as C with: rlx export cortex-m PROGRAM.rlxq FOLDER",
    ),
    machine=named_machine("cortex-m4"),
    generator=own_generator,
    exporter=_exporter,
    extra="cortexm",
)
