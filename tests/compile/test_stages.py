"""Dumps, overrides and inspection of the stages of a compile; the same text in every process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from family_programs import FAMILIES, forward
from programs import llama, two_layers

import rlx
from rlx.compile import pipeline
from rlx.compile.compiler import CompilePipeline
from rlx.compile.inspect import PipelineInspect, inspect_compiled, inspect_pipeline, maybe_dump_pipeline
from rlx.compile.pipeline import STEPS
from rlx.compile.steps import Stage
from rlx.errors import InternalError, RlxError
from rlx.ir.graph import Graph
from rlx.ir.tensor import building


def scaled(name="scaled"):
    g = Graph(name)
    g.set_outputs(
        [
            rlx.sin(
                rlx.exp(g.input("x", (2, 3))),
            )
            * 2.0
        ]
    )
    return g


def dumped(folder, part="cpu"):
    """The files of a folder, by the name of their step."""
    found = {}
    for path in Path(folder).iterdir():
        _, *parts, step, _ = path.name.split(".")
        if ".".join(parts) == part:
            found[step.partition("-")[2]] = path
    return found


def text_of(file):
    """What was dumped, without the line that says so."""
    mark, _, text = file.read_text().partition("\n")
    assert mark.startswith("# as compiled: ")
    return text


def test_every_step_that_changed_something_is_a_file(tmp_path):
    with rlx.knobs(dump=tmp_path):
        result = CompilePipeline.new().compile(llama())
    main, prepare = dumped(tmp_path), dumped(tmp_path, "cpu.prepare")
    assert text_of(main["program"]) == str(llama())
    assert text_of(main["plan_buffers"]) == str(result.lir)
    assert text_of(prepare["plan_buffers"]) == str(result.prepare)
    changed = {p.name for p in result.passes if p.changed and not p.within and not p.part}
    assert set(main) == changed | {"program"}
    assert all(p.name.startswith("llama-") for p in tmp_path.iterdir())
    # In the order of the steps.
    order = [p.name.split(".")[2] for p in sorted(main.values())]
    names = [step.name for step in STEPS]
    assert [names.index(step.partition("-")[2]) + 1 for step in order[1:]] == [int(step[:2]) for step in order[1:]]


def test_sessions_write_their_stages_too(tmp_path):
    with rlx.knobs(dump=tmp_path):
        rlx.Session("cpu").compile(scaled("a b/c"))
    assert set(dumped(tmp_path)) == {"program", "group", "plan_buffers"}
    assert all(p.name.startswith("a_b_c-") for p in tmp_path.iterdir())


def test_bodies_of_loops_go_the_same_road(tmp_path):
    g = Graph("outer")
    x = g.input("x", (4, 3))
    with building(g):
        carry, _ = rlx.scan(lambda c, row: (rlx.sin(c) + row, c), rlx.numpy.zeros((3,), "f4"), x)
    g.set_outputs([carry])
    with rlx.knobs(dump=tmp_path):
        compiled = rlx.Session("cpu").compile(g)
        body = next(p for p in tmp_path.iterdir() if p.name.endswith("plan_buffers.lir") and "outer" not in p.name)
    assert "sin(" in body.read_text()
    body.write_text(body.read_text().replace("sin(", "cos("))
    with rlx.knobs(override=tmp_path):
        edited = rlx.Session("cpu").compile(g)
    rows = np.linspace(-1, 1, 12, dtype="f4").reshape(4, 3)
    wanted = {np.sin: np.zeros(3), np.cos: np.zeros(3)}
    for row in rows:
        wanted = {f: f(c) + row for f, c in wanted.items()}
    np.testing.assert_allclose(compiled.run(x=rows)[0], wanted[np.sin], rtol=1e-5)
    np.testing.assert_allclose(edited.run(x=rows)[0], wanted[np.cos], rtol=1e-5)


@pytest.mark.parametrize("stage", ["program", "group", "plan_buffers"])
def test_an_edited_stage_replaces_the_computed_one(tmp_path, stage, capsys):
    x = np.linspace(-1, 1, 6, dtype="f4").reshape(2, 3)
    with rlx.knobs(dump=tmp_path):
        CompilePipeline.new().compile(scaled())
    file = dumped(tmp_path)[stage]
    file.write_text(file.read_text().replace("sin(", "cos("))
    # The files of later stages are still there, unedited, and must not bring the old program back.
    with rlx.knobs(override=tmp_path):
        result = CompilePipeline.new().compile(scaled())
    np.testing.assert_allclose(result.interpret({"x": x})[0], np.cos(np.exp(x)) * 2, rtol=1e-5)
    assert f"rlx: {file} replaces what was compiled" in capsys.readouterr().err


def test_a_step_that_changed_nothing_can_be_given_a_text(tmp_path):
    with rlx.knobs(dump=tmp_path):
        CompilePipeline.new().compile(scaled())
    program = dumped(tmp_path)["program"]
    number = 1 + [step.name for step in STEPS].index("simplify")
    edited = program.with_name(program.name.replace("00-program", f"{number:02}-simplify"))
    edited.write_text(text_of(program).replace("sin(", "cos("))
    with rlx.knobs(override=tmp_path):
        result = CompilePipeline.new().compile(scaled())
    x = np.ones((2, 3), "f4")
    np.testing.assert_allclose(result.interpret({"x": x})[0], np.cos(np.exp(x)) * 2, rtol=1e-5)


@pytest.mark.parametrize("program", [lambda: llama(), lambda: forward(FAMILIES["llama_block"], "f32")])
def test_every_step_can_be_replayed_from_its_text(tmp_path, program):
    """The text of any step says all about the program: what follows from it is the same LIR."""
    with rlx.knobs(dump=tmp_path / "all"):
        wanted = CompilePipeline.new().compile(program())
    steps = 0
    for file in sorted((tmp_path / "all").iterdir()):
        folder = tmp_path / file.name
        folder.mkdir()
        # Without its first line a file counts as edited.
        (folder / file.name).write_text(text_of(file))
        with rlx.knobs(override=folder):
            again = CompilePipeline.new().compile(program())
        assert (again.lir, again.prepare) == (wanted.lir, wanted.prepare), file.name
        steps += 1
    assert steps >= 10


def test_files_as_they_were_written_change_nothing(tmp_path, capsys):
    with rlx.knobs(dump=tmp_path):
        before = CompilePipeline.new().compile(llama())
    with rlx.knobs(override=tmp_path):
        assert CompilePipeline.new().compile(llama()) == before
    assert capsys.readouterr().err == ""
    # Another program of the same name has files of its own.
    with rlx.knobs(override=tmp_path):
        other = CompilePipeline.new().compile(llama(2))
    assert len(other.lir.as_graph()) > len(before.lir.as_graph())


# Steps


def test_every_step_has_a_name_of_its_own_and_a_reason():
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert all(step.reason.endswith(".") and len(step.reason) > 30 for step in STEPS)
    # Stages come one after the other.
    stages = [step.stage for step in STEPS]
    assert stages == sorted(stages, key=list(Stage).index)


def test_debug_prints_every_step(capsys):
    with rlx.knobs(debug=2):
        result = CompilePipeline.new().compile(llama())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"rlx: @llama for cpu, {len(llama().as_hir())} nodes"
    assert lines[1:] == [str(record) for record in sorted_as_run(result.passes)]
    assert any(line.startswith("group (prepare) ") for line in lines)


def sorted_as_run(records):
    """Steps of `prepare` run before those of the same name of the program."""
    main, prepare = ([r for r in records if bool(r.part) == flag] for flag in (False, True))
    for record in main:
        while prepare and not record.within and prepare[0].name == record.name:
            yield prepare.pop(0)
        yield record


def test_optional_steps_are_left_out_by_name():
    whole = CompilePipeline.new().compile(llama())
    with rlx.knobs(skip_passes="join_products, pack_floats"):
        result = CompilePipeline.new().compile(llama())
    assert {"join_products", "pack_floats"} <= {p.name for p in whole.passes} - {p.name for p in result.passes}
    assert sum(k.kind == "matmul" for k in result.lir.kernels) > sum(k.kind == "matmul" for k in whole.lir.kernels)


@pytest.mark.parametrize(
    ("name", "message"),
    [("plan_buffers", "'plan_buffers' cannot be left out; these can: simplify"), ("plan", "is no step of a compile")],
)
def test_what_is_no_optional_step_cannot_be_left_out(name, message):
    with rlx.knobs(skip_passes=name), pytest.raises(RlxError, match=message):
        CompilePipeline.new().compile(llama())


def test_a_step_that_fails_says_so_and_shows_the_program(monkeypatch):
    def fails(c):
        raise KeyError("gone")

    broken = tuple(s._replace(run=fails) if s.name == "group" else s for s in STEPS)
    monkeypatch.setattr(pipeline, "STEPS", broken)
    with pytest.raises(InternalError, match=r"the step group failed: KeyError: 'gone'(.|\n)*mir @scaled"):
        CompilePipeline.new().compile(scaled())


def test_large_constants_survive_an_edit(tmp_path):
    g = Graph("table")
    table = np.arange(64, dtype="f4")
    g.set_outputs([rlx.sin(g.input("x", (64,)) + table)])
    with rlx.knobs(dump=tmp_path):
        CompilePipeline.new().compile(g)
    file = dumped(tmp_path)["program"]
    assert "data=" in file.read_text()
    file.write_text(file.read_text().replace("sin(", "neg("))
    with rlx.knobs(override=tmp_path):
        result = CompilePipeline.new().compile(g)
    np.testing.assert_array_equal(result.interpret({"x": table})[0], -2 * table)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sin(%0)", "sin(%7)", "%7"),
        ("%x: f32[2,3]", "%y: f32[2,3]", "%x"),
        ("mir @scaled", "hir direct @scaled", "it holds a HirModule, a Graph is needed"),
        ("return %3", "return %0, %3", "its inputs, params or outputs differ"),
    ],
)
def test_a_bad_edit_is_refused(tmp_path, old, new, message):
    with rlx.knobs(dump=tmp_path):
        CompilePipeline.new().compile(scaled())
    file = dumped(tmp_path)["program"]
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with rlx.knobs(override=tmp_path), pytest.raises(RlxError, match=r"cannot replace a stage of @scaled") as error:
        CompilePipeline.new().compile(scaled())
    assert message in str(error.value)


# Inspection


def test_inspection_shows_every_stage():
    shown = inspect_pipeline(CompilePipeline.new("mlx"), two_layers("fusable"))
    assert shown.hir.startswith("hir @two_layers")
    assert shown.mir_lowered.startswith("mir @two_layers")
    assert "FusedMatMulBiasAct+2" in shown.mir_diff
    assert "fused_matmul_bias_act" in shown.mir_optimized
    assert shown.lir.startswith("lir @two_layers")
    assert shown.fusion.startswith("fusion report")
    text = str(shown)
    assert [line for line in text.splitlines() if line.startswith("====")] == [
        "==== HIR ====",
        "==== MIR, lowered ====",
        "==== MIR, what changed ====",
        "==== MIR, optimised ====",
        "==== LIR ====",
        "==== fusion ====",
    ]


def test_inspection_takes_any_stage_and_needs_no_pipeline():
    graph = scaled()
    from_graph = inspect_pipeline(graph)
    assert from_graph.hir == ""
    assert inspect_pipeline(graph.module()) == inspect_pipeline(graph.to_mir()) == from_graph
    result = CompilePipeline.new().compile(graph)
    assert inspect_compiled("", result).lir == from_graph.lir
    assert inspect_pipeline(result.lir).lir == from_graph.lir


def test_prepared_weights_are_shown():
    shown = inspect_pipeline(llama())
    assert "lir @llama_prepare" in shown.lir
    assert "prepared.0" in shown.lir


def test_ir_dump_writes_one_text(tmp_path):
    dump = PipelineInspect("h", "m", "d", "o", "l", "f")
    assert maybe_dump_pipeline(dump, "mlp") is None
    with rlx.knobs(ir_dump=tmp_path / "all.txt"):
        assert maybe_dump_pipeline(dump, "mlp") == tmp_path / "all.txt"
    assert (tmp_path / "all.txt").read_text() == str(dump)
    with rlx.knobs(ir_dump=f"{tmp_path}/folder/"):
        CompilePipeline.new().compile_hir(two_layers().as_hir())
    assert (tmp_path / "folder" / "two_layers.ir.txt").read_text().startswith("==== HIR ====")


# Determinism

PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
import rlx
from programs import gpt_loss, llama
from rlx.compile.compiler import CompilePipeline

for target in ("cpu", "metal", "tpu"):
    pipeline = CompilePipeline.new(target)
    result = pipeline.compile(llama(2))
    print(result.lir, result.prepare, result.lir.fingerprint(), result.fusion)
    training = pipeline.compile_training(gpt_loss(), ["qkv", "up"])
    print(training.backward.lir, training.weights)
"""


def test_the_text_is_the_same_in_every_process():
    here = Path(__file__).parent
    texts = set()
    for seed in ("0", "1", "4711"):
        command = [sys.executable, "-c", PROGRAM, str(here), str(here.parent)]
        run = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        texts.add(run.stdout)
    assert len(texts) == 1
    assert "lir @llama_prepare" in texts.pop()
