"""A GPU that is none: programs run in the interpreter behind the driver's own functions."""

from __future__ import annotations

import gc

import pytest
from fake_libcuda import FakeCuda

from rlx.backends.cuda import code
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.driver import using
from rlx.kernels.emit import llvm_codegen
from rlx.runtime.compile_cache import clear_compile_cache


@pytest.fixture
def fake(monkeypatch):
    """A driver with one GPU; code for it is the text of loop kernels."""
    library = FakeCuda()

    def as_text(kernel, machine):
        library.kernels[kernel.text] = kernel
        return kernel.text

    monkeypatch.setattr(llvm_codegen, "compile_assembly", as_text)
    # Tensor cores have no loop kernel that the interpreter could run.
    monkeypatch.setattr(code, "tensor_forms", lambda kernel, machine: ((), ""))
    for cached in ("ptx_cache", "cubin_cache"):
        monkeypatch.setattr(code, cached, lambda: None)
    # Programs of other tests belong to other devices.
    clear_compile_cache()
    code.ptx_loader.cache_clear()
    with using(library):
        yield library
        clear_compile_cache()
        gc.collect()
    code.ptx_loader.cache_clear()


@pytest.fixture
def gpu(fake):
    return open_gpu(0)
