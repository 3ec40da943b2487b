"""Integer programs as circuits: Verilog with a testbench, simulated and compared where tools are here.

    program = rlx.quantized.load("mnist")
    rlx.fpga.export(program, "digits-up5k", part="up5k", check="icarus")

`rlx export fpga` does the same. Names of the Rust RLX that are not here yet say so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlx.errors import RlxError

if TYPE_CHECKING:
    from rlx.backends.export import Exported
    from rlx.quantized import Program

__all__ = ["export", "fft"]


def export(program: Program, folder: str | os.PathLike[str], **options: str) -> Exported:
    """Write an integer program as a circuit into a new folder; options are those of `rlx export fpga` with `_` for `-`:
    part, max_cycles, lanes, language, frames, check, report."""
    from rlx.backends.fpga.exporter import FpgaExporter

    given = {name.replace("_", "-"): value for name, value in options.items()}
    return FpgaExporter().export_integers(program, Path(folder), given)


def fft(points: int, folder: str | os.PathLike[str], bits: int = 16, check: str | None = None) -> Exported:
    """Write a Fourier transform in fixed point as a circuit: 64 to 1024 complex numbers of so many bits, divided by
    their count. `check` is icarus or verilator."""
    from rlx.backends.fpga.fft import FixedFft

    return FixedFft(points, bits).export(Path(folder), check)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'rlx.fpga' has no attribute {name!r}")
    raise RlxError(f"rlx.fpga.{name}: this is not there yet; rlx.fpga.export writes circuits of integer programs")
