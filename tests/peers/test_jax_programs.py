"""Programs of many fields, written once and run on JAX and on rlx: values and derivatives agree."""

import array_programs  # noqa: F401
import network_programs  # noqa: F401
import pytest
import science_programs  # noqa: F401
import sequence_programs  # noqa: F401
import transform_programs  # noqa: F401
from program_table import PROGRAMS, check, check_by_import

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_program(name, dtype):
    check(PROGRAMS[name], dtype)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_import_is_the_only_difference(name):
    check_by_import(PROGRAMS[name])


def test_there_are_programs_enough():
    assert len(PROGRAMS) >= 60
