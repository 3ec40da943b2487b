"""Arrays live where they were put: programs go to them, and nothing comes to the host unasked."""

import numpy as np
import pytest
from fake_device import FakeSpace, fake_target

import rlx
import rlx.numpy as rnp
from rlx.backends import api
from rlx.compile import target as targets
from rlx.errors import BackendError, BindingError, RlxError

rng = np.random.default_rng(3)


@pytest.fixture
def spaces(monkeypatch):
    made = [FakeSpace("fake"), FakeSpace("fake:1")]
    monkeypatch.setitem(targets._registered, "fake", fake_target("fake", made))
    monkeypatch.setattr(api, "_backends", {})
    rlx.clear_compile_cache()
    rlx.runtime.device_arrays._one_op.cache_clear()
    yield made
    rlx.clear_compile_cache()
    rlx.runtime.device_arrays._one_op.cache_clear()


@pytest.fixture
def space(spaces):
    return spaces[0]


def test_a_round_trip(space):
    x = rng.normal(size=(3, 4)).astype("f4")
    y = rlx.device_put(x, "fake")
    assert isinstance(y, rlx.DeviceArray) and y.device == "fake"
    assert (y.shape, y.dtype, y.ndim, y.size, y.nbytes, len(y)) == ((3, 4), np.float32, 2, 12, 48, 3)
    assert (space.uploads, space.downloads) == (1, 0)
    np.testing.assert_array_equal(np.asarray(y), x)
    assert space.downloads == 1
    back = rlx.device_put(y)
    assert isinstance(back, rlx.Array) and back.device == "cpu"
    np.testing.assert_array_equal(back, x)
    assert rlx.device_put(y, "fake") is y


def test_trees_and_numbers(space):
    tree = rlx.device_put({"a": 1.5, "b": [np.arange(3), True]}, "fake")
    assert {tree["a"].device, tree["b"][0].device, tree["b"][1].device} == {"fake"}
    assert tree["a"].item() == 1.5 and tree["b"][0].tolist() == [0, 1, 2] and bool(tree["b"][1])


def test_programs_go_where_their_arguments_live(space):
    x, w = rng.normal(size=(2, 3)).astype("f4"), rng.normal(size=(3, 3)).astype("f4")
    f = rlx.jit(lambda x, w: rnp.tanh(x @ w))
    y = f(rlx.device_put(x, "fake"), w)  # the array of the host follows
    assert y.device == "fake" and space.downloads == 0
    np.testing.assert_allclose(np.asarray(y), np.tanh(x @ w), rtol=1e-6)
    assert isinstance(f(x, w), rlx.Array)  # and on the host it runs on the host
    z = f(y, w)
    assert z.device == "fake"


def test_numbers_of_numpy_are_arguments(space):
    f = rlx.jit(lambda x, i, s: x[i] * s, device="fake")
    x = np.arange(12, dtype="f4").reshape(4, 3)
    np.testing.assert_array_equal(np.asarray(f(x, np.int32(2), np.float32(0.5))), x[2] * 0.5)
    np.testing.assert_array_equal(np.asarray(f(rlx.device_put(x, "fake"), np.int32(1), np.float32(2))), x[1] * 2)


def test_a_device_that_is_named_takes_arrays_of_the_host(space):
    y = rlx.jit(lambda x: x * 2, device="fake")(np.ones(3, "f4"))
    assert y.device == "fake" and space.downloads == 0 and y.tolist() == [2, 2, 2]


def test_operators_and_methods_stay_on_the_device(space):
    x = rlx.device_put(np.arange(6, dtype="f4").reshape(2, 3), "fake")
    with np.errstate(all="raise"):
        results = [
            x + 1, 2 * x, x - x, x @ x.T, -x, abs(x), x**2, x > 1, x[1], x[:, ::2], x[0, 1], x.sum(), x.mean(0),
            x.reshape(3, 2), x.astype("f8"), x.at[0].set(7.0), rnp.sin(x), rnp.where(x > 2, x, 0), rlx.relu(x),
            np.ones(3, "f4") + x, rlx.nn.softmax(x), rnp.concatenate([x, x]), rnp.argmax(x, 1), x.T.max(),
        ]  # fmt: skip
    assert {r.device for r in results} == {"fake"} and space.downloads == 0
    plain = np.arange(6, dtype="f4").reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(results[3]), plain @ plain.T)
    np.testing.assert_array_equal(np.asarray(results[15])[0], [7, 7, 7])
    assert results[14].dtype == np.float64


