"""`rlx run`, and the commands that take ONNX files besides others."""

import json

import numpy as np
import pytest

import rlx
from rlx.cli import main
from rlx.formats.onnx import FLOAT, OnnxGraph, OnnxValue, make_node, make_tensor, write_onnx

W = np.random.default_rng(0).standard_normal((10, 8)).astype("f4")


@pytest.fixture
def model(tmp_path):
    x, y = OnnxValue("x", FLOAT, ("batch", 10)), OnnxValue("y", FLOAT, ("batch", 8))
    path = tmp_path / "m.onnx"
    write_onnx(
        path, OnnxGraph("linear", [make_node("MatMul", ["x", "w"], ["y"])], {"w": make_tensor("w", W)}, [x], [y])
    )
    return path


def said(capsys, *args):
    code = main([str(arg) for arg in args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_model_runs_on_given_and_on_random_inputs(model, tmp_path, capsys):
    x = np.ones((3, 10), "f4")
    np.save(tmp_path / "x.npy", x)
    code, out, _ = said(capsys, "run", model, "--input", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / "y.npz")
    assert code == 0 and out.startswith("x: f32[3,10]\ny: f32[3,8], mean ")
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], x @ W, rtol=1e-5, atol=1e-5)
    code, out, _ = said(capsys, "run", model, "--size", "batch=4", "--repeat", "3", "--json")
    document = json.loads(out)
    assert document["outputs"] == {"y": {"shape": [4, 8], "dtype": "float32"}}
    assert document["inputs"]["x"]["random"] and document["median_seconds"] > 0


def test_compiled_and_written_programs_run_too(model, tmp_path, capsys):
    assert said(capsys, "compile", model, tmp_path / "m.rlxc")[0] == 0
    [y] = rlx.load_compiled(tmp_path / "m.rlxc").run(x=np.ones((2, 10), "f4"))
    np.testing.assert_allclose(y, np.ones((2, 10)) @ W, rtol=1e-5, atol=1e-5)
    assert "output_0: f32[2,8], mean" in said(capsys, "run", tmp_path / "m.rlxc", "--size", "batch=2")[1]
    graph = tmp_path / "g.rlx"
    graph.write_text(str(rlx.make_graph(lambda x: x + 1.0)(rlx.Spec((2,)))))
    code, out, _ = said(capsys, "run", graph)
    assert code == 0 and out.startswith("x: f32[2], random\noutput_0: f32[2], mean 0.")


@pytest.mark.parametrize(
    "args, message",
    [
        (["--input", "z=x.npy"], "x.npy: no such file"),
        (["--input", "x"], "NAME=VALUE is needed, got 'x'"),
        (["--size", "rows=2"], "there is no open size 'rows'; there are batch"),
        (["--size", "batch=-2"], "a size is a whole number from 0 on, got batch=-2"),
        (["--out", "no/such/folder.npz"], "there is no such folder"),
        (["--device", "no-such"], "no-such"),
    ],
)
def test_wrong_arguments_are_said_in_one_line(model, capsys, args, message):
    code, out, err = said(capsys, "run", model, *args)
    assert code == 1 and not out and message in err and err.count("\n") == 1


def test_what_is_no_model(tmp_path, capsys):
    for name, content, message in (
        ("m.onnx", b"hello, world, this is text", "damaged"),
        ("m.onnx", b"", "the file is empty"),
        ("m.gguf", b"GGUF", "rlx generate, chat and embed run language models"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        code, _, err = said(capsys, "run", path)
        assert code == 1 and message in err
    assert "no such file" in said(capsys, "run", tmp_path / "missing.onnx")[2]
    assert "this is a directory" in said(capsys, "run", tmp_path)[2]


def test_inspect_shows_inputs_ops_and_weights(model, capsys):
    code, out, _ = said(capsys, "inspect", model)
    assert code == 0
    for line in ("ONNX, opset 21", "inputs    x: f32[batch,10]", "ops       MatMul", "w  F32  10x8  320 bytes"):
        assert line in out
    assert json.loads(said(capsys, "inspect", model, "--json")[1])["parameters"] == 80


def test_explain_and_tune_take_them_too(model, tmp_path, monkeypatch, capsys):
    code, out, _ = said(capsys, "explain", model)
    assert code == 0 and out.startswith("cpu: @linear, ") and "  matmul  " in out
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path / "cache"))
    assert said(capsys, "tune", model, "--size", "batch=4", "--runs", "1")[0] == 0
    code, _, err = said(capsys, "tune", model)
    assert code == 1 and "m.onnx has the sizes batch; give each: --size batch=32" in err
