"""A small suite from worker processes to table, JSON and picture."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest

from rlx.bench import driver, startup, worker
from rlx.bench.driver import BenchResult, CaseResult, Timing, run_suite
from rlx.bench.engine_process import EngineProblem, Worker
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
    process = Worker("programs", "rlx", sys.executable, 1)
    try:
        with pytest.raises(EngineProblem, match="nothing is prepared"):
            process.ask({"do": "round", "seconds": 0.0})
        with pytest.raises(EngineProblem, match="KeyError"):
            process.ask({"do": "prepare", "program": "nonsense", "sizes": {}, "result": str(tmp_path / "x.npy")})
        request = {"do": "prepare", "program": "softmax", "sizes": dict(TINY.sizes), "result": str(tmp_path / "x.npy")}
        assert process.ask(request)["seconds"] > 0
        answer = process.ask({"do": "round", "seconds": 0.001})
        assert answer["calls"] >= 3 and answer["seconds"] > 0
    finally:
        process.close()
    with pytest.raises(EngineProblem):
        process.ask({"do": "round", "seconds": 0.0})


@pytest.mark.skipif(os.name != "posix", reason="needs a shell and process groups")
def test_a_worker_ends_although_a_child_of_its_process_lives_on(tmp_path):
    """The child has the pipe open on which the parent listens."""
    engine = tmp_path / "engine"
    engine.write_text('#!/bin/sh\nsleep 300 &\necho $! > "$0.child"\necho \'{"version": "1"}\'\nread line\n')
    engine.chmod(0o700)
    process = Worker("programs", "rlx", str(engine), 1)
    ended = threading.Thread(target=process.close, daemon=True)
    ended.start()
    ended.join(60)
    assert not ended.is_alive()
    with pytest.raises(ProcessLookupError):
        wait_for_end(int((tmp_path / "engine.child").read_text()))


def wait_for_end(number):
    """Killed processes are gone as soon as somebody has collected them."""
    for _ in range(200):
        os.kill(number, 0)
        time.sleep(0.05)


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
        mine = Timing(ours, (ours, ours, ours), 0.1, 1e-7, limit=ours / 2)
        timings = {"rlx": mine, "torch": Timing(peer, (peer, peer, peer))}
        return CaseResult(Case(name, group, "softmax", {"rows": 1}), timings)

    cases = (case("a", "one", 1e-3, 2e-3), case("b", "one", 1e-3, 8e-3), case("c", "two", 1e-6, 1e-6))
    cases[2].timings["jax"] = Timing(None, problem="no luck")
    versions = {"rlx": "0.1", "torch": "2", "jax": "1"}
    return BenchResult("ops", 2, Limits(1e11, 1e10), versions, {"tinygrad": "gone"}, cases, 0.0)


def test_a_long_call_is_made_once_and_a_short_one_often():
    for pause, calls in ((0.02, [1]), (0.0, range(3, 10**9))):
        answer = worker._round(lambda seconds=pause: time.sleep(seconds), 0.01)
        assert answer["calls"] in calls and answer["seconds"] >= pause


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
    assert CaseResult(TINY, timings).ratio("torch") == 2.0
    unseen = {"rlx": Timing(0.0, (0.0, 1.0)), "torch": Timing(2.0, (2.0, 3.0))}
    assert CaseResult(TINY, unseen).ratio("torch") == 3.0


def test_other_engines_of_ours_have_rows_and_are_no_peers():
    case = measured().cases[0]
    faster = {**case.timings, "rlx int8": Timing(5e-4, (5e-4, 5e-4, 5e-4), limit=4e-4)}
    versions = {"rlx": "0.1", "rlx int8": "0.1", "torch": "2"}
    result = measured()._replace(cases=(case._replace(timings=faster),), versions=versions)
    assert result.cases[0].best_peer == "torch"
    lines = table(result).splitlines()
    assert lines[0].split()[-5:] == ["peer", "ratio", "torch", "of", "limit"]
    assert lines[2].split() == ["a,", "rlx", "int8", "500.0", "us", "torch", "4.00x", "4.00x", "80%"]
    assert "| a, rlx int8 | **4.00x** torch | 4.00x | 500.0 us | 80% |" in page([result], "a machine").splitlines()


def test_json_holds_everything():
    result = measured()
    again = from_json(json.loads(json.dumps(to_json(result))))
    assert table(again) == table(result)
    assert again.cases[0].timings["torch"].rounds == (2e-3, 2e-3, 2e-3)
    with pytest.raises(RlxError, match="version 2 of the JSON is read, got 1; measure again"):
        from_json({**to_json(result), "version": 1})


def test_the_picture_is_an_image_of_its_own():
    image = ElementTree.fromstring(plot(measured()))
    assert image.tag.endswith("svg")
    titles = [t.text for t in image.iter("{http://www.w3.org/2000/svg}title")]
    assert "a: torch takes 2.00 times as long" in titles
    assert "href" not in plot(measured())


def test_the_command(quick_limits, monkeypatch, tmp_path, capsys):
    from rlx.cli import bench

    monkeypatch.setitem(bench.SUITES, "ops", bench.SUITES["ops"]._replace(cases=(TINY,)))
    files = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "r.svg")]
    assert main(["bench", "ops", "--peers", "--rounds", "1", "--threads", "1", *files]) == 0
    assert "softmax 3x17" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["cases"][0]["name"] == TINY.name
    assert main(["bench", "ops", "--only", "nothing"]) == 1
    assert "there are: softmax 3x17" in capsys.readouterr().err
    monkeypatch.setenv("RLX_CACHE_DIR", str(tmp_path))
    assert main(["bench", "llm"]) == 1
    assert "get it with `rlx pull smollm2`" in capsys.readouterr().err


def test_the_page_has_ratios_first():
    text = page([measured()], "a machine")
    lines = text.splitlines()
    assert "Machine: a machine." in lines
    assert "| case | best peer | torch | rlx, time | of limit |" in lines
    assert "| a | **2.00x** torch | 2.00x | 1.00 ms | 50% |" in lines
    assert "| *one: geometric mean* | **4.00x** | 4.00x |  |  |" in lines


def test_the_start_of_a_slow_engine_is_measured_once_and_problems_are_said(monkeypatch):
    now = [0.0]

    def first_call(family, name, python, threads, environment, program, sizes):
        if name == "jax":
            raise EngineProblem("no luck\nat all")
        assert os.path.isdir(environment["RLX_CACHE_DIR"])
        now[0] += startup.LONG_ROUND_S if name == "torch" else 1.0
        return 2.0

    monkeypatch.setattr(startup, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(startup, "run_suite", lambda *args, **options: measured())
    monkeypatch.setattr(startup, "_import_seconds", lambda name, python, threads: 0.1)
    monkeypatch.setattr(startup, "first_call", first_call)
    said = []
    result = startup.run_startup(rounds=3, progress=said.append)
    imports, cold, again, *calls = result.cases
    assert [len(cold.timings[name].rounds) for name in ("rlx", "torch")] == [3, 1]
    assert cold.timings["jax"].problem == "no luck" and imports.timings["jax"].seconds == 0.1
    assert again.timings["rlx"].seconds == 2.0 and tuple(calls) == measured().cases
    assert said[0] == "round 1/3, rlx: import, beside numpy" and len(said) == 9 + 3 + 5


def test_an_engine_imports_in_a_process_of_its_own():
    assert 0 < startup._import_seconds("rlx", sys.executable, 1) < 60
