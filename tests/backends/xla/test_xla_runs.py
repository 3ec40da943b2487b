"""Programs that XLA has compiled: `make tools test-targets`."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.xla import adapter
from rlx.backends.xla.adapter import Unusable, checked_module, installed
from rlx.backends.xla.lowering import lowered
from rlx.backends.xla.stablehlo import module_of
from rlx.errors import AssertionFailed, BindingError, OpError
from rlx.runtime.device_arrays import DeviceArray

FOUND = installed()
pytestmark = [
    pytest.mark.targets,
    pytest.mark.skipif(isinstance(FOUND, Unusable), reason=f"{getattr(FOUND, 'reason', '')}; make tools installs it"),
]
SOURCE = Path(rlx.__file__).parents[1]


def on_both(f, *args):
    return [np.asarray(rlx.jit(f, device=device)(*args)) for device in ("xla", "reference")]


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


def test_jax_is_not_needed():
    code = "import sys; sys.modules['jax'] = None; import numpy as np, rlx"
    assert alone(f"{code}; print(float(rlx.jit(lambda x: x.sum(), device='xla')(np.ones(3))))") == ["3.0"]


def test_the_verifier_sees_every_module():
    g = rlx.Graph("g")
    x = g.input("x", (4, 5), "f32")
    g.set_outputs([rlx.sort(x), rlx.cumsum(x), rlx.nn.softmax(x)])
    assert "stablehlo.sort" in checked_module(module_of(lowered(g)).text)


@pytest.mark.parametrize("n", [0, 3])
def test_control_flow(n):
    def f(x, k):
        total, rows = rlx.scan(lambda c, y: (c + y, c * y), x[0], x)
        total = rlx.while_loop(lambda c: c.sum() < 50.0, lambda c: c * 2.0, total + 1.0)
        total = rlx.cond(total.sum() > 60.0, lambda c: c - 1.0, lambda c: c + 1.0, total)
        return rlx.switch(k, [lambda c: c, lambda c: -c, lambda c: c * c], total) + rows.sum(0)

    got, wanted = on_both(f, np.arange(8, dtype="f4").reshape(4, 2), np.int32(n))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_random_bits_are_those_of_the_definition():
    got, wanted = on_both(lambda: rlx.random.normal(rlx.random.key(7), (50,)))
    np.testing.assert_allclose(got, wanted, rtol=2e-6)
    got, wanted = on_both(lambda: rlx.random.bits(rlx.random.key(7), (50,)))
    np.testing.assert_array_equal(got, wanted)


def test_sizes_are_bound_by_runs():
    g = rlx.Graph("g")
    x = g.input("x", ("B", 4), "f32")
    g.set_outputs([x @ g.param("w", (4, 2), "f32")])
    c = rlx.Session("xla").compile(g)
    c.set_param("w", np.ones((4, 2), "f4"))
    for rows in (1, 5, 1, 3):
        assert c.run(x=np.ones((rows, 4), "f4"))[0].shape == (rows, 2)
    assert "3 programs compiled so far" in c.report


def test_sizes_rounded_up_need_fewer_programs():
    g = rlx.Graph("buckets")
    x = g.input("x", ("B", 4), "f32")
    g.set_outputs([rlx.nn.softmax(x @ g.param("w", (4, 2), "f32")), x.sum(1)])
    with rlx.knobs(xla_buckets=True):
        c = rlx.Session("xla").compile(g)
        c.set_param("w", np.ones((4, 2), "f4"))
        for rows in (5, 6, 7, 8, 0, 3):
            given = np.random.default_rng(rows).standard_normal((rows, 4)).astype("f4")
            share, total = c.run(x=given)
            np.testing.assert_array_equal(share, np.full((rows, 2), 0.5, "f4"))
            np.testing.assert_allclose(total, given.sum(1), rtol=1e-5, atol=1e-6)
    assert "3 programs compiled so far" in c.report


def test_params_stay_on_the_device(monkeypatch):
    g = rlx.Graph("g")
    g.set_outputs([g.input("x", (2, 3), "f32") @ g.param("w", (3, 3), "f32")])
    c = rlx.Session("xla").compile(g)
    c.set_param("w", np.eye(3, dtype="f4"))
    put = []
    real = adapter.Client.put
    monkeypatch.setattr(adapter.Client, "put", lambda self, array, i: put.append(array.shape) or real(self, array, i))
    for _ in range(3):
        c.run(x=np.ones((2, 3), "f4"))
    assert put == [(3, 3), (2, 3), (2, 3), (2, 3)]


def test_donation_gives_the_memory_away():
    step = rlx.jit(lambda state, x: (state + x, state.sum()), donate_argnums=0, device="xla")
    state = rlx.device_put(np.zeros(1000, "f4"), "xla")
    buffer = state.value.buffer
    after, total = step(state, np.float32(2))
    assert float(total) == 0 and np.asarray(after).sum() == 2000 and buffer.is_deleted()
    with pytest.raises(BindingError, match="donated"):
        np.asarray(state)


def test_a_value_that_is_given_twice_is_not_stored_over():
    f = rlx.jit(lambda a, b: a + 2.0 * b, donate_argnums=0, device="xla")
    x = rlx.device_put(np.ones(4, "f4"), "xla")
    np.testing.assert_array_equal(f(x, x), np.full(4, 3, "f4"))


def test_memory_of_the_caller_is_copied():
    x = np.ones(4, "f4")
    there = rlx.device_put(x, "xla")
    back = np.asarray(there)
    x[:] = 5
    back[:] = 7
    np.testing.assert_array_equal(there, np.ones(4, "f4"))


def test_checks_end_a_run_when_somebody_looks():
    def f(x):
        def step(c, y):
            return rlx.ops.runtime_assert(y > 0, "rows are positive", c + y), y

        return rlx.scan(step, np.float32(0), x)[0]

    good, bad = np.ones(3, "f4"), np.array([1, -1, 1], "f4")
    assert float(rlx.jit(f, device="xla")(good)) == 3
    result = rlx.jit(f, device="xla")(bad)
    with pytest.raises(AssertionFailed, match="rows are positive"):
        np.asarray(result)


def test_a_matrix_that_cannot_be_solved():
    singular = rlx.jit(rnp.linalg.solve, device="xla")(np.ones((2, 2), "f4"), np.ones(2, "f4"))
    with pytest.raises(OpError, match="singular"):
        np.asarray(singular)


def test_ids_from_outside_are_checked():
    f = rlx.jit(lambda table, ids: table[ids], device="xla")
    table = rlx.device_put(np.arange(4, dtype="f4"), "xla")
    for ids in (np.array([0, 4]), rlx.device_put(np.array([0, 4]), "xla")):
        with pytest.raises(OpError, match="holds 4"):
            f(table, ids)


def test_dlpack():
    there = rlx.device_put(np.arange(6, dtype="f4").reshape(2, 3), "xla")
    np.testing.assert_array_equal(np.from_dlpack(there.value), np.asarray(there))


def test_rounding_casts_round():
    x = np.float32(1) + np.float32(2.0**-12)
    got = rlx.jit(lambda x: x.astype("bf16").astype("f32") + 0.0, device="xla")(x)
    assert float(got) == 1.0


def test_devices_by_number():
    code = """
import numpy as np, rlx
f = rlx.jit(lambda x: x * 2, device="xla:2")
y = f(np.ones(3, "f4"))
print(y.device, float(y.sum()), rlx.Session("xla:2").device)
"""
    assert alone(code, RLX_XLA_DEVICES="3")[:2] == ["xla:2", "6.0"]


def test_everything_goes_there_when_the_backend_is_named():
    code = """
import numpy as np, rlx, rlx.numpy as rnp
x = rnp.ones((2, 3))
print(type(x).__name__, x.device, (x + 1).device, rlx.jit(lambda x: x * 2)(np.ones(3, "f4")).device)
print(rlx.grad(lambda x: (x * x).sum())(np.ones(3, "f4")).device)
"""
    assert alone(code, RLX_BACKEND="xla") == ["DeviceArray", "xla", "xla", "xla", "xla"]
    assert DeviceArray.__name__ == "DeviceArray"
