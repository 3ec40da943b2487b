"""Programs run to their last launch with the real assembler: their code is taken, and so is every launch of it."""

import numpy as np
import pytest
from assembling_cuda import AssemblingCuda

import rlx
import rlx.numpy as rnp
from rlx import nn
from rlx.backends.cuda import code
from rlx.backends.cuda.arrays import DeviceArray
from rlx.backends.cuda.device import open_gpu
from rlx.backends.cuda.driver import using
from rlx.ir.dtype import DType
from rlx.runtime.compile_cache import clear_compile_cache

LARGE = 3_000_000_017


@pytest.fixture(params=[(7, 5), (8, 0), (9, 0), (12, 0)], ids=["sm_75", "sm_80", "sm_90a", "sm_120a"])
def library(request, ptxas, monkeypatch):
    for cached in ("ptx_cache", "cubin_cache"):
        monkeypatch.setattr(code, cached, lambda: None)
    clear_compile_cache()
    found = AssemblingCuda(ptxas, request.param)
    with using(found):
        yield found
    clear_compile_cache()


def attention(heads, tokens, width, dtype, **options):
    operands = [((2, tokens, heads, width), dtype)] * 3
    return lambda q, k, v: nn.dot_product_attention(q, k, v, **options), *operands


def slow(*given):
    return pytest.param(*given, marks=pytest.mark.targets)


PROGRAMS = {
    "a product with an epilogue": (
        lambda a, b, c: nn.gelu(a @ b + c),
        ((127, 513), "f32"),
        ((513, 255), "f32"),
        ((255,), "f32"),
    ),
    "a product of three rows": (lambda a, b: a @ b.T, ((3, 4096), "bf16"), ((1000, 4096), "bf16")),
    "a gated product": (
        lambda a, g, u: nn.silu(a @ g.T) * (a @ u.T),
        ((100, 776), "bf16"),
        ((520, 776), "bf16"),
        ((520, 776), "bf16"),
    ),
    "attention": attention(3, 333, 64, "bf16", is_causal=True),
    "attention of wide heads": attention(1, 300, 512, "f32"),
    "attention of odd heads": attention(4, 50, 160, "bf16"),
    "more than 2**31 elements": (lambda x: x * 2 + 1, ((LARGE,), "bf16")),
    "a sort": (lambda x: rnp.sort(x, axis=-1), ((4, 50257), "f32")),
    "a transform": (rnp.fft.fft, ((4, 1001), "c64")),
    "a cumulative sum": (rnp.cumsum, ((LARGE,), "f32")),
}
QUICK = {"a product of three rows", "attention of wide heads", "more than 2**31 elements"}
# Those that would use the stack of a thread if places were computed one by one, or rows were read by one thread.
WITHOUT_STACK = {"attention of wide heads", "attention of odd heads", "a product of three rows"}


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in PROGRAMS])
def test_code_and_launches_are_taken(library, name):
    function, *operands = PROGRAMS[name]
    stream = open_gpu(0).stream
    arrays = [
        rlx.DeviceArray(DeviceArray.empty(dims, np.dtype(DType(dtype).numpy), stream)) for dims, dtype in operands
    ]
    run = rlx.jit(function, device="cuda")
    for _ in range(2):
        run(*arrays)
    assert library.launches and library.wrong == []
    assert not [c.name for c in library.codes.values() if "C75" in "".join(c.warnings)]
    if name in WITHOUT_STACK:
        assert not [(c.name, c.stack, c.spilled) for c in library.codes.values() if c.stack or c.spilled]


def test_what_does_not_assemble_and_launches_that_no_chip_takes_are_found(ptxas):
    """The stand-in itself: the tests above could fail."""
    found = AssemblingCuda(ptxas, (8, 0))
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u64 p)\n.maxntid 64\n{ ret; }\n"
    assert found.cuModuleLoadDataEx(_Out(), text.replace("ret", "rat").encode(), 0, None, None) == 218
    assert "does not assemble" in found.wrong.pop()
    module, function = _Out(), _Out()
    found.cuModuleLoadDataEx(module, text.encode(), 0, None, None)
    found.cuModuleGetFunction(function, module.value, b"f")
    sizes = {"128 threads": (1, 128, 0), "the grid": (0, 64, 0), "shared memory": (1, 64, 50_000)}
    for reason, (blocks, threads, shared) in sizes.items():
        assert found.cuLaunchKernel(function.value, blocks, 1, 1, threads, 1, 1, shared, 0, None, None) == 1
        assert reason in found.wrong[-1]
    assert found.cuLaunchKernel(function.value, 1, 1, 1, 64, 1, 1, 40_000, 0, None, None) == 0
    assert found.cuFuncSetAttribute(function.value, 8, 200 << 10) == 1


class _Out:
    """What `ctypes.byref` of a handle is to the stand-in."""

    value = 0

    @property
    def _obj(self):
        return self
