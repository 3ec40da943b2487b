"""What holds for all tests."""

import gc

import pytest

from rlx.backends.program import program_cache


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """The tests themselves, over a million objects, are no garbage and are not looked at again: a full collection takes
    half a second with them, and some tests ask for one."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def small_programs_are_compiled():
    """Tests change the compiler and look at what it does: no small program comes from the disk or goes there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_cache, "KEPT_SMALL", 0)
        yield
