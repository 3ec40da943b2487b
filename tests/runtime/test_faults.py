"""Whatever becomes of the cache on disk, programs compile and give the same results; other faults end in one error."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.errors import BackendError

PROGRAM = """
    import numpy as np, rlx
    g = rlx.Graph("faults")
    x = g.input("x", ("B", 8), "f32")
    g.set_outputs([rlx.softmax(rlx.tanh(x) * 3.0)])
    out = rlx.Session("cpu").compile(g).run(x=np.linspace(-1, 1, 32, dtype="f4").reshape(4, 8))[0]
    print(np.asarray(out).tobytes().hex())
"""


def start(cache, before=""):
    code = textwrap.dedent(before) + textwrap.dedent(PROGRAM)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "RLX_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


def run(cache, before=""):
    return finish(start(cache, before))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    return run(tmp_path_factory.mktemp("good"))


def entries(cache):
    return sorted((Path(cache) / "objects").iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-7]),
        lambda path: path.write_bytes(path.read_bytes()[:100] + b"\xff" + path.read_bytes()[101:]),
        lambda path: path.write_bytes(b"\x7fELF" + bytes(200)),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["empty", "truncated", "one bit", "foreign", "a directory"],
)
def test_damaged_entries(damage, tmp_path, wanted):
    assert run(tmp_path) == wanted
    assert entries(tmp_path)
    for path in entries(tmp_path):
        damage(path)
    assert run(tmp_path) == wanted


def test_entries_that_vanish_while_a_process_runs(tmp_path, wanted):
    before = """
    import shutil, rlx.backends.native.kernels as native
    found = native.Loader._object
    def vanish(self, kernel, key):
        shutil.rmtree(self.objects.directory, ignore_errors=True)
        return found(self, kernel, key)
    native.Loader._object = vanish
    """
    assert run(tmp_path, before) == wanted


def test_a_directory_that_cannot_be_made(tmp_path, wanted):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert run(blocked) == wanted


def test_a_directory_that_cannot_be_written(tmp_path, wanted):
    """Also for root, who may write everywhere: opening a file to write is refused as a read-only disk refuses it."""
    before = """
    import errno, os
    opened = os.open
    def refuse(path, flags, *rest, **more):
        if flags & os.O_WRONLY:
            raise OSError(errno.EROFS, "read-only file system")
        return opened(path, flags, *rest, **more)
    os.open = refuse
    """
    assert run(tmp_path, before) == wanted
    assert entries(tmp_path) == []


def test_a_full_disk(tmp_path, wanted):
    """No file may grow beyond some bytes: writes fail in the middle of an entry, and nothing is left of it."""
    before = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    """
    assert run(tmp_path, before) == wanted
    assert entries(tmp_path) == []


def test_two_processes_at_once(tmp_path, wanted):
    processes = [start(tmp_path) for _ in range(3)]
    assert [finish(p) for p in processes] == [wanted] * 3
    assert all(path.suffix == ".o" for path in entries(tmp_path))


KILL = "import os, signal\nstop = lambda *a, **b: os.kill(os.getpid(), signal.SIGKILL)\n"


def killed(cache, before):
    """By the first write of code: stamps, which are written before it, are not kept."""
    process = start(
        cache, "from rlx.backends.native import kept_stamps\nkept_stamps._entries = lambda: None\n" + before
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def test_a_process_that_is_killed_in_the_middle_of_a_write(tmp_path, wanted):
    """Before the file has a name: there is nothing to clean up."""
    if not has_unnamed_files(tmp_path):
        pytest.skip("this file system has no files without names")
    killed(tmp_path, KILL + "os.link = stop")
    assert entries(tmp_path) == []
    assert run(tmp_path) == wanted


def has_unnamed_files(directory):
    try:
        os.close(os.open(directory, os.O_WRONLY | os.O_TMPFILE))
    except (OSError, AttributeError):
        return False
    return True


def test_a_process_that_is_killed_where_every_file_has_a_name(tmp_path, wanted):
    before = """
    import rlx.backends.native.object_cache
    rlx.backends.native.object_cache._open_unnamed = lambda directory: None
    os.replace = stop
    """
    killed(tmp_path, KILL + textwrap.dedent(before))
    left = entries(tmp_path)
    assert left
    assert all(path.suffix != ".o" for path in left)
    assert run(tmp_path) == wanted
    from rlx.backends.native.object_cache import DiskCache

    DiskCache(tmp_path).trim(0)
    assert entries(tmp_path) == []


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects").chmod(0o777)
    process = start(tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "chmod 700" in err


def test_a_plan_that_no_memory_is_for():
    g = rlx.Graph("huge")
    x = g.input("x", ("N",), "f32")
    outer = rlx.exp(x.reshape((-1, 1)) * x)
    g.set_outputs([rlx.sort(outer, axis=0)[0]])
    c = rlx.Session("cpu").compile(g)
    assert c.run(x=np.ones(3, "f4"))[0].shape == (3,)
    with pytest.raises((BackendError, MemoryError), match=r"there is no memory for values between kernels|Unable to"):
        c.run(x=np.ones(50_000_000, "f4"))
    assert c.run(x=np.ones(2, "f4"))[0].shape == (2,)
