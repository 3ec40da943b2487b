"""Compiled steps: against steps by hand, with random keys, extra metrics, narrow precision and loss scaling."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import optim, train
from rlx.errors import DTypeError, OpError, TrainingError

rng = np.random.default_rng(0)
X = rng.standard_normal((32, 6)).astype("f4")
Y = (X @ rng.standard_normal(6) + 0.5).astype("f4")


def loss(params, batch):
    x, y = batch
    return rnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def params():
    return {"w": np.zeros(6, "f4"), "b": np.float32(0)}


def test_a_step_is_gradient_and_update():
    """By hand: momentum on the gradient of least squares, in f64."""
    optimizer = optim.sgd(0.05, 0.9)
    step = train.make_step(loss, optimizer)
    state = train.init_state(rlx.tree.map(np.float64, params()), optimizer)
    x, y = X.astype("f8"), Y.astype("f8")
    ones = np.concatenate([x, np.ones((32, 1))], 1)
    theta, speed = np.zeros(7), np.zeros(7)
    for _ in range(20):
        expected = np.mean((ones @ theta - y) ** 2)
        speed = 0.9 * speed + 2 / 32 * ones.T @ (ones @ theta - y)
        theta = theta - 0.05 * speed
        state, metrics = step(state, (x, y))
        assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(np.asarray(state.params["w"]), theta[:6], rtol=1e-10)
    assert int(state.step) == 20


def test_state_is_donated_and_the_callers_arrays_are_not():
    mine = params()
    optimizer = optim.adam(0.1)
    step = train.make_step(loss, optimizer)
    state = train.init_state(mine, optimizer)
    for _ in range(5):
        state, _ = step(state, (X, Y))
    assert not mine["w"].any()
    program = step.lower(state, (X, Y)).graph
    assert len(program.aliases) == 8, "all leaves of the state but the key, which does not change"


def test_keys_differ_from_step_to_step_and_repeat_with_the_seed():
    def noisy(params, batch, key):
        noise = rlx.random.normal(key, ())
        return rnp.sum(params["w"] ** 2), {"noise": noise}

    step = train.make_step(noisy, optim.sgd(0.1))

    def noises(seed):
        state, found = train.init_state(params(), optim.sgd(0.1), seed), []
        for _ in range(3):
            state, metrics = step(state, X)
            found.append(float(metrics["noise"]))
        return found

    assert len(set(noises(0))) == 3
    assert noises(0) == noises(0) != noises(1)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_narrow_precision_with_wide_parameters(precision):
    seen = []

    def watched(params, batch):
        seen.extend(str(rlx.DType.of(v.dtype)) for v in (params["w"], batch[0]))
        return loss(params, batch)

    optimizer = optim.adam(0.05)
    scale = train.DynamicScale(initial=2.0**10, growth_interval=20)
    step = train.make_step(watched, optimizer, precision=precision, loss_scale=scale)
    state = train.init_state(params(), optimizer, loss_scale=scale)
    first = None
    for _ in range(60):
        state, metrics = step(state, (X, Y))
        first = float(metrics["loss"]) if first is None else first
    assert set(seen) == {precision}
    assert state.params["w"].dtype == np.float32 and float(metrics["loss"]) < 0.2 * first
    assert float(state.loss_scale.scale) == 2.0**13, "doubled after 20 good steps, three times"


def test_overflow_halves_the_scale_and_changes_nothing_else():
    def steep(params, batch):
        return rnp.sum(params["w"]) * batch

    optimizer = optim.adam(0.1)
    scale = train.DynamicScale(initial=2.0**20)
    step = train.make_step(steep, optimizer, precision="f16", loss_scale=scale, donate=False)
    state = train.init_state(params(), optimizer, loss_scale=scale)
    after, metrics = step(state, np.float32(1.0))
    assert bool(metrics["skipped"]) and float(after.loss_scale.scale) == 2.0**19
    for old, new in zip(rlx.tree.leaves(state[:2]), rlx.tree.leaves(after[:2])):
        np.testing.assert_array_equal(np.asarray(old), np.asarray(new))
    for _ in range(10):
        after, metrics = step(after, np.float32(1.0))
    assert not bool(metrics["skipped"]) and np.asarray(after.params["w"]).any()


def test_loss_scale_saves_small_gradients():
    """1e-9 is below the smallest f16; at the barrier the gradient must be one."""

    def flat(params, batch):
        (w,) = rlx.barrier(params["w"])
        return rnp.sum(w * batch * 1e-4)

    def moved(setting):
        step = train.make_step(flat, optim.sgd(1.0), precision="f16", loss_scale=setting)
        state, _ = step(train.init_state(params(), optim.sgd(1.0), loss_scale=setting), np.full(6, 1e-5, "f4"))
        return float(-np.asarray(state.params["w"])[0])

    assert moved(None) == 0
    assert moved(1024.0) == pytest.approx(1e-9, rel=2e-2)
    assert moved(train.DynamicScale()) == pytest.approx(1e-9, rel=2e-2)


def test_bad_settings_are_refused():
    with pytest.raises(DTypeError, match="precision must be 'f32', 'bf16' or 'f16', got 'f8'"):
        train.make_step(loss, optim.sgd(0.1), precision="f8")
    with pytest.raises(OpError, match="factor above 1"):
        train.DynamicScale(factor=1.0)
    step = train.make_step(loss, optim.sgd(0.1), loss_scale=train.DynamicScale())
    with pytest.raises(OpError, match="the state needs one too"):
        step(train.init_state(params(), optim.sgd(0.1)), (X, Y))


def test_other_things_than_states_and_optimisers_are_named(tmp_path):
    with pytest.raises(TrainingError, match=r"an optimiser of rlx\.optim is needed.*; got 0\.1"):
        train.make_step(loss, 0.1)
    with pytest.raises(TrainingError, match=r"takes a state, which train\.init_state.* makes; got a "):
        train.make_step(loss, optim.sgd(0.1))(params(), (X, Y))
    for metrics, message in (
        ({"step": 1.0}, "'step' is a metric of the step itself"),
        (1.0, "a dict of other scalars"),
    ):
        step = train.make_step(lambda p, b, metrics=metrics: (loss(p, b), metrics), optim.sgd(0.1))
        with pytest.raises(TrainingError, match=message):
            step(train.init_state(params(), optim.sgd(0.1)), (X, Y))
    with pytest.raises(TrainingError, match="there is no such checkpoint or folder"):
        train.load_checkpoint(tmp_path / "absent", params())
