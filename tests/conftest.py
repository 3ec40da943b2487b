"""What holds for all tests."""

import pytest

from rlx.backends.program import program_cache


@pytest.fixture(autouse=True, scope="session")
def small_programs_are_compiled():
    """Tests change the compiler and look at what it does: no small program comes from the disk or goes there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_cache, "KEPT_SMALL", 0)
        yield
