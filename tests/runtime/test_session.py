"""Sessions on the reference backend: results, and bad input that changes nothing."""

import threading

import numpy as np
import pytest

import rlx
from rlx.errors import BackendError, BindingError, NotInstalled, OpError, RlxError, UnknownDevice


def compiled():
    g = rlx.Graph("hello")
    x, w = g.input("x", ("B", 4), "f32"), g.param("w", (4,), "f32")
    g.set_outputs([rlx.relu(x * w), x])
    return rlx.Session("reference").compile(g)


def ready():
    c = compiled()
    c.set_param("w", np.array([1, -1, 2, 0], "f4"))
    return c


def test_run():
    x = np.arange(8, dtype="f4").reshape(2, 4)
    out, same = ready().run({"x": x})
    np.testing.assert_array_equal(out, np.maximum(x * np.array([1, -1, 2, 0], "f4"), 0))
    np.testing.assert_array_equal(same, x)
    assert isinstance(out, rlx.Array)
    assert out.dtype == np.float32
    assert not np.shares_memory(same, x)


def test_one_compile_serves_every_batch():
    c = ready()
    for batch in (1, 3, 0, 7):
        assert c.run(x=np.ones((batch, 4), "f4"))[0].shape == (batch, 4)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"@hello: no value for input 'x' \(f32\[B,4\]\)"),
        ({"y": 1}, r"@hello has no input 'y'; it has: 'x' \(f32\[B,4\]\)"),
        ({"x": np.ones((2, 5), "f4")}, r"'x': axis 1 must be 4, got 5"),
        ({"x": np.ones((4,), "f4")}, r"'x' is declared f32\[B,4\] \(rank 2\), got an array of shape \(4,\)"),
        ({"x": np.ones((2, 4))}, r"input 'x' is declared f32\[B,4\], got float64\[2, 4\]; convert it with .astype"),
    ],
)
def test_bad_inputs(inputs, message):
    with pytest.raises(BindingError, match=message):
        ready().run(inputs)


def test_bad_params_change_nothing():
    c = ready()
    before = c.run(x=np.ones((1, 4), "f4"))[0]
    with pytest.raises(BindingError, match=r"@hello has no param 'v'; it has: 'w' \(f32\[4\]\)"):
        c.set_param("v", np.ones(4))
    with pytest.raises(BindingError, match="'param w': axis 0 must be 4, got 5"):
        c.set_param("w", np.ones(5, "f4"))
    with pytest.raises(BindingError, match=r"param 'w' is declared .*, got int64"):
        c.set_param("w", np.ones(4, int))
    with pytest.raises(BindingError):
        c.set_params({"w": np.zeros(4, "f4"), "v": np.zeros(4, "f4")})
    np.testing.assert_array_equal(c.run(x=np.ones((1, 4), "f4"))[0], before)


def test_params_are_needed_copied_and_converted():
    c = compiled()
    with pytest.raises(BindingError, match="param 'w' has no value yet; call set_param first"):
        c.run(x=np.ones((1, 4), "f4"))
    w = np.ones(4)
    c.set_param("w", w)
    w[:] = 5
    np.testing.assert_array_equal(c.run(x=np.ones((1, 4), "f4"))[0], np.ones((1, 4)))


def test_sizes_that_must_agree_at_run_time():
    g = rlx.Graph("pair")
    a, b = g.input("a", ("A",)), g.input("b", ("B",))
    g.set_outputs([a + b])
    c = rlx.Session("reference").compile(g)
    np.testing.assert_array_equal(c.run(a=np.ones(3, "f4"), b=np.ones(3, "f4"))[0], [2, 2, 2])
    with pytest.raises(BindingError, match="add needs A == B, but with A=3, B=2 they are 3 and 2"):
        c.run(a=np.ones(3, "f4"), b=np.ones(2, "f4"))


def test_devices():
    with pytest.raises(UnknownDevice, match=r"^there is no device 'abacus'; known devices: ane, cortex-m, cpu"):
        rlx.Session("abacus")
    with pytest.raises(NotInstalled, match=r"^tpu: "):
        rlx.Session("tpu")
    assert rlx.Session("ref").device is rlx.Device.Reference
    assert rlx.Device.parse("NVIDIA") is rlx.Device.Cuda
    with pytest.raises(BackendError, match="a Graph or a module is needed, got dict"):
        rlx.Session("reference").compile({})


def test_threads_may_share_a_compiled_graph():
    c = ready()
    results = [None] * 8

    def work(i):
        results[i] = c.run(x=np.full((i + 1, 4), i, "f4"))[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, r in enumerate(results):
        np.testing.assert_array_equal(r, np.full((i + 1, 4), i) * np.array([1, 0, 2, 0]))


def test_arrays():
    x = rlx.relu(np.array([1.0, -2.0], "f4"))
    assert isinstance(x, rlx.Array)
    assert (x + np.array([1, 2], "i4")).dtype == np.float32
    assert (x + 1).dtype == np.float32
    assert isinstance(np.asarray(x), np.ndarray)
    assert not isinstance(np.asarray(x), rlx.Array)
    np.testing.assert_array_equal(np.from_dlpack(np.array(x)), [1, 0])
    assert memoryview(x).readonly
    assert x.block_until_ready() is x
    with pytest.raises(RlxError, match=r"cannot be changed in place; use x.at"):
        x[0] = 3


def test_numpy_functions_take_arrays():
    x = rlx.relu(np.array([[1.0, -2.0], [3.0, 4.0]], "f4"))
    assert np.sum(x) == 8.0
    assert np.mean(x, axis=0).tolist() == [2.0, 2.0]
    assert type(np.concatenate([x, x])) is np.ndarray
    assert np.array_equal(x, [[1, 0], [3, 4]])
    np.testing.assert_allclose(x, [[1, 0], [3, 4]])


def test_results_do_not_share_memory_with_writable_arguments():
    source = np.arange(4, dtype="f4")
    y = rlx.reshape(source, (2, 2))
    source[:] = -1
    np.testing.assert_array_equal(y, [[0, 1], [2, 3]])


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_ids_from_outside_are_validated(device):
    g = rlx.Graph("lookup")
    table, ids = g.param("table", (5, 2)), g.input("ids", ("N",), "i32")
    g.set_outputs([rlx.gather(table, ids, 0)])
    c = rlx.Session(device).compile(g)
    c.set_param("table", np.arange(10, dtype="f4").reshape(5, 2))
    np.testing.assert_array_equal(c.run(ids=np.array([4, 0, -1], "i4"))[0], [[8, 9], [0, 1], [8, 9]])
    with pytest.raises(OpError, match="gather: ids holds 5, but the indexed axis has size 5"):
        c.run(ids=np.array([0, 5], "i4"))
    lookup = rlx.jit(lambda t, i: rlx.take(t, i, 0), device=device)
    with pytest.raises(OpError, match="holds 9, but the indexed axis has size 5"):
        lookup(np.ones((5, 2), "f4"), np.array([9], "i4"))


def test_arrays_print_as_their_own_dtype():
    x = rlx.mul(np.float32(104.99999), np.array([1.0], "f4"))
    assert str(x) == "[104.99999]"
    assert repr(x) == "Array([104.99999], dtype=float32)"
    assert f"{x[0]:.1f}" == "105.0"


def test_python_integers_that_do_not_fit_are_refused_outside_programs_too():
    with pytest.raises(RlxError, match="the Python integer 1000 does not fit into i8"):
        rlx.add(np.array([1], "i1"), 1000)
