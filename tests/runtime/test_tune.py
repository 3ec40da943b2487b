"""`rlx tune`: sets are measured by a clock that the tests hold, kept, used and named; no answer changes."""

import json

import numpy as np
import pytest

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.program import program_cache
from rlx.cli import main
from rlx.errors import FormatError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul import blocks
from rlx.kernels.cpu.matmul.blocks import BLOCK_SIZES, BlockSizes, block_shape, distinct_sizes
from rlx.kernels.machines import AVX2, AVX512, SSE2
from rlx.kernels.tunable import sites
from rlx.kernels.tuning import document, read_document, trying, tuned_file, tuned_stamp
from rlx.knobs import knobs
from rlx.runtime.tune import NOISE, Winner, keep, tune

rng = np.random.default_rng(4)


def network():
    """Two equal products and another one."""
    g = rlx.Graph("tuned")
    x = g.input("x", ("B", 64))
    for i in range(2):
        x = rlx.tanh(x @ g.param(f"w{i}", (64, 64)))
    g.set_outputs([x @ g.param("head", (64, 40))])
    return g


VALUES = {"w0": rng.normal(size=(64, 64)), "w1": rng.normal(size=(64, 64)), "head": rng.normal(size=(64, 40))}
X = rng.normal(size=(70, 64)).astype("f4")


def build():
    return rlx.Session("cpu").compile(network())


def answer():
    compiled = build()
    compiled.set_params({k: v.astype("f4") for k, v in VALUES.items()})
    return np.asarray(compiled.run(x=X)[0])


@pytest.fixture
def few_sets(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_SIZES", (BlockSizes(), BlockSizes(tiles=4), BlockSizes(tiles=16)))


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    """A cache directory of this test alone, and no program of another."""
    rlx.clear_compile_cache()
    with knobs(cache_dir=str(tmp_path)):
        yield
    rlx.clear_compile_cache()


def clock(seconds_of):
    """A measurement that takes what `seconds_of(site)` says, and 1 s for kernels with nothing to choose."""

    def measure(program):
        found = sites(program.report.lir)
        return [seconds_of(found[i]) if i in found else 1.0 for i in range(len(program.report.kernels))]

    return measure


def made_up_winners():
    found = {site.key: site for site in sites(build().report.lir).values()}
    return [Winner(site, BlockSizes(tiles=4), 0.5, 1.0) for site in found.values()]


def best_is(wanted, seconds=0.5):
    return clock(lambda site: seconds if site.used == wanted else 1.0)


def test_the_fastest_set_wins_and_is_used_by_the_next_compile(few_sets):
    usual = answer()
    wanted = BlockSizes(tiles=4)
    winners = tune(build, best_is(wanted))
    assert [w.best for w in winners] == [wanted, wanted], "equal kernels are one"
    assert keep(winners) == 2
    assert json.loads(tuned_file().read_text())["format"] == "rlx.tuned"
    rlx.clear_compile_cache()
    report = build().report
    assert str(report).count("tuned: tile_rows=6, tiles=4, columns=64, step_bytes=1536") == 3
    assert {s.used for s in sites(report.lir).values()} == {wanted}
    assert "tuned: tile_rows=6" in json.loads(report.json())["kernels"][0]["where"]
    np.testing.assert_array_equal(answer(), usual)


def test_times_of_equal_kernels_are_added(few_sets):
    """The usual set takes 1 s in both, another one 0.1 s in the first and 5 s in the second of two equal products."""
    other = BlockSizes(tiles=4)

    def measure(program):
        found = sites(program.report.lir)
        numbers = sorted(found)
        slow = {numbers[0]: 0.1, numbers[1]: 5.0, numbers[2]: 0.1}
        return [
            (slow[i] if found[i].used == other else 1.0) if i in found else 1.0
            for i in range(len(program.report.kernels))
        ]

    first, second = tune(build, measure)
    assert first.is_usual and first.usual_seconds == 2.0
    assert second.best == other


def test_noise_does_not_win(few_sets):
    assert all(w.is_usual for w in tune(build, best_is(BlockSizes(tiles=4), 1 - NOISE / 2)))
    assert not any(w.is_usual for w in tune(build, best_is(BlockSizes(tiles=4), 1 - 2 * NOISE)))


def test_a_kernel_that_is_best_as_usual_is_forgotten(few_sets):
    keep(made_up_winners())
    assert len(read_document(tuned_file().read_text())) == 2
    assert keep(tune(build, best_is(BLOCK_SIZES[0]))) == 0
    assert read_document(tuned_file().read_text()) == {} and tuned_stamp() == ""


def products(dtype):
    """Weights in panels, a matrix that is not packed, and one whose columns lie side by side; K of several steps."""
    g = rlx.Graph("products")
    x, y = g.input("x", ("B", 1000), dtype), g.input("y", (1000, 72), dtype)
    z = g.input("z", (72, 1000), dtype)
    g.set_outputs([rlx.relu(x @ g.param("w", (1000, 80), dtype)), x @ y, x @ rlx.transpose(z, (1, 0))])
    return g


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_no_set_changes_a_bit(dtype):
    """Not even where K is cut elsewhere, and whatever the number of rows is."""
    graph, source = products(dtype), np.random.default_rng(8)
    numpy_type = graph.inputs[0].shape.dtype.numpy
    given = {k: source.normal(size=s).astype(numpy_type) for k, s in {"y": (1000, 72), "z": (72, 1000)}.items()}
    weight = source.normal(size=(1000, 80)).astype(numpy_type)
    rows = {b: source.normal(size=(b, 1000)).astype(numpy_type) for b in (1, 3, 5, 50, 200)}

    def outputs():
        rlx.clear_compile_cache()
        compiled = rlx.Session("cpu").compile(graph)
        compiled.set_param("w", weight)
        return compiled, [np.asarray(y).tobytes() for x in rows.values() for y in compiled.run(x=x, **given)]

    compiled, usual = outputs()
    found = {site.key: site for site in sites(compiled.report.lir).values()}
    assert len(found) == 3
    for sizes in BLOCK_SIZES[1:]:
        with trying({key: sizes._asdict() for key in found}):
            compiled, got = outputs()
            used = {site.used for site in sites(compiled.report.lir).values()}
        assert got == usual and used <= {sizes, BLOCK_SIZES[0]}, sizes


@pytest.mark.parametrize("machine", [AVX512, AVX2, SSE2], ids=lambda m: m.name)
@pytest.mark.parametrize("products", [1, 2, 3])
def test_sets_fit_into_the_scratch(machine, products):
    def shape(sizes):
        return block_shape(machine, DType.F32, "n", products, copies_b=True, reuse=2, sizes=sizes)

    offered = distinct_sizes(machine.scratch_bytes, shape, products * 4)
    assert offered[0] == BLOCK_SIZES[0] and len({shape(s) for s in offered}) == len(offered) > 1
    for sizes in offered:
        s = shape(sizes)
        needed = products * s.rows * s.columns + s.rows * (s.depth + s.pad) + s.depth * s.width
        assert s.depth >= s.lanes and 4 * needed <= machine.scratch_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "rlx.tuned", "version": 99, "choices": {}}',
        '{"format": "rlx.tuned", "version": 1, "choices": {"a": 3}}',
        '{"format": "rlx.tuned", "version": 1, "choices": []}',
    ],
)
def test_a_damaged_file_counts_as_none(text):
    usual = answer()
    tuned_file().parent.mkdir(exist_ok=True)
    tuned_file().write_text(text)
    with pytest.raises(FormatError, match="these are no choices of rlx tune"):
        read_document(text)
    rlx.clear_compile_cache()
    np.testing.assert_array_equal(answer(), usual)
    assert keep(made_up_winners()) == 2, "and is written over"


