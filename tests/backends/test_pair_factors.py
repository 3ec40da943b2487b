"""Complex factorisations and general eigenvalues as kernels: native, as right as LAPACK's, and calm where a matrix is
degenerate, singular, badly scaled or not finite."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg as sl

import rlx
import rlx.linalg as linalg
import rlx.numpy as rnp
from rlx.errors import OpError
from rlx.ops.linalg.solve import TriangularSolve


def random(*dims, dtype="c16", seed=0):
    rng = np.random.default_rng([seed, *dims])
    found = rng.normal(size=dims) + (1j * rng.normal(size=dims) if np.dtype(dtype).kind == "c" else 0)
    return found.astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def native(function, *arrays, checks=0):
    """The results of a program in which the host does nothing but `checks` checks."""
    program = rlx.jit(function).lower(*arrays).compile()
    lir = program.compiled_graph._executable.lir
    called = [lir.as_graph().nodes[k.nodes[0]].op.mnemonic for k in lir.kernels if k.kind == "call"]
    assert called == ["require_factors"] * checks
    result = program(*arrays)
    return tuple(np.asarray(x) for x in result) if isinstance(result, tuple) else np.asarray(result)


def near(got, wanted, size=1.0, factor=200):
    eps = np.finfo(got.dtype).eps
    np.testing.assert_allclose(got, wanted, rtol=0, atol=factor * eps * size)


def few(first, *others):
    """Cases of which one is enough for every day."""
    return [first, *(pytest.param(x, marks=pytest.mark.long) for x in others)]


SIZES = few((2, 9), (1,), (2,), (33,))


@pytest.mark.parametrize("dims", SIZES, ids=str)
def test_cholesky(dims):
    a = random(*dims, dims[-1])
    a = a @ adjoint(a) + np.eye(dims[-1])
    # Only the lower triangle is read, and not the imaginary part of the diagonal.
    lower = np.tril(a) + 5j * np.eye(dims[-1])
    found = native(lambda a: linalg.cholesky(a, symmetrize_input=False), lower, checks=1)
    near(found, np.linalg.cholesky(a), np.abs(a).max())
    assert not np.diagonal(found, 0, -2, -1).imag.any()


@pytest.mark.parametrize("dims", SIZES, ids=str)
def test_solves(dims):
    size = dims[-1]
    a, b = random(*dims, size), random(*dims, 3, seed=1)
    x = native(linalg.solve, a, b, checks=1)
    near(a @ x, b, np.abs(a).max() * np.abs(x).max() * size)
    triangle = a + 3 * size * np.eye(size)
    for lower in (False, True):
        for transpose in (False, True):
            for unit in (False, True):
                op = TriangularSolve(lower=lower, transpose=transpose, unit_diagonal=unit)
                wanted = np.stack(
                    [
                        sl.solve_triangular(m, c, trans=int(transpose), lower=lower, unit_diagonal=unit)
                        for m, c in zip((triangle / size).reshape(-1, size, size), b.reshape(-1, size, 3))
                    ]
                ).reshape(b.shape)
                near(native(lambda a, b, op=op: op(a, b), triangle / size, b), wanted, np.abs(wanted).max() * size)


@pytest.mark.parametrize("dims", few((2, 9, 4), (1, 1), (4, 9), (2, 5, 5), (40, 33)), ids=str)
def test_lu_and_qr(dims):
    a = random(*dims)
    p, lower, upper = native(linalg.lu, a)
    near(p @ lower @ upper, a, np.abs(a).max() * max(dims))
    assert np.abs(lower).max() <= 1 + 1e-14
    for mode in ("reduced", "complete"):
        q, r = native(lambda a, mode=mode: linalg.qr(a, mode=mode), a)
        wanted_q, wanted_r = np.linalg.qr(a, mode)
        near(q, wanted_q, max(dims))
        near(r, wanted_r, np.abs(a).max() * max(dims))


@pytest.mark.long
def test_blocks_of_large_matrices(monkeypatch):
    from rlx.compile.lower import blocked_factors as blocked

    for name, size in (("CHOLESKY", 64), ("LU", 64), ("SOLVE", 64), ("PANEL", 32)):
        monkeypatch.setattr(blocked, name, size)
    a, b = random(131, 130), random(130, 40, seed=2)
    square = a[:130]
    q, r = native(lambda a: linalg.qr(a, mode="complete"), a)
    near(q @ r, a, 130)
    near(adjoint(q) @ q, np.eye(131), 130)
    x = native(linalg.solve, square, b, checks=1)
    near(square @ x, b, np.abs(x).max() * 130)
    whole = square @ adjoint(square) + np.eye(130)
    near(native(linalg.cholesky, whole, checks=1), np.linalg.cholesky(whole), 400)


HERMITIAN = {
    "random": lambda n: random(n, n) + adjoint(random(n, n)),
    "zero": lambda n: np.zeros((n, n), complex),
    "one": lambda n: np.eye(n) * (1 + 0j),
    "rank one": lambda n: random(n, 1) @ adjoint(random(n, 1)),
    "large": lambda n: 1e300 * (random(n, n) + adjoint(random(n, n))),
    "small": lambda n: 1e-300 * (random(n, n) + adjoint(random(n, n))),
    "pairs": lambda n: np.kron(np.eye(n // 2 + 1), np.array([[1, 2j], [-2j, 1]]))[:n, :n],
}


@pytest.mark.parametrize("kind", HERMITIAN)
@pytest.mark.parametrize("size", few(7, 1, 2, 20))
def test_eigh(kind, size):
    a = HERMITIAN[kind](size)
    w, v = native(linalg.eigh, a)
    unit = max(np.abs(a).max(), np.finfo("f8").tiny)
    near(w / unit, np.linalg.eigvalsh(a / unit), size)
    near((a / unit) @ v, v * (w / unit), size)
    near(adjoint(v) @ v, np.eye(size), size)


@pytest.mark.parametrize("kind", HERMITIAN)
@pytest.mark.parametrize("dims", few((7, 4), (1, 1), (4, 7), (12, 12)), ids=str)
@pytest.mark.parametrize("full", few(True, False))
def test_svd(kind, dims, full):
    a = HERMITIAN[kind](max(dims))[: dims[0], : dims[1]]
    u, s, vh = native(lambda a: linalg.svd(a, full_matrices=full), a, checks=1)
    count = min(dims)
    unit = max(np.abs(a).max(), np.finfo("f8").tiny)
    near(s / unit, np.linalg.svd(a / unit, compute_uv=False), max(dims))
    near((u[:, :count] * (s / unit)) @ vh[:count], a / unit, max(dims))
    near(adjoint(u) @ u, np.eye(u.shape[1]), max(dims))
    near(vh @ adjoint(vh), np.eye(vh.shape[0]), max(dims))


GENERAL = {
    "random": lambda n, dtype: random(n, n, dtype=dtype),
    "zero": lambda n, dtype: np.zeros((n, n), dtype),
    "one": lambda n, dtype: np.eye(n, dtype=dtype),
    "jordan": lambda n, dtype: (2 * np.eye(n) + np.eye(n, k=1)).astype(dtype),
    "cycle": lambda n, dtype: np.roll(np.eye(n), 1, axis=0).astype(dtype),
    "companion": lambda n, dtype: np.vstack([np.ones((1, n)), np.eye(n - 1, n)]).astype(dtype),
    "symmetric": lambda n, dtype: random(n, n, dtype=dtype) + adjoint(random(n, n, dtype=dtype)),
    "large": lambda n, dtype: 1e300 * random(n, n, dtype=dtype),
    "small": lambda n, dtype: 1e-300 * random(n, n, dtype=dtype),
    "graded": lambda n, dtype: random(n, n, dtype=dtype) * 10.0 ** -np.arange(n)[:, None],
    "triangular": lambda n, dtype: np.triu(random(n, n, dtype=dtype)),
}


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("kind", GENERAL)
@pytest.mark.parametrize("size", few(8, 1, 2, 3, 30))
def test_eig_and_schur(kind, size, dtype):
    a = GENERAL[kind](size, dtype)
    unit = max(np.abs(a).max(), np.finfo("f8").tiny)
    scaled = a / unit
    w, v = native(linalg.eig, a)
    near(scaled @ v, v * (w / unit), 10 * size)
    near(np.linalg.norm(v, axis=0), np.ones(size), size)
    if kind in ("random", "companion", "symmetric", "cycle", "triangular"):
        wanted = np.linalg.eigvals(a)
        distance = np.abs(w[:, None] - wanted[None, :])
        assert distance.min(1).max() < 1e-8 and distance.min(0).max() < 1e-8
    near(np.sort_complex(native(linalg.eigvals, a) / unit), np.sort_complex(w / unit), size)
    t, z = native(linalg.schur, a)
    near(z @ (t / unit) @ adjoint(z), scaled, 10 * size)
    near(adjoint(z) @ z, np.eye(size), 10 * size)
    assert not np.tril(t, -1 if dtype == "c16" else -2).any()
    if dtype == "f8":
        # Complex eigenvalues are exact pairs, and vectors of real ones are real.
        np.testing.assert_array_equal(np.sort(w.imag[w.imag > 0]), np.sort(-w.imag[w.imag < 0]))
        assert not v[:, w.imag == 0].imag.any()
        for k in np.flatnonzero(np.diag(t, -1)):
            assert t[k, k] == t[k + 1, k + 1] and np.sign(t[k, k + 1]) == -np.sign(t[k + 1, k])


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("bad", few(np.nan, np.inf))
def test_what_is_not_finite_is_nan_for_its_matrix_alone(dtype, bad):
    a = random(2, 5, 5, dtype=dtype)
    a[0, 3, 1] = bad
    for function in (linalg.eig, linalg.schur):
        for x in native(function, a):
            assert np.isnan(x[0]).all() and np.isfinite(x[1]).all()
    if dtype == "c16":
        both = a + adjoint(a)
        for x in native(lambda a: linalg.eigh(a, "L"), both):
            assert np.isnan(x[0]).all() and np.isfinite(x[1]).all()
        with pytest.raises(OpError, match="NaN or inf"):
            rlx.jit(linalg.svd)(a)


def test_failures_of_complex_matrices_are_errors():
    with pytest.raises(OpError, match="singular"):
        rlx.jit(linalg.solve)(np.ones((3, 3), complex), np.ones(3, complex))
    with pytest.raises(OpError, match="not positive definite"):
        rlx.jit(linalg.cholesky)(np.diag([1.0, -1.0]).astype(complex))


def test_loops_factorise_complex_matrices_natively():
    matrices = np.stack([random(4, 4, seed=s) for s in range(3)])
    both = matrices @ adjoint(matrices) + np.eye(4)

    def step(total, pair):
        a = rnp.reshape(pair[0] + 1j * pair[1], (4, 4))
        w, _ = linalg.eigh(a)
        x = linalg.solve(a, rnp.ones((4,), "c128"))
        values = linalg.eigvals(a)
        return total + rnp.sum(w) + rnp.sum(rnp.real(x)) + rnp.sum(rnp.real(values)), rnp.real(linalg.cholesky(a))

    def program(re, im):
        return rlx.scan(step, np.zeros(()), (re, im))

    total, factors = native(program, both.real.copy(), both.imag.copy(), checks=2)
    wanted = sum(2 * np.linalg.eigvalsh(a).sum() + np.linalg.solve(a, np.ones(4)).real.sum() for a in both)
    np.testing.assert_allclose(total, wanted, rtol=1e-12)
    np.testing.assert_allclose(factors, np.linalg.cholesky(both).real, rtol=1e-12, atol=1e-13)


def test_loops_that_carry_complex_values():
    a = random(5, 5) / 4
    right = random(6, 5, seed=3)

    def step(x, b):
        x = linalg.solve(rnp.eye(5) + a, x + b)
        return x, (rnp.abs(x), x * 1j)

    def program(start, right):
        return rlx.scan(step, start, right)

    start = random(5)
    last, (sizes, turned) = rlx.jit(program)(start, right)
    lir = rlx.jit(program).lower(start, right).compile().compiled_graph._executable.lir
    called = [lir.as_graph().nodes[k.nodes[0]].op.mnemonic for k in lir.kernels if k.kind == "call"]
    assert called == ["require_factors"]
    x = start
    for b, size, one in zip(right, sizes, turned, strict=True):
        x = np.linalg.solve(np.eye(5) + a, x + b)
        np.testing.assert_allclose(size, np.abs(x), rtol=1e-12)
        np.testing.assert_allclose(one, x * 1j, rtol=1e-12)
    np.testing.assert_allclose(last, x, rtol=1e-12)
    with pytest.raises(OpError, match="singular"):
        rlx.jit(lambda x, b: rlx.scan(lambda c, y: (linalg.solve(rnp.outer(y, y) * 0, c), None), x, b)[0])(start, right)


ROUNDED = {
    "eigh": lambda a: linalg.eigh(a, "L"),
    "eig": linalg.eig,
    "svd": linalg.svd,
    "qr": linalg.qr,
    "solve": lambda a: linalg.solve(a, a[:, :2]),
}


@pytest.mark.parametrize("name", few("eig", "eigh", "svd", "qr", "solve"))
def test_c64_is_rounded_once(name):
    a = random(6, 6, dtype="c8")
    found, wide = (rlx.jit(ROUNDED[name])(x) for x in (a, a.astype("c16")))
    found, wide = (x if isinstance(x, tuple) else (x,) for x in (found, wide))
    for got, wanted in zip(found, wide, strict=True):
        assert np.asarray(got).dtype in (np.complex64, np.float32)
        np.testing.assert_array_equal(got, np.asarray(wanted).astype(np.asarray(got).dtype))
