"""What a compiled graph can do besides `run`: handles, bytes, slots, clones, profiles."""

import numpy as np
import pytest

import rlx
from rlx.errors import BackendError, BindingError


def dense():
    g = rlx.Graph("dense")
    x, w = g.input("x", ("B", 3), "f32"), g.param("w", (3, 2), "f32")
    y = x @ w
    g.set_outputs([y, rlx.tanh(y)])
    return g


def ready(device="cpu"):
    c = rlx.Session(device).compile(dense())
    c.set_param("w", WEIGHT)
    return c


def counter():
    """state + step, which may become the state of the next run."""
    g = rlx.Graph("counter")
    state, step = g.input("state", (4,), "f32"), g.input("step", (), "f32")
    g.set_outputs([state + step, rlx.exp(state)])
    return rlx.Session("cpu").compile(g)


WEIGHT = np.arange(6, dtype="f4").reshape(3, 2) / 10
X = np.arange(12, dtype="f4").reshape(4, 3)


def test_a_bound_input_need_not_be_given():
    c = ready()
    wanted = c.run(x=X)
    assert c.bind_handle("x", X)
    for got in (c.run(), c.run({})):
        np.testing.assert_array_equal(got[0], wanted[0])
    np.testing.assert_array_equal(c.read_handle("x"), X)
    # What is given explicitly wins, and stays out of the handle.
    np.testing.assert_array_equal(c.run(x=X[:1])[0], wanted[0][:1])
    np.testing.assert_array_equal(c.read_handle("x"), X)


def test_a_handle_is_a_copy():
    c, mine = ready(), X.copy()
    c.bind_handle("x", mine)
    mine[...] = 0
    np.testing.assert_array_equal(c.read_handle("x"), X)


def test_an_output_handle_has_the_last_result():
    c = ready()
    assert c.bind_handle("out1", np.zeros((4, 2), "f4"))
    np.testing.assert_array_equal(c.read_handle("out1"), np.zeros((4, 2)))
    outputs = c.run(x=X)
    np.testing.assert_array_equal(c.read_handle("out1"), outputs[1])
    c.commit_no_wait({"x": X[:2]})
    c.sync_pending()
    np.testing.assert_array_equal(c.read_handle("out1"), outputs[1][:2])


def test_unknown_and_wrong_handles():
    c = ready()
    assert not c.bind_handle("y", X)
    assert not c.bind_handle("out2", X)
    assert c.read_handle("x") is None
    assert not c.has_gpu_handle("x")
    with pytest.raises(BindingError, match=r"handle 'x' is declared f32\[B,3\], got float64"):
        c.bind_handle("x", X.astype("f8"))
    with pytest.raises(BindingError, match="axis 1 must be 3, got 2"):
        c.bind_handle("x", X[:, :2])


def test_state_goes_round():
    c = counter()
    c.bind_gpu_handle("state", np.zeros(4, "f4"))
    assert c.set_gpu_handle_feed("state", 0)
    for number in range(1, 4):
        c.run(step=np.float32(2))
        np.testing.assert_array_equal(c.read_gpu_handle("state"), np.full(4, 2.0 * number))


def test_a_feed_for_once():
    c = counter()
    c.bind_handle("state", np.zeros(4, "f4"))
    c.run_feed_handle({"step": 5.0}, "state", 0)
    c.run(step=1.0)
    np.testing.assert_array_equal(c.read_handle("state"), np.full(4, 5.0))
    with pytest.raises(BindingError, match="no handle 'other'"):
        c.run_feed_handle({"step": 5.0}, "other", 0)


def test_a_feed_must_fit():
    c = ready()
    assert not c.set_handle_feed("x", 0)
    c.bind_handle("x", X)
    assert not c.set_handle_feed("x", 7)
    with pytest.raises(BindingError, match=r"output 0 \(f32\[B,2\]\) cannot become input 'x' \(f32\[B,3\]\)"):
        c.set_handle_feed("x", 0)


def test_bound_inputs_that_a_program_overwrites_stay():
    g = rlx.Graph("cache")
    x = g.input("x", (4,), "f32")
    y = rlx.tanh(x) + 1.0
    g.set_outputs([y])
    g.alias(y, x)
    c = rlx.Session("cpu").compile(g)
    c.bind_handle("x", np.ones(4, "f4"))
    first, second = c.run()[0].copy(), c.run()[0].copy()
    np.testing.assert_array_equal(first, second)


def test_bytes_in_and_out():
    c = rlx.Session("cpu").compile(dense())
    c.set_param_typed("w", WEIGHT.astype("f8").tobytes(), "f64")
    wanted = ready().run(x=X)
    for data, dtype in ((X.tobytes(), "f32"), (X.astype("f2").tobytes(), "f16")):
        for (raw, name), array in zip(c.run_typed([("x", data, dtype)]), wanted, strict=True):
            assert name == "f32"
            np.testing.assert_array_equal(np.frombuffer(raw, "f4").reshape(4, 2), array)


