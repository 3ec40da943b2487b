"""Tests here are about transforms, not about engines: functions run in the reference interpreter."""

import pytest

from rlx.knobs import knobs


@pytest.fixture(autouse=True)
def reference_backend():
    with knobs(backend="reference"):
        yield
