"""The lists of names that docs/numpy_coverage.md counts are those of the JAX that is installed."""

import importlib
import types
from pathlib import Path

import pytest
from libraries import jax

pytestmark = pytest.mark.peers


def test_lists_of_names(monkeypatch):
    if not jax.__version__.startswith("0.10."):
        pytest.skip(f"the lists are of JAX 0.10, installed is {jax.__version__}")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    coverage = importlib.import_module("jax_coverage")
    for name, module in coverage.MODULES.items():
        home = importlib.import_module(name)
        public = {n for n in dir(home) if not n.startswith("_") and not n.endswith("_p")}
        found = {n for n in public if not isinstance(getattr(home, n, None), types.ModuleType)}
        assert {*module.names.split()} ^ found == set(), name
