"""Simulate an export with Icarus or Verilator and read what its testbench says.

Nothing is assumed: where a tool is missing, the error names it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rlx.errors import NotInstalled, RlxError

SIMULATORS = ("icarus", "verilator")
_SECONDS = 900
_SAID = re.compile(r"PASS (\d+) frames, (\d+) clocks for one, (\d+) between frames")


class Simulated(NamedTuple):
    """What a testbench measured: frames that agree, clocks of one alone, clocks from one to the next in a row."""

    frames: int
    clocks: int
    between: int


def simulate(folder: Path, name: str, sources: Sequence[str], simulator: str) -> Simulated:
    """Run the testbench of an export; an error shows the first codes that are not NumPy's."""
    with tempfile.TemporaryDirectory() as temporary:
        if simulator == "icarus":
            image = Path(temporary) / "circuit.vvp"
            language = "-g2012" if any(s.endswith(".sv") for s in sources) else "-g2005"
            call(
                ["iverilog", language, "-Wall", "-Wno-timescale", "-s", f"{name}_tb", "-o", str(image), *sources],
                folder,
            )
            said = call(["vvp", "-n", str(image)], folder)
        elif simulator == "verilator":
            # Testbenches have delays and no widths to worry about; the circuit itself is checked with all warnings.
            built = ["--binary", "--timing", "-Wno-fatal", "-Wno-WIDTH", "--Mdir", temporary, "-o", "simulation"]
            call(["verilator", *built, "--top-module", f"{name}_tb", *sources], folder)
            said = call([str(Path(temporary) / "simulation")], folder)
        else:
            raise RlxError(f"fpga: check=icarus or check=verilator is known, got {simulator!r}")
    found = _SAID.search(said)
    if found is None or "FAIL" in said:
        raise RlxError(f"fpga: {name}: the circuit does not give the codes of the program: {said[-1500:]}")
    return Simulated(*map(int, found.groups()))


def call(command: Sequence[str], folder: Path) -> str:
    """What a tool says; an error if it is missing or fails."""
    if shutil.which(command[0]) is None:
        raise NotInstalled(f"fpga: {command[0]} is missing; tools/install_tools.sh says what to install")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise RlxError(f"fpga: {command[0]} did not end within {_SECONDS} seconds") from None
    if done.returncode:
        raise RlxError(f"fpga: {command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout + done.stderr
