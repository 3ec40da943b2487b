"""`rlx bench train` on sizes that take no time: programs run, are right, and say what memory they take."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from rlx.bench import training
from rlx.bench.driver import BenchResult, CaseResult, Timing
from rlx.bench.engines.training_rlx import RlxTraining
from rlx.bench.limits import Limits
from rlx.bench.report import from_json, to_json
from rlx.bench.suites import Case
from rlx.bench.training import TrainingCase, run_training, training_table, write_floats
from rlx.bench.training_programs import TRAINING, drawn, gpt_flops
from rlx.cli import main
from rlx.errors import RlxError
from rlx.models.model_files import open_decoder
from rlx.models.pull import SHIPPED

GPT = {"layers": 1, "width": 16, "heads": 2, "batch": 2, "length": 8, "vocabulary": 11}
SIZES = {
    "gpt": GPT,
    "convnet": {"steps": 1, "batch": 2},
    "adamw": {"parameters": 1 << 20},
    "scan gradient": {"length": 16, "rows": 2, "width": 4, "checkpoints": 4},
}


@pytest.fixture
def quick_limits(monkeypatch):
    monkeypatch.setattr(training, "measure_limits", lambda threads: Limits(1e11, 1e10))
    monkeypatch.setattr(training, "measure_update_stream", lambda threads: 1e10)


def test_every_program_has_sizes_here():
    assert set(SIZES) | {"lora"} == set(TRAINING)


def test_losses_of_the_gpt_fall_and_checkpoints_change_nothing():
    engine = RlxTraining(1)
    call = engine.prepare("gpt", GPT)
    losses = [call() for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and abs(losses[0] - np.log(11)) < 0.1
    kept, all_kept = (
        float(engine.prepare("scan gradient", {**SIZES["scan gradient"], "checkpoints": n})()) for n in (4, 0)
    )
    assert kept == pytest.approx(all_kept, rel=1e-6)


def test_adamw_is_the_formula():
    values, call = drawn("adamw", SIZES["adamw"]), RlxTraining(1).prepare("adamw", SIZES["adamw"])
    p, g = float(values["params"]["w0"][0, 0]), float(values["gradients"]["w0"][0, 0])
    assert float(call()) == pytest.approx(p - 1e-3 * (g / (abs(g) + 1e-8) + 0.1 * p), rel=1e-5)


def test_the_work_of_a_step_is_mostly_its_matrices():
    sizes = {"layers": 6, "width": 384, "heads": 6, "batch": 8, "length": 128, "vocabulary": 256}
    assert 1 < gpt_flops(sizes) / (6 * (6 * 12 * 384**2 + 256 * 384) * 1024) < 1.05


def test_a_suite_runs_from_processes_to_table_and_json(quick_limits, monkeypatch):
    monkeypatch.setattr(training, "CASES", (TrainingCase(Case("GPT tiny", "gpt", "gpt", GPT), ("torch",)),))
    result = run_training(peers=[], only="GPT tiny", rounds=2, threads=1)
    timing = result.cases[0].timings["rlx"]
    assert timing.seconds and len(timing.rounds) == 2 and timing.limit == gpt_flops(GPT) / 1e11
    if sys.platform == "linux":
        assert timing.memory
    assert from_json(json.loads(json.dumps(to_json(result)))) == result
    assert "GPT tiny" in training_table(result)


def test_scans_run_by_turns():
    """Each is compiled in a process that is not measured, and its memory is what it has beyond that before its call."""
    started = []

    class Recorded:
        def __init__(self):
            self.number, self.rounds = len(started), []
            started.append(self)

        def ask(self, request):
            if request["do"] == "round":
                self.rounds.append(sum(len(w.rounds) for w in started))
                return {"seconds": float(self.number), "peak": 100 + self.number}
            np.save(request["result"], np.zeros(1))
            return {"seconds": 9.0, "held": 60}

        def close(self):
            self.is_closed = True

    cases = [Case(f"scan {k}", "scan", "scan gradient", {**SIZES["scan gradient"], "checkpoints": k}) for k in (0, 4)]
    timings = training._scan_times(cases, Recorded, 3, lambda text: None)
    assert [(t.seconds, t.rounds, t.memory) for t in timings] == [(2.0, (2.0,) * 3, 42), (3.0, (3.0,) * 3, 43)]
    assert [w.rounds for w in started] == [[], [], [0, 2, 4], [1, 3, 5]]
    assert all(w.is_closed for w in started)


def test_the_table_says_how_much_of_the_memory_of_others_is_taken():
    timings = {
        "rlx": Timing(1.0, (1.0, 1.0), limit=0.8, memory=300_000_000),
        "torch": Timing(1.3, (1.2, 1.4), memory=600_000_000),
    }
    found = CaseResult(Case("GPT", "gpt", "gpt", GPT), timings)
    versions = {"rlx": "1", "torch": "2"}
    lines = training_table(BenchResult("train", 2, Limits(1e11, 1e10), versions, {}, (found,))).splitlines()
    assert lines[0].startswith("case") and " ".join(lines[1].split()) == "GPT 1.00 s 1.30x 80% 300 MB 0.50x"


def test_cases_that_are_not_there_and_models_that_are_missing_are_said(quick_limits, capsys):
    with pytest.raises(RlxError, match="no case of train has 'chess' in its name"):
        run_training(only="chess")
    result = run_training(peers=[], only="LoRA", rounds=1)
    assert result.cases == () and "rlx pull smollm2" in result.missing["LoRA step, 1x256 tokens"]
    assert main(["bench", "train", "--only", "chess"]) != 0 and "GPT step" in capsys.readouterr().err


def test_other_devices_have_cases_of_their_own_and_are_asked_for_by_name(quick_limits, capsys, monkeypatch):
    assert {c.case.program for c in training.GPU_CASES} <= set(TRAINING)
    with pytest.raises(RlxError, match="there are: GPT-2 124M step, bf16"):
        run_training(only="chess", device="cuda")
    assert main(["bench", "train", "--device", "tpu"]) != 0 and "one of cpu, cuda" in capsys.readouterr().err
    assert main(["bench", "ops", "--device", "cuda"]) != 0 and "--device cannot be used here" in capsys.readouterr().err
    # The same path on the host, in bf16: engines are told their device, and no limit is known.
    monkeypatch.setattr(training, "GPU_CASES", (TrainingCase(Case("narrow", "gpt", "gpt", {**GPT, "bf16": 1}), ()),))
    monkeypatch.setattr(training, "DEVICE_VARIABLE", "RLX_BENCH_OTHER")
    result = run_training(peers=[], rounds=1, threads=1, device="cuda")
    assert result.cases[0].timings["rlx"].seconds and result.cases[0].timings["rlx"].limit == 0.0


def test_a_packed_model_as_floats_gives_the_same_logits(tmp_path):
    import rlx

    shipped = SHIPPED["tiny"]
    write_floats(tmp_path / "floats", open_decoder(shipped))
    wanted = rlx.load(shipped, activations="f32").logits([1, 2, 3, 4])
    np.testing.assert_allclose(rlx.load(tmp_path / "floats").logits([1, 2, 3, 4]), wanted, rtol=1e-4, atol=1e-4)
