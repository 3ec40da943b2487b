"""Circuits through the open tools: bitstreams, what they take beside the estimates, the plan of the chip; presets."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from backends.fpga.circuit_programs import perceptron, product, tinyconv
from backends.fpga.test_circuits import agrees, icarus, verilator, written
from integer_programs.random_steps import codes_for
from rlx import train
from rlx.backends.fpga.checking import simulate
from rlx.backends.fpga.circuit import circuit_of
from rlx.backends.fpga.layers import LayerSchedule
from rlx.backends.fpga.parts import PARTS, Resources
from rlx.backends.fpga.presets import PRESETS, preset_named
from rlx.backends.fpga.report import report_page
from rlx.backends.fpga.routing import Routed, _cells, counted
from rlx.backends.fpga.schedules import Style, schedules_for, search
from rlx.errors import RlxError
from rlx.fpga import export
from rlx.quantized import Program, Value, load

FOLDER = os.environ.get("MNIST_DATA")
images_needed = pytest.mark.skipif(FOLDER is None, reason="needs MNIST_DATA, a folder with the 5,000 test images")


def has(tool):
    """A tool of the chain, or the Python package that brings it."""
    packaged = f"yowasp-{tool}"
    return bool(shutil.which(tool) or shutil.which(packaged) or (Path(sys.executable).parent / packaged).exists())


def digits(count):
    return train.read_idx(Path(FOLDER or "") / "train5k-images-idx3-ubyte.gz")[:count]


def codes_of_digits(program, count):
    """Images as codes from -127 to 127, as TinyConv takes them."""
    pixels = np.float32(digits(count)) / 255 * 2 - 1
    return program.input.encode(pixels.reshape(count, *program.input.dims))


@pytest.mark.targets
@pytest.mark.parametrize("part", PARTS)
def test_routed_circuits_have_a_bitstream_and_a_plan(part, tmp_path):
    placement = PARTS[part].placement.split()[0]
    for tool in ("yosys", placement, PARTS[part].packing.split()[0]):
        if not has(tool):
            pytest.skip(f"needs {tool} (make tools)")
    program = perceptron((32, 8, 4), 8)
    done = export(program, tmp_path / "out", part=part, lanes="2", route="yes", report="report.html")
    bitstream = tmp_path / "out" / ("perceptron_core.bin" if part == "up5k" else "perceptron_core.bit")
    assert bitstream in done.files and bitstream.stat().st_size > 50_000
    assert re.search(
        r"\d+ lookup tables \(\d+ foretold\), .* \d+\.\d MHz, \d+ inferences per second", done.figures["routed"]
    )
    page = (tmp_path / "out" / "report.html").read_text()
    assert "What the tools made" in page and page.count("<rect") > 30 and "dense1" in page
    # What tools leave on their way is gone.
    assert not any(f.suffix in (".json", ".asc", ".config") for f in (tmp_path / "out").iterdir())


@pytest.mark.targets
@pytest.mark.long
def test_a_dense_layer_keeps_up_with_a_mac_by_hand(tmp_path):
    """Four lanes of int8 by hand for this chip: 40 million products per second and multiplier, 0.38 per cell."""
    for tool in ("yosys", "nextpnr-ice40", "icepack"):
        if not has(tool):
            pytest.skip(f"needs {tool} (make tools)")
    step = product(np.random.default_rng(1), 0, Value("d", (32,), 0.05), (32, 256), 8, -128)
    program = Program("net", Value("x", (256,), 1 / 127), (0,), (step,))
    done = export(program, tmp_path / "out", part="up5k", lanes="8", route="yes")
    tables, mhz = (float(n) for n in re.search(r"^(\d+) lookup.* (\d+\.\d) MHz", done.figures["routed"]).groups())
    between = int(re.search(r"about (\d+) clocks", done.figures["interval"])[1])
    million_per_second = step.macs / between * mhz
    assert between == 4 * 257 and " 8 multipliers (8 foretold)" in done.figures["routed"]
    assert million_per_second / 8 >= 40 and million_per_second / tables >= 0.38


def test_counts_and_places_are_read_from_what_tools_say():
    said = "   Number of cells:  9\n     CCU2C   2\n     LUT4   5\n     DP16KD  1\n     MULT18X18D  1\n\n"
    assert counted(f"   Number of cells: 1\n     LUT4   1\n{said}") == Resources(9, 1, 1)
    with pytest.raises(RlxError, match="counted no cells"):
        counted("nothing")
    names = {
        "s1.frame.address_DFF_Q": "X2/Y3/lc1",
        "s2_in0_queue.words": "X4/Y1/ram",
        "clk$glb": "X0/Y0/gb",
        "loose": "",
    }
    cells = {n: {"type": "T", "attributes": {"NEXTPNR_BEL": b} if b else {}} for n, b in names.items()}
    text = json.dumps({"modules": {"top": {"cells": cells}}})
    assert _cells(text) == {"s1": [(2, 3, "T")], "s2": [(4, 1, "T")], "": [(0, 0, "T")]}


def test_a_plan_has_a_square_for_every_tile():
    circuit = circuit_of(perceptron((16, 8, 4)), "net", {})
    cells = {"s1": [(1, 1, "ICESTORM_LC"), (1, 1, "ICESTORM_LC"), (2, 5, "ICESTORM_RAM")], "": [(1, 1, "ICESTORM_LC")]}
    page = report_page(circuit, PARTS["up5k"], Routed(Resources(400, 1, 4), 30.0, Path("net.bin"), cells))
    plan = page[page.index("The chip") :]
    assert "1, 1: dense1, 3 cells" in plan and plan.count('stroke="#222"') == 1
    assert "30.0 MHz" in page


@pytest.mark.parametrize(
    "options, message",
    [
        ({"route": "yes"}, "route=yes needs a part; known: up5k, ecp5-25k"),
        ({"route": "maybe", "part": "up5k"}, "route=yes or route=no is known"),
        ({"preset": "fast"}, "there is no preset 'fast'; known: precision, latency, size, energy, bandwidth"),
        ({"dense": "round"}, "dense=lanes or dense=systolic is known, got 'round'"),
    ],
)
def test_refusals_leave_nothing_behind(options, message, tmp_path):
    with pytest.raises(RlxError, match=message):
        export(perceptron((16, 8, 4)), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_presets_are_those_of_the_specification():
    ternary = tinyconv(2, 12, (4, 4))
    latency, size, energy = (preset_named(n) for n in ("latency", "size", "energy"))
    assert set(PRESETS) == {"precision", "latency", "size", "energy", "bandwidth"}
    assert set(latency.lanes_of(ternary).values()) == {4} and latency.applied(ternary) is ternary
    assert set(size.lanes_of(ternary).values()) == {1} and set(energy.lanes_of(ternary).values()) == {4}
    narrow = size.applied(ternary)
    assert {s.multipliers.fraction_bits for s in narrow.steps if hasattr(s, "multipliers")} == {15}
    # Rounding twice with 15 bits moves a code by one at most, and few of them.
    whole = perceptron((200, 64, 10))
    codes = codes_for(np.random.default_rng(3), whole.input, 400)
    one, other = (p.run_all(codes)[1].astype(int) for p in (whole, size.applied(whole)))
    assert np.abs(one - other).max() <= 1 and 0 < np.mean(one != other) < 0.05
    schedules = schedules_for(narrow, size.lanes_of(narrow), PARTS["up5k"], Style(ternary_in_logic=True))
    assert not any(s.dsp for n, s in schedules.items() if n in size.lanes_of(narrow))


@icarus
@pytest.mark.targets
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_simulated(preset, tmp_path):
    done = export(tinyconv(2, 12, (4, 4)), tmp_path / "out", preset=preset, frames="3", check="icarus")
    assert done.figures["checked"].startswith("3 frames")
    assert ("changed" in done.figures) == (PRESETS[preset].fraction_bits == 15)


@icarus
@pytest.mark.targets
@pytest.mark.parametrize("lanes", [2, 5, 8])
def test_systolic_arrays_give_the_same_codes(lanes, tmp_path):
    """With a rest of lanes in the last pass, a zero point, and two arrays in a row."""
    rng = np.random.default_rng(9)
    one = product(rng, 0, Value("one", (11,), 0.05, 3), (11, 20), 8, -128)
    two = product(rng, 1, Value("two", (8,), 0.05), (8, 11), 4, -128)
    program = Program("array", Value("x", (20,), 0.1, -5), (0,), (one, two))
    schedules = {n: LayerSchedule(lanes, 3, systolic=True) for n in range(2)}
    circuit = circuit_of(program, "net", schedules)
    assert [layer.parameters["SYSTOLIC"] for layer in circuit.layers] == [1, 1]
    agrees(program, schedules, tmp_path, codes_for(rng, program.input, 6))


@icarus
@images_needed
@pytest.mark.targets
def test_twenty_digits_in_icarus(tmp_path):
    program = perceptron(bits=4)
    codes = codes_of_digits(program, 20)
    circuit = search(program, "net", PARTS["up5k"], 4000)
    sources, bench = written(circuit, tmp_path, codes)
    done = simulate(tmp_path, "net", [*sources, bench], "icarus")
    assert (done.frames, done.clocks) == (20, circuit.clocks)


@verilator
@images_needed
@pytest.mark.targets
@pytest.mark.long
@pytest.mark.parametrize("which", ["perceptron", "tinyconv", "mnist"])
def test_two_hundred_digits_in_verilator(which, tmp_path):
    program = {"perceptron": perceptron, "tinyconv": tinyconv}[which](bits=4) if which != "mnist" else load("mnist")
    codes = (
        codes_of_digits(program, 200) if which != "mnist" else program.encode(np.float32(digits(200))[:, None] / 255)
    )
    circuit = search(program, "net", None, 100_000)
    sources, bench = written(circuit, tmp_path, codes)
    done = simulate(tmp_path, "net", [*sources, bench], "verilator")
    assert (done.frames, done.clocks) == (200, circuit.clocks)
