"""Two outputs cannot be stored over one input."""

from __future__ import annotations

import pytest

import rlx
from rlx.errors import OpError


def test_an_input_takes_one_output() -> None:
    g = rlx.Graph("twice")
    x = g.input("x", (4,), "f32")
    first, second = x + 1.0, x * 2.0
    g.set_outputs([first, second])
    g.alias(first, "x")
    g.alias(first, "x")
    with pytest.raises(OpError, match="stored over input 'x' already"):
        g.alias(second, "x")
    assert g.aliases == {0: "x"}
