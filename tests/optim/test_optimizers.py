"""Optimisers by their formulas, inside compiled steps with donated state; bad settings and bad trees are refused.

Every optimiser is held to optax update by update in the peers group; see tests/peers/test_optax.py.
"""

import ml_dtypes
import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import optim
from rlx.errors import OpError, TreeError

ALL = {
    "sgd": optim.sgd(0.05),
    "momentum": optim.sgd(0.02, 0.9, nesterov=True),
    "adam": optim.adam(0.1),
    "adamw": optim.adamw(0.1, weight_decay=1e-3),
    "lion": optim.lion(0.02),
    "lamb": optim.lamb(0.1),
    "adafactor": optim.adafactor(0.1, min_dim_size_to_factor=4),
    "muon": optim.muon(0.1),
    "rmsprop": optim.rmsprop(0.02, centered=True, momentum=0.5),
    "adagrad": optim.adagrad(0.5),
    "adamax": optim.adamax(0.1),
    "radam": optim.radam(0.1),
    "nadamw": optim.nadamw(0.1),
    "adabelief": optim.adabelief(0.1),
    "adadelta": optim.adadelta(3.0, eps=1e-4),
}
every = pytest.mark.parametrize("name", ALL)


def start():
    rng = np.random.default_rng(0)
    return {"w": rng.standard_normal((6, 5)).astype("f4"), "b": [rng.standard_normal(5).astype("f4")]}


def loss(params):
    return rnp.sum((params["w"] - 1.0) ** 2) + rnp.sum((params["b"][0] + 2.0) ** 2)


def step_of(optimizer):
    def step(params, state):
        value, gradients = rlx.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optim.apply_updates(params, updates), state, value

    return step


@every
def test_it_goes_down_in_a_compiled_step_with_donated_state(name):
    optimizer = ALL[name]
    compiled = rlx.jit(step_of(optimizer), donate_argnums=(0, 1))
    params = rlx.tree.map(np.array, start())
    state = optimizer.init(params)
    values = []
    for _ in range(60):
        params, state, value = compiled(params, state)
        values.append(float(value))
    assert values[-1] < 0.2 * values[0]
    assert compiled.cache_info().misses == 1, "the state changes its types"


@every
def test_compiled_equals_the_plain_run(name):
    """A step that is traced computes what the same functions compute eagerly."""
    optimizer = ALL[name]
    compiled, plain = rlx.jit(step_of(optimizer)), step_of(optimizer)
    params = again = start()
    state = other = optimizer.init(params)
    for _ in range(3):
        params, state, _ = compiled(params, state)
        again, other, _ = plain(again, other)
    for x, y in zip(rlx.tree.leaves((params, state)), rlx.tree.leaves((again, other))):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-5, atol=1e-6)


def test_adamw_by_its_formula():
    rng = np.random.default_rng(1)
    p, m, v = rng.standard_normal(7), np.zeros(7), np.zeros(7)
    optimizer = optim.adamw(0.01, 0.8, 0.9, 1e-6, weight_decay=0.1)
    params, state = p.copy(), optimizer.init(p)
    for t in range(1, 5):
        g = rng.standard_normal(7)
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        p = p - 0.01 * (m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-6) + 0.1 * p)
        updates, state = optimizer.update(g, state, params)
        params = optim.apply_updates(params, updates)
    np.testing.assert_allclose(np.asarray(params), p, rtol=1e-13)


def test_muon_makes_singular_values_alike():
    x = np.random.default_rng(2).standard_normal((40, 12))
    before, after = (np.linalg.svd(np.asarray(m), compute_uv=False) for m in (x, optim.orthogonalize(x)))
    assert before.max() / before.min() > 2
    assert after.min() > 0.6 and after.max() < 1.3


def test_accumulated_parts_equal_the_whole_batch():
    x, y = np.random.default_rng(3).standard_normal((2, 12, 4))
    inner = optim.adam(0.1)

    def gradient(w, rows):
        return rlx.grad(lambda w: rnp.mean((x[rows] @ w - y[rows, 0]) ** 2))(w)

    whole, parts = inner, optim.accumulate(inner, 3)
    w = v = np.ones(4)
    whole_state, parts_state = whole.init(w), parts.init(v)
    for _ in range(2):
        updates, whole_state = whole.update(gradient(w, slice(None)), whole_state, w)
        w = optim.apply_updates(w, updates)
        for i in range(3):
            updates, parts_state = parts.update(gradient(v, slice(4 * i, 4 * i + 4)), parts_state, v)
            assert i == 2 or not np.asarray(updates).any()
            v = optim.apply_updates(v, updates)
    np.testing.assert_allclose(np.asarray(v), np.asarray(w), rtol=1e-12)
    assert int(parts_state.gradient_step) == 2 and int(parts_state.mini_step) == 0


def test_masked_parameters_have_no_state_and_pass():
    optimizer = optim.masked(optim.adam(0.1), {"w": True, "b": False})
    params = start()
    state = optimizer.init(params)
    assert len(rlx.tree.leaves(state)) == 3
    updates, _ = optimizer.update(params, state, params)
    np.testing.assert_array_equal(np.asarray(updates["b"][0]), params["b"][0])
    assert np.abs(np.asarray(updates["w"])).max() == pytest.approx(0.1, rel=1e-3)


def test_average_of_parameters():
    average = optim.ema(0.5)
    state = average.init(np.float64(0))
    for value, mean in ((4.0, 4.0), (1.0, 2.0)):
        smooth, state = average.update(rnp.asarray(value, dtype="f64"), state)
        assert float(smooth) == pytest.approx(mean)


