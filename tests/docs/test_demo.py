"""`make demo` runs, without a warning, and its training works."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_demo_runs():
    done = subprocess.run([sys.executable, "-W", "error", "examples/demo.py"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", done.stdout)]
    assert len(losses) >= 3 and losses[-1] < 0.5 * losses[0], done.stdout
