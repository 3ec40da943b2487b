"""Memory limits: the plan keeps them, says so before the run, and changes no result."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import nn, optim, train
from rlx.errors import TrainingError

BLOCKS, WIDTH, ROWS = 6, 32, 400


def network(mark):
    part = nn.residual(nn.dense(4 * WIDTH), nn.tanh, nn.dense(4 * WIDTH), nn.tanh, nn.dense(WIDTH))
    return nn.chain(*(mark(part) for _ in range(BLOCKS)))


def parts(mark=train.block, **options):
    body = network(mark)
    optimizer = optim.sgd(0.01, 0.9)
    step = train.make_step(lambda p, x: rnp.mean(body.apply(p, x) ** 2), optimizer, **options)
    return step, train.init_state(body.init(rlx.random.key(0), (ROWS, WIDTH)), optimizer)


X = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype("f4")


def test_a_limit_is_kept_with_as_few_blocks_as_it_takes():
    free, state = parts()
    plain = free.plan(state, X)
    assert plain.recomputed == 0 and plain.blocks == BLOCKS
    least = parts(memory=plain.total_bytes - 1)[0].plan(state, X)
    assert 0 < least.recomputed < BLOCKS and least.total_bytes < plain.total_bytes
    limit = plain.total_bytes * 6 // 10
    tight = parts(memory=limit)[0].plan(state, X)
    assert tight.recomputed > least.recomputed and tight.total_bytes <= limit
    assert f"{tight.recomputed} of 6 blocks computed again" in str(tight)


def test_the_plan_is_what_the_executable_has_and_results_are_the_same():
    free, state = parts(donate=False)
    limited, _ = parts(donate=False, memory=free.plan(state, X).total_bytes * 6 // 10)
    executable = rlx.Session("cpu").compile(limited.lower(state, X).graph)
    assert limited.plan(state, X).arena_bytes == executable.report.lir.arena_size
    for _ in range(3):
        (state, a), (other, b) = free(state, X), limited(state, X)
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-6)
        for x, y in zip(rlx.tree.leaves(state), rlx.tree.leaves(other)):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5, atol=1e-7)


def test_limits_that_cannot_be_kept_are_refused():
    step, state = parts(memory=1000)
    with pytest.raises(TrainingError, match=r"0\.0 MB are allowed, the least is .* 6 of 6 blocks.*smaller batch"):
        step(state, X)
    step, state = parts(mark=lambda part: part, memory=1000)
    with pytest.raises(TrainingError, match=r"mark parts of the model with rlx\.train\.block"):
        step(state, X)
