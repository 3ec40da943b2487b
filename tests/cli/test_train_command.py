"""`rlx train`: a small GPT from nothing, and what is said when it cannot be trained."""

import json

import rlx
from rlx.cli import main

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
    assert said["steps"] == 6 and len(said["text"]) >= 1 and said["eval_loss"] > 0
    assert "there are checkpoints of an earlier run" in capsys.readouterr().err
    assert main([*words, "--heads", "3"]) == 1
    assert capsys.readouterr().err == "rlx train: --heads 3 do not divide --width 16\n"
    (tmp_path / "text.txt").write_text("")
    assert main(words) == 1
    assert "the file is empty" in capsys.readouterr().err
