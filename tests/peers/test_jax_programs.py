"""Programs of many fields, written once and run on JAX and on rlx: values and derivatives agree."""

import array_programs  # noqa: F401
import network_programs  # noqa: F401
import pytest
import science_programs  # noqa: F401
import sequence_programs  # noqa: F401
import transform_programs  # noqa: F401
from libraries import JAX, RLX, TOLERANCE, assert_agree
from program_table import PROGRAMS, answer, question

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program(name, dtype):
    program = PROGRAMS[name]
    asked = question(JAX, program, dtype)
    for mode in program.modes:
        got, expected = answer(RLX, program, asked, mode), answer(JAX, program, asked, mode)
        assert_agree({mode: got}, {mode: expected}, TOLERANCE[dtype])


def test_there_are_programs_enough():
    assert len(PROGRAMS) >= 60
