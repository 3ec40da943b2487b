"""`rlx export fpga PROGRAM.rlxq FOLDER`: an integer program as a circuit, with testbench and golden vectors."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlx.backends.export import Exported, Exporter, identifier, new_folder, page_name, require_new_folder
from rlx.backends.fpga.checking import SIMULATORS, simulate
from rlx.backends.fpga.circuit import Circuit, circuit_of, hex_file
from rlx.backends.fpga.estimates import estimated_total
from rlx.backends.fpga.parts import PARTS, Part, part_named
from rlx.backends.fpga.presets import PRESETS, preset_named
from rlx.backends.fpga.projects import project_files
from rlx.backends.fpga.report import report_page
from rlx.backends.fpga.routing import Routed, route
from rlx.backends.fpga.rtl_files import ENDINGS, module_text, modules_for, spelled
from rlx.backends.fpga.schedules import RESOURCE_WORDS, Style, require_fit, schedules_for, search
from rlx.backends.fpga.testbench import Streams, bench_module, golden_vectors
from rlx.backends.fpga.top_levels import axis_module, top_module
from rlx.errors import ExportOnly, RlxError
from rlx.ir.graph import Graph
from rlx.quantized import Program
from rlx.quantized.values import limits

Array = np.ndarray[Any, np.dtype[Any]]

_FRAMES = 4
_MOST_FRAMES = 1000


class FpgaExporter(Exporter):
    """Writes a folder: NAME_core, NAME_axis, the modules they use, memory files, NAME_tb with its vectors, projects."""

    options: ClassVar[Mapping[str, str]] = {
        "part": f"the chip: {', '.join(PARTS)}; refuse what does not fit",
        "max-cycles": "the goal in clocks per inference: as little logic as reaches it",
        "lanes": "sums at a time, the same for all layers, instead of a search",
        "preset": f"{', '.join(PRESETS)}: what matters most; {next(iter(PRESETS))} if not given",
        "dense": "systolic: dense layers as arrays whose codes go from lane to lane; lanes if not given",
        "buffers": "2: room for two frames before each layer, also where that takes more memory; 1 if not given",
        "route": "yes: run Yosys and nextpnr for the part, keep the bitstream, and compare with the estimates",
        "language": f"{' or '.join(ENDINGS)}; Verilog-2005 if not given",
        "frames": f"how many random frames the testbench runs, {_FRAMES} if not given",
        "inputs": "a .npy file with the frames that it runs instead, codes or floats [N, ...]",
        "check": f"simulate and compare every code: yes, {' or '.join(SIMULATORS)}",
        "report": "the name of an HTML page to write beside the circuit",
    }
    of_integers = True

    def export(
        self, graph: Graph, params: Mapping[str, Array], out: Path, options: Mapping[str, str] | None = None
    ) -> Exported:
        raise ExportOnly("fpga: floats have no circuit here; make an integer program (.rlxq) with rlx quantize-graph")

    def export_integers(self, program: Program, out: Path, options: Mapping[str, str] | None = None) -> Exported:
        chosen = self.checked(options)
        language = chosen.get("language", "verilog")
        if language not in ENDINGS:
            raise RlxError(f"fpga: there is no language {language!r}; known: {', '.join(ENDINGS)}")
        simulator = _simulator(chosen.get("check"))
        frames = _number(chosen, "frames", _MOST_FRAMES) or _FRAMES
        part = part_named(chosen["part"]) if "part" in chosen else None
        report = page_name(chosen.get("report"))
        routed = _is_routed(chosen.get("route"), part)
        require_new_folder(out)
        original, program = program, preset_named(chosen.get("preset", next(iter(PRESETS)))).applied(program)
        circuit = _circuit(program, part, chosen)
        sources, texts = circuit_files(circuit, language)
        codes = _random_codes(program, frames) if "inputs" not in chosen else _given_codes(program, chosen["inputs"])
        streams = Streams.of(circuit)
        bench = f"{circuit.name}_tb{ENDINGS[language]}"
        texts[bench] = spelled(bench_module(streams, len(codes)), language)
        texts |= {name: hex_file(table) for name, table in golden_vectors(streams, codes, program.run(codes)).items()}
        texts |= project_files(circuit.name, sources, ENDINGS[language], part)
        figures = _figures(circuit, part)
        if program is not original:
            figures["changed"] = _changed(original, program, codes)
        with new_folder(out) as folder:
            for name, text in texts.items():
                (folder / name).write_text(text, encoding="utf-8")
            if simulator is not None:
                figures["checked"] = _checked(circuit, folder, [*sources, bench], simulator)
            made = None
            if routed and part is not None:
                made = route(folder, circuit, sources, part)
                figures["routed"] = _routed(circuit, part, made)
                texts[made.bitstream.name] = ""
            if report is not None:
                texts[report] = report_page(circuit, part, made)
                (folder / report).write_text(texts[report], encoding="utf-8")
        return Exported(tuple(out / name for name in texts), figures)


def circuit_files(circuit: Circuit, language: str = "verilog") -> tuple[list[str], dict[str, str]]:
    """The sources of a circuit, and file name -> text with its memory files."""
    ending = ENDINGS[language]
    tops = {f"{circuit.name}_core": top_module(circuit), f"{circuit.name}_axis": axis_module(circuit)}
    modules = {name: module_text(name) for name in modules_for(*tops.values())} | tops
    texts = {f"{name}{ending}": spelled(text, language) for name, text in modules.items()}
    return list(texts), texts | {name: hex_file(table) for name, table in circuit.tables.items()}


def _circuit(program: Program, part: Part | None, chosen: Mapping[str, str]) -> Circuit:
    name, goal = identifier(program.name), _number(chosen, "max-cycles")
    lanes, preset = _number(chosen, "lanes", 4096), preset_named(chosen.get("preset", next(iter(PRESETS))))
    if chosen.get("dense", "lanes") not in ("lanes", "systolic"):
        raise RlxError(f"fpga: dense=lanes or dense=systolic is known, got {chosen['dense']!r}")
    if chosen.get("buffers", "1") not in ("1", "2"):
        raise RlxError(f"fpga: buffers=1 or buffers=2 is known, got {chosen['buffers']!r}")
    style = Style(chosen.get("dense") == "systolic", preset.ternary_in_logic, chosen.get("buffers") == "2")
    if lanes is None and (goal is not None or (part is not None and "preset" not in chosen)):
        return search(program, name, part, goal, style)
    wanted = preset.lanes_of(program)
    if lanes is not None:
        wanted = dict.fromkeys(wanted, lanes)
    circuit = circuit_of(program, name, schedules_for(program, wanted, part, style))
    if part is not None:
        require_fit(circuit, part)
    if goal is not None and circuit.clocks > goal:
        raise RlxError(f"fpga: {program.name} takes {circuit.clocks} clocks with {lanes} lanes, and {goal} are allowed")
    return circuit


def _random_codes(program: Program, frames: int) -> Array:
    low, high = limits(program.input.dtype)
    rng = np.random.default_rng(0)
    return rng.integers(low, high + 1, (frames, *program.input.dims)).astype(program.input.dtype.numpy)


def _given_codes(program: Program, path: str) -> Array:
    try:
        given = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RlxError(f"fpga: {path}: these are no frames for a testbench: {error}") from None
    codes = program.encode(given) if given.dtype.kind == "f" else given
    if codes.ndim == 0 or not 0 < len(codes) <= _MOST_FRAMES:
        raise RlxError(f"fpga: {path}: a testbench runs 1 to {_MOST_FRAMES} frames, got {codes.shape}")
    return codes


def _number(chosen: Mapping[str, str], what: str, most: int = 2**31) -> int | None:
    given = chosen.get(what)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and 0 < int(given) <= most):
        raise RlxError(f"fpga: {what} is a number from 1 to {most}, got {given!r}")
    return int(given)


def _simulator(given: str | None) -> str | None:
    if given in (None, "no"):
        return None
    if given == "yes":
        return "verilator" if shutil.which("verilator") and not shutil.which("iverilog") else "icarus"
    if given not in SIMULATORS:
        raise RlxError(f"fpga: check=yes, {' or '.join(f'check={s}' for s in SIMULATORS)} is known, got {given!r}")
    return given


def _is_routed(given: str | None, part: Part | None) -> bool:
    if given not in (None, "yes", "no"):
        raise RlxError(f"fpga: route=yes or route=no is known, got {given!r}")
    if given == "yes" and part is None:
        raise RlxError(f"fpga: route=yes needs a part; known: {', '.join(PARTS)}")
    return given == "yes"


def _changed(before: Program, after: Program, codes: Array) -> str:
    wanted, got = before.run(codes), after.run(codes)
    return f"{int(np.count_nonzero(wanted != got))} of {wanted.size} results by multipliers of 15 bits"


def _routed(circuit: Circuit, part: Part, made: Routed) -> str:
    foretold = estimated_total(circuit, part)
    parts = [
        f"{used} {RESOURCE_WORDS[what]} ({estimate} foretold)"
        for what, used, estimate in zip(made.used._fields, made.used, foretold)
        if used or estimate
    ]
    per_second = made.mhz * 1e6 / circuit.clocks
    return f"{', '.join(parts)}, {made.mhz:.1f} MHz, {per_second:.0f} inferences per second, {made.bitstream.name}"


def _checked(circuit: Circuit, folder: Path, sources: list[str], simulator: str) -> str:
    done = simulate(folder, circuit.name, sources, simulator)
    if done.clocks != circuit.clocks:
        raise RlxError(
            f"fpga: {circuit.name} took {done.clocks} clocks in {simulator}, and {circuit.clocks} were foretold"
        )
    return (
        f"{done.frames} frames give the program's codes in {simulator}, with gaps and resets too;"
        f" {done.clocks} clocks, {done.between} between frames"
    )


def _figures(circuit: Circuit, part: Part | None) -> dict[str, str]:
    figures = {
        "clocks": f"{circuit.clocks} per inference",
        "interval": f"about {circuit.interval} clocks between frames in a row",
        "products": f"{circuit.program.macs} per inference, on {sum(a.lanes for a in circuit.layers if a.macs)} lanes",
    }
    if part is not None:
        needed = estimated_total(circuit, part)
        figures["estimate"] = (
            f"{needed.luts} of {part.has.luts} lookup tables, {needed.dsps} of {part.has.dsps} multipliers,"
            f" {needed.brams} of {part.has.brams} blocks of memory"
            + (f", {needed.sprams} of {part.has.sprams} large memories" if part.has.sprams else "")
        )
    return figures
