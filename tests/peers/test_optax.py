"""`rlx.optim` against optax: every optimiser, part and combinator, update by update, in f32 and f64."""

from functools import partial
from unittest import mock

import numpy as np
import pytest
from libraries import TOLERANCE, assert_agree, jax, jnp

import rlx
from rlx import optim

optax = pytest.importorskip("optax")
from optax import contrib  # noqa: E402
from optax._src import factorized  # noqa: E402

pytestmark = pytest.mark.peers
UPDATES = 7
SHAPES = {"block": [(3, 5), (7,), ()], "head": {"w": (6, 4), "b": (2,)}, "deep": (2, 3, 4), "wide": ((130, 131),)}


def is_shape(x):
    return isinstance(x, tuple) and all(isinstance(n, int) for n in x)


def arrays(seed, dtype, size=1.0):
    rng = np.random.default_rng(seed)
    kind = rlx.DType.of(dtype).numpy
    return rlx.tree.map(lambda s: np.asarray(size * rng.standard_normal(s), kind), SHAPES, is_leaf=is_shape)


def gradients(step, dtype):
    """Gradients of very different sizes, one of them 0 at first."""
    g = arrays(100 + step, dtype, 10.0 ** (step % 4 - 2))
    g["head"]["b"] *= step > 1
    return g


def plain(params):
    return rlx.tree.map(np.asarray, params)


def agree(ours, theirs, dtype, updates=UPDATES, grads=gradients):
    """Both run compiled; parameters and the changes to them agree after every update."""
    params = arrays(1, dtype)
    jax_params = jax.tree.map(jnp.asarray, params)
    state, jax_state = ours.init(params), theirs.init(jax_params)

    @rlx.jit
    def step(params, state, g):
        changes, state = ours.update(g, state, params)
        return optim.apply_updates(params, changes), state, changes

    @jax.jit
    def jax_step(params, state, g):
        changes, state = theirs.update(g, state, params)
        return optax.apply_updates(params, changes), state, changes

    types = [(tuple(x.shape), str(x.dtype)) for x in rlx.tree.leaves(state)]
    for number in range(updates):
        g = grads(number, dtype)
        params, state, changes = step(params, state, g)
        jax_params, jax_state, jax_changes = jax_step(jax_params, jax_state, g)
        assert_agree(plain(changes), jax_changes, TOLERANCE[dtype])
        assert_agree(plain(params), jax_params, TOLERANCE[dtype])
        assert [(tuple(x.shape), str(x.dtype)) for x in rlx.tree.leaves(state)] == types


@pytest.fixture(params=["f32", "f64"])
def dtype(request):
    return request.param


def rank_mask(params):
    return rlx.tree.map(lambda p: len(p.shape) > 1, params)


