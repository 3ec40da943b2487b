"""`RLX_CPU` lowers the instructions that code may use, for everything that a process compiles."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rlx.errors import BackendError
from rlx.kernels.machines import AVX2, AVX512_BF16, LEVELS, NEON_I8MM, SSE2, detected, has_instructions, lowered

PROGRAM = """
import numpy as np
import rlx
from rlx.kernels.machines import host, runs_here, AVX512
f = rlx.jit(lambda x: rlx.numpy.tanh(x @ x) * 0.3)
x = np.linspace(-1, 1, 4096, dtype="f4").reshape(64, 64)
np.testing.assert_allclose(f(x), np.tanh(x.astype("f8") @ x) * 0.3, atol=1e-4)
print(host().name, runs_here(AVX512))
"""


def run(level, cache):
    """What a process with `RLX_CPU` prints, and the code that it has kept."""
    env = {**os.environ, "RLX_CPU": level, "RLX_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200)
    return done.stdout.split(), done.stderr


@pytest.mark.skipif(not has_instructions(detected(), AVX2), reason="this CPU has no AVX2")
def test_code_for_less(tmp_path):
    assert run("avx2", tmp_path)[0] == ["avx2", "False"]
    kept = {p.name for p in (tmp_path / "objects").iterdir()}
    assert run("generic", tmp_path)[0] == ["generic", "False"]
    # Of each kernel there is code for both: nothing made for one is taken for the other.
    assert len({p.name for p in (tmp_path / "objects").iterdir()}) == 2 * len(kept)


def test_what_a_cpu_does_not_have_is_refused(tmp_path):
    printed, error = run("avx1024", tmp_path)
    assert not printed and "RLX_CPU=avx1024: this CPU runs no such code; it runs that of: " in error


def test_levels_of_a_machine():
    for name in ("generic", "sse4", "avx2", "avx512", "avx512vnni", "avx512bf16"):
        assert lowered(AVX512_BF16, name) == LEVELS[name]
    assert lowered(AVX2, "generic") == SSE2 and lowered(NEON_I8MM, "neon").name == "neon"
    for here, wanted in ((AVX2, "avx512"), (AVX2, "neon"), (NEON_I8MM, "avx2"), (SSE2, "sse4")):
        with pytest.raises(BackendError, match=f"RLX_CPU={wanted}"):
            lowered(here, wanted)


def test_dot_products_of_shorter_vectors_need_their_own_encoding():
    with pytest.raises(BackendError, match="RLX_CPU=avx2vnni"):
        lowered(AVX512_BF16, "avx2vnni", {"avx512f", "avx512_vnni"})
    assert lowered(AVX512_BF16, "avx2vnni", {"avx512f", "avx_vnni"}) == LEVELS["avx2vnni"]


def test_another_system_keeps_its_own_triple():
    here = replace(AVX2, triple="x86_64-apple-darwin-elf")
    assert lowered(here, "sse4").triple == here.triple
