"""Divide and conquer for symmetric eigenvalues: hard spectra against LAPACK, steps against their definitions, the same
bits for any number of threads."""

import numpy as np
import pytest
from test_factorization_kernels import EPS, native, random
from test_large_factors import HARD, SIZE

from rlx import ops
from rlx.compile.lower import divided_eigenvalues as divided
from rlx.compile.lower import sized_factors
from rlx.ops.lowered.tridiagonal_merge import MergedPoles, SecularRoots, SecularWeights

# Elements on the diagonal and beside it.
N = 45
TRIDIAGONAL = {
    "random": (random(N), random(N, seed=1)),
    "second difference": (np.full(N, 2.0), np.full(N, -1.0)),
    "glued": (np.tile(np.abs(np.arange(9.0) - 4), 5), np.where(np.arange(N) % 9 == 8, 1e-8, 1.0)),
    "graded": (10.0 ** -(np.arange(N) / 2), 10.0 ** -(np.arange(N) / 2) / 2),
    "hardly coupled": (np.ones(N), 1e-14 * random(N)),
    "weak and strong": (np.zeros(N), np.where(np.arange(N) % 2, 1e-9, 1.0)),
    "torn where it is coupled most": (np.arange(N) * 1e-6, np.full(N, 1e3)),
}


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(sized_factors, "DIVIDED", 16)
    monkeypatch.setattr(divided, "LEAF", 12)


def check(a, w, v, eps=EPS["f8"]):
    bound = 8 * len(a) * eps
    scale = np.abs(a).max() or 1.0
    a = a.astype("f8") / scale
    size = np.linalg.norm(a, 2)
    w, v = w.astype("f8") / scale, v.astype("f8")
    assert np.abs(a @ v - v * w).max() <= bound * size
    assert np.abs(v.T @ v - np.eye(len(a))).max() <= bound
    assert np.abs(w - np.linalg.eigvalsh(a)).max() <= bound * size and (np.diff(w) >= 0).all()


@pytest.mark.usefixtures("small_parts")
def test_hard_matrices_and_nan():
    bad = random(SIZE, SIZE)
    bad[5, 3] = np.nan
    matrices = [(a + a.T) / 2 for a in (*HARD.values(), bad)]
    values, vectors = native(ops.eigh, np.array(matrices))
    for a, w, v in list(zip(matrices, values, vectors, strict=True))[:-1]:
        check(a, w, v)
    assert np.isnan(values[-1]).all() and np.isnan(vectors[-1]).all()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("size", "dtype"), [(16, "f8"), (33, "f4")])
def test_other_sizes_and_single_precision(size, dtype):
    a = random(size, size, dtype=dtype)
    a = a + a.T
    check(a, *native(ops.eigh, a), EPS[dtype])


def test_parts_of_the_usual_size():
    a = random(131, 131)
    check(a + a.T, *native(ops.eigh, a + a.T))


@pytest.mark.usefixtures("small_parts")
def test_tridiagonal_matrices():
    d, e = (np.array([lines[i] for lines in TRIDIAGONAL.values()]) for i in range(2))
    e[:, -1] = 0
    values, vectors, is_found = native(divided.divided_eigenvalues, d, e)
    assert is_found.all()
    for diagonal, beside, w, v in zip(d, e, values, vectors, strict=True):
        check(np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1), w, v)


def test_steps_do_what_their_definitions_say():
    """Weights of very different sizes, poles that are equal, close, and far apart."""
    rng = np.random.default_rng(3)
    d = np.sort(np.concatenate([rng.normal(size=8), 1 + 1e-9 * rng.normal(size=4)]).reshape(2, 6)).reshape(12)
    d[7] = d[2]
    d = np.concatenate([np.sort(d[:6]), np.sort(d[6:])])
    z = rng.normal(size=12) * 10.0 ** -rng.integers(0, 12, size=12)
    z *= np.sqrt(2 / (z @ z))
    rho = np.array(0.7)
    found, wanted = native(MergedPoles(), d, z, rho), MergedPoles().eval(d, z, rho)
    for got, one in zip(found[:4], wanted[:4], strict=True):
        np.testing.assert_allclose(got, one, rtol=1e-14)
    kept, turned = wanted[3]
    assert 0 < kept < 12 and turned > 0
    np.testing.assert_allclose(found[4][:turned], wanted[4][:turned], rtol=1e-14)
    poles, weights, _, counts, _ = wanted

    def with_counts(op):
        return lambda *operands: op(*operands[:-1], ops.cast(operands[-1], "i32"))

    numbers = counts.astype("f8")
    bases, shifts, values = native(with_counts(SecularRoots()), poles, weights, rho, numbers)
    exact = SecularRoots().eval(poles, weights, rho, counts)
    np.testing.assert_array_equal(bases, exact[0])
    np.testing.assert_allclose(shifts, exact[1], rtol=1e-12)
    np.testing.assert_allclose(values, exact[2], rtol=1e-15)
    (again,) = native(with_counts(SecularWeights()), poles, weights, bases, shifts, numbers)
    np.testing.assert_allclose(again, SecularWeights().eval(poles, weights, bases, shifts, counts), rtol=1e-13)
    # Up to a common factor they are the weights that the roots were found for.
    np.testing.assert_allclose(again[:kept] / again[kept - 1], weights[:kept] / weights[kept - 1], rtol=1e-11)
