"""How tests run code in fresh processes that have many devices of XLA."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import rlx
from rlx.backends.xla.adapter import Unusable, installed

FOUND = installed()
needs_xla = [
    pytest.mark.targets,
    pytest.mark.skipif(isinstance(FOUND, Unusable), reason=f"{getattr(FOUND, 'reason', '')}; make tools installs it"),
]
SOURCE = Path(rlx.__file__).parents[1]
PRELUDE = """
import numpy as np
import rlx
import rlx.numpy as rnp
from rlx import NamedSharding, P
"""


def environment(devices=8, **settings):
    return {**os.environ, "PYTHONPATH": str(SOURCE), "RLX_XLA_DEVICES": str(devices), **settings}


def many_devices(code, devices=8, fails=False, **settings):
    """What a fresh process with so many devices prints; what it says where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=environment(devices, **settings),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout
