"""`Session("metal")` on a stand-in, for tests that say so."""

from __future__ import annotations

import sys

import fake_metal
import pytest

import rlx
from rlx.backends import api
from rlx.backends.metal import device
from rlx.backends.text_gpu.arrays import _space


@pytest.fixture(scope="session")
def shim_folder(tmp_path_factory):
    """Where what was compiled is kept, so that equal text is compiled once."""
    return tmp_path_factory.mktemp("shim")


@pytest.fixture(scope="module")
def stand_in(shim_folder):
    """A device whose books begin empty."""
    if fake_metal.compiler() is None:
        pytest.skip("needs a C++ compiler: g++, clang++ or the package ziglang")
    with pytest.MonkeyPatch.context() as patch:
        module = fake_metal.fake_module(shim_folder)
        patch.setitem(sys.modules, "Metal", module)
        patch.setattr(api, "_backends", {})
        rlx.clear_compile_cache()
        device._opened.cache_clear()
        yield module.device
        rlx.clear_compile_cache()
        device._opened.cache_clear()
        _space.cache_clear()