def test_sets_that_are_not_offered_are_not_used():
    [key, *_] = [site.key for site in sites(build().report.lir).values()]
    tuned_file().write_text(document({key: {"parameters": {"tiles": 10**9}}}))
    rlx.clear_compile_cache()
    assert {s.used for s in sites(build().report.lir).values()} == {BLOCK_SIZES[0]}


def test_programs_on_disk_belong_to_choices(monkeypatch):
    monkeypatch.setattr(program_cache, "SMALL", 0)
    before = program_cache.program_key(network(), CompileOptions())
    with trying({}):
        assert program_cache.program_key(network(), CompileOptions()) is None
    keep(made_up_winners())
    assert program_cache.program_key(network(), CompileOptions()) not in (before, None)


def test_the_command(tmp_path, capsys, monkeypatch, few_sets):
    graph = tmp_path / "graph.rlx"
    graph.write_text(str(network()))
    assert main(["tune", str(graph)]) == 1
    assert "--size B=32" in capsys.readouterr().err
    assert main(["tune", str(graph), "--size", "B=x"]) == 1
    assert "--size takes a name and a number" in capsys.readouterr().err
    assert main(["tune"]) == 1 and main(["tune", str(graph), "--runs", "0"]) == 1
    capsys.readouterr()
    measured = best_is(BlockSizes(tiles=4))
    monkeypatch.setattr("rlx.cli.tune._timed", lambda compiled, *rest: measured(compiled))
    assert main(["tune", str(graph), "--size", "B=70", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["parameters"]["tiles"] for row in told["kernels"]] == [4, 4]
    assert main(["tune", str(graph), "--size", "B=70"]) == 0
    assert "2 of 2 kernels are faster with other sets" in capsys.readouterr().out
    assert main(["tune", "--show"]) == 0
    assert "2 choices in" in capsys.readouterr().out
    assert main(["tune", "--forget"]) == 0 and not tuned_file().exists()


def test_the_real_clock(tmp_path, capsys, few_sets):
    """Whatever wins, every kernel is measured with all its sets."""
    graph = tmp_path / "graph.rlx"
    graph.write_text(str(network()))
    assert main(["tune", str(graph), "--size", "B=8", "--runs", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["kernels"]
    assert len(rows) == 2 and all(0 < row["seconds"] <= row["usual_seconds"] for row in rows)


def test_other_devices_have_nothing_to_choose_yet(tmp_path, capsys):
    graph = tmp_path / "graph.rlx"
    graph.write_text(str(network()))
    assert main(["tune", str(graph), "--device", "reference"]) == 1
    assert "no schedule for reference offers parameters yet" in capsys.readouterr().err