@pytest.mark.parametrize(
    ("data", "dtype", "message"),
    [
        (b"123", "f32", "3 bytes are no whole number of f32 values"),
        (bytes(16), "f32", r"input 'x' is declared f32\[B,3\], got 4 values"),
        (bytes(12), "i32", r"input 'x' is declared f32\[B,3\], got bytes of i32; convert them first"),
    ],
)
def test_bytes_that_do_not_fit(data, dtype, message):
    with pytest.raises(BindingError, match=message):
        ready().run_typed([("x", data, dtype)])


def test_bytes_under_a_wrong_name():
    with pytest.raises(BindingError, match="has no input 'y'"):
        ready().run_typed([("y", b"", "f32")])
    with pytest.raises(BindingError, match="has no param 'v'"):
        ready().set_param_typed("v", b"", "f32")


def test_slots_are_where_they_say():
    import ctypes

    c = ready()
    assert c.arena_ptr() == 0
    slots = c.run_slots([X])
    for (offset, size), wanted in zip(slots, ready().run(x=X), strict=True):
        raw = ctypes.string_at(c.arena_ptr() + offset, size)
        np.testing.assert_array_equal(np.frombuffer(raw, "f4").reshape(4, 2), wanted)
    with pytest.raises(BindingError, match="takes 1 inputs, got 2"):
        c.run_slots([X, X])


def test_other_ways_to_run():
    c = ready()
    wanted = c.run(x=X)
    np.testing.assert_array_equal(c.run_raw({"x": X})[0], wanted[0])
    runs = c.run_pipelined([{"x": X}, {"x": X[:1]}])
    assert [[a.shape for a in run] for run in runs] == [[(4, 2), (4, 2)], [(1, 2), (1, 2)]]
    c.set_active_extent((2, 4))
    np.testing.assert_array_equal(c.run(x=X)[0][:2], wanted[0][:2])
    c.set_active_extent(None)
    with pytest.raises(BindingError, match="actual <= upper"):
        c.set_active_extent((5, 4))


def test_a_clone_goes_its_own_way():
    c = ready()
    c.bind_handle("x", X)
    twin = c.clone()
    wanted = c.run()
    twin.set_param("w", WEIGHT * 2)
    twin.bind_handle("x", X[:1])
    np.testing.assert_array_equal(twin.run()[0], (X[:1] @ (WEIGHT * 2)))
    np.testing.assert_array_equal(c.run()[0], wanted[0])


def test_memory_is_known():
    info = ready().memory_info()
    assert info.weights == WEIGHT.nbytes
    assert str(info.outputs) == "16*B"
    assert "weights 24" in str(info)


def test_a_profile_names_every_kernel():
    c = ready()
    profile = c.profile({"x": X}, runs=2)
    kinds = [k.kind for k in c._executable.lir.kernels if k.kind != "view"]
    assert [k.kind for k in profile.kernels] == kinds
    assert all(k.seconds > 0 for k in profile.kernels)
    assert "matmul" in str(profile)
    # Measuring changes nothing.
    np.testing.assert_array_equal(c.run(x=X)[0], X @ WEIGHT)


def test_a_profile_of_a_loop_computes_the_loop():
    from rlx.ir.shape import Shape
    from rlx.ops.control.bodies import build_body
    from rlx.ops.control.scans import Scan

    x = Shape((3,), "f32")
    body = build_body("body", lambda c, x: (c * 0.5 + x, c), carry=x, x=x)
    g = rlx.Graph("loop")
    g.set_outputs(Scan(body, 5, num_xs=1)(g.input("c", (3,)), g.input("xs", (5, 3))))
    c = rlx.Session("cpu").compile(g)
    arrays = {"c": X[0], "xs": np.arange(15, dtype="f4").reshape(5, 3)}
    wanted = c.run(arrays)
    with c._executable.timed() as times:
        measured = c.run(arrays)
    for a, b in zip(measured, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert times


def test_the_reference_measures_no_kernels():
    with pytest.raises(BackendError, match="compile for the device 'cpu'"):
        ready("reference").profile({"x": X})


@pytest.mark.parametrize("inputs", [np.ones((1, 3), "f4"), [np.ones((1, 3), "f4")], ()], ids=["array", "list", "tuple"])
def test_inputs_without_names(inputs):
    with pytest.raises(
        BindingError, match=r"@dense: inputs are given by name, as run\(\{'x': ...\}\) or run\(x=...\), got"
    ):
        ready().run(inputs)


def test_a_view_of_another_shape_is_a_reshape():
    [y, _] = ready().run({"x": np.ones((1, 3), "f4")})
    with pytest.raises(
        rlx.RlxError, match=r"x.view takes a dtype, as in NumPy, got 2, 1; for another shape write x.reshape\(2, 1\)"
    ):
        y.view(2, 1)
