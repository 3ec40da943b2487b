"""Whole programs on AArch64, emulated: compiled, linked by our own linker, run by several threads, and as this machine
has them. The emulator is a CPU with byte dot products of mixed signs, or one with those of signed bytes alone."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from backends import arm64_programs

# Where `make tools` puts it, or another that tools/arm64_python.sh made.
ARM64 = Path(os.environ.get("ARM64_PYTHON", f"{sys.prefix}/arm64-python/python"))
HERE = Path(arm64_programs.__file__)
SOURCES = HERE.parents[2] / "src"
# The emulator's name of a CPU, and the level that rlx finds it to have.
CPUS = {"max": "neon-i8mm", "cortex-a76": "neon-dot"}

pytestmark = [
    pytest.mark.targets,
    pytest.mark.skipif(not ARM64.exists(), reason=f"needs {ARM64}, an emulated Python: make tools"),
]


def run(program, *arguments, cache, **environment):
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "RLX_CACHE_DIR": str(cache), "RLX_THREADS": "2", **environment}
    done = subprocess.run([program, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def here():
    return arm64_programs.run_all()


@pytest.mark.parametrize("cpu", CPUS)
def test_programs_give_what_this_machine_gives(cpu, here, tmp_path):
    out, cache = tmp_path / "out.npz", tmp_path / "cache"
    run(sys.executable, HERE, "--prepare", CPUS[cpu], cache=cache)
    run(ARM64, HERE, out, cache=cache, QEMU_CPU=cpu)
    found = np.load(out)
    assert found["machine"][0] == CPUS[cpu] and set(found.files) == set(here)
    for name, array in here.items():
        if name != "machine":
            np.testing.assert_allclose(found[name], array, rtol=2e-5, atol=2e-5, err_msg=name)


def test_a_process_that_finds_its_code_does_not_load_llvm(tmp_path):
    program = (
        "import sys, numpy as np, rlx\n"
        "y = rlx.jit(lambda x: rlx.numpy.tanh(x) * 0.5 + x)(np.ones(9, 'f4'))\n"
        "print(float(np.asarray(y)[3]), 'llvmlite.binding' in sys.modules)"
    )
    runs = [run(ARM64, "-c", program, cache=tmp_path).split() for _ in range(2)]
    assert [float(value) for value, _ in runs] == [pytest.approx(1 + 0.5 * np.tanh(1.0), rel=1e-6)] * 2
    assert [loaded for _, loaded in runs] == ["True", "False"]
