"""Programs as Metal's shading language, run as C++ on fibers: the text is the one that a Mac would compile.

What this shows: names and types of the text are right, arithmetic, indices, barriers and memory of threadgroups do what
the loops mean, and the binding calls Metal in an order that it accepts. What it cannot show is Apple's compiler and its
GPUs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from compile.family_programs import FAMILIES, forward, training, values_for
from conformance.backends_here import OTHER_LAYOUTS
from conformance.suite import OPS, cases, check, check_program, loaded_together, tenth
from rlx.compile.claims.legalize import LegalizeError

pytestmark = pytest.mark.targets
# They print, or call into Python: tests/ops/test_effects.py looks at what they do.
EFFECTS = {"DebugPrint", "HostCallback"}
NAMES = [name for name in OPS if name not in EFFECTS | OTHER_LAYOUTS["metal"]]


def normal(*dims, seed=0):
    return np.random.default_rng(seed).standard_normal(dims, np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_a_tenth(stand_in, name):
    """Of the samples of each op, as on other backends that need tools."""
    conforms(tenth(name))


@pytest.mark.targets_full
@pytest.mark.parametrize("name", NAMES)
def test_all(stand_in, name):
    conforms(cases(name))


def conforms(chosen):
    failures, refusals = [], []
    with loaded_together(chosen, "metal"):
        for case in chosen:
            try:
                failures += check(case, "metal")
            except LegalizeError as refusal:
                refusals.append(str(refusal))
                assert "f64" in refusals[-1], "Metal refuses nothing else"
    assert not failures, "\n".join(map(str, failures[:10]))
    if len(refusals) == len(chosen):
        pytest.skip(refusals[0])


@pytest.mark.parametrize("name", FAMILIES)
def test_families(stand_in, name):
    runs(forward, name, stand_in)


# C++ compilers take a minute for the kernels of most of them.
@pytest.mark.parametrize(
    "name", [name if name == "scan_rnn" else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES]
)
def test_families_in_training(stand_in, name):
    runs(training, name, stand_in)


def runs(way, name, stand_in):
    graph = way(FAMILIES[name], "f32")
    assert check_program(graph, values_for(FAMILIES[name], graph), {"B": 2}, "metal") == []
    assert stand_in.books.left_open == []


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.uint64, np.float16, np.bool_])
def test_types(stand_in, dtype):
    x = (normal(5, 7) * 50).astype(dtype)
    f = (lambda x: ~x) if dtype is np.bool_ else (lambda x: x * x + x)
    wanted, got = (np.asarray(rlx.jit(f, device=device)(x)) for device in ("cpu", "metal"))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, wanted)


def test_special_numbers(stand_in):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 100.0, -100.0, 1e30, 1e-45], np.float32)

    def f(x):
        return rnp.stack([rlx.relu(x) + rlx.tanh(x), rlx.exp(x), rnp.maximum(x, 0.0), x - x, x * 0.0, 1.0 / x])

    wanted, got = (np.asarray(rlx.jit(f, device=device)(x)) for device in ("cpu", "metal"))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_the_shipped_model_writes_what_it_writes_on_the_cpu(stand_in):
    path = Path(rlx.models.__file__).parent / "data" / "tiny.gguf"
    texts = [rlx.load(path, device=d).generate("Once upon a time", max_tokens=12) for d in ("cpu", "metal")]
    assert texts[0] == texts[1] and len(texts[0]) > 15
