"""What is kept on disk is found again only by the sources that made it: every change of a source is another stamp."""

import os
import shutil
import time

import pytest

from rlx.backends.cpu import executor
from rlx.backends.native import kept_stamps
from rlx.backends.native import kernels as native
from rlx.backends.native.object_cache import DiskCache
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


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Stamps of a package of two files that were written long ago, kept in a cache of their own."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "x.py").write_text("x = 1")
    (package / "y.py").write_text("y = 2")
    entries = DiskCache(tmp_path / "cache", "stamps")
    monkeypatch.setattr(kept_stamps, "_entries", lambda: entries)
    monkeypatch.setattr(kept_stamps, "SETTLED_NS", -3_600_000_000_000)

    def stamp():
        kept_stamps.kept_stamp.cache_clear()
        source_stamp.cache_clear()
        return kept_stamps.kept_stamp(".", package=package)

    stamp.package, stamp.entries = package, entries
    return stamp


def reading_is_refused(*names, package):
    raise AssertionError("sources were read")


def test_what_was_hashed_is_found_without_reading(kept, monkeypatch):
    first = kept()
    assert first == source_stamp(".", package=kept.package)
    monkeypatch.setattr(kept_stamps, "source_stamp", reading_is_refused)
    assert kept() == first


@pytest.mark.parametrize("what", ["changed", "renamed", "added", "removed", "replaced"])
def test_any_change_of_files_is_seen(kept, what):
    """Also one that leaves sizes and times of files as they were: the system's own time of change is not to be set."""
    first, x = kept(), kept.package / "x.py"
    times = x.stat().st_atime_ns, x.stat().st_mtime_ns
    time.sleep(0.02)  # more than a tick of the clock of the files
    if what == "changed":
        x.write_text("x = 3")
        os.utime(x, ns=times)
    elif what == "renamed":
        x.rename(kept.package / "z.py")
    elif what == "added":
        (kept.package / "z.py").write_text("")
    elif what == "removed":
        x.unlink()
    else:
        other = kept.package / "other"
        other.write_text("x = 4")
        os.utime(other, ns=times)
        other.replace(x)
    changed = kept()
    assert changed != first
    assert changed == source_stamp(".", package=kept.package)


def test_files_that_have_just_changed_are_not_trusted(kept, monkeypatch):
    """Two changes within one tick of the clock look alike."""
    monkeypatch.setattr(kept_stamps, "SETTLED_NS", 3_600_000_000_000)
    kept()
    assert list(kept.entries.directory.iterdir()) == []


def test_damaged_stamps_are_made_anew(kept):
    first = kept()
    [entry] = kept.entries.directory.iterdir()
    for content in (b"", entry.read_bytes()[:-1], entry.read_bytes()[:-1] + b"x"):
        entry.write_bytes(content)
        assert kept() == first
    kept.entries.put(entry.stem, b"no stamp")
    assert kept() == first
