"""C of integer programs: the same codes bit for bit on the host and in QEMU, small arenas, refusals before files."""

import re
import shutil
import subprocess

import numpy as np
import pytest

import rlx
from integer_programs.float_networks import (
    CONVNET_DIMS,
    DS_CNN_DIMS,
    RESIDUAL_DIMS,
    SEQUENCE_DIMS,
    SEQUENCES,
    convnet,
    ds_cnn,
    images,
    residual,
    traced,
)
from integer_programs.random_steps import KINDS, codes_for, random_program
from rlx.backends.cortex_m.arena import plan_arena
from rlx.backends.cortex_m.c_program import c_program
from rlx.backends.cortex_m.checking import HOST_FLAGS, check_export, measure, run_in_qemu, run_on_host
from rlx.backends.cortex_m.project import CORES, project_files
from rlx.cli import main
from rlx.cortexm import export
from rlx.errors import RlxError
from rlx.quantized import Program, load, quantize, save

compiler = pytest.mark.skipif(not shutil.which("gcc") and not shutil.which("clang"), reason="needs a C compiler")
qemu = pytest.mark.skipif(
    not shutil.which("arm-none-eabi-gcc") or not shutil.which("qemu-system-arm"),
    reason="needs arm-none-eabi-gcc and qemu-system-arm (make tools)",
)
M4 = CORES["cortex-m4"]


def network(function=residual, dims=RESIDUAL_DIMS, **options):
    return quantize(traced(function, dims), {}, [{"x": images(40, dims)}], **options)


def written(program, folder, core=M4):
    made = c_program(program)
    texts = {f"{made.name}.h": made.header, f"{made.name}.c": made.source, **project_files(made.name, core)}
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return made.name


@compiler
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_step_on_the_host(kind, tmp_path):
    """Compiled with all warnings as errors."""
    rng = np.random.default_rng(31)
    for n in range(3):
        program = random_program(kind, rng)
        codes = codes_for(rng, program.input, 200)
        folder = tmp_path / str(n)
        got = run_on_host(program, folder, written(program, folder), M4, codes)
        assert got.tolist() == program.run(codes).tolist(), program


@compiler
@pytest.mark.parametrize(
    "options", [{}, {"bits": 4}, {"bits": 2}, {"activations": "i16"}, {"fraction_bits": 15}], ids=str
)
@pytest.mark.parametrize("function, dims", [(residual, RESIDUAL_DIMS), (convnet, CONVNET_DIMS)])
def test_networks_on_the_host(function, dims, options, tmp_path):
    program = network(function, dims, **options)
    codes = program.encode(images(100, dims, seed=8))
    got = run_on_host(program, tmp_path, written(program, tmp_path), M4, codes)
    assert got.tolist() == program.run(codes).tolist()


@compiler
@pytest.mark.parametrize("options", [{}, {"bits": 4}, {"activations": "i16"}, {"fraction_bits": 15}], ids=str)
@pytest.mark.parametrize("function", SEQUENCES, ids=lambda f: f.__name__)
def test_sequences_on_the_host(function, options, tmp_path):
    """Transformers, GRU and LSTM, with what they need beside their values."""
    program = network(function, SEQUENCE_DIMS, **options)
    codes = program.encode(images(100, SEQUENCE_DIMS, seed=8))
    got = run_on_host(program, tmp_path, written(program, tmp_path), M4, codes)
    assert got.tolist() == program.run(codes).tolist()


def chains(count):
    """Random networks of steps that keep the size of their values, with branches that meet again."""
    rng = np.random.default_rng(12)
    from rlx.quantized import Add, Multipliers, Rescale, Value

    for _ in range(count):
        values, steps = [Value("x", (int(rng.integers(8, 200)),), 0.1)], []
        size = values[0].dims
        for n in range(int(rng.integers(2, 9))):
            out = Value(f"v{n}", size, float(np.float32(rng.uniform(0.05, 0.2))))
            if len(values) > 1 and rng.random() < 0.5:
                a, b = sorted(map(int, rng.choice(len(values), 2, replace=False)))
                steps.append(Add((a, b), out, Add.multipliers_for(values[a], values[b], out), -128, 127))
            else:
                a = int(rng.integers(0, len(values)))
                steps.append(Rescale((a,), out, Multipliers.of(values[a].scale / out.scale), -128, 127))
            values.append(out)
        yield Program("chain", values[0], (0,), tuple(steps))


def test_arenas_are_as_small_as_what_is_alive():
    sequences = [network(function, SEQUENCE_DIMS) for function in SEQUENCES]
    for program in [*chains(60), network(), network(convnet, CONVNET_DIMS), *sequences]:
        plan = plan_arena(program)
        assert plan.lower_bound <= plan.size <= 1.05 * plan.lower_bound
        ends = [o + v.size_bytes for o, v in zip(plan.offsets, program.values)]
        assert max(ends) <= plan.size and all(o % 4 == 0 for o in plan.offsets)


