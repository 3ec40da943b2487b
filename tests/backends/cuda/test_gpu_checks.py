"""What `gpu_checks.py` would run on a GPU is there, and its short reports say what matters. Nothing here needs one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import gpu_checks
import gpu_suite
import pytest

BENCHMARKS = Path(gpu_checks.PEERS).parent


@pytest.mark.parametrize("topic", gpu_checks.CHECKS)
def test_topics_have_checks(topic: str) -> None:
    _, *arguments = gpu_checks.CHECKS[topic]
    at = arguments.index("--match") if "--match" in arguments else len(arguments)
    found, parts = [" ".join(item) for item in gpu_suite.items(arguments[:at])], arguments[at + 1 :] or [""]
    for part in parts:
        assert any(part in name for name in found), f"{topic}: no check has {part!r} in its name"


def test_all_ops_are_checked() -> None:
    """In a process that has loaded none of them."""
    found = subprocess.run(
        [sys.executable, gpu_checks.SUITE, "--only", "ops", "--list"], capture_output=True, text=True
    )
    assert len(found.stdout.splitlines()) > 150, found.stderr[-500:]


def test_groups_of_times_are_there() -> None:
    """Benchmarks need torch to be imported, so they are read."""
    written = "".join(path.read_text() for path in BENCHMARKS.glob("cuda_*.py"))
    groups = set(re.findall(r'^    "(\w+)": \w+,$', written, re.MULTILINE))
    assert {group for groups in gpu_checks.TIMES.values() for group in groups} <= groups


def test_plans_are_made_of_topics() -> None:
    for topics in gpu_checks.PLANS.values():
        assert set(topics) <= {*gpu_checks.CHECKS, *gpu_checks.TIMES}


def test_a_short_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = [
        {"item": "a", "error": 1.234e-3, "seconds": 1, "fatal": False},
        {"item": "b", "failed": "off by 2", "seconds": 1, "fatal": False},
    ]
    rows = [{"name": "sums", "rlx": {"us": 12.345, "spread": 0.1}, "torch": {"us": 20.0, "spread": 0.1}}]
    suite, peers = tmp_path / "suite.py", tmp_path / "peers.py"
    for path, what, code in ((suite, checked, 1), (peers, {"limits": {"copy": 1.0}, "rows": rows, "versions": {}}, 0)):
        text = f"import sys\nopen(sys.argv[sys.argv.index('--out') + 1], 'w').write({json.dumps(what)!r})\n"
        path.write_text(text + f"sys.exit({code})\n")
    monkeypatch.setattr(gpu_checks, "SUITE", suite)
    monkeypatch.setattr(gpu_checks, "PEERS", peers)
    out = tmp_path / "report.json"
    monkeypatch.setattr(sys, "argv", ["gpu_checks.py", "factors", "--short", "--out", str(out), "--seconds", "60"])
    assert gpu_checks.main() == 1, "a check failed"
    assert json.loads(out.read_text()) == {
        "factors checks": {"run": 2, "failed": {"b": "off by 2"}, "farthest": {"a": 1.2e-3}},
        "factors times": {"limits": {"copy": 1.0}, "rows": {"sums": {"rlx": 12.3, "torch": 20.0}}},
    }
