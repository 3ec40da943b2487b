"""The suite `loops`: what rlx computes there, against NumPy."""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from rlx.bench.engines.loops import RlxLoops
from rlx.bench.programs import PROGRAMS
from rlx.bench.suites import SUITES
from rlx.bench.training_programs import TRAINING


def test_loops_are_right():
    engine = RlxLoops(threads=1)
    wanted = 1 + 0.999**50
    np.testing.assert_allclose(engine.prepare("while_loop", {"count": 50})(), [wanted], rtol=1e-5)
    numbers = np.linspace(-1, 1, 40)
    np.testing.assert_allclose(
        engine.prepare("scan", {"count": 40})(), lfilter([1], [1, -0.5], numbers), rtol=1e-5, atol=1e-6
    )


def test_constants_are_new_in_every_round():
    engine = RlxLoops(threads=1)
    call = engine.prepare("constants", {"count": 3})
    for _ in range(2):
        found = engine.as_numpy(call())
        np.testing.assert_allclose(found, np.tile(np.linspace(-1, 1, 64) + 1, (3, 1)), rtol=1e-6, atol=1e-6)
    assert next(engine._numbers) == 3


def test_every_case_has_a_program():
    assert {c.program for c in SUITES["loops"].cases} == {"while_loop", "scan", "constants"}


def test_no_two_families_give_operands_to_one_name():
    """Workers draw the operands of a program by its name alone."""
    loops = {case.program for case in SUITES["loops"].cases}
    assert not loops & {*PROGRAMS, *TRAINING} and not {*PROGRAMS} & {*TRAINING}
