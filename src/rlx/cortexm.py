"""Programs for Arm Cortex-M microcontrollers: C of an integer program, built and compared where tools are here.

    program = rlx.quantized.load("digits.rlxq")
    rlx.cortexm.export(program, "digits-m4", cpu="cortex-m4", check="host")

`rlx export cortex-m` does the same. Names of the Rust RLX that are not here yet say so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.backends.export import Exported
    from rlx.quantized import Program

__all__ = ["export"]


def export(program: Program, folder: str | os.PathLike[str], **options: str) -> Exported:
    """Write C of an integer program into a new folder; options are those of `rlx export cortex-m`: cpu, ram, flash,
    check."""
    from rlx.backends.cortex_m.exporter import CortexMExporter

    return CortexMExporter().export_integers(program, Path(folder), options)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.cortexm' has no attribute {name!r}")
    raise RlxError(f"rlx.cortexm.{name}: this is not there yet; rlx.cortexm.export writes C of integer programs")
