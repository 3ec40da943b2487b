"""The garbage collector rests while programs are compiled, and is afterwards as it was."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import rlx
from rlx.collector import collector_at_rest
from rlx.compile import pipeline
from rlx.compile.pipeline import compile_program


@pytest.fixture(autouse=True)
def collector_on():
    gc.enable()
    yield
    gc.enable()


def test_it_is_as_before_also_after_an_error():
    with pytest.raises(KeyError), collector_at_rest():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with collector_at_rest():
        pass
    assert not gc.isenabled()


def test_it_rests_during_a_compile_and_not_during_a_run(monkeypatch):
    seen = []

    def watched(graph, *args):
        seen.append(gc.isenabled())
        return compile_program(graph, *args)

    monkeypatch.setattr(pipeline, "compile_program", watched)
    graph = rlx.Graph("compiled_at_rest")
    graph.set_outputs([graph.input("x", (3,)) * 2.0])
    # Otherwise the program may come from disk.
    with rlx.knobs(verify=2):
        compiled = rlx.Session("cpu").compile(graph)
    assert seen and not any(seen)
    assert gc.isenabled()
    np.testing.assert_array_equal(compiled.run(x=np.ones(3, "f4"))[0], [2, 2, 2])
