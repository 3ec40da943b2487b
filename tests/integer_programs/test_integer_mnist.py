"""The digits that come with rlx: a small file, the same labels on every engine; with the images, how many are right.

`MNIST_DATA` names a folder with train5k-images-idx3-ubyte.gz and train5k-labels-idx1-ubyte.gz: the 5,000 images that
the network was not trained on.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from rlx import train
from rlx.backends.cortex_m.c_program import c_program
from rlx.backends.cortex_m.checking import run_in_qemu, run_on_host
from rlx.backends.cortex_m.project import CORES, project_files
from rlx.errors import FormatError
from rlx.quantized import load, to_bytes

FOLDER = os.environ.get("MNIST_DATA")
images_needed = pytest.mark.skipif(FOLDER is None, reason="needs MNIST_DATA, a folder with the 5,000 test images")
tools_needed = pytest.mark.skipif(
    not shutil.which("arm-none-eabi-gcc") or not shutil.which("qemu-system-arm"),
    reason="needs arm-none-eabi-gcc and qemu-system-arm (make tools)",
)


def strokes(count):
    """Bright lines on black, 28x28, from 0 to 1."""
    rng = np.random.default_rng(4)
    images = np.zeros((count, 1, 28, 28), np.float32)
    for image in images:
        for _ in range(3):
            ends = rng.uniform(4, 24, (2, 2))
            for t in np.linspace(0, 1, 40):
                row, column = (ends[0] * (1 - t) + ends[1] * t).astype(int)
                image[0, row : row + 2, column : column + 2] = 1
    return images


def written(program, folder, core):
    made = c_program(program)
    texts = {f"{made.name}.h": made.header, f"{made.name}.c": made.source, **project_files(made.name, core)}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return made.name


def test_it_is_small_and_found_by_its_name():
    program = load("mnist")
    assert program.name == "mnist" and program.macs == 1_486_720
    assert len(to_bytes(program)) < 200_000
    assert program.encode(np.zeros((2, 1, 28, 28))).shape == (2, 28, 28, 1)
    with pytest.raises(FormatError, match="programs that come with rlx: mnist"):
        load("nonesuch")


def test_the_same_labels_in_numpy_and_on_the_cpu_engine():
    program, x = load("mnist"), strokes(40)
    labels = program.run(x)
    assert len(set(labels.tolist())) > 3
    assert program.run(x, device="cpu").tolist() == labels.tolist()


@pytest.mark.skipif(not shutil.which("gcc") and not shutil.which("clang"), reason="needs a C compiler")
def test_the_same_labels_in_c(tmp_path):
    program = load("mnist")
    codes, core = program.encode(strokes(200)), CORES["cortex-m4"]
    assert (
        run_on_host(program, tmp_path, written(program, tmp_path, core), core, codes).tolist()
        == program.run(codes).tolist()
    )


@pytest.mark.targets
@tools_needed
@pytest.mark.parametrize("core", CORES)
def test_the_same_labels_in_qemu(core, tmp_path):
    program = load("mnist")
    x = strokes(50) if FOLDER is None else digits()[0][:500]
    codes, chosen = program.encode(x), CORES[core]
    got = run_in_qemu(program, tmp_path, written(program, tmp_path, chosen), chosen, codes)
    assert got.tolist() == program.run(codes).tolist()


def digits():
    folder = Path(FOLDER or "")
    images = train.read_idx(folder / "train5k-images-idx3-ubyte.gz")
    return np.float32(images[:, None]) / 255, train.read_idx(folder / "train5k-labels-idx1-ubyte.gz")


@pytest.mark.long
@images_needed
@tools_needed
@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m7", "cortex-m55"])
def test_all_labels_in_qemu(core, tmp_path):
    program, chosen = load("mnist"), CORES[core]
    codes = program.encode(digits()[0])
    got = run_in_qemu(program, tmp_path, written(program, tmp_path, chosen), chosen, codes)
    assert got.tolist() == program.run(codes).tolist()


@images_needed
def test_how_many_of_five_thousand_are_right():
    x, labels = digits()
    assert np.mean(load("mnist").run(x) == labels) >= 0.984
