"""Integer programs as circuits: simulated bit for bit, clocks as foretold, refusals before files."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.fpga.circuit_programs import perceptron, product, shortcut, tinyconv
from integer_programs.random_steps import KINDS, codes_for, random_program
from rlx.backends.fpga.checking import call, simulate
from rlx.backends.fpga.circuit import circuit_of, hex_file
from rlx.backends.fpga.estimates import estimated_total
from rlx.backends.fpga.exporter import circuit_files
from rlx.backends.fpga.layers import LayerSchedule, product_clocks
from rlx.backends.fpga.parts import PARTS
from rlx.backends.fpga.ranges import Range, ranges_of, signed_bits, sums_of
from rlx.backends.fpga.requantizers import requantizer
from rlx.backends.fpga.rtl_files import ENDINGS
from rlx.backends.fpga.schedules import digits_for, search
from rlx.backends.fpga.testbench import Streams, bench_module, golden_vectors
from rlx.cli import main
from rlx.errors import RlxError
from rlx.fpga import export
from rlx.ir.dtype import DType
from rlx.quantized import Dense, Multipliers, Program, Value, Weights, load, save

icarus = pytest.mark.skipif(not shutil.which("iverilog"), reason="needs iverilog (make tools)")
verilator = pytest.mark.skipif(not shutil.which("verilator"), reason="needs verilator (make tools)")
yosys = pytest.mark.skipif(not shutil.which("yosys"), reason="needs yosys (make tools)")
# Integer programs have them, and circuits do not yet.
WITHOUT = ("rows", "interpolate", "add_constant", "concat", "layer_norm", "attention", "gru", "lstm")
STEPS = [kind for kind in KINDS if kind not in WITHOUT]


def written(circuit, folder, codes, language="verilog"):
    """The sources of a circuit and its testbench, in a folder with all their files."""
    sources, texts = circuit_files(circuit, language)
    bench = f"{circuit.name}_tb{ENDINGS[language]}"
    streams, results = Streams.of(circuit), circuit.program.run(codes)
    texts[bench] = bench_module(streams, len(codes))
    texts |= {name: hex_file(table) for name, table in golden_vectors(streams, codes, results).items()}
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return sources, bench


def random_schedules(rng, program):
    return {
        n: LayerSchedule(
            int(rng.integers(1, 6)),
            int(rng.choice([1, 2, 3, 6, 24])),
            *map(bool, rng.integers(0, 2, 2)),
            systolic=bool(rng.integers(0, 2)),
            doubled=bool(rng.integers(0, 2)),
        )
        for n in range(len(program.steps))
    }


def agrees(program, schedules, folder, codes, language="verilog", simulator="icarus"):
    """Every code is NumPy's, with gaps and after resets, and one frame takes the clocks that were foretold."""
    circuit = circuit_of(program, "net", schedules)
    sources, bench = written(circuit, folder, codes, language)
    done = simulate(folder, "net", [*sources, bench], simulator)
    assert (done.frames, done.clocks) == (len(codes), circuit.clocks)
    return sources, done


