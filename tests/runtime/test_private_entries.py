"""Entries of the caches on disk: only regular files that this user alone can write count, each under its own key."""

import os
import subprocess
import sys

import numpy as np
import pytest

from rlx.backends.native.object_cache import DiskCache, open_private
from rlx.backends.program.prepared_store import PreparedStore

ARRAYS = [np.arange(12, dtype="f4").reshape(3, 4)]


def objects(folder):
    cache = DiskCache(folder)
    cache.put("key", b"code")
    return cache.directory / "key.o", lambda: cache.get("key")


def prepared(folder):
    store = PreparedStore(folder)
    assert store.keep("key", ARRAYS)
    return store.path("key"), lambda: store.find("key")


@pytest.fixture(params=[objects, prepared], ids=["object code", "prepared weights"])
def entry(request, tmp_path):
    """The path of an entry, and how it is read."""
    path, read = request.param(tmp_path)
    assert read() is not None
    return path, read


def by_a_link(path):
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


def as_a_device(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def as_a_directory(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "change",
    [lambda path: path.chmod(0o620), lambda path: path.chmod(0o602), by_a_link, as_a_device, as_a_directory],
    ids=["writable by the group", "writable by others", "a link", "a device", "a directory"],
)
def test_what_others_could_have_written_is_no_entry(entry, change):
    path, read = entry
    change(path)
    assert read() is None


def test_an_entry_of_another_owner_is_none(entry, monkeypatch):
    path, read = entry
    me = os.getuid()
    if me == 0:
        os.chown(path, 4321, 4321)
    else:
        monkeypatch.setattr("os.getuid", lambda: me + 1)
    assert read() is None


@pytest.mark.parametrize("kind", ["DiskCache(folder).get('key')", "PreparedStore(folder).find('key')"])
def test_a_pipe_does_not_block(kind, tmp_path):
    name, folder = ("key.o", "objects") if "Disk" in kind else ("key.prepared", "prepared")
    (tmp_path / folder).mkdir(mode=0o700)
    os.mkfifo(tmp_path / folder / name, 0o600)
    code = (
        "import sys; from rlx.backends.native.object_cache import DiskCache;"
        f"from rlx.backends.program.prepared_store import PreparedStore; folder = sys.argv[1]; assert {kind} is None"
    )
    # A reader that waits for a writer would wait for ever.
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)


def test_prepared_weights_under_another_name_are_none(tmp_path):
    """Two models keep weights of the same shapes: one entry in the place of the other must not be used."""
    store = PreparedStore(tmp_path)
    store.keep("one", ARRAYS)
    store.keep("two", [ARRAYS[0] + 1])
    store.path("two").rename(store.path("one"))
    assert store.find("one") is None
    store.keep("one", ARRAYS)
    np.testing.assert_array_equal(store.find("one")[0], ARRAYS[0])


def test_the_file_that_was_opened_is_looked_at(tmp_path):
    path = tmp_path / "entry"
    path.write_bytes(b"content")
    path.chmod(0o600)
    with open_private(path) as file:
        assert file.read() == b"content"
    with pytest.raises(OSError, match="No such file"):
        open_private(tmp_path / "none")


def test_a_directory_among_the_entries_keeps_nothing_from_being_trimmed(tmp_path):
    cache = DiskCache(tmp_path)
    cache.put("key", bytes(1000))
    (cache.directory / "odd").mkdir()
    os.utime(cache.directory / "odd", (1, 1))
    cache.trim(0)
    assert [path.name for path in cache.directory.iterdir()] == ["odd"]