def test_narrow_parameters_keep_their_dtype():
    """bf16 weights with moments in f32: the parameter stays bf16, the moments stay f32."""
    optimizer = optim.adam(0.1, mu_dtype="f32")
    params = np.ones(8, ml_dtypes.bfloat16)
    state = optimizer.init(params)
    updates, state = rlx.jit(optimizer.update)(params, state, params)
    after = optim.apply_updates(params, updates)
    assert after.dtype == params.dtype
    assert [str(x.dtype) for x in rlx.tree.leaves(state)] == ["int32", "float32", "bfloat16"]


def test_norm_of_narrow_gradients_does_not_overflow():
    """300² is above the largest f16."""
    clipped, _ = optim.clip_by_global_norm(1.0).update(np.full(4, 300, np.float16), optim.EmptyState())
    np.testing.assert_allclose(np.asarray(clipped, "f4"), 0.5, rtol=1e-3)


def test_empty_trees_and_empty_leaves():
    for params in ({}, {"a": np.zeros((0, 3), "f4")}):
        for inner in ALL.values():
            optimizer = optim.chain(optim.clip_by_global_norm(1.0), inner)
            updates, _ = optimizer.update(params, optimizer.init(params), params)
            assert rlx.tree.structure(updates) == rlx.tree.structure(params)


@pytest.mark.parametrize("dtype", ["f4", ml_dtypes.bfloat16])
def test_settings_may_be_arguments_of_the_program(dtype):
    """So that a rate is changed from outside without compiling again; the dtypes of updates stay."""
    params = rlx.tree.map(lambda p: p.astype(dtype), start())

    def updates(params, rate, decay):
        optimizer = optim.adamw(rate, weight_decay=decay)
        return optimizer.update(params, optimizer.init(params), params)[0]

    found = rlx.jit(updates)(params, np.float32(0.1), np.float32(0.01))
    fixed = rlx.jit(lambda params: updates(params, 0.1, 0.01))(params)
    for a, b in zip(rlx.tree.leaves(found), rlx.tree.leaves(fixed), strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_allclose(np.asarray(a, "f4"), np.asarray(b, "f4"), rtol=1e-6 if dtype == "f4" else 1e-2)


def test_masks_by_comparisons_of_arrays():
    params = start()
    optimizer = optim.masked(optim.sgd(1.0), rlx.tree.map(lambda p: np.any(p > 1e9), params))
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    np.testing.assert_array_equal(updates["w"], params["w"])


BAD = {
    "adamw needs params": (lambda: optim.adamw(0.1).update(start(), optim.adamw(0.1).init(start())), "params"),
    "b2 of 1": (lambda: optim.adam(0.1, b2=1.0), "b2 must be at least 0 and below 1, got 1.0"),
    "negative norm": (lambda: optim.clip_by_global_norm(-1.0), "max_norm"),
    "no steps": (lambda: optim.cosine(0.1, 0), "steps must be a positive number"),
    "warm-up too long": (lambda: optim.warmup_cosine(0.1, 10, 10), "must be above warmup_steps, got 10 and 10"),
    "accumulate none": (lambda: optim.accumulate(optim.sgd(0.1), 0), "steps must be 1 or more"),
    "state of another chain": (
        lambda: optim.adamw(0.1).update(start(), optim.sgd(0.1).init(start()), start()),
        "3 parts",
    ),
    "state of another optimiser": (
        lambda: optim.adam(0.1).update(start(), optim.sgd(0.1, 0.9).init(start())),
        "scale_by_adam: its state has the type AdamState, got TraceState; make it by init",
    ),
    "state of another partition": (
        lambda: optim.muon(0.1).update(start(), optim.sgd(0.1).init(start()), start()),
        "partition: its state has the type dict, got tuple",
    ),
    "rate as text": (lambda: optim.sgd("0.1"), "rate must be a number, got '0.1'"),
    "rate per element": (lambda: optim.adam(np.ones(3)), "rate must be a number, got array"),
    "mask of numbers": (
        lambda: optim.masked(optim.sgd(0.1), {"w": 1, "b": True}).init(start()),
        "True and False, got 1",
    ),
    "unknown label": (
        lambda: optim.partition({"a": optim.sgd(1.0)}, lambda p: "c").init(start()),
        "no transformation.*'c'",
    ),
    "anneal": (lambda: optim.one_cycle(10, 1.0, anneal="log"), "'cosine' or 'linear', got 'log'"),
    "boundaries": (lambda: optim.join([optim.constant(1.0)] * 3, [5, 2]), "rising order"),
    "tensor for muon": (
        lambda: optim.orthogonalize(np.zeros((2, 3, 4))),
        r"a matrix is needed, got the shape \(2, 3, 4\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused(name):
    make, message = BAD[name]
    with pytest.raises(OpError, match=message):
        make()


def test_gradients_of_another_structure_are_refused():
    optimizer = optim.adam(0.1)
    with pytest.raises(TreeError, match="lacks the keys"):
        optimizer.update({"w": np.ones((6, 5), "f4")}, optimizer.init(start()))


def test_schedules_at_their_corners():
    rate = optim.warmup_cosine(0.4, 10, 30, end=0.1)
    assert [round(rate(n), 12) for n in (0, 5, 10, 20, 30, 1000)] == [0.0, 0.2, 0.4, 0.25, 0.1, 0.1]
    assert isinstance(rate(3), float)
    assert optim.piecewise_constant(1.0, {10: 0.1})(9) == 1.0
    assert optim.piecewise_constant(1.0, {10: 0.1})(10) == pytest.approx(0.1)
    for each in (rate, optim.piecewise_constant(1.0, {10: 0.1}), optim.one_cycle(20, 1.0), optim.linear(1.0, 0.0, 9)):
        np.testing.assert_array_equal(each(np.arange(40)), [each(n) for n in range(40)])