def jax_rank_mask(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def wide(schedule):
    """optax computes in f32 from counts of 32 bits; ours always in f64."""
    return lambda count: schedule(jnp.asarray(count, "float64"))


def wide_adafactor(*args, **settings):
    """Also optax's decay of the second moment is in f32, whatever the parameters are."""

    def decay(count, power):
        return 1.0 - (count + 1.0).astype("float64") ** -power

    exact = partial(factorized.scale_by_factored_rms, decay_rate_fn=decay)
    with mock.patch.object(factorized, "scale_by_factored_rms", exact):
        return optax.adafactor(*args, **settings)


PREFIX_MASK = {"block": True, "head": {"w": False, "b": True}, "deep": False, "wide": False}

OPTIMIZERS = {
    "sgd": (optim.sgd(0.1), optax.sgd(0.1)),
    "momentum": (optim.sgd(0.1, 0.9), optax.sgd(0.1, 0.9)),
    "nesterov": (optim.sgd(0.1, 0.9, nesterov=True), optax.sgd(0.1, 0.9, nesterov=True)),
    "adam": (optim.adam(1e-2), optax.adam(1e-2)),
    "adam settings": (optim.adam(1e-2, 0.8, 0.95, 1e-5, 1e-6), optax.adam(1e-2, 0.8, 0.95, 1e-5, 1e-6)),
    "nadam": (optim.adam(1e-2, nesterov=True), optax.nadam(1e-2)),
    "adamw": (optim.adamw(1e-2, weight_decay=0.1), optax.adamw(1e-2, weight_decay=0.1)),
    "adamw masked": (
        optim.adamw(1e-2, weight_decay=0.1, mask=rank_mask),
        optax.adamw(1e-2, weight_decay=0.1, mask=jax_rank_mask),
    ),
    "nadamw": (optim.adamw(1e-2, nesterov=True), optax.nadamw(1e-2)),
    "lion": (optim.lion(1e-3), optax.lion(1e-3)),
    "lamb": (optim.lamb(1e-2, weight_decay=0.1), optax.lamb(1e-2, weight_decay=0.1)),
    "adafactor": (optim.adafactor(1e-2), wide_adafactor(1e-2)),
    "adafactor momentum": (
        optim.adafactor(1e-2, 4, momentum=0.9, dtype_momentum=None, weight_decay_rate=1e-3),
        wide_adafactor(1e-2, 4, momentum=0.9, dtype_momentum=None, weight_decay_rate=1e-3),
    ),
    "adafactor whole": (
        optim.adafactor(1e-2, factored=False, multiply_by_parameter_scale=False, clipping_threshold=None),
        wide_adafactor(1e-2, factored=False, multiply_by_parameter_scale=False, clipping_threshold=None),
    ),
    "rmsprop": (optim.rmsprop(1e-2), optax.rmsprop(1e-2)),
    "rmsprop centered": (
        optim.rmsprop(1e-2, 0.8, 1e-4, centered=True, momentum=0.5, nesterov=True),
        optax.rmsprop(1e-2, 0.8, 1e-4, centered=True, momentum=0.5, nesterov=True),
    ),
    "rmsprop outside": (
        optim.rmsprop(1e-2, initial_scale=0.3, eps_in_sqrt=False),
        optax.rmsprop(1e-2, initial_scale=0.3, eps_in_sqrt=False),
    ),
    "adagrad": (optim.adagrad(0.1), optax.adagrad(0.1)),
    "adagrad from 0": (optim.adagrad(0.1, 0.0), optax.adagrad(0.1, 0.0)),
    "adamax": (optim.adamax(1e-2), optax.adamax(1e-2)),
    "radam": (optim.radam(1e-2), optax.radam(1e-2)),
    "nadam by name": (optim.nadam(1e-2), optax.nadam(1e-2)),
    "nadamw by name": (optim.nadamw(1e-2, weight_decay=0.1), optax.nadamw(1e-2, weight_decay=0.1)),
    "adabelief": (optim.adabelief(1e-2), optax.adabelief(1e-2)),
    "adabelief ahead": (optim.adabelief(1e-2, nesterov=True), optax.adabelief(1e-2, nesterov=True)),
    "adadelta": (optim.adadelta(0.5, weight_decay=0.1), optax.adadelta(0.5, weight_decay=0.1)),
    "radam at once": (
        optim.radam(1e-2, b2=0.9, threshold=4.2, nesterov=True),
        optax.radam(1e-2, b2=0.9, threshold=4.2, nesterov=True),
    ),
    "muon": (optim.muon(1e-2, weight_decay=0.1), contrib.muon(1e-2, weight_decay=0.1)),
    "muon rms": (
        optim.muon(1e-2, consistent_rms=0.2, nesterov=False, adam_learning_rate=1e-3),
        contrib.muon(1e-2, consistent_rms=0.2, nesterov=False, adam_learning_rate=1e-3),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name, dtype):
    agree(*OPTIMIZERS[name], dtype)


# Name, ours, theirs, and counts at which something changes.
SCHEDULES = {
    "constant": (optim.constant(0.3), optax.constant_schedule(0.3), 10),
    "linear": (optim.linear(0.1, 0.5, 7, 3), optax.linear_schedule(0.1, 0.5, 7, 3), 14),
    "polynomial": (optim.polynomial(0.1, 0.5, 2.5, 7), optax.polynomial_schedule(0.1, 0.5, 2.5, 7), 14),
    "exponential": (optim.exponential(0.4, 3, 0.5, 2), optax.exponential_decay(0.4, 3, 0.5, 2), 14),
    "exponential stairs": (
        optim.exponential(0.4, 3, 0.5, 2, True, 0.15),
        optax.exponential_decay(0.4, 3, 0.5, 2, True, 0.15),
        14,
    ),
    "exponential up": (
        optim.exponential(0.1, 3, 2.0, end=0.5),
        optax.exponential_decay(0.1, 3, 2.0, end_value=0.5),
        14,
    ),
    "cosine": (optim.cosine(0.4, 9, 0.1), optax.cosine_decay_schedule(0.4, 9, 0.25), 14),
    "warm-up": (
        optim.warmup_cosine(0.4, 5, 20, 0.01, 0.02),
        optax.warmup_cosine_decay_schedule(0.01, 0.4, 5, 20, 0.02),
        25,
    ),
    "no warm-up": (optim.warmup_cosine(0.4, 0, 20), optax.warmup_cosine_decay_schedule(0.0, 0.4, 0, 20), 25),
    "piecewise": (
        optim.piecewise_constant(0.4, {9: 0.5, 3: 0.1}),
        optax.piecewise_constant_schedule(0.4, {3: 0.1, 9: 0.5}),
        12,
    ),
    "one cycle": (optim.one_cycle(40, 0.5), optax.cosine_onecycle_schedule(40, 0.5), 45),
    "one cycle linear": (optim.one_cycle(40, 0.5, anneal="linear"), optax.linear_onecycle_schedule(40, 0.5), 45),
    "joined": (
        optim.join([optim.constant(0.1), optim.linear(1.0, 2.0, 3), optim.cosine(0.4, 5)], [2, 6]),
        optax.join_schedules(
            [optax.constant_schedule(0.1), optax.linear_schedule(1.0, 2.0, 3), optax.cosine_decay_schedule(0.4, 5)],
            [2, 6],
        ),
        15,
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name):
    ours, theirs, last = SCHEDULES[name]
    compiled = rlx.jit(lambda step: rlx.numpy.asarray(ours(step), dtype="f64"))
    for step in range(last):
        expected = float(wide(theirs)(step))
        assert ours(step) == pytest.approx(expected, rel=1e-12, abs=1e-15), step
        assert float(compiled(np.int32(step))) == pytest.approx(expected, rel=1e-12, abs=1e-15), step


def test_learning_rate_schedule(dtype):
    agree(optim.adamw(optim.warmup_cosine(1e-2, 3, 9)), optax.adamw(wide(SCHEDULE)), dtype, 10)


SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 9)

PARTS = {
    "clip": (optim.clip(0.05), optax.clip(0.05)),
    "global norm": (optim.clip_by_global_norm(1.0), optax.clip_by_global_norm(1.0)),
    "block rms": (optim.clip_by_block_rms(0.5), optax.clip_by_block_rms(0.5)),
    "param rms": (optim.scale_by_param_block_rms(), optax.scale_by_param_block_rms()),
    "trust ratio": (optim.scale_by_trust_ratio(), optax.scale_by_trust_ratio()),
    "decay": (optim.add_decayed_weights(0.1), optax.add_decayed_weights(0.1)),
    "decay masked": (optim.add_decayed_weights(0.1, rank_mask), optax.add_decayed_weights(0.1, jax_rank_mask)),
    "trace": (optim.trace(0.9), optax.trace(0.9)),
    "ema": (optim.ema(0.9), optax.ema(0.9)),
    "ema biased": (optim.ema(0.9, debias=False), optax.ema(0.9, debias=False)),
    "schedule": (
        optim.scale_by_schedule(optim.cosine(1.0, 4)),
        optax.scale_by_schedule(wide(optax.cosine_decay_schedule(1.0, 4))),
    ),
    "chain": (
        optim.chain(optim.clip_by_global_norm(1.0), optim.trace(0.5), optim.scale(-0.1)),
        optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.5), optax.scale(-0.1)),
    ),
    "masked": (optim.masked(optim.adam(1e-2), PREFIX_MASK), optax.masked(optax.adam(1e-2), PREFIX_MASK)),
    "partition": (
        optim.partition({"a": optim.sgd(0.1), "b": optim.adam(0.01)}, lambda p: {k: "ab"[k > "c"] for k in p}),
        optax.partition({"a": optax.sgd(0.1), "b": optax.adam(0.01)}, lambda p: {k: "ab"[k > "c"] for k in p}),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_part(name, dtype):
    agree(*PARTS[name], dtype)


def test_decay_by_schedule(dtype):
    """optax promotes the parameters to the dtype of the schedule; ours stay what they are."""
    schedule = optax.linear_schedule(0.1, 0.0, 5)
    theirs = optax.add_decayed_weights(wide(schedule) if dtype == "f64" else schedule)
    agree(optim.add_decayed_weights(optim.linear(0.1, 0.0, 5)), theirs, dtype)


def test_accumulate(dtype):
    """optax gathers in f32 unless told; ours in the dtype of the gradients, f32 at least."""
    ours = optim.accumulate(optim.adamw(1e-2), 3)
    theirs = optax.MultiSteps(optax.adamw(1e-2), 3, accumulator_dtype=jnp.dtype(rlx.DType.of(dtype).numpy))
    agree(ours, theirs.gradient_transformation(), dtype, 8)


def test_global_norm(dtype):
    values = arrays(3, dtype)
    norm = float(optax.tree.norm(jax.tree.map(jnp.asarray, values)))
    assert float(optim.global_norm(values)) == pytest.approx(norm, rel=TOLERANCE[dtype])
