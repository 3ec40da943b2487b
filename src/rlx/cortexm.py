"""Programs for Arm Cortex-M microcontrollers: C or Thumb code of an integer program, compared where tools are here.

    program = rlx.quantized.load("digits.rlxq")
    rlx.cortexm.export(program, "digits-m4", cpu="cortex-m4", check="host")
    network = rlx.cortexm.read_rlxm("tinyconv.rlxm").program       # weights of the Rust RLX

`rlx export cortex-m` does the same as `export`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.backends.export import Exported
    from rlx.quantized import Program
    from rlx.quantized.tinyconv import TinyConv, read_rlxm, tinyconv, write_rlxm

__all__ = ["TinyConv", "export", "read_rlxm", "tinyconv", "write_rlxm"]


def export(program: Program, folder: str | os.PathLike[str], **options: str) -> Exported:
    """Write C of an integer program into a new folder; options are those of `rlx export cortex-m`: cpu, form, ram,
    flash, check, stream, learn, serial, board, report."""
    from rlx.backends.cortex_m.exporter import CortexMExporter

    return CortexMExporter().export_integers(program, Path(folder), options)


def __getattr__(name: str) -> Any:
    if name in ("TinyConv", "read_rlxm", "tinyconv", "write_rlxm"):
        from rlx.quantized import tinyconv as module

        return getattr(module, name)
    raise AttributeError(f"module 'rlx.cortexm' has no attribute {name!r}; it has {', '.join(__all__)}")
