"""The suite that needs a GPU: families, every op on its samples, and the driver, against the CPU engine."""

import sys

import gpu_suite
import pytest

from rlx.backends.cuda.driver import Missing, probe

found = probe()
pytestmark = pytest.mark.skipif(isinstance(found, Missing), reason=getattr(found, "reason", ""))


@pytest.mark.long
def test_gpu_suite(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_suite.py"])
    assert gpu_suite.main() == 0
