"""Programs with and without what an adapter of WebGPU has beyond plain WGSL: the results are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.wgpu.code import loader
from rlx.backends.wgpu.features import adapter_features, paying_features
from rlx.compile.target import Absent, select
from rlx.errors import RlxError
from rlx.ir.dtype import DType
from rlx.kernels.cpu.matmul.matmul import Matrix, Product
from rlx.kernels.cpu.quant_digits import has_digits
from rlx.kernels.gpu.matmul_codes import gpu_codes_kernel
from rlx.kernels.machines import wgsl_with
from rlx.knobs import knobs
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.panels import pack_rows

FOUND = select("wgpu").target.probe()
pytestmark = [
    pytest.mark.targets,
    pytest.mark.skipif(
        isinstance(FOUND, Absent), reason=f"{FOUND.reason}; {FOUND.remedy}" if isinstance(FOUND, Absent) else ""
    ),
]
F32 = DType.F32
DOTS = wgsl_with(["dot4"])
WITH_DIGITS = [name for name, layout in PANEL_FORMATS.items() if has_digits(DOTS, layout, 1) and not layout.table]
MASKS = ["none", "f16", "subgroups", "dot4", "f16,subgroups,dot4"]


@pytest.fixture
def gpu():
    from rlx.backends.wgpu.device import open_gpu

    return open_gpu()


@pytest.fixture(params=MASKS)
def mask(request, gpu):
    missing = {*request.param.split(",")} - {"none", *adapter_features(gpu.adapter.handle)}
    if missing:
        pytest.skip(f"{gpu.about} has no {' '.join(sorted(missing))}")
    rlx.clear_compile_cache()
    with knobs(wgpu_features=request.param):
        yield request.param
    rlx.clear_compile_cache()


@pytest.fixture
def texts(monkeypatch):
    """The modules of WGSL that are compiled from here on."""
    from rlx.backends.wgpu import pipelines

    made = []

    def noted(kernels, really=pipelines.wgsl_module):
        made.append(really(kernels))
        return made[-1]

    monkeypatch.setattr(pipelines, "wgsl_module", noted)
    return made


def normal(*dims, seed=0):
    return np.random.default_rng(seed).standard_normal(dims, np.float32)


def both(f, *arrays):
    return [np.asarray(rlx.jit(f, device=device)(*arrays)) for device in ("cpu", "wgpu")]


def test_what_this_adapter_has(gpu):
    assert gpu.machine.name == "+".join(
        ["wgsl", *(n for n in paying_features(gpu.adapter.kind) if n in adapter_features(gpu.adapter.handle))]
    )
    assert paying_features("CPU") == ["subgroups"]
    assert {*paying_features("DiscreteGPU")} == {"f16", "subgroups", "dot4"}


def test_a_mask_with_an_unknown_name_is_refused():
    with pytest.raises(RlxError, match=r"wgpu_features='f32': none or some of f16, subgroups, dot4 are needed"):
        knobs.set(wgpu_features="f32")


def test_rows(mask, texts):
    x = normal(9, 311)

    def f(x):
        ends = rnp.max(x, axis=1, keepdims=True) - rnp.min(x, axis=1, keepdims=True)
        return rlx.softmax(x) + rnp.sum(x, axis=1, keepdims=True) + ends

    wanted, got = both(f, x)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert any("subgroupAdd" in t and "subgroup_max_f32" in t for t in texts) == ("subgroups" in mask)


def test_rows_of_whole_numbers(mask):
    x = (normal(5, 700) * 1e6).astype(np.int32)
    for f in (rnp.sum, rnp.max, rnp.min):
        wanted, got = both(lambda x, f=f: f(x, axis=1), x)
        np.testing.assert_array_equal(got, wanted)


def test_special_numbers_in_rows(mask):
    x = normal(6, 300)
    x[0, 7], x[1, 8], x[2, 9], x[3, :], x[4, 11] = np.nan, np.inf, -np.inf, -np.inf, -np.float32(np.nan)
    x[4, 12] = np.inf
    for f in (rnp.sum, rnp.max, rnp.min):
        wanted, got = both(lambda x, f=f: f(x, axis=1), x)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_products_of_one_row(mask):
    wanted, got = both(lambda x, w: rlx.gelu(x @ w.T + 1.0), normal(1, 260), normal(90, 260, seed=1))
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


def test_halves(mask, texts):
    """Every number of f16 with another one, subnormal and infinite ones too: the same bits on both."""
    bits = np.arange(2**16, dtype=np.uint16)
    a, b = (x.view(np.float16) for x in (bits, np.random.default_rng(1).permutation(bits)))
    wanted, got = both(lambda a, b: rnp.stack([a + b, a - b, a * b]), a, b)
    np.testing.assert_array_equal(got, wanted)
    assert any(t.startswith("enable f16;") for t in texts) == ("f16" in mask)


def test_halves_in_a_chain(mask):
    a, b = normal(40, 33).astype(np.float16), normal(40, 33, seed=1).astype(np.float16)
    wanted, got = both(lambda a, b: (a * b + a - b) * (b - a) + rlx.tanh(a), a, b)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("mask", ["dot4", "f16,subgroups,dot4"], indirect=True)
def test_a_language_model(mask, texts):
    path = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
    generated = [rlx.load(path, device=d).generate("Once upon a time", max_tokens=8) for d in ("cpu", "wgpu")]
    assert generated[0] == generated[1] and len(generated[0]) > 10
    assert any("dot4I8Packed" in t for t in texts)


@pytest.mark.parametrize("name", WITH_DIGITS)
def test_a_row_times_codes_by_dot_products_of_bytes(gpu, name):
    """To the last bits: floats only add up the records; numbers that are 2^-12 of the largest count as well."""
    n, k = 150, 512
    rng = np.random.default_rng(2)
    block = FORMATS[name]
    stored = rng.integers(0, 256, (n * k // block.elements, block.bytes)).astype(np.uint8) & 0xBB
    weights = block.decode(stored).reshape(n, k).astype(np.float64)
    row = (rng.standard_normal(k) * 2.0 ** rng.integers(-12, 1, k)).astype(np.float32)
    product = Product("m", n, k, Matrix("a", F32, k), Matrix("b", DType.U8, 0), Matrix("c", F32, n))
    code = loader(DOTS).load(gpu_codes_kernel("product", DOTS, PANEL_FORMATS[name], product)).code
    panels = pack_rows(PANEL_FORMATS[name], stored, n, k)
    buffers = [gpu.allocate(size, "a test") for size in (row.nbytes, panels.nbytes, 4 * n)]
    for buffer, array in zip(buffers, (row, panels)):
        gpu.write(buffer.address, array)
    with gpu.lock:
        gpu.commands.call(code, [*(b.address for b in buffers), 1], -(-n // 64), "a test")
        gpu.commands.flush()
    found = gpu.read(buffers[2].address, (n,), np.dtype(np.float32))
    size = np.abs(row.astype(np.float64)) @ np.abs(weights).T
    assert np.all(np.abs(found - row.astype(np.float64) @ weights.T) <= 16 * 2.0**-24 * size)
