"""`rlx quantize-graph`: from files to a file, and errors before anything is written."""

import json

import numpy as np
import pytest

import rlx
from rlx.cli import main
from rlx.formats.safetensors import write_safetensors


@pytest.fixture
def files(tmp_path):
    graph = rlx.Graph("rows")
    x, w = graph.input("x", ("N", 6), "f32"), graph.param("w", (6, 4), "f32")
    graph.set_outputs([rlx.relu(x @ w)])
    (tmp_path / "rows.rlx").write_text(str(graph))
    rlx.save_graph(graph, tmp_path / "rows.graph")
    rng = np.random.default_rng(0)
    weights, data = rng.standard_normal((6, 4)).astype(np.float32), rng.standard_normal((50, 6)).astype(np.float32)
    write_safetensors(tmp_path / "rows.safetensors", {"w": weights})
    np.savez(tmp_path / "rows.npz", w=weights)
    np.save(tmp_path / "data.npy", data)
    np.save(tmp_path / "labels.npy", np.argmax(np.maximum(data @ weights, 0), axis=1))
    np.save(tmp_path / "few.npy", np.zeros(3, np.int64))
    np.save(tmp_path / "empty.npy", np.zeros((0, 6), np.float32))
    np.save(tmp_path / "wrong.npy", np.zeros((9, 5), np.float32))
    (tmp_path / "text.npy").write_text("no array")
    return tmp_path


@pytest.mark.parametrize("graph", ["rows.rlx", "rows.graph"])
@pytest.mark.parametrize("weights", ["rows.safetensors", "rows.npz"])
def test_it_writes_a_program(files, graph, weights, capsys):
    out = files / "rows.rlxq"
    given = [files / graph, out, "--weights", files / weights, "--data", files / "data.npy"]
    assert main(["quantize-graph", *map(str, given), "--labels", str(files / "labels.npy"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bytes"] == out.stat().st_size and document["macs"] == 24
    assert document["right"]["float"] == 1.0 and document["right"]["integer"] > 0.9
    program = rlx.quantized.load(out)
    assert program.run(np.load(files / "data.npy")).shape == (50, 4)
    assert main(["quantize-graph", *map(str, given)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["quantize-graph", *map(str, given), "--force", "--bits", "4", "--activations", "i16"]) == 0
    assert "24 products per example" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["rows.rlx"], "exactly one input must be left without a value, got x, w"),
        (["rows.rlx", "--weights", "rows.npz"], "give batches of typical inputs"),
        (["absent.rlx"], "absent.rlx"),
        (["rows.rlx", "--weights", "rows.npz", "--data", "text.npy"], "this is no file of NumPy"),
        (["rows.rlx", "--weights", "rows.npz", "--data", "empty.npy"], "with examples is needed"),
        (["rows.rlx", "--weights", "rows.npz", "--data", "wrong.npy"], "6"),
        (["rows.rlx", "--weights", "rows.npz", "--data", "data.npy", "--labels", "few.npy"], "one label each"),
        (["rows.rlx", "--weights", "rows.npz", "--labels", "few.npy"], "--data, which is missing"),
        (
            ["rows.rlx", "--weights", "rows.npz", "--data", "data.npy", "--method", "guess"],
            "there is no method 'guess'",
        ),
    ],
)
def test_errors_come_before_the_file(files, arguments, message, capsys):
    graph, *options = (str(files / a) if "." in a else a for a in arguments)
    assert main(["quantize-graph", graph, str(files / "out.rlxq"), *options]) == 1
    error = capsys.readouterr().err
    assert message in error and "unexpected" not in error
    assert not list(files.glob("*.rlxq"))