@compiler
def test_values_that_share_bytes_do_not_disturb_each_other(tmp_path):
    """Branches and steps in place, against NumPy, where nothing is shared."""
    for n, program in enumerate(chains(6)):
        codes = codes_for(np.random.default_rng(n), program.input, 50)
        folder = tmp_path / str(n)
        got = run_on_host(program, folder, written(program, folder), M4, codes)
        assert got.tolist() == program.run(codes).tolist(), program


def test_exports_are_the_same_byte_for_byte(tmp_path):
    program = network()
    for folder in ("a", "b"):
        export(program, tmp_path / folder)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    assert sorted(f.name for f in (tmp_path / "a").iterdir()) == [
        "CMakeLists.txt",
        "Makefile",
        "host_files.h",
        "link.ld",
        "main.c",
        "residual.c",
        "residual.h",
        "startup.c",
    ]


def test_the_source_calls_nothing_and_allocates_nothing():
    source = c_program(network()).source
    assert not any(word in source for word in ("malloc", "alloca", "printf", "float ", "double", "goto"))
    assert "static uint" not in source and "static int8_t" not in source, "all state is in the arena"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"cpu": "cortex-a53"}, "there is no core 'cortex-a53'; known: cortex-m0plus"),
        ({"ram": "100"}, "residual needs .* bytes of ram, and 100 are allowed; the largest value is that of conv1"),
        ({"flash": "100"}, "bytes of flash, and 100 are allowed; conv1 has most of it"),
        ({"ram": "much"}, "ram is a number of bytes"),
        ({"check": "moon"}, "check=host or check=qemu"),
        ({"colour": "red"}, "there is no option 'colour'"),
    ],
)
def test_refusals_leave_nothing_behind(options, message, tmp_path):
    with pytest.raises(RlxError, match=message):
        export(network(), tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_in_use(tmp_path):
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(RlxError, match="exists already"):
            export(network(), taken)
    assert (tmp_path / "file").read_text() == "mine"


@compiler
def test_a_changed_weight_is_found(tmp_path):
    program = network(convnet, CONVNET_DIMS)
    name = written(program, tmp_path)
    assert "same" in check_export(program, tmp_path, name, M4, in_qemu=False)
    source = tmp_path / f"{name}.c"
    text = source.read_text()
    at = text.index("_weights[", text.index("static const uint8_t"))
    start = text.index("    ", at) + 4
    number = int(text[start : text.index(",", start)])
    source.write_text(f"{text[:start]}{number ^ 64}{text[text.index(',', start) :]}")
    with pytest.raises(RlxError, match="outputs of the C program are not those of"):
        check_export(program, tmp_path, name, M4, in_qemu=False)


@compiler
def test_the_command(tmp_path, capsys):
    save(network(), tmp_path / "net.rlxq")
    out = tmp_path / "net-m4"
    given = ["export", "cortex-m", str(tmp_path / "net.rlxq"), str(out)]
    assert main([*given, "--cpu", "cortex-m4", "--check", "host"]) == 0
    assert "give the same 20 outputs on the host" in capsys.readouterr().out
    assert (out / "Makefile").exists() and not (out / "inputs.bin").exists()
    done = subprocess.run(["make", "-s", "-n", "host"], cwd=out, capture_output=True, text=True)
    assert done.returncode == 0 and "-Wall -Wextra -pedantic" in done.stdout
    assert main(given) == 1
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "graph.rlx").write_text("mir @x() {}")
    assert main(["export", "cortex-m", str(tmp_path / "graph.rlx"), str(tmp_path / "other")]) == 1
    assert "this is no integer program" in capsys.readouterr().err


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("core", CORES.values(), ids=lambda c: c.name)
def test_every_kind_of_step_in_qemu(core, tmp_path):
    rng = np.random.default_rng(41)
    # Products have most forms: widths of codes and weights, groups, padding, zero points.
    for n, kind in enumerate([*KINDS, *["conv2d"] * 4, *["dense"] * 3]):
        program = random_program(kind, rng)
        codes = codes_for(rng, program.input, 100)
        folder = tmp_path / str(n)
        got = run_in_qemu(program, folder, written(program, folder, core), core, codes)
        assert got.tolist() == program.run(codes).tolist(), program


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("core", CORES.values(), ids=lambda c: c.name)
@pytest.mark.parametrize(
    "function, dims",
    [(residual, RESIDUAL_DIMS), (convnet, CONVNET_DIMS), *((f, SEQUENCE_DIMS) for f in SEQUENCES)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_networks_in_qemu(function, dims, core, tmp_path):
    """8-bit weights and codes, for which some cores have instructions."""
    program = network(function, dims)
    codes = program.encode(images(60, dims, seed=8))
    got = run_in_qemu(program, tmp_path, written(program, tmp_path, core), core, codes)
    assert got.tolist() == program.run(codes).tolist()


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("which", ["mnist", "ds_cnn"])
def test_paired_products_take_fewer_instructions(which, tmp_path):
    """Counted, not timed: the same on every machine."""
    program = load("mnist") if which == "mnist" else network(ds_cnn, DS_CNN_DIMS)
    name, codes = written(program, tmp_path), np.zeros((1, *program.input.dims), np.int8)
    fast, plain = (measure(program, tmp_path, name, M4, codes, plain=p) for p in (False, True))
    assert fast.instructions <= 0.4 * plain.instructions and fast.instructions < 3.5 * program.macs
    assert 0 < fast.stack < 512
    made = c_program(program)
    # Flash has weights, tables and some kilobytes of code; RAM has the arena and nothing else.
    assert 0 < fast.flash - made.weight_bytes - made.table_bytes < 5120
    assert fast.ram == made.arena.size
    with pytest.raises(RlxError, match="instructions are counted on"):
        measure(program, tmp_path, name, CORES["cortex-m55"], codes)


@pytest.mark.targets
@qemu
@pytest.mark.parametrize("core", CORES.values(), ids=lambda c: c.name)
def test_every_core_compiles_without_warnings(core, tmp_path):
    name = written(network(), tmp_path, core)
    command = ["arm-none-eabi-gcc", *HOST_FLAGS, *core.flags.split(), "-ffreestanding", "-S", f"{name}.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = (tmp_path / f"{name}.s").read_text()
    has = {word: word in code for word in ("smlad", "vmladava")}
    paired = core.name in ("cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")
    assert has == {"smlad": paired, "vmladava": core.name == "cortex-m55"}


def cells(page):
    """The rows of all tables of a page."""
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


def test_a_report_without_tools_says_what_is_missing(tmp_path, monkeypatch):
    program = network()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done = export(program, tmp_path / "out", report="net.html")
    assert done.files[-1] == tmp_path / "out" / "net.html"
    rows = {row[0]: row[1:] for row in cells(done.files[-1].read_text())}
    made = c_program(program)
    assert rows["weights"][0] == f"{made.weight_bytes:,}" and rows["arena"][0] == f"{made.arena.size:,}"
    assert "arm-none-eabi-gcc is missing" in rows["flash, RAM, stack"][1]
    assert rows["conv1"][:5] == ["Conv2d", "6x5x5", "i8", f"{program.steps[0].macs:,}", "90"]
    weights = [
        int(row[5].replace(",", "")) for row in cells(done.files[-1].read_text()) if len(row) == 9 and row[0] != "step"
    ]
    assert sum(weights) == made.weight_bytes
    with pytest.raises(RlxError, match=r"report is the name of a page such as report.html, got '../x.html'"):
        export(program, tmp_path / "other", report="../x.html")


@pytest.mark.targets
@compiler
@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
def test_make_and_cmake_build_what_runs_here(tmp_path):
    program = network()
    codes = program.encode(images(10, RESIDUAL_DIMS, seed=8))
    for folder, commands in {
        "make": [["make", "-s", "host"]],
        "cmake": [["cmake", "-S", ".", "-B", "."], ["cmake", "--build", "."], ["./residual_host"]],
    }.items():
        out = tmp_path / folder
        export(program, out)
        codes.tofile(out / "inputs.bin")
        for command in commands:
            subprocess.run(command, cwd=out, check=True, capture_output=True)
        assert np.fromfile(out / "outputs.bin", "i4").tolist() == program.run(codes).tolist()


@pytest.mark.targets
@qemu
def test_a_report_has_the_figures_of_the_linker_map(tmp_path):
    out = tmp_path / "out"
    export(load("mnist"), out, report="report.html")
    rows = {row[0]: row[1:] for row in cells((out / "report.html").read_text())}
    subprocess.run(["make", "-s"], cwd=out, check=True)
    sizes = dict(re.findall(r"^(\.\w+) +0x[0-9a-f]+ +(0x[0-9a-f]+)", (out / "mnist.map").read_text(), re.MULTILINE))
    flash, ram = int(sizes[".text"], 16) + int(sizes.get(".data", "0"), 16), int(sizes[".bss"], 16)
    assert rows["flash"][0] == f"{flash:,}" and rows["RAM"][0] == f"{ram:,}"
    parts = [int(rows[what][0].replace(",", "")) for what in ("weights", "tables", "code")]
    assert sum(parts) == flash and 0 < int(rows["stack"][0]) < 512


def test_the_names_of_rlx_cortexm():
    assert set(rlx.cortexm.__all__) == {name for name in rlx.cortexm.__all__ if callable(getattr(rlx.cortexm, name))}
    with pytest.raises(AttributeError, match="no attribute 'Firmware'; it has TinyConv, export"):
        _ = rlx.cortexm.Firmware
