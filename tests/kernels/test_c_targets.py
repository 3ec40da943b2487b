"""All kernels of all ops' samples, and of the model families forward and in training, as C: the bits of LLVM's code."""

from __future__ import annotations

import pytest
from c_cases import OPS, graph_cases, op_cases
from c_runs import c_differences

from compile.family_programs import FAMILIES, forward, training, values_for
from conformance.backends_here import skip_other_samples
from rlx.ir.leaves import Input, Param
from rlx.ir.rewrite.rebuild import rebuild

# Enough for every form of most ops; C compilers take seconds for each kernel of some.
MOST = 8


@pytest.mark.targets
@pytest.mark.parametrize("name", OPS)
def test_kernels_of_an_op(name, tmp_path):
    skip_other_samples("cpu", name)
    assert c_differences(op_cases(name, MOST), tmp_path) == []


@pytest.mark.targets_full
@pytest.mark.parametrize("name", OPS)
def test_all_kernels_of_an_op(name, tmp_path):
    skip_other_samples("cpu", name)
    assert c_differences(op_cases(name), tmp_path) == []


@pytest.mark.targets
@pytest.mark.parametrize("way", [forward, training], ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", FAMILIES)
def test_kernels_of_a_family(name, way, tmp_path):
    """Weights as inputs: those of a program are laid out by a program of their own."""
    built = way(FAMILIES[name], "f32")
    graph = rebuild(built, lambda n, xs: Input(n.op.key, n.op.type)() if isinstance(n.op, Param) else None).graph
    cases = list({c.kernel.text: c for c in graph_cases(graph, values_for(FAMILIES[name], graph))}.values())
    assert cases, "no kernel of the family was compared"
    assert c_differences(cases, tmp_path) == []
