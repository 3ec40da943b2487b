"""A GPU that is none: programs run in the interpreter behind the driver's own functions."""

from __future__ import annotations

import gc
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_libcuda import FakeCuda

from rlx.backends.cuda import code
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.driver import using
from rlx.backends.cuda.hopper import launching
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


@pytest.fixture
def launched(monkeypatch):
    """The shapes of what tensor-core forms launch; nothing runs."""
    shapes = []
    monkeypatch.setattr(launching, "launch", lambda function, shape, address, stream: shapes.append(shape))
    return shapes


@pytest.fixture
def ptxas():
    """The assembler, where there is one."""
    package = importlib.util.find_spec("nvidia")
    folders = package.submodule_search_locations or [] if package is not None else []
    own = sorted(path for folder in folders for path in Path(folder).glob("*/bin/ptxas"))
    found = str(own[0]) if own else shutil.which("ptxas")
    if found is None:
        pytest.skip("ptxas is not installed; `make tools` brings it")
    return found


@pytest.fixture
def assembled(tmp_path, ptxas):
    """What ptxas says about a PTX text for Hopper: registers, bytes on the stack, warnings."""

    def say(ptx):
        (tmp_path / "kernel.ptx").write_text(ptx)
        command = [ptxas, "-v", "-arch=sm_90a", "kernel.ptx", "-o", "kernel.cubin"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr

    return say
