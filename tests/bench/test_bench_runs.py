"""A small suite from worker processes to table, JSON and picture."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from rlx.bench import driver
from rlx.bench.driver import BenchResult, CaseResult, EngineProblem, Timing, Worker, run_suite
from rlx.bench.limits import Limits
from rlx.bench.page import page
from rlx.bench.programs import Expected
from rlx.bench.report import from_json, geometric_mean, plot, table, to_json
from rlx.bench.suites import Case
from rlx.cli import main
from rlx.errors import RlxError

TINY = Case("softmax 3x17", "fused", "softmax", {"rows": 3, "width": 17})


@pytest.fixture
def quick_limits(monkeypatch):
    monkeypatch.setattr(driver, "measure_limits", lambda threads: Limits(1e11, 1e10))


def test_a_worker_answers_and_survives_errors(tmp_path):
    worker = Worker("programs", "rlx", sys.executable, 1)
    try:
        with pytest.raises(EngineProblem, match="nothing is prepared"):
            worker.ask({"do": "round", "seconds": 0.0})
        with pytest.raises(EngineProblem, match="KeyError"):
            worker.ask({"do": "prepare", "program": "nonsense", "sizes": {}, "result": str(tmp_path / "x.npy")})
        request = {"do": "prepare", "program": "softmax", "sizes": dict(TINY.sizes), "result": str(tmp_path / "x.npy")}
        assert worker.ask(request)["seconds"] > 0
        answer = worker.ask({"do": "round", "seconds": 0.001})
        assert answer["calls"] >= 3 and answer["seconds"] > 0
    finally:
        worker.close()
    with pytest.raises(EngineProblem):
        worker.ask({"do": "round", "seconds": 0.0})


def test_a_suite_measures_rlx_and_says_what_is_missing(quick_limits, monkeypatch):
    monkeypatch.setitem(
        driver.FAMILIES["programs"], "absent", driver.FAMILIES["programs"]["rlx"]._replace(needs=("no_such_package",))
    )
    # The worker is another process, which knows nothing of the engine that was added here.
    result = run_suite("ops", [TINY], peers=["absent"], rounds=2, round_seconds=0.001, threads=1)
    assert "absent" in result.missing and set(result.versions) == {"rlx"}
    (case,) = result.cases
    timing = case.timings["rlx"]
    assert len(timing.rounds) == 2 and timing.seconds > 0 and timing.error < 1e-6
    assert case.best_peer is None and case.ratio("absent") is None
    with pytest.raises(RlxError, match="no engine is called pytorch; known: rlx, torch"):
        run_suite("ops", [TINY], peers=["pytorch"])


def test_a_wrong_result_is_not_timed(quick_limits, monkeypatch):
    monkeypatch.setattr(Case, "exact", lambda self: Expected(np.arange(3), np.full((3, 17), 2.0)))
    result = run_suite("ops", [TINY], peers=[], rounds=1, round_seconds=0.001, threads=1)
    timing = result.cases[0].timings["rlx"]
    assert timing.seconds is None and timing.problem.startswith("wrong by")


def measured():
    def case(name, group, ours, peer):
        timings = {"rlx": Timing(ours, (ours, ours, ours), 0.1, 1e-7), "torch": Timing(peer, (peer, peer, peer))}
        return CaseResult(Case(name, group, "softmax", {"rows": 1}), timings, ours / 2)

    cases = (case("a", "one", 1e-3, 2e-3), case("b", "one", 1e-3, 8e-3), case("c", "two", 1e-6, 1e-6))
    cases[2].timings["jax"] = Timing(None, problem="no luck")
    versions = {"rlx": "0.1", "torch": "2", "jax": "1"}
    return BenchResult("ops", 2, Limits(1e11, 1e10), versions, {"tinygrad": "gone"}, cases, 0.0)


def test_the_table():
    lines = table(measured()).splitlines()
    assert lines[0].split() == ["case", "rlx", "best", "peer", "ratio", "torch", "of", "limit"]
    assert lines[1].split() == ["a", "1.00", "ms", "torch", "2.00x", "2.00x", "50%"]
    assert lines[4].split() == ["one:", "mean", "4.00x", "4.00x"]
    text = "\n".join(lines)
    assert "not measured: tinygrad (gone)" in text and "not measured: jax on c (no luck)" in text
    assert geometric_mean([None]) is None


def test_the_ratio_pairs_rounds():
    """A slow phase of the machine hits both engines of a round, and leaves the ratio alone."""
    timings = {"rlx": Timing(1.0, (1.0, 5.0, 1.0)), "torch": Timing(2.0, (2.0, 10.0, 2.0))}
    assert CaseResult(TINY, timings, 0.0).ratio("torch") == 2.0


def test_json_holds_everything():
    result = measured()
    again = from_json(json.loads(json.dumps(to_json(result))))
    assert table(again) == table(result)
    assert again.cases[0].timings["torch"].rounds == (2e-3, 2e-3, 2e-3)


def test_the_picture_is_an_image_of_its_own():
    image = ElementTree.fromstring(plot(measured()))
    assert image.tag.endswith("svg")
    titles = [t.text for t in image.iter("{http://www.w3.org/2000/svg}title")]
    assert "a: torch takes 2.00 times as long" in titles
    assert "href" not in plot(measured())


def test_the_command(quick_limits, monkeypatch, tmp_path, capsys):
    from rlx.cli import bench

    monkeypatch.setitem(bench.SUITES, "ops", (TINY,))
    files = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.svg")]
    assert main(["bench", "ops", "--peers", "--rounds", "1", "--threads", "1", *files]) == 0
    assert "softmax 3x17" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["cases"][0]["name"] == TINY.name
    assert main(["bench", "ops", "--only", "nothing"]) == 1
    assert "there are: softmax 3x17" in capsys.readouterr().err
    assert main(["bench", "llm"]) == 1
    assert "--model" in capsys.readouterr().err


def test_the_page_has_ratios_first():
    text = page([measured()], "a machine")
    lines = text.splitlines()
    assert "Machine: a machine." in lines
    assert "| case | best peer | torch | rlx, time | of limit |" in lines
    assert "| a | **2.00x** torch | 2.00x | 1.00 ms | 50% |" in lines
    assert "| *one: geometric mean* | **4.00x** | 4.00x |  |  |" in lines
