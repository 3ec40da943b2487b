"""`rlx train`: a small GPT from nothing, and what is said when it cannot be trained."""

import json

import rlx
from rlx.cli import main
from rlx.cli import train as train_command

SIZES = {"length": 8, "layers": 1, "width": 16, "heads": 2, "batch": 2, "rate": 0.01, "save-every": 2}


def test_it_trains_resumes_and_writes(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 10)
    paths = ["--data", str(tmp_path / "text.txt"), "--out", str(tmp_path / "run")]
    words = ["train", *paths, *(f"--{name}={value}" for name, value in SIZES.items())]
    with rlx.knobs(backend="reference"):
        assert main([*words, "--steps", "4", "--sample", "0"]) == 0
        assert "on text it has not seen" in capsys.readouterr().out
        assert main([*words, "--steps", "6", "--json", "--sample", "3", "--resume"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert main([*words, "--steps", "6"]) == 1
        # The sizes are those that the run began with.
        assert main(["train", *paths, "--steps", "7", "--sample", "0", "--resume"]) == 0
        assert main(["train", *paths, "--steps", "8", "--sample", "0", "--resume", "--layers", "2"]) == 1
        assert "the run began with layers 1, and now it is 2" in capsys.readouterr().err
        assert main([*words, "--steps", "6"]) == 1
    assert said["steps"] == 6 and len(said["text"]) >= 1 and said["eval_loss"] > 0
    assert "there are checkpoints of an earlier run" in capsys.readouterr().err
    assert main([*words, "--heads", "3"]) == 1
    assert capsys.readouterr().err == "rlx train: --heads 3 do not divide --width 16\n"
    (tmp_path / "text.txt").write_text("")
    assert main(words) == 1
    assert "the file is empty" in capsys.readouterr().err


def test_what_cannot_be_trained_is_one_line(tmp_path, capsys):
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("to be or not to be, that is the question. " * 10)
    words = ["train", "--data", str(text), *(f"--{name}={value}" for name, value in SIZES.items()), "--sample=0"]

    def failed(*more):
        assert main([*words, *more]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    with rlx.knobs(backend="reference"):
        assert "--rate must be above 0 and below 10, got 1000000000.0" in failed("--out", str(run), "--rate=1e9")
        assert "use a longer file, a shorter length" in failed("--out", str(run), "--length=400")
        assert "cannot be written to: Not a directory; choose another one" in failed("--out", str(text / "run"))
        assert not run.exists()
        assert main([*words, "--out", str(run), "--steps=4"]) == 0
        newest = run / "step-00000004.safetensors"
        newest.write_bytes(newest.read_bytes()[:-1])
        line = failed("--out", str(run), "--steps=6", "--resume")
        assert "remove it, and the run goes on from step-00000002.safetensors" in line
        newest.unlink()
        assert main([*words, "--out", str(run), "--steps=6", "--resume"]) == 0


def test_control_characters_do_not_reach_the_terminal():
    assert (
        train_command._without_controls("a\x1b[2J\tb\n\x07é")
        == "a\N{REPLACEMENT CHARACTER}[2J\tb\n\N{REPLACEMENT CHARACTER}é"
    )
