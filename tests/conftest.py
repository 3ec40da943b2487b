"""What holds for all tests."""

import gc

import pytest
from hypothesis import HealthCheck, settings

from rlx.backends.program import program_cache

# Examples may take as long as the machine needs: no test is about time, and others may use the machine.
settings.register_profile("any_machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_machine")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """The tests themselves, over a million objects, are no garbage and are not looked at again: a full collection takes
    half a second with them, and some tests ask for one. Compilers make many objects that live for a moment: one look at
    the young ones for each 700 of them, Python's own rate, takes 2 % of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_ignore_collect(collection_path, config):
    """Frameworks that are installed beside rlx are imported for the tests that compare with them, and no others."""
    is_left_out = collection_path.name == "peers" and "not peers" in config.option.markexpr
    return True if is_left_out else None


@pytest.fixture(autouse=True, scope="session")
def small_programs_are_compiled():
    """Tests change the compiler and look at what it does: no small program comes from the disk or goes there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_cache, "KEPT_SMALL", 0)
        yield
