"""Programs that MLX runs: `make tools test-targets`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from scipy import special

import rlx
import rlx.numpy as rnp
from rlx.backends.mlx import arrays
from rlx.backends.mlx.device import Unusable, installed, mx
from rlx.backends.mlx.executable import MODES
from rlx.errors import AssertionFailed, BindingError, OpError, RlxError
from rlx.ops.quant.quantized_weights import DequantMatMul
from rlx.quant.schemes import QuantScheme

FOUND = installed()
pytestmark = [
    pytest.mark.targets,
    pytest.mark.skipif(isinstance(FOUND, Unusable), reason=f"{getattr(FOUND, 'reason', '')}; make tools installs it"),
]
SOURCE = Path(rlx.__file__).parents[1]


def on_both(f, *args):
    return [np.asarray(rlx.jit(f, device=device)(*args)) for device in ("mlx", "reference")]


def alone(code, **settings):
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def values(*dims, dtype="f4", seed=0):
    return np.random.default_rng(seed).standard_normal(dims).astype(dtype)


def flow(x, k):
    total, rows = rlx.scan(lambda c, y: (c + y, c * y), x[0], x)
    total = rlx.while_loop(lambda c: c.sum() < 50.0, lambda c: c * 2.0, total + 1.0)
    total = rlx.cond(total.sum() > 60.0, lambda c: c - 1.0, lambda c: c + 1.0, total)
    return rlx.switch(k, [lambda c: c, lambda c: -c, lambda c: c * c], total) + rows.sum(0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n", [0, 3])
def test_control_flow(n, mode):
    with rlx.knobs(mlx_mode=mode):
        got, wanted = on_both(flow, np.arange(8, dtype="f4").reshape(4, 2), np.int32(n))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def layer(x, w, g):
    return rlx.nn.softmax(rlx.relu(x @ w) * g + x)


@pytest.mark.parametrize("mode", MODES)
def test_modes_give_the_same(mode):
    given = values(4, 4), values(4, 4, seed=1), values(4, seed=2)
    with rlx.knobs(mlx_mode=mode):
        got, wanted = on_both(layer, *given)
        slope, slope_wanted = on_both(rlx.grad(lambda *a: (layer(*a) ** 2).sum()), *given)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, slope_wanted, rtol=1e-4, atol=1e-5)


def test_compiled_programs_are_told_once(monkeypatch):
    told = []
    real = mx.matmul
    monkeypatch.setattr(mx, "matmul", lambda a, b: told.append(1) or real(a, b))
    f = rlx.jit(lambda x: x @ x, device="mlx")
    for mode, count in (("lazy", 3), ("compiled", 1)):
        told.clear()
        with rlx.knobs(mlx_mode=mode):
            for _ in range(3):
                np.testing.assert_array_equal(f(np.eye(3, dtype="f4")), np.eye(3))
        assert len(told) == count


def test_the_report_says_how_programs_run():
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", ("B", 4), "f32") + 1.0])
    c = rlx.Session("mlx").compile(g)
    for rows in (1, 5, 1):
        assert c.run(x=np.ones((rows, 4), "f4"))[0].shape == (rows, 4)
    with rlx.knobs(mlx_mode="lazy"):
        assert "lazy, 2 programs compiled so far" in c.report
    looped = rlx.Session("mlx").compile(rlx.trace(flow, np.ones((4, 2), "f4"), np.int32(0)).graph)
    assert "4 loops and branches driven from the host, 1 program compiled so far" in looped.report


def test_a_mode_that_does_not_exist():
    with pytest.raises(RlxError, match="one of lazy, compiled, eager is needed"), rlx.knobs(mlx_mode="fast"):
        pass


FUNCTIONS = {
    "exp": np.exp,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": special.erf,
    "erfc": special.erfc,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_double_precision_is_double(name):
    """MLX's own exp, sin, cos and erf of f64 have the digits of f32."""
    x = np.linspace(-0.9, 20.0, 500) if name == "log1p" else np.linspace(-20.0, 20.0, 501)
    got = np.asarray(rlx.jit(getattr(rlx.ops, name), device="mlx")(x))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, FUNCTIONS[name](x), rtol=2e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i4", "u4", "i8", "u8"])
def test_products_of_integers_wrap(dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(info.min, info.max, dims, dtype=dtype, endpoint=True) for dims in ((3, 70), (70, 2)))
    np.testing.assert_array_equal(rlx.jit(rlx.ops.matmul, device="mlx")(a, b), a @ b)


