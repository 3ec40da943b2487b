"""What is kept on disk is found again only by the sources that made it: every change of a source is another stamp."""

import shutil

import pytest

from rlx.backends.cpu import executor
from rlx.backends.native import kernels as native
from rlx.backends.program import program_cache
from rlx.errors import InternalError
from rlx.stamps import PACKAGE, source_stamp


@pytest.fixture
def package(tmp_path):
    """A copy of some of rlx's folders."""
    for folder in ("kernels", "backends"):
        shutil.copytree(PACKAGE / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def stamp(package, *names):
    source_stamp.cache_clear()
    return source_stamp(*names, package=package)


def every_source(package, names):
    for name in names:
        yield from [package / name] if (package / name).is_file() else sorted((package / name).rglob("*.py"))


@pytest.mark.parametrize("names", [native.CODEGEN, executor.SOURCES], ids=["code generator", "executor"])
def test_a_changed_file_changes_the_stamp(package, names):
    seen = {stamp(package, *names)}
    for file in every_source(package, names):
        file.write_text(file.read_text() + "# changed\n")
        seen.add(stamp(package, *names))
    assert len(seen) == 1 + len(list(every_source(package, names)))


def test_a_moved_file_changes_the_stamp(package):
    before = stamp(package, "kernels")
    (package / "kernels/emit/llvm_ops.py").rename(package / "kernels/emit/other.py")
    moved = stamp(package, "kernels")
    (package / "kernels/emit/deeper").mkdir()
    (package / "kernels/emit/other.py").rename(package / "kernels/emit/deeper/other.py")
    assert len({before, moved, stamp(package, "kernels")}) == 3


def test_bytes_that_move_from_file_to_file_change_the_stamp(tmp_path):
    for first, second in (("ab", "c"), ("a", "bc")):
        (tmp_path / first).mkdir()
        (tmp_path / first / "x.py").write_text(first)
        (tmp_path / first / "y.py").write_text(second)
    assert stamp(tmp_path / "ab", ".") != stamp(tmp_path / "a", ".")


def test_a_name_that_is_gone_is_an_error(package):
    with pytest.raises(InternalError, match="no sources at rlx/kernels/nowhere"):
        stamp(package, "kernels/nowhere")


def test_programs_depend_on_every_source():
    """The stamp of whole programs covers the package, so it cannot forget a folder."""
    assert source_stamp(".") != source_stamp("kernels")
    assert program_cache.compiler_stamp() == program_cache.compiler_stamp.__wrapped__()
