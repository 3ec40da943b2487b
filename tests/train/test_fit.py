"""The loop: metrics, curves, evaluation, early stop, callbacks; and what happens when something goes wrong."""

import json
import math
import signal
import struct
import subprocess
import sys
import textwrap
import zlib
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import small_run

import rlx
import rlx.numpy as rnp
from rlx import optim, train
from rlx.errors import FormatError, OpError, TrainingError


def test_history_files_and_kept_checkpoints(tmp_path):
    result = small_run.run(tmp_path, 14)
    assert [row["step"] for row in result.history] == list(range(1, 15)) and result.reason == "finished"
    assert train.read_metrics(tmp_path / "metrics.jsonl") == result.history
    assert [step for step, _ in train.checkpoint_files(tmp_path)] == [8, 12, 14]
    assert int(result.state.step) == 14
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    again = small_run.run(tmp_path, 14)
    assert [r["loss"] for r in again.history] == [r["loss"] for r in result.history], "nothing is left to do"


def test_evaluation_and_early_stop(tmp_path):
    values = iter([3.0, 2.0, 2.5, 2.0, 1.0])
    step, state, batches = small_run.parts()
    result = train.fit(
        step, state, batches, 50, out=tmp_path, evaluate=lambda params: next(values), evaluate_every=5, patience=2
    )
    assert result.reason == "no better evaluation in 2"
    assert int(result.state.step) == 20
    assert result.best == {"step": 10, "loss": 2.0}
    assert [(r["step"], r["eval_loss"]) for r in result.history if "eval_loss" in r] == [
        (5, 3),
        (10, 2),
        (15, 2.5),
        (20, 2),
    ]
    again = train.fit(
        step, state, batches, 50, out=tmp_path, evaluate=lambda params: next(values), evaluate_every=5, patience=2
    )
    assert (again.reason, int(again.state.step)) == (result.reason, 20), "what has stopped stays stopped"
    params, info = train.load_checkpoint(tmp_path / "best", state.params)
    assert info.step == 10 and set(params) == {"w1", "b1", "w2"}


def test_a_callback_may_stop_the_run():
    step, state, batches = small_run.parts()
    seen = []

    def watch(report):
        seen.append(report.metrics["loss"])
        return report.step == 3

    result = train.fit(step, state, batches, 10, callbacks=[watch])
    assert result.reason == "stopped by a callback" and len(seen) == 3
    for answer in (np.bool_, rnp.asarray):
        step, state, batches = small_run.parts()
        result = train.fit(step, state, batches, 10, callbacks=lambda report, kind=answer: kind(report.step == 2))
        assert result.reason == "stopped by a callback" and len(result.history) == 2


def test_an_evaluation_without_a_number_is_never_the_best():
    values = iter([math.nan, 3.0, 2.0, math.nan])
    step, state, batches = small_run.parts()
    result = train.fit(step, state, batches, 4, evaluate=lambda params: next(values), evaluate_every=1)
    assert result.best == {"step": 3, "loss": 2.0}


def test_ctrl_c_saves(tmp_path):
    def interrupt(report):
        if report.step == 6:
            raise KeyboardInterrupt

    step, state, batches = small_run.parts()
    with pytest.raises(KeyboardInterrupt):
        train.fit(step, state, batches, 10, out=tmp_path, callbacks=[interrupt])
    assert [s for s, _ in train.checkpoint_files(tmp_path)] == [6]


def test_ctrl_c_in_a_step_waits_for_its_end(tmp_path):
    """A step overwrites its state, so that one that is broken off could not be saved; a second Ctrl-C does not wait."""
    step, state, batches = small_run.parts()
    times = 1

    def interrupted(state, batch):
        result = step(state, batch)
        if int(result[0].step) == 6:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return result

    own = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train.fit(interrupted, state, batches, 10, out=tmp_path / "one", save_every=4)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        times = 2
        with pytest.raises(KeyboardInterrupt):
            train.fit(interrupted, small_run.parts()[1], batches, 10, out=tmp_path / "two", save_every=4)
    finally:
        signal.signal(signal.SIGINT, own)
    assert [s for s, _ in train.checkpoint_files(tmp_path / "one")] == [4, 6]
    assert [s for s, _ in train.checkpoint_files(tmp_path / "two")] == [4]
    assert len(train.read_metrics(tmp_path / "one" / "metrics.jsonl")) == 6


def log_loss(params, batch):
    return rnp.log(params["w"]) + 0 * batch


def test_nan_loss_is_an_error_that_keeps_the_last_checkpoint(tmp_path):
    """log(w) falls until w is below 0."""
    optimizer = optim.sgd(0.5)
    step = train.make_step(log_loss, optimizer)
    state = train.init_state({"w": np.float32(2)}, optimizer)
    with pytest.raises(TrainingError, match=r"the loss is nan at step \d+; the last checkpoint is .*step-0000000"):
        train.fit(step, state, lambda n: np.float32(n), 50, out=tmp_path, save_every=1)
    _, info = train.load_checkpoint(tmp_path, state)
    assert info.step == train.read_metrics(tmp_path / "metrics.jsonl")[-1]["step"]
    assert math.isfinite(train.read_metrics(tmp_path / "metrics.jsonl")[-1]["loss"])