@pytest.mark.parametrize("to", ["f8e4m3", "f8e5m2", "f4e2m1"])
def test_small_floats_round_to_even(to):
    dtype = rlx.DType.of(to)
    edges = np.arange(16 if to == "f4e2m1" else 256, dtype=np.uint8).view(dtype.numpy).astype("f4")
    edges = np.sort(edges[np.isfinite(edges)])
    x = np.concatenate([edges, (edges[1:] + edges[:-1]) / 2, values(300) * 10, np.float32([3e38, -3e38, 449, 465])])
    got, wanted = on_both(lambda x: x.astype(to).astype("f4"), x)
    np.testing.assert_array_equal(got, wanted)


def test_random_bits_are_those_of_the_definition():
    got, wanted = on_both(lambda: rlx.random.bits(rlx.random.key(7), (50,)))
    np.testing.assert_array_equal(got, wanted)


SCHEMES = ["gguf_q4_0", "gguf_q4_1", "gguf_q8_0", "gguf_q4k", "int8/32", "int8a/64", "int4/64"]


@pytest.mark.parametrize("mode", ["lazy", "compiled"])
@pytest.mark.parametrize("name", SCHEMES)
def test_weights_in_formats_of_mlx(name, mode, monkeypatch):
    scheme = QuantScheme.of(name)
    k, n, rng = 256, 5, np.random.default_rng(0)
    packed = rng.integers(0, 256, scheme.packed_bytes(k, n), np.uint8)
    if scheme.is_gguf:
        # Halves of bytes at random may be NaN; a scale is a number.
        size = scheme.block_format.bytes
        blocks = packed.reshape(-1, size)
        heads = 4 if name in ("gguf_q4_1", "gguf_q4k") else 2
        steps = rng.uniform(0.01, 0.1, (len(blocks), heads // 2)).astype("f2")
        blocks[:, :heads] = steps.view(np.uint8)
    sides = []
    if not scheme.is_gguf:
        groups = (k // scheme.block_size, n)
        sides.append(rng.uniform(0.01, 0.1, groups).astype("f4"))
        if scheme.has_zero_point:
            sides.append(rng.integers(-5, 5, groups).astype("f4"))
    g = rlx.Graph("g")
    operands = [g.input("x", ("B", k), "f32"), g.param("w", packed.shape, "u8")]
    operands += [g.param(f"s{i}", s.shape, "f32") for i, s in enumerate(sides)]
    g.set_outputs([DequantMatMul(scheme, n)(*operands)])
    asked = []
    real = mx.quantized_matmul
    monkeypatch.setattr(mx, "quantized_matmul", lambda *a, **named: asked.append(named["bits"]) or real(*a, **named))
    results = []
    for device in ("mlx", "reference"):
        c = rlx.Session(device).compile(g)
        c.set_params({"w": packed, **{f"s{i}": s for i, s in enumerate(sides)}})
        with rlx.knobs(mlx_mode=mode):
            results.append([np.asarray(c.run(x=values(rows, k, seed=rows))[0]) for rows in (1, 3)])
    assert asked and set(asked) == {8 if "8" in name else 4}
    for got, wanted in zip(*results):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_other_scales_are_seen():
    g = rlx.Graph("g")
    x, w = g.input("x", (1, 32), "f32"), g.param("w", (32, 2), "i8")
    g.set_outputs([DequantMatMul(QuantScheme.int8_block(32), 2)(x, w, g.param("s", (1, 2), "f32"))])
    c = rlx.Session("mlx").compile(g)
    c.set_param("w", np.ones((32, 2), "i1"))
    for scale in (1.0, 3.0):
        c.set_param("s", np.full((1, 2), scale, "f4"))
        np.testing.assert_allclose(c.run(x=np.ones((1, 32), "f4"))[0], np.full((1, 2), 32 * scale))


def test_params_stay_on_the_device(monkeypatch):
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", (2, 3), "f32") @ rlx.transpose(g.param("w", (3, 3), "f32") * 2.0, (1, 0))])
    c = rlx.Session("mlx").compile(g)
    c.set_param("w", np.eye(3, dtype="f4"))
    put = []
    real = arrays.MlxSpace.put
    monkeypatch.setattr(arrays.MlxSpace, "put", lambda self, array: put.append(array.shape) or real(self, array))
    for _ in range(3):
        np.testing.assert_array_equal(c.run(x=np.ones((2, 3), "f4"))[0], np.full((2, 3), 2))
    assert put == [(3, 3), (2, 3), (2, 3), (2, 3)] or put == [(2, 3)] * 3
    c.set_param("w", np.ones((3, 3), "f4"))
    np.testing.assert_array_equal(c.run(x=np.ones((2, 3), "f4"))[0], np.full((2, 3), 6))


def test_donated_arrays_are_gone():
    step = rlx.jit(lambda state, x: (state + x, state.sum()), donate_argnums=0, device="mlx")
    state = rlx.device_put(np.zeros(1000, "f4"), "mlx")
    after, total = step(state, np.float32(2))
    assert float(total) == 0 and np.asarray(after).sum() == 2000
    with pytest.raises(BindingError, match="donated"):
        np.asarray(state)


def test_memory_of_the_caller_is_copied():
    x = np.ones(4, "f4")
    there = rlx.device_put(x, "mlx")
    back = np.asarray(there)
    x[:] = 5
    back[:] = 7
    np.testing.assert_array_equal(there, np.ones(4, "f4"))


def test_arrays_of_mlx_come_in_and_go_out():
    there = rlx.device_put(mx.array([1.0, 2.0]), "mlx")
    assert there.device == "mlx" and there.value.array.shape == (2,)
    np.testing.assert_array_equal(there + 1.0, np.array([2, 3], "f4"))
    np.testing.assert_array_equal(np.from_dlpack(there.value), np.array([1, 2], "f4"))
    half = rlx.device_put(values(3).astype(rlx.DType.BF16.numpy), "mlx")
    assert np.asarray(half).dtype == rlx.DType.BF16.numpy


@pytest.mark.parametrize("mode", ["lazy", "compiled"])
def test_checks_end_a_run_when_somebody_looks(mode):
    def f(x):
        def step(c, y):
            return rlx.ops.runtime_assert(y > 0, "rows are positive", c + y), y

        return rlx.scan(step, np.float32(0), x)[0]

    good, bad = np.ones(3, "f4"), np.array([1, -1, 1], "f4")
    with rlx.knobs(mlx_mode=mode):
        assert float(rlx.jit(f, device="mlx")(good)) == 3
        result = rlx.jit(f, device="mlx")(bad)
    with pytest.raises(AssertionFailed, match="rows are positive"):
        np.asarray(result)


def test_a_matrix_that_cannot_be_solved():
    singular = rlx.jit(rnp.linalg.solve, device="mlx")(np.ones((2, 2), "f4"), np.ones(2, "f4"))
    with pytest.raises(OpError, match="singular"):
        np.asarray(singular)


def test_ids_from_outside_are_checked():
    f = rlx.jit(lambda table, ids: table[ids], device="mlx")
    table = rlx.device_put(np.arange(4, dtype="f4"), "mlx")
    for ids in (np.array([0, 4]), rlx.device_put(np.array([0, 4]), "mlx")):
        with pytest.raises(OpError, match="holds 4"):
            f(table, ids)


def test_long_scans_are_told_in_parts():
    got, wanted = on_both(lambda x: rlx.scan(lambda c, _: (c * 0.5 + x, c[0]), x, None, length=300)[1], values(3))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_threads_run_programs_of_each_other():
    """MLX's own streams belong to one thread each."""
    f = rlx.jit(lambda x: rlx.nn.softmax(x @ x), device="mlx")
    x = rlx.device_put(values(8, 8), "mlx")
    wanted, results = np.asarray(f(x)), {}

    def work(number):
        results[number] = f(x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results.values():
        np.testing.assert_array_equal(result, wanted)


def test_everything_goes_there_when_the_backend_is_named():
    code = """
import numpy as np, rlx, rlx.numpy as rnp
x = rnp.ones((2, 3))
print(type(x).__name__, x.device, (x + 1).device, rlx.jit(lambda x: x * 2)(np.ones(3, "f4")).device)
print(rlx.grad(lambda x: (x * x).sum())(np.ones(3, "f4")).device)
"""
    assert alone(code, RLX_BACKEND="mlx", RLX_MLX_MODE="lazy") == ["DeviceArray", "mlx", "mlx", "mlx", "mlx"]


def test_a_language_model_says_the_same():
    path = str(resources.files("rlx.models") / "data" / "tiny.gguf")
    texts = [rlx.load(path, device=device).generate("Once", max_tokens=8, temperature=0) for device in ("mlx", "cpu")]
    assert texts[0] == texts[1]
