"""Files that are cut while they are in use, and things that are no regular files."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlx.errors import FormatError
from rlx.formats.gguf import open_gguf, write_gguf
from rlx.formats.safetensors import open_safetensors, write_safetensors

WEIGHTS = np.arange(100_000, dtype="f4").reshape(100, 1000)


def gguf(folder):
    write_gguf(folder / "m.gguf", {"general.architecture": "test"}, {"w": WEIGHTS})
    return folder / "m.gguf"


def safetensors(folder):
    write_safetensors(folder / "m.safetensors", {"w": WEIGHTS})
    return folder / "m.safetensors"


CUT = """
import os, sys
from rlx.formats.gguf import open_gguf
from rlx.formats.safetensors import open_safetensors
path, mmap = sys.argv[1], sys.argv[2] == "mapped"
file = (open_gguf if path.endswith(".gguf") else open_safetensors)(path, mmap=mmap)
os.truncate(path, 0)
assert file.tensors["w"].array().sum(dtype="f8") == sum(range(100_000))
"""


@pytest.mark.parametrize("write", [gguf, safetensors])
def test_a_file_that_was_read_may_be_cut(write, tmp_path):
    path = write(tmp_path)
    subprocess.run([sys.executable, "-c", CUT, str(path), "read"], check=True, timeout=60)


LOADED = """
import os, sys, rlx
lm = rlx.load(sys.argv[1], mmap=False)
for file in sys.argv[2:]:
    os.truncate(file, 0)
print(lm.generate("one", max_tokens=4))
"""


def test_a_model_that_was_read_may_be_cut(tmp_path):
    import shutil

    import rlx

    model = next(Path(rlx.__file__).parent.joinpath("models/data").glob("*.gguf"))
    shutil.copy(model, tmp_path / "m.gguf")
    wanted = rlx.load(model).generate("one", max_tokens=4)
    command = [sys.executable, "-c", LOADED, str(tmp_path / "m.gguf"), str(tmp_path / "m.gguf")]
    done = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout == wanted + "\n"


@pytest.mark.parametrize("mmap", [True, False])
def test_both_ways_give_the_same(mmap, tmp_path):
    for write, read in ((gguf, open_gguf), (safetensors, open_safetensors)):
        array = read(write(tmp_path), mmap=mmap).tensors["w"].array()
        np.testing.assert_array_equal(array, WEIGHTS)
        assert not array.flags.writeable


@pytest.mark.parametrize("read", [open_gguf, open_safetensors])
def test_a_regular_file_is_needed(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="a regular file is needed; this is a pipe"):
        read(tmp_path / "pipe")
    with pytest.raises(FormatError, match="a regular file is needed; this is a device"):
        read("/dev/zero")


def test_a_directory_is_no_gguf_file(tmp_path):
    with pytest.raises(FormatError, match="a regular file is needed; this is a directory"):
        open_gguf(tmp_path)
