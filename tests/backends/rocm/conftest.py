"""An AMD GPU that is none: real code objects are loaded, and their kernels run in the interpreter."""

from __future__ import annotations

import gc

import pytest
from fake_hip import FakeHip

from rlx.backends.rocm import code
from rlx.backends.rocm.device import open_amd_gpu
from rlx.backends.rocm.hip import using
from rlx.runtime.compile_cache import clear_compile_cache


@pytest.fixture(params=["gfx942"])
def hip(request, monkeypatch):
    """HIP with one GPU; the code objects that it is given are remembered with the loop kernels of which they are."""
    library = FakeHip(arch=request.param)
    made = code.code_object

    def remembered(kernel, machine):
        image = made(kernel, machine)
        library.kernels[image.rstrip(b"\0")] = kernel
        return image

    monkeypatch.setattr(code, "code_object", remembered)
    monkeypatch.setattr(code, "code_object_cache", lambda: None)
    clear_compile_cache()
    code.code_object_loader.cache_clear()
    with using(library):
        yield library
        clear_compile_cache()
        gc.collect()
    code.code_object_loader.cache_clear()


@pytest.fixture
def amd_gpu(hip):
    return open_amd_gpu(0)