FULL = """
    import resource, signal, sys
    import small_run
    from rlx.errors import TrainingError

    small_run.run(sys.argv[1], 8)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    try:
        small_run.run(sys.argv[1], 20)
    except TrainingError as error:
        print(error)
        sys.exit(7)
"""


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path):
    """A limit on the size of files stands for the disk: the system refuses to write."""
    here = Path(__file__).parent
    environment = {"PYTHONPATH": f"{here}:{here.parents[1] / 'src'}", "PATH": "", "HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 7, done.stderr
    assert (
        "the checkpoint cannot be written: File too large; the last checkpoint is step-00000008.safetensors"
        in done.stdout
    )
    assert sorted(p.name for p in (tmp_path / "run").glob("*step*")) == [
        "step-00000004.safetensors",
        "step-00000008.safetensors",
    ]
    assert train.load_checkpoint(tmp_path / "run", small_run.parts()[1])[1].step == 8


def test_a_broken_checkpoint_says_how_to_go_on(tmp_path):
    small_run.run(tmp_path, 8)
    newest, before = tmp_path / "step-00000008.safetensors", tmp_path / "step-00000004.safetensors"
    newest.write_bytes(newest.read_bytes()[:500])
    with pytest.raises(FormatError, match=r"00008\.safetensors: .*remove it, and the run goes on from step-00000004"):
        small_run.run(tmp_path, 12)
    newest.unlink()
    assert len(small_run.run(tmp_path, 12).history) == 12
    for file in tmp_path.glob("step-*"):
        file.unlink()
    before.write_bytes(b"")
    with pytest.raises(FormatError, match=r"00004\.safetensors: .*broken: remove it, and the run begins again"):
        small_run.run(tmp_path, 12)


def test_a_folder_that_cannot_be_written_to(tmp_path):
    """Below a file no folder can be made, by no user; a metrics.jsonl that is a folder cannot be written."""
    (tmp_path / "file").write_text("")
    message = "the folder of the run cannot be written to: .*; choose another one"
    with pytest.raises(TrainingError, match=message):
        small_run.run(tmp_path / "file" / "run", 4)
    (tmp_path / "run" / "metrics.jsonl").mkdir(parents=True)
    with pytest.raises(TrainingError, match=message):
        small_run.run(tmp_path / "run", 4)


def test_what_fit_refuses(tmp_path):
    step, state, batches = small_run.parts()
    with pytest.raises(TrainingError, match="a function of the step"):
        train.fit(step, state, [1, 2], 3)
    with pytest.raises(
        TrainingError, match=r"evaluate must return a loss or a dict with 'loss', got the keys \['acc'\]"
    ):
        train.fit(step, state, batches, 3, evaluate=lambda params: {"acc": 1.0})
    for wrong in (None, np.ones(2), "low"):
        with pytest.raises(TrainingError, match=r"evaluate's 'loss' must be one number, got "):
            train.fit(step, small_run.parts()[1], batches, 1, evaluate=lambda params, wrong=wrong: wrong)
    for options, message in (
        ({"save_every": 0}, "must be 1 or more, got save_every=0"),
        ({"evaluate": float, "evaluate_every": 0, "patience": 0}, "got evaluate_every=0, patience=0"),
        ({"patience": 3}, "patience counts evaluations; give evaluate="),
    ):
        with pytest.raises(TrainingError, match=message):
            train.fit(step, state, batches, 3, **options)
    small_run.run(tmp_path, 4)
    with pytest.raises(TrainingError, match="checkpoints of an earlier run"):
        small_run.run(tmp_path, 8, resume=False)
    with pytest.raises(OpError, match=r"\(params, batch\) or \(params, batch, key\), it takes 1"):
        train.make_step(lambda params: 0.0, optim.sgd(0.1))
    with pytest.raises(OpError, match="no parameters"):
        train.init_state({}, optim.sgd(0.1))


def test_checkpoints_of_another_model_are_refused(tmp_path):
    train.save_checkpoint(tmp_path, {"a": np.zeros(3, "f4"), "b": np.ones((), "i4")}, 5, extra={"note": 1})
    for like, message in (
        ({"a": np.zeros(3, "f4")}, "has 'b', which is not wanted"),
        ({"a": np.zeros(3, "f4"), "b": np.ones((), "i4"), "c": np.ones(1)}, "lacks 'c'"),
        ({"a": np.zeros(4, "f4"), "b": np.ones((), "i4")}, r"'a' is float32\[3\], float32\[4\] is wanted"),
        ({"a": np.zeros(3, "f8"), "b": np.ones((), "i4")}, r"'a' is float32\[3\], float64\[3\] is wanted"),
    ):
        with pytest.raises(FormatError, match=message):
            train.load_checkpoint(tmp_path, like)
    with pytest.raises(TrainingError, match="there is no checkpoint"):
        train.load_checkpoint(tmp_path.parent, {})
    with pytest.raises(rlx.errors.TreeError, match=r"two leaves are named 'a\.b'"):
        train.save_checkpoint(tmp_path, {"a": {"b": np.zeros(1)}, "a.b": np.zeros(1)}, 6)
    assert [s for s, _ in train.checkpoint_files(tmp_path)] == [5]


def test_checkpoint_is_a_plain_safetensors_file(tmp_path):
    path = train.save_checkpoint(tmp_path, {"layer": [np.arange(3.0)], "none": None}, 1)
    with rlx.formats.safetensors.open_safetensors(path) as file:
        np.testing.assert_array_equal(file.tensors["layer.0"].array(), np.arange(3.0))
    loaded, _ = train.load_checkpoint(path, {"layer": [np.zeros(3)], "none": None})
    assert loaded["none"] is None


# Curves and progress


def decoded(path):
    """The pixels of a PNG file, read by the standard's description; every chunk's checksum is checked."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        chunks[kind], at = body, at + 12 + size
    width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colour) == (8, 2) and list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def test_png_shows_the_curve(tmp_path):
    path = tmp_path / "curve.png"
    train.write_curve(path, [(n, 150 - n) for n in range(100)])
    pixels = decoded(path)
    is_line = (pixels == (31, 90, 180)).all(-1)
    rows, columns = np.nonzero(is_line)
    assert abs(np.corrcoef(rows, columns)[0, 1] - 1) < 1e-3, "a falling line goes down to the right"
    assert (columns.min(), columns.max()) == (60, 624) and (rows.min(), rows.max()) == (12, 333)
    train.write_curve(path, [(n, math.exp(-n)) for n in range(100)])
    np.testing.assert_array_equal((decoded(path) == (31, 90, 180)).all(-1), is_line, "by logarithms it is that line")
    train.write_curve(path, [(1, 2.0)])
    train.write_curve(path, [(1, math.nan), (2, 1.0), (3, 1.0)])
    with pytest.raises(TrainingError, match="finite"):
        train.write_curve(path, [(1, math.nan)])


def test_curve_for_terminals():
    text = train.curve_text([(0, 4.0), (1, 3.0), (2, 2.0), (3, 1.0)], width=12, height=4)
    lines = text.splitlines()
    assert lines[0].startswith("4 ┤▀") and lines[3].startswith("1 ┤") and len(lines) == 5
    assert [line.find("▀") >= 0 or line.find("▄") >= 0 for line in lines] == [True] * 4 + [False]


class Terminal(StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_on_terminals_only():
    line = train.ProgressLine(0, 100, 256, Terminal())
    text = line.line(25, 2.5, 5.0)
    assert text.startswith("25/100 [#####               ]  loss 2.5  1,280 tokens/s") and text.endswith("15s left")
    assert train.ProgressLine(0, 100, None, Terminal()).line(25, 2.5, 5.0).count("5 steps/s") == 1
    silent = StringIO()
    train.ProgressLine(0, 10, None, silent).show(10, 1.0)
    assert silent.getvalue() == ""


def test_metrics_file_with_rubbish_inside_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nrubbish\n{"step": 2}\n')
    with pytest.raises(FormatError, match="line 2 is not JSON"):
        train.read_metrics(path)
    path.write_text(json.dumps([1]) + "\n")
    with pytest.raises(FormatError, match="an object with a step"):
        train.read_metrics(path)


def test_a_run_goes_on_with_its_own_sizes(tmp_path):
    """settings.json has what the run began with; a file cannot be its folder."""
    text = tmp_path / "text.txt"
    text.write_bytes(b"to be or not to be, " * 60)
    sizes = train.CharGpt(1, 16, 2, 16)
    out = tmp_path / "run"
    train.train_char_gpt(text, 2, out=out, model=sizes, batch=2)
    assert json.loads((out / "settings.json").read_text())["layers"] == 1
    with pytest.raises(TrainingError, match=r"began with width 16, and now it is 32; use the same settings"):
        train.train_char_gpt(text, 4, out=out, model=sizes._replace(width=32), batch=2)
    (out / "settings.json").write_text("{")
    with pytest.raises(TrainingError, match=r"settings\.json is not JSON"):
        train.train_char_gpt(text, 4, out=out, model=sizes, batch=2)
    with pytest.raises(TrainingError, match=r"text.txt is a file; a run is written to a folder"):
        train.train_char_gpt(text, 2, out=text, model=sizes, batch=2)


def test_short_texts_are_named_with_the_part_that_is_too_short(tmp_path):
    text = tmp_path / "text.txt"
    sizes = train.CharGpt(1, 16, 2, 4)
    text.write_bytes(b"abcdefghij" * 5)
    # One window is held out, fewer than a batch.
    assert math.isfinite(train.train_char_gpt(text, 1, model=sizes, batch=3).history[-1]["eval_loss"])
    for size, part in ((40, "its last tenth: 4 tokens"), (10, "its first nine tenths: 9 tokens")):
        text.write_bytes(b"x" * size)
        with pytest.raises(FormatError, match=rf"text\.txt, {part}"):
            train.train_char_gpt(text, 1, model=sizes, batch=3)