@pytest.mark.parametrize("kind", WITHOUT)
def test_steps_without_a_circuit_are_refused_by_name(kind, tmp_path):
    with pytest.raises(RlxError, match="there is no circuit for a"):
        export(random_program(kind, np.random.default_rng(7)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@icarus
@pytest.mark.targets
@pytest.mark.parametrize("kind", STEPS)
def test_every_kind_of_step(kind, tmp_path):
    rng = np.random.default_rng(7)
    for n in range(3):
        program = random_program(kind, rng)
        agrees(program, random_schedules(rng, program), tmp_path / str(n), codes_for(rng, program.input, 5))


@icarus
@pytest.mark.targets
@pytest.mark.parametrize(
    "program", [perceptron((16, 8, 4), 4), tinyconv(4, 12, (3, 4)), shortcut()], ids=lambda p: p.name
)
@pytest.mark.parametrize("language", ENDINGS)
def test_networks(program, language, tmp_path):
    rng = np.random.default_rng(3)
    agrees(program, random_schedules(rng, program), tmp_path, codes_for(rng, program.input, 5), language)


@icarus
@pytest.mark.targets
@pytest.mark.parametrize("taps, is_summed_there", [(31, False), (32, True), (75, True)])
@pytest.mark.parametrize("zero_point", [0, -3])
def test_two_frames_and_sums_of_multipliers(taps, is_summed_there, zero_point, tmp_path):
    """A frame comes in while the last one is worked on: in a row, frames take the taps alone."""
    rng = np.random.default_rng(taps)
    step = product(rng, 0, Value("out", (7,), 0.05), (7, taps), 8, -128)
    program = Program("net", Value("x", (taps,), 1 / 127, zero_point), (0,), (step,))
    codes = codes_for(rng, program.input, 6)
    schedule = LayerSchedule(3, 6)
    between = []
    for doubled in (False, True):
        chosen = {0: replace(schedule, doubled=doubled)}
        layer = circuit_of(program, "net", chosen).layers[0]
        assert (layer.parameters["SUMS_IN_DSP"], layer.parameters["DOUBLED"]) == (is_summed_there, doubled)
        _, done = agrees(program, chosen, tmp_path / str(doubled), codes)
        assert abs(done.between - circuit_of(program, "net", chosen).interval) <= 1
        between.append(done.between)
    assert between[0] >= 4 * taps and between[1] == 3 * (taps + is_summed_there)


@icarus
@pytest.mark.targets
def test_two_frames_before_convolutions_and_pools(tmp_path):
    """Windows begin at the edge again with every frame; memories with one port hold one frame."""
    rng = np.random.default_rng(4)
    program = shortcut()
    agrees(
        program,
        {n: LayerSchedule(2, 3, doubled=True) for n in range(2)},
        tmp_path / "a",
        codes_for(rng, program.input, 5),
    )
    program = tinyconv(8, 12, (3, 4))
    schedules = {n: LayerSchedule(2, 3, doubled=True, spram=n == 2) for n in range(6)}
    circuit = circuit_of(program, "net", schedules)
    assert [layer.parameters.get("DOUBLED") for layer in circuit.layers] == [1, 1, 0, 1, 1, None]
    _, done = agrees(program, schedules, tmp_path / "b", codes_for(rng, program.input, 5))
    # One large memory with a single frame in a row of layers: within a few clocks.
    assert abs(done.between - circuit.interval) < 0.02 * done.between


@icarus
@pytest.mark.targets
def test_a_wrong_code_is_found(tmp_path):
    program = perceptron((16, 8, 4))
    program = Program("net", program.input, (0,), program.steps[:2])
    circuit = circuit_of(program, "net", {})
    codes = codes_for(np.random.default_rng(0), program.input, 3)
    sources, bench = written(circuit, tmp_path, codes)
    wanted = (tmp_path / "tb_wanted.hex").read_text().splitlines()
    wanted[5] = f"{int(wanted[5], 16) ^ 1:02x}"
    (tmp_path / "tb_wanted.hex").write_text("\n".join(wanted) + "\n")
    with pytest.raises(RlxError, match="FAIL frame 1 code 1: "):
        simulate(tmp_path, "net", [*sources, bench], "icarus")


@verilator
@pytest.mark.targets
@pytest.mark.parametrize("language", ENDINGS)
def test_no_warnings_of_verilator(language, tmp_path):
    """All that Verilator warns of, for programs with every module."""
    rng = np.random.default_rng(5)
    programs = [perceptron((16, 8, 4), 4), tinyconv(2, 12, (3, 4)), shortcut()]
    for n, program in enumerate([*programs, *(random_program(kind, rng) for kind in STEPS)]):
        circuit = circuit_of(program, "net", random_schedules(rng, program))
        sources, _ = written(circuit, tmp_path / str(n), codes_for(rng, program.input, 1), language)
        said = call(["verilator", "--lint-only", "-Wall", "--top-module", "net_axis", *sources], tmp_path / str(n))
        assert said == "", program


@yosys
@pytest.mark.targets
@pytest.mark.parametrize("part", PARTS)
def test_yosys_has_no_warnings_and_takes_what_was_estimated(part, tmp_path):
    program = perceptron((64, 16, 4), 8)
    circuit = circuit_of(program, "net", {0: LayerSchedule(4, 8), 1: LayerSchedule(1, 6)})
    sources, _ = written(circuit, tmp_path, codes_for(np.random.default_rng(0), program.input, 1))
    script = f"read_verilog -defer {' '.join(sources)}; {PARTS[part].synthesis.format(top='net_core')}"
    said = call(["yosys", "-p", script], tmp_path)
    # ABC has warnings of its own about how it is called.
    assert [line for line in said.splitlines() if line.startswith("Warning")] == []
    counts = dict(re.findall(r"^ +(\w+) +(\d+)$", said[said.rindex("Number of cells") :], re.MULTILINE))
    if part == "up5k":
        estimate = estimated_total(circuit, PARTS[part])
        assert (estimate.dsps, estimate.brams) == (int(counts["SB_MAC16"]), int(counts["SB_RAM40_4K"]))
        assert 0.8 * int(counts["SB_LUT4"]) < estimate.luts < 1.2 * int(counts["SB_LUT4"])


def test_sums_have_the_bits_that_they_need():
    """Against all sums that there are: the width holds them, and one bit less does not."""
    rng = np.random.default_rng(11)
    x = Value("x", (3,), 0.1, 4)
    for _ in range(20):
        step = product(rng, 0, Value("out", (2,), 0.1), (2, 3), 2, -128)
        program = Program("small", x, (0,), (step,))
        difference = Range(*(c - x.zero_point for c in ranges_of(program)[0]))
        on_the_way, sums = sums_of(step, difference)
        ends = np.array(np.meshgrid(*[[difference.low, 0, difference.high]] * 3)).reshape(3, -1)
        reached = step.weights.codes.astype(np.int64) @ ends
        assert (reached.min(), reached.max()) == on_the_way
        with_bias = reached + step.bias[:, None]
        assert (with_bias.min(), with_bias.max()) == sums
    for low, high in ((-128, 127), (-129, 0), (0, 128), (-1, 0), (0, 0)):
        bits = signed_bits(low, high)
        assert -(2 ** (bits - 1)) <= low <= high < 2 ** (bits - 1)
        assert bits == 1 or not -(2 ** (bits - 2)) <= low <= high < 2 ** (bits - 2)


def made_for(digits, pipelined=False):
    return requantizer(
        Multipliers.of([0.3]), Range(-100, 100), 0, Range(-128, 127), 8, digits=digits, pipelined=pipelined
    )


def test_a_slow_requantiser_holds_back_the_taps():
    """By hand: 4 taps, 2 sums of 3 clocks each. The second pass ends when the first has handed on its last sum."""
    assert product_clocks(0, 4, made_for(3), [2, 2]).tolist() == [16, 19, 24, 27]
    # 10 taps leave room for all of it.
    assert product_clocks(0, 10, made_for(3), [2, 2]).tolist() == [22, 25, 32, 35]
    # Sums in multipliers begin with a clock of their own, which the first pass has while the frame comes.
    assert product_clocks(0, 10, made_for(3), [2, 2], gap=1).tolist() == [22, 25, 33, 36]
    # A pipeline takes a sum each clock, and holds back only the shortest passes.
    assert product_clocks(0, 4, made_for(3, pipelined=True), [2, 2]).tolist() == [16, 17, 22, 23]


def test_requantisers_keep_up():
    for taps in (1, 9, 72, 784):
        for lanes in (1, 2, 8, 32):
            digits = digits_for(taps, lanes)
            clocks = product_clocks(0, taps, made_for(digits or 6, digits is None), [lanes] * 20)
            fastest = product_clocks(0, taps, made_for(6, pipelined=True), [lanes] * 20)
            assert clocks[-1] - clocks[lanes - 1] == fastest[-1] - fastest[lanes - 1]


def test_more_lanes_are_faster_up_to_the_goal():
    program, part = perceptron(bits=4), PARTS["up5k"]
    fastest = search(program, "net", part, None)
    assert fastest.clocks < search(program, "net", part, 20_000).clocks <= 20_000
    lanes = [layer.lanes for layer in search(program, "net", part, 20_000).layers]
    assert sum(lanes) < sum(layer.lanes for layer in fastest.layers)


def test_exports_are_the_same_byte_for_byte(tmp_path):
    for folder in ("a", "b"):
        export(tinyconv(4, 12, (3, 4)), tmp_path / folder, part="up5k", report="report.html")
    names = sorted(f.name for f in (tmp_path / "a").iterdir())
    assert names == sorted(f.name for f in (tmp_path / "b").iterdir())
    assert {"tinyconv_core.v", "tinyconv_axis.v", "tinyconv_tb.v", "Makefile", "tinyconv.tcl", "report.html"} <= {
        *names
    }
    for name in names:
        text = (tmp_path / "a" / name).read_bytes()
        assert text == (tmp_path / "b" / name).read_bytes() and text.endswith(b"\n")


def test_sums_that_i32_does_not_hold():
    """No program has them, so that no circuit needs more than 32 bits."""
    x = Value("x", (2000,), 0.1, dtype=DType.I16)
    weights = Weights(np.full((1, 2000), 127, np.int8), np.ones(1, np.float32))
    step = Dense((0,), Value("out", (1,), 0.1), weights, np.zeros(1, np.int32), Multipliers.of([0.1]), -128, 127)
    with pytest.raises(RlxError, match=r"out \(Dense\): sums can reach 8323072000, and i32 ends at 2147483647"):
        Program("wide", x, (0,), (step,))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"part": "moon"}, "there is no part 'moon'; known: up5k, ecp5-25k"),
        ({"part": "up5k", "max_cycles": "500"}, r"takes \d+ clocks in the fastest circuit that fits up5k, and 500 are"),
        ({"max_cycles": "soon"}, "max-cycles is a number from 1"),
        ({"lanes": "0"}, "lanes is a number from 1 to 4096, got '0'"),
        ({"language": "vhdl"}, "there is no language 'vhdl'; known: verilog, systemverilog"),
        ({"check": "moon"}, "check=yes, check=icarus or check=verilator is known"),
        ({"colour": "red"}, "there is no option 'colour'"),
    ],
)
def test_refusals_leave_nothing_behind(options, message, tmp_path):
    with pytest.raises(RlxError, match=message):
        export(tinyconv(4, 12, (3, 4)), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_programs_that_have_no_circuit(tmp_path):
    norm = random_program("layer_norm", np.random.default_rng(0))
    with pytest.raises(RlxError, match="layer_norm1: there is no circuit for a LayerNorm, step 1"):
        export(norm, tmp_path / "out")
    big = r"perceptron needs about \d+ blocks of memory and up5k has room for 30; dense1 takes \d+"
    with pytest.raises(RlxError, match=big):
        export(perceptron((784, 300, 10)), tmp_path / "out", part="up5k")
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_in_use(tmp_path):
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(RlxError, match="exists already"):
            export(perceptron((16, 8, 4)), taken)
    assert (tmp_path / "file").read_text() == "mine"


@icarus
@pytest.mark.targets
def test_the_command_line(tmp_path, capsys):
    save(perceptron((16, 8, 4), 4), tmp_path / "small.rlxq")
    given = [str(tmp_path / "small.rlxq"), str(tmp_path / "out"), "--part", "up5k", "--max-cycles", "200"]
    assert main(["export", "fpga", *given, "--report", "--check"]) == 0
    said = capsys.readouterr().out
    assert "4 frames give the program's codes in icarus, with gaps and resets too" in said
    assert "of 5280 lookup tables" in said
    assert "One frame in time" in (tmp_path / "out" / "report.html").read_text()
    assert "PASS" in call(["make", "-s", "check"], tmp_path / "out")


def test_names_of_programs_are_names_of_modules(tmp_path):
    program = perceptron((4, 3, 2))
    odd = Program("2 'odd'\nendmodule", program.input, (0,), program.steps)
    export(odd, tmp_path / "out")
    text = (tmp_path / "out" / "model_2__odd__endmodule_core.v").read_text()
    assert text.count("endmodule\n") == 1


@verilator
@pytest.mark.targets
@pytest.mark.long
def test_digits_in_verilator(tmp_path):
    """The program that comes with rlx, 20 random images; each frame alone, in a row and with gaps."""
    program = load("mnist")
    circuit = search(program, "net", None, 100_000)
    codes = codes_for(np.random.default_rng(1), program.input, 20)
    sources, bench = written(circuit, tmp_path, codes)
    done = simulate(tmp_path, "net", [*sources, bench], "verilator")
    assert (done.frames, done.clocks) == (20, circuit.clocks)


@icarus
@yosys
@pytest.mark.targets
def test_gates_after_synthesis(tmp_path):
    """The netlist of Yosys with its models of iCE40 cells: memories and multipliers are those of the chip."""
    program = perceptron((16, 8, 4), 8)
    circuit = circuit_of(program, "net", {0: LayerSchedule(2, 4)})
    sources, bench = written(circuit, tmp_path, codes_for(np.random.default_rng(2), program.input, 3))
    synthesis = PARTS["up5k"].synthesis.format(top="net_core")
    script = f"read_verilog -defer {' '.join(sources)}; {synthesis}; write_verilog -noattr gates.v"
    call(["yosys", "-q", "-p", script], tmp_path)
    gates = (tmp_path / "gates.v").read_text()
    assert "SB_MAC16" in gates and "SB_RAM40_4K" in gates and "rlx_product" not in gates
    cells = Path(shutil.which("yosys")).resolve().parent.parent / "share" / "yosys" / "ice40" / "cells_sim.v"
    # Icarus 11 knows no values of ports that are not connected; the netlist connects those that matter.
    (tmp_path / "cells.v").write_text(f"`define NO_ICE40_DEFAULT_ASSIGNMENTS\n{cells.read_text()}")
    done = simulate(tmp_path, "net", ["gates.v", "cells.v", bench], "icarus")
    assert done.clocks == circuit.clocks


@icarus
@pytest.mark.targets
def test_frames_of_ones_own(tmp_path):
    program = perceptron((16, 8, 4))
    np.save(tmp_path / "frames.npy", np.random.default_rng(0).uniform(-1, 1, (3, 16)).astype(np.float32))
    done = export(program, tmp_path / "out", inputs=str(tmp_path / "frames.npy"), check="icarus")
    assert done.figures["checked"].startswith("3 frames")
    np.save(tmp_path / "many.npy", np.zeros((1001, 16), np.int8))
    for name, message in (
        ("none.npy", "no frames for a testbench"),
        ("many.npy", r"1 to 1000 frames, got \(1001, 16\)"),
    ):
        with pytest.raises(RlxError, match=message):
            export(program, tmp_path / "other", inputs=str(tmp_path / name))
    assert not (tmp_path / "other").exists()
