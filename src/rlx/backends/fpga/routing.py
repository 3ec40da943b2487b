"""Synthesis, placement and bitstream of an export with the open tools, and what they say of it.

    made = route(folder, circuit, sources, part_named("up5k"))
    made.used, made.mhz, made.cells["s1"]       # resources, the tool's frequency, places of the cells of a layer

Nothing is assumed: where a tool is missing, the error names it. Tools that come as Python packages (`yowasp-...`) serve
where the others are not installed.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlx.backends.fpga.checking import call
from rlx.backends.fpga.circuit import Circuit
from rlx.backends.fpga.parts import Part, Resources
from rlx.errors import RlxError

_FREQUENCY = re.compile(r"Max frequency for clock +'[^']*': +([0-9.]+) MHz")
_PLACE = re.compile(r"X(\d+)/Y(\d+)/")
_LAYER = re.compile(r"(?:^|\$)(s\d+)(?:_in\d+_queue)?\.")
# What counts as which resource, and how often: a cell of carries of ECP5 is two lookup tables.
_CELLS = {
    "SB_LUT4": Resources(luts=1),
    "SB_MAC16": Resources(dsps=1),
    "SB_RAM40_4K": Resources(brams=1),
    "SB_SPRAM256KA": Resources(sprams=1),
    "LUT4": Resources(luts=1),
    "CCU2C": Resources(luts=2),
    "MULT18X18D": Resources(dsps=1),
    "DP16KD": Resources(brams=1),
}


@dataclass(frozen=True)
class Routed:
    """What the tools made: resources as Yosys counts them, the frequency after routing, and places on the chip."""

    used: Resources
    mhz: float
    bitstream: Path
    # Layer -> (x, y, kind of cell) of each of its cells; those of no layer under "".
    cells: Mapping[str, Sequence[tuple[int, int, str]]]


def route(folder: Path, circuit: Circuit, sources: Sequence[str], part: Part) -> Routed:
    """Run the tools in the folder of an export; what they leave there is the bitstream."""
    top = f"{circuit.name}_core"
    flags = "-sv " if any(s.endswith(".sv") for s in sources) else ""
    script = f"read_verilog {flags}-defer {' '.join(sources)}; {part.synthesis.format(top=top)}"
    used = counted(call(["yosys", "-p", script], folder))
    placed, design = f"{top}_routed.json", f"{top}.json"
    words = part.placement.format(top=top).split()
    said = call([_tool(words[0]), *words[1:], "--write", placed], folder)
    words = part.packing.format(top=top).split()
    call([_tool(words[0]), *words[1:]], folder)
    cells = _cells((folder / placed).read_text(encoding="utf-8"))
    for left in (placed, design, words[1]):
        (folder / left).unlink()
    return Routed(used, _frequency(said, top), folder / words[-1], cells)


def counted(said: str) -> Resources:
    """The resources in Yosys' last count of cells."""
    if "Number of cells" not in said:
        raise RlxError(f"fpga: Yosys counted no cells: {said[-500:]}")
    found = Resources()
    for name, count in re.findall(r"^ +(\w+) +(\d+)$", said[said.rindex("Number of cells") :], re.MULTILINE):
        found = found.plus(Resources(*(int(count) * n for n in _CELLS.get(name, Resources()))))
    return found


def _frequency(said: str, top: str) -> float:
    found = _FREQUENCY.findall(said)
    if not found:
        raise RlxError(f"fpga: {top}: the placement tool names no frequency: {said[-500:]}")
    return float(found[-1])


def _tool(name: str) -> str:
    """A tool as installed, or as a Python package has it."""
    packaged = f"yowasp-{name}"
    beside = Path(sys.executable).parent / packaged
    found = (shutil.which(name), shutil.which(packaged), str(beside) if beside.exists() else None)
    return next((tool for tool in found if tool is not None), name)


def _cells(text: str) -> dict[str, list[tuple[int, int, str]]]:
    """Of the one module of a placed design, whatever its tool calls it."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    (module,) = json.loads(text)["modules"].values()
    for name, cell in module["cells"].items():
        place = _PLACE.match(cell["attributes"].get("NEXTPNR_BEL", ""))
        layer = _LAYER.search(name)
        if place is not None:
            key = layer.group(1) if layer is not None else ""
            found.setdefault(key, []).append((int(place.group(1)), int(place.group(2)), cell["type"]))
    return found
