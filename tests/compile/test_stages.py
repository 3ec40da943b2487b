"""Dumps, overrides and inspection of the stages of a compile; the same text in every process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import llama, two_layers

import rlx
from rlx.compile.compiler import CompilePipeline
from rlx.compile.inspect import PipelineInspect, inspect_compiled, inspect_pipeline, maybe_dump_pipeline
from rlx.errors import RlxError
from rlx.ir.graph import Graph


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


def dumped(folder):
    return {".".join(p.name.split(".")[1:]): p for p in Path(folder).iterdir()}


def text_of(file):
    """What was dumped, without the line that says so."""
    mark, _, text = file.read_text().partition("\n")
    assert mark.startswith("# as compiled: ")
    return text


def test_every_stage_is_a_file(tmp_path):
    with rlx.knobs(dump=tmp_path):
        result = CompilePipeline.new().compile(llama())
    files = dumped(tmp_path)
    assert set(files) == {"cpu.hir", "cpu.mir", "cpu.optimized.mir", "cpu.prepare.lir", "cpu.lir"}
    assert text_of(files["cpu.lir"]) == str(result.lir)
    assert text_of(files["cpu.prepare.lir"]) == str(result.prepare)
    assert text_of(files["cpu.hir"]) == str(llama())
    assert all(p.name.startswith("llama-") for p in files.values())


def test_sessions_write_their_stages_too(tmp_path):
    with rlx.knobs(dump=tmp_path):
        rlx.Session("cpu").compile(scaled("a b/c"))
    assert set(dumped(tmp_path)) == {"cpu.mir", "cpu.optimized.mir", "cpu.lir"}
    assert all(p.name.startswith("a_b_c-") for p in tmp_path.iterdir())


@pytest.mark.parametrize("stage", ["mir", "optimized.mir", "lir"])
def test_an_edited_stage_replaces_the_computed_one(tmp_path, stage, capsys):
    x = np.linspace(-1, 1, 6, dtype="f4").reshape(2, 3)
    with rlx.knobs(dump=tmp_path):
        CompilePipeline.new().compile(scaled())
    file = dumped(tmp_path)[f"cpu.{stage}"]
    file.write_text(file.read_text().replace("sin(", "cos("))
    # The files of later stages are still there, unedited, and must not bring the old program back.
    with rlx.knobs(override=tmp_path):
        result = CompilePipeline.new().compile(scaled())
    np.testing.assert_allclose(result.interpret({"x": x})[0], np.cos(np.exp(x)) * 2, rtol=1e-5)
    assert f"rlx: {file} replaces what was compiled" in capsys.readouterr().err


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


def test_large_constants_survive_an_edit(tmp_path):
    g = Graph("table")
    table = np.arange(64, dtype="f4")
    g.set_outputs([rlx.sin(g.input("x", (64,)) + table)])
    with rlx.knobs(dump=tmp_path):
        CompilePipeline.new().compile(g)
    file = dumped(tmp_path)["cpu.optimized.mir"]
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
    file = dumped(tmp_path)["cpu.mir"]
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with rlx.knobs(override=tmp_path), pytest.raises(RlxError, match=r"cannot replace a stage of @scaled") as error:
        CompilePipeline.new().compile(scaled())
    assert message in str(error.value)


# Inspection


def test_inspection_shows_every_stage():
    shown = inspect_pipeline(CompilePipeline.new("metal"), two_layers("fusable"))
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
