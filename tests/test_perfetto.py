"""Traces for Perfetto: what is recorded, and that the file can be read at any moment."""

import json
import os
import subprocess
import sys
import threading

import pytest

from rlx import perfetto
from rlx.knobs import knobs


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Tracing into a fresh file; the fixture reads the events back."""
    path = tmp_path / "trace.json"
    monkeypatch.setattr(perfetto, "_trace", perfetto._Trace())
    with knobs(trace_perfetto=path):
        yield lambda: json.loads(path.read_text())


def test_off_does_nothing():
    with knobs(trace_perfetto=None):
        assert not perfetto.enabled()
        perfetto.emit_complete("x", "y", 0, 1)
        perfetto.flush_and_finalize()
        with perfetto.trace_span("x", "y") as span:
            assert span is None


def test_events(trace):
    assert perfetto.enabled()
    perfetto.emit_complete('quote " back\\slash é', "cat", 1_500, 4_000, {"bytes": 12, "flops": 3.5})
    perfetto.emit_complete("clock went back", "cat", 10, 5)
    perfetto.flush_and_finalize()
    first, second = trace()
    assert first == {
        "name": 'quote " back\\slash é',
        "cat": "cat",
        "ph": "X",
        "ts": 1.5,
        "dur": 2.5,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "args": {"bytes": 12, "flops": 3.5},
    }
    assert second["dur"] == 0 and "args" not in second


def test_span(trace, monkeypatch):
    readings = iter([2_000, 9_000])
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(readings))
    with perfetto.trace_span("work", "cpu", {"bytes": 1}) as span:
        span.args["flops"] = 7
    perfetto.flush_and_finalize()
    [event] = trace()
    assert (event["name"], event["cat"], event["ts"], event["dur"]) == ("work", "cpu", 2.0, 7.0)
    assert event["args"] == {"bytes": 1, "flops": 7}


def test_span_is_recorded_when_the_block_fails(trace):
    with pytest.raises(KeyError), perfetto.trace_span("work"):
        raise KeyError
    perfetto.flush_and_finalize()
    assert [e["name"] for e in trace()] == ["work"]


def test_file_is_whole_after_every_flush_and_can_grow(trace):
    for i in range(3):
        perfetto.emit_complete(f"event {i}", "cat", i, i + 1)
        perfetto.flush_and_finalize()
        perfetto.flush_and_finalize()
        assert [e["name"] for e in trace()] == [f"event {j}" for j in range(i + 1)]


def test_batches_are_written_without_a_flush(trace):
    for i in range(perfetto._EVENTS_PER_WRITE + 1):
        perfetto.emit_complete("e", "cat", i, i + 1)
    assert len(trace()) == perfetto._EVENTS_PER_WRITE


def test_a_new_path_begins_a_new_file(trace, tmp_path):
    perfetto.emit_complete("old", "cat", 0, 1)
    with knobs(trace_perfetto=tmp_path / "other.json"):
        perfetto.emit_complete("new", "cat", 0, 1)
        perfetto.flush_and_finalize()
    assert [e["name"] for e in trace()] == ["old"]
    assert [e["name"] for e in json.loads((tmp_path / "other.json").read_text())] == ["new"]


def test_threads(trace):
    path = knobs.trace_perfetto

    def work(name):
        with knobs(trace_perfetto=path):
            for i in range(300):
                perfetto.emit_complete(f"{name} {i}", "cat", i, i + 1)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    perfetto.flush_and_finalize()
    events = trace()
    assert {e["name"] for e in events} == {f"{n} {i}" for n in range(4) for i in range(300)}
    assert len({e["tid"] for e in events}) > 1


def test_written_at_exit(tmp_path):
    code = "from rlx import perfetto\nwith perfetto.trace_span('last words', 'cat'): pass"
    path = tmp_path / "trace.json"
    subprocess.run([sys.executable, "-c", code], env={"RLX_TRACE_PERFETTO": str(path)}, check=True)
    assert [e["name"] for e in json.loads(path.read_text())] == ["last words"]