def test_gradients_stay_on_the_device(space):
    x = rlx.device_put(rng.normal(size=4), "fake")
    g = rlx.grad(lambda x: rnp.sum(x**3))(x)
    assert g.device == "fake" and space.downloads == 0
    np.testing.assert_allclose(np.asarray(g), 3 * np.asarray(x) ** 2)


def test_two_devices_in_one_call_are_refused(spaces):
    a, b = rlx.device_put(np.ones(2), "fake"), rlx.device_put(np.ones(2), "fake:1")
    assert (a.device, b.device) == ("fake", "fake:1")
    for call in (lambda: a + b, lambda: rlx.jit(lambda a, b: a + b)(a, b)):
        with pytest.raises(
            BindingError, match=r"live on fake and fake:1; bring them to one device with rlx.device_put"
        ):
            call()
    with pytest.raises(BindingError, match=r"'x' lives on fake:1, the program runs on fake; use rlx.device_put"):
        rlx.jit(lambda x: x + 1, device="fake")(b)
    with pytest.raises(BindingError, match=r"'x' lives on fake, the program runs on the host; use rlx.device_put"):
        rlx.jit(lambda x: x + 1, device="cpu")(a)
    moved = rlx.device_put(b, "fake")
    assert (a + moved).tolist() == [2, 2]


def test_compiled_graphs_take_and_give_arrays_of_their_device(space):
    g = rlx.Graph("step")
    x, w = g.input("x", ("B", 3)), g.param("w", (3, 3))
    g.set_outputs([rlx.relu(x @ w)])
    c = rlx.Session("fake").compile(g)
    c.set_param("w", np.eye(3, dtype="f4"))
    [y] = c.run({"x": np.array([[1, -2, 3]], "f4")})
    [z] = c.run({"x": y})
    assert z.device == "fake" and space.downloads == 0 and z.tolist() == [[1, 0, 3]]
    with pytest.raises(BindingError, match=r"is declared f32"):
        c.run({"x": rlx.device_put(np.ones((1, 3)), "fake")})
    cpu = rlx.Session("cpu").compile(g)
    cpu.set_param("w", np.eye(3, dtype="f4"))
    with pytest.raises(BindingError, match=r"'x' lives on fake, the program runs on the host"):
        cpu.run({"x": y})


def test_errors_of_a_run_come_with_the_first_wait(space):
    def broken(x):
        return x + 1

    y = rlx.jit(broken, device="fake")(np.ones(2, "f4"))
    assert space.runs == 1
    for look in (lambda: y.block_until_ready(), lambda: np.asarray(y), lambda: y.tolist()):
        with pytest.raises(BackendError, match=r"@broken failed on fake"):
            look()


def test_donated_arrays_are_gone(space):
    step = rlx.jit(lambda state, x: state + x, donate_argnums=0)
    state = rlx.device_put(np.ones(3, "f4"), "fake")
    after = step(state, np.ones(3, "f4"))
    assert after.tolist() == [2, 2, 2] and state.shape == (3,)
    for use in (lambda: np.asarray(state), lambda: step(state, after), lambda: state + 1):
        with pytest.raises(BindingError, match=r"was donated to a program, .* use the result"):
            use()


def test_memory_is_given_back(space):
    x = rlx.device_put(np.ones(1000), "fake")
    for _ in range(5):
        x = x + 1
    assert len(space.memory) == 1
    del x
    assert space.memory == {}


def test_what_arrays_of_devices_are_not(space):
    x = rlx.device_put(np.ones(2, "f4"), "fake")
    with pytest.raises(RlxError, match=r"cannot be changed in place"):
        x[0] = 3
    with pytest.raises(TypeError):
        hash(x)
    with pytest.raises(ValueError, match=r"without a copy"):
        np.array(x, copy=False)
    assert repr(x) == "Array([1., 1.], dtype=float32, device=fake)"
    assert float(x.sum()) == 2.0 and int(x.sum()) == 2


def test_a_device_without_memory_of_its_own_is_the_host():
    assert isinstance(rlx.device_put(np.ones(2), "cpu"), rlx.Array)
