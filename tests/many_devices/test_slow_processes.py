"""Reports of slow processes and of tokens that are not shared evenly."""

import numpy as np
import pytest
from many_devices_runs import needs_xla
from test_many_processes import launched

from rlx.distributed import RankReport, RankWatch
from rlx.distributed.stragglers import RankRow, own_tokens
from rlx.errors import ShardingError
from rlx.train import StepReport


def report(own, tokens):
    rows = [RankRow(rank, 0.05, batch, 1e-3, count) for rank, (batch, count) in enumerate(zip(own, tokens))]
    return RankReport(11, 20, tuple(rows))


def test_the_slow_process_is_named():
    found = report([1e-3, 2e-3, 40e-3, 1e-3], [64, 64, 64, 64])
    assert found.slow.rank == 2 and found.skewed is None
    assert str(found) == (
        "steps 11 to 20, 50.0 ms each: process 2 is slow, its own work takes 20.5 times the median "
        "(batches 40.0 ms, a fixed product 1.0 ms)\ntokens per step 64 to 64: all have their share"
    )
    # Of two, the faster is what the slower is measured by.
    assert report([1e-3, 9e-3], [1, 1]).slow.rank == 1


def test_noise_and_a_single_process_are_not_reported():
    assert report([1e-3, 2e-3, 1e-3], [64, 66, 64]).slow is None
    assert report([50e-3], [64]).slow is None and report([50e-3], [64]).skewed is None
    assert "none of 3 processes is slow" in str(report([1e-3, 1e-3, 1e-3], [0, 0, 0]))
    assert "tokens" not in str(report([1e-3, 1e-3], [0, 0]))


def test_skew_is_named():
    found = report([1e-3] * 4, [100, 100, 100, 180])
    assert found.skewed.rank == 3 and "process 3 has 1.50 times the mean" in str(found)


def test_tokens_that_count():
    assert own_tokens({"a": np.zeros(3), "labels": np.array([[1, -100], [2, 3]])}) == 3
    assert own_tokens({"a": np.zeros(3)}) == 0


def test_intervals_of_one_process(monkeypatch):
    from rlx.distributed import stragglers

    monkeypatch.setattr(stragglers, "_probe", lambda: lambda: 1e-3)
    told = []
    watch = RankWatch(every=2, tell=told.append)
    batches = watch.batches(lambda step: np.full((2, 4), step))
    for step in range(5):
        batches(step)
        watch(StepReport(step + 1, None, {"seconds": 0.01}))
    assert [(r.first, r.last) for r in watch.reports] == [(1, 2), (3, 4)] and not told
    assert watch.reports[0].rows[0].tokens == 8
    with pytest.raises(ShardingError, match="counts steps from 1 on, got 0"):
        RankWatch(every=0)


@pytest.mark.targets
@needs_xla[1]
def test_two_processes_of_which_one_sleeps(tmp_path):
    script = tmp_path / "s.py"
    script.write_text(
        """
import time
import numpy as np
import rlx
import rlx.numpy as rnp
rlx.distributed.initialize(timeout=60)
rank = rlx.distributed.process_index()
layout = rlx.distributed.layout_of(rlx.make_mesh((2,), ("data",)))

def batches(step):
    time.sleep(0.1 * rank)
    ids = np.ones((4, 8), np.int32)
    ids[:2, 2:] = -1                     # the first process has fewer tokens
    return ids

step = rlx.train.make_step(lambda p, ids: rnp.mean((p["w"] * rnp.astype(ids, "f32")) ** 2), rlx.optim.sgd(0.1))
state = layout.place_state(rlx.train.init_state({"w": np.ones((), "f4")}, rlx.optim.sgd(0.1)))
watch = rlx.distributed.RankWatch(every=3)
rlx.train.fit(step, state, watch.batches(layout.batches(batches)), 6, callbacks=[watch])
(first, second) = watch.reports
print("slow", second.slow.rank, "skewed", second.skewed.rank, [row.tokens for row in second.rows])
"""
    )
    told = launched(["-n", "2", "--devices", "1"], str(script))
    for rank in (0, 1):
        assert f"[{rank}] slow 1 skewed 1 [4.0, 16.0]" in told, told
    assert "[0] steps 4 to 6" in told and "process 1 is slow" in told and "process 1 has 1.60 times the mean" in told
