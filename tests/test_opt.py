"""The facade `rlx.opt`: every name it lists exists, and is the one of its home."""

import importlib

import pytest

from rlx import opt


@pytest.mark.parametrize("name", sorted(opt._HOME))
def test_names_are_those_of_their_homes(name):
    assert getattr(opt, name) is getattr(importlib.import_module(opt._HOME[name]), name)
    assert name in dir(opt)


@pytest.mark.parametrize("name", sorted(opt._MODULES))
def test_modules(name):
    assert getattr(opt, name) is importlib.import_module(opt._MODULES[name])


def test_unknown_names():
    with pytest.raises(AttributeError, match=r"module 'rlx.opt' has no attribute 'fuse_everything'"):
        _ = opt.fuse_everything


def test_higher_derivatives_may_fuse_between_layers():
    """Loading fusion gives the transforms their element-wise fuser."""
    from rlx import ops
    from rlx.autodiff import fuse_elementwise
    from rlx.ir.graph import Graph

    importlib.import_module("rlx.fusion")
    g = Graph("g")
    g.set_outputs([ops.tanh(ops.exp(g.input("x", (2,))))])
    assert [n.op.mnemonic for n in fuse_elementwise(g).nodes] == ["input", "elementwise_region"]
