"""Dense solves and factorisations as native kernels: against LAPACK within the bounds that theory gives, bit by bit
between threads, interpreter and targets, and with the errors of the reference where there is nothing to find."""

import numpy as np
import pytest
from op_kernel_checks import Program
from scipy.linalg import hilbert, lu_factor

import rlx
from rlx import ops
from rlx.backends.program import command_table
from rlx.errors import OpError
from rlx.ir.tensor import building
from rlx.ops.linalg.factorizations import Lu, Qr, Svd
from rlx.ops.lowered.factor_steps import CholeskyFactor, OrthogonalRows, ReflectedBasis, Reflectors

EPS = {"f8": 2.0**-52, "f4": 2.0**-23}
SIZES = (0, 1, 2, 7, 33, 100)
SHAPES = [(1, 1), (2, 2), (7, 7), (33, 33), (100, 100), (9, 4), (4, 9), (40, 33), (33, 40), (5, 0), (0, 5), (0, 0)]


def compiled(function, *types, device="cpu"):
    graph = rlx.Graph("factorization")
    with building(graph):
        result = function(*(graph.input(f"x{i}", dims, dtype) for i, (dims, dtype) in enumerate(types)))
    graph.set_outputs(result if isinstance(result, tuple | list) else [result])
    return rlx.Session(device).compile(graph)


def run(program, *arrays):
    return [np.asarray(r) for r in program.run(**{f"x{i}": a for i, a in enumerate(arrays)})]


def calls(program):
    """What the host does, of all kernels."""
    lir = program._executable.lir
    return [lir.as_graph().nodes[k.nodes[0]].op.mnemonic for k in lir.kernels if k.kind == "call"]


def native(function, *arrays, checks=0, dims=None):
    """The results on the CPU, the same bits for any number of threads; the host does nothing but `checks` checks."""
    names = {"f8": "f64", "f4": "f32"}
    types = [(d, names[a.dtype.str[1:]]) for a, d in zip(arrays, dims or [a.shape for a in arrays], strict=True)]
    program = compiled(function, *types)
    assert calls(program) == ["require_factors"] * checks
    shared, command_table.WORTH_SHARING = command_table.WORTH_SHARING, 0
    try:
        found = []
        for count in (1, 2, 3):
            with rlx.threads(count):
                found.append(run(program, *arrays))
    finally:
        command_table.WORTH_SHARING = shared
    for others in found[1:]:
        assert [a.tobytes() for a in others] == [a.tobytes() for a in found[0]]
    return found[0]


def random(*dims, dtype="f8", seed=0):
    return np.random.default_rng([seed, *dims]).normal(size=dims).astype(dtype)


def positive(*dims, dtype="f8"):
    a = random(*dims)
    return (a @ a.swapaxes(-1, -2) + np.eye(dims[-1])).astype(dtype)


def turned(a):
    return a.swapaxes(-1, -2)


def largest(a):
    return np.abs(a).max(initial=0.0)


def norm(a):
    """The largest singular value of all matrices."""
    return largest(np.linalg.svd(a, compute_uv=False)) if a.size else 0.0


def check_orthonormal_columns(q, eps):
    rows, columns = q.shape[-2:]
    assert largest(turned(q).astype("f8") @ q - np.eye(columns)) <= 8 * max(rows, 1) * eps


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("columns", [1, 3, 0, 35])
@pytest.mark.parametrize("n", SIZES)
def test_solves(n, columns, dtype):
    a, b = random(2, n, n, dtype=dtype), random(2, n, columns, dtype=dtype)
    (x,) = native(ops.batched_dense_solve, a, b, checks=1)
    check_solution(a, b, x)
    (one,) = native(ops.dense_solve, a[0], b[0], checks=1)
    np.testing.assert_array_equal(one, x[0])


def check_solution(a, b, x):
    """Forward error up to n·eps·cond for both solvers, and one rounding to the dtype."""
    n = a.shape[-1]
    for a1, b1, x1 in zip(a.astype("f8"), b.astype("f8"), x):
        wanted = np.linalg.solve(a1, b1)
        bound = 2 * n * EPS["f8"] * np.linalg.cond(a1) if n else 0.0
        scale = np.linalg.norm(wanted, axis=0)
        rounding = 0.0 if x.dtype == np.float64 else EPS["f4"] / 2
        assert (np.linalg.norm(x1 - wanted, axis=0) <= (bound + rounding) * scale).all()


def test_vectors_as_right_sides():
    a, b = random(3, 7, 7), random(3, 7)
    (x,) = native(ops.batched_dense_solve, a, b, checks=1)
    check_solution(a, b[..., None], x[..., None])
    (inverse,) = native(ops.inv, a, checks=1)
    check_solution(a, np.broadcast_to(np.eye(7), a.shape), inverse)


def test_symbolic_batches_and_sizes():
    a, b = random(3, 9, 9), random(3, 9, 2)
    for dims in ([("B", 9, 9), ("B", 9, 2)], [("B", "N", "N"), ("B", "N", "K")]):
        (x,) = native(ops.batched_dense_solve, a, b, checks=1, dims=dims)
        check_solution(a, b, x)
    a = random(3, 5, 9)
    q, r = native(Qr(), a, dims=[("B", "M", "N")])
    assert largest(q @ r - a) <= 40 * EPS["f8"] * norm(a)
    u, s, vh = native(Svd(), a, checks=1, dims=[("B", "M", "N")])
    assert (u.shape, s.shape, vh.shape) == ((3, 5, 5), (3, 5), (3, 5, 9))
    assert largest((u * s[:, None]) @ vh - a) <= 40 * EPS["f8"] * norm(a)
    w, v = native(ops.eigh, positive(3, 6, 6), dims=[("B", "N", "N")])
    np.testing.assert_allclose((v * w[:, None]) @ turned(v), positive(3, 6, 6), rtol=1e-13, atol=1e-13)


def test_nothing_to_do():
    for function, dims, checks in (
        (ops.cholesky, (0, 3, 3), 1),
        (ops.lu, (0, 3, 3), 0),
        (ops.qr, (0, 4, 3), 0),
        (ops.svd, (0, 4, 3), 1),
        (ops.eigh, (0, 3, 3), 0),
        (ops.pinv, (0, 4, 3), 1),
    ):
        program, reference = (compiled(function, (dims, "f64"), device=d) for d in ("cpu", "reference"))
        assert calls(program) == ["require_factors"] * checks
        shapes = [[r.shape for r in run(p, np.zeros(dims))] for p in (program, reference)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("rows, columns", SHAPES)
def test_lu(rows, columns):
    """|P A - L U| <= n·eps·|L||U|, element by element; pivots are those of LAPACK."""
    a = random(3, rows, columns)
    factors, pivots, permutation = native(Lu(), a)
    k = min(rows, columns)
    for a1, lu, pivot, order in zip(a, factors, pivots, permutation):
        lower, upper = np.tril(lu, -1)[:, :k] + np.eye(rows, k), np.triu(lu)[:k]
        assert (np.abs(lower @ upper - a1[order]) <= (k + 1) * EPS["f8"] * (np.abs(lower) @ np.abs(upper))).all()
        if k:
            np.testing.assert_array_equal(pivot, lu_factor(a1)[1][:k])
        assert largest(lower) <= 1


@pytest.mark.parametrize("n", SIZES)
def test_f32_factors_are_rounded_once(n):
    a, p = random(2, n, n, dtype="f4"), positive(2, n, n, dtype="f4")
    for function, x, checks in ((ops.lu, a, 0), (ops.cholesky, p, 1), (ops.qr, a, 0)):
        narrow, wide = native(function, x, checks=checks), native(function, x.astype("f8"), checks=checks)
        for one, other in zip(narrow, wide, strict=True):
            np.testing.assert_array_equal(one, other.astype(one.dtype))


@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n):
    """|A - L Lᵀ| <= (n + 1)·eps·|L||Lᵀ|, element by element. The upper triangle of A is not read."""
    a = positive(2, n, n)
    (factor,) = native(ops.cholesky, np.tril(a) + np.triu(np.full((n, n), np.nan), 1), checks=1)
    size = np.abs(factor) @ turned(np.abs(factor))
    assert (np.abs(factor @ turned(factor) - a) <= (n + 2) * EPS["f8"] * size).all()
    np.testing.assert_array_equal(factor, np.tril(factor))
    assert (np.diagonal(factor, 0, -2, -1) > 0).all()


@pytest.mark.parametrize("mode", ["reduced", "complete"])
@pytest.mark.parametrize("rows, columns", SHAPES)
def test_qr(rows, columns, mode):
    a = random(2, rows, columns)
    q, r = native(lambda a: ops.qr(a, mode), a)
    wanted_q, wanted_r = np.linalg.qr(a, mode)
    assert (q.shape, r.shape) == (wanted_q.shape, wanted_r.shape)
    eps = max(rows, columns, 1) * EPS["f8"]
    assert largest(q @ r - a) <= 4 * eps * norm(a)
    check_orthonormal_columns(q, EPS["f8"])
    np.testing.assert_array_equal(r, np.triu(r))
    # As LAPACK has them, signs included.
    square = a[..., : min(rows, columns), : min(rows, columns)]
    condition = largest(np.linalg.cond(square)) if square.size else 1.0
    np.testing.assert_allclose(r, wanted_r, rtol=0, atol=4 * eps * condition * norm(a))


@pytest.mark.parametrize(
    "rank_of", [np.zeros((4, 3)), np.ones((4, 3)), np.eye(5, 3)[::-1].copy(), np.diag([0.0, 2, 0])]
)
def test_matrices_of_lower_rank(rank_of):
    a, eps = rank_of, EPS["f8"]
    q, r = native(ops.qr, a)
    assert largest(q @ r - a) <= 8 * eps
    check_orthonormal_columns(q, eps)
    u, s, vh = native(lambda a: ops.svd(a, full_matrices=True), a, checks=1)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=8 * eps)
    assert largest((u[:, : len(s)] * s) @ vh - a) <= 8 * eps
    check_orthonormal_columns(u, eps)
    check_orthonormal_columns(vh.T, eps)
    (inverse,) = native(ops.pinv, a, checks=1)
    np.testing.assert_allclose(inverse, np.linalg.pinv(a), atol=16 * eps)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-310])
def test_squares_neither_overflow_nor_get_lost(scale):
    a = random(6, 4) * scale
    # Below 1e-308 numbers have fewer digits.
    atol = 16 * max(EPS["f8"] * norm(a), 5e-324)
    q, r = native(ops.qr, a)
    assert largest(q @ r - a) <= atol
    (s,) = native(lambda a: ops.svd(a, compute_uv=False), a, checks=1)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("rows, columns", SHAPES)
def test_svd(rows, columns, full, dtype):
    """Singular values within n·eps of the largest one, vectors orthonormal, and their product the matrix."""
    a = random(2, rows, columns, dtype=dtype)
    u, s, vh = native(lambda a: ops.svd(a, full), a, checks=1)
    wide = a.astype("f8")
    wanted = np.linalg.svd(wide, full_matrices=full)
    assert [x.shape for x in (u, s, vh)] == [x.shape for x in wanted]
    assert u.dtype == s.dtype == vh.dtype == a.dtype
    eps, count = EPS[dtype], s.shape[-1]
    bound = 2 * max(rows, columns) * eps * norm(wide)
    assert largest(s - wanted[1]) <= bound
    assert (np.diff(s) <= 0).all()
    assert largest((u[..., :count].astype("f8") * s[..., None, :]) @ vh[..., :count, :] - wide) <= bound
    check_orthonormal_columns(u, eps)
    check_orthonormal_columns(turned(vh), eps)
    (alone,) = native(lambda a: ops.svd(a, compute_uv=False), a, checks=1)
    np.testing.assert_array_equal(alone, s)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_eigh(n, lower, dtype):
    a = random(2, n, n, dtype=dtype)
    w, v = native(lambda a: ops.eigh(a, lower), a)
    wide = a.astype("f8")
    triangle = np.tril(wide) if lower else turned(np.triu(wide))
    whole = triangle + turned(np.tril(triangle, -1))
    bound = 2 * n * EPS[dtype] * norm(whole)
    assert largest(w - np.linalg.eigvalsh(whole)) <= bound
    assert largest(whole @ v - v * w[..., None, :].astype("f8")) <= bound
    check_orthonormal_columns(v, EPS[dtype])
    assert (np.diff(w) >= 0).all()


def test_equal_eigenvalues_and_those_of_both_signs():
    for a in (np.eye(5), -np.eye(5), np.ones((4, 4)), np.array([[0.0, 1.0], [1.0, 0.0]]), np.diag([-3.0, 3.0, 3.0])):
        w, v = native(ops.eigh, a)
        np.testing.assert_allclose(w, np.linalg.eigvalsh(a), atol=1e-14)
        np.testing.assert_allclose(a @ v, v * w, atol=1e-14)
        check_orthonormal_columns(v, EPS["f8"])


def test_hilbert_matrices():
    """Hard, but regular: the condition of the sixth is 1.5e7."""
    a, b = hilbert(6)[None], np.ones((1, 6, 1))
    (x,) = native(ops.batched_dense_solve, a, b, checks=1)
    check_solution(a, b, x)
    (factor,) = native(ops.cholesky, a, checks=1)
    assert largest(factor @ turned(factor) - a) <= 8 * EPS["f8"]
    (s,) = native(lambda a: ops.svd(a, compute_uv=False), a, checks=1)
    # Rotations of rows find small singular values of such matrices to more digits than is promised.
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), rtol=0, atol=8 * EPS["f8"])
    (inverse,) = native(ops.pinv, a, checks=1)
    np.testing.assert_allclose(inverse @ a, np.eye(6)[None], atol=8 * EPS["f8"] * np.linalg.cond(a[0]))


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (2, 33, 20)])
def test_pseudo_inverses(shape):
    for dtype in ("f8", "f4"):
        a = random(*shape, dtype=dtype)
        (inverse,) = native(ops.pinv, a, checks=1)
        wanted = np.linalg.pinv(a.astype("f8"))
        bound = 64 * EPS["f8"] * largest(np.linalg.cond(a.astype("f8"))) + (EPS["f4"] if dtype == "f4" else 0)
        assert largest(inverse - wanted) <= bound * largest(wanted)


# Failures.

SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])
INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])
NOT_NUMBERS = np.array([[np.nan, 0.0], [0.0, 1.0]])
SECOND = np.stack([np.eye(2), SINGULAR])
FAILURES = {
    "dense_solve": (ops.dense_solve, SINGULAR, np.ones(2)),
    "columns": (ops.dense_solve, SINGULAR, np.ones((2, 3))),
    "zero": (ops.dense_solve, np.zeros((3, 3)), np.ones(3)),
    "batched_dense_solve": (ops.batched_dense_solve, SECOND, np.ones((2, 2))),
    "inv": (ops.inv, SECOND),
    "cholesky": (ops.cholesky, INDEFINITE),
    "cholesky of a singular matrix": (ops.cholesky, SINGULAR),
    "cholesky of zero": (ops.cholesky, np.zeros((1, 1))),
    "cholesky in a batch": (ops.cholesky, np.stack([np.eye(2), INDEFINITE])),
    "svd": (ops.svd, NOT_NUMBERS),
    "svd of infinity": (ops.svd, np.diag([np.inf, 1.0, 2.0])),
    "svd of one row": (ops.svd, np.array([[np.nan, 1.0]])),
    "singular values": (lambda a: ops.svd(a, compute_uv=False), NOT_NUMBERS),
    "pinv": (ops.pinv, NOT_NUMBERS),
}


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", FAILURES)
def test_errors_are_those_of_the_reference(name, dtype):
    function, *arrays = FAILURES[name]
    arrays = [a.astype("f8" if dtype == "f64" else "f4") for a in arrays]
    errors = []
    for device in ("reference", "cpu"):
        program = compiled(function, *((a.shape, dtype) for a in arrays), device=device)
        with pytest.raises(OpError) as caught:
            run(program, *arrays)
        errors.append(caught)
    assert errors[0].type is errors[1].type
    assert str(errors[0].value) == str(errors[1].value)


def test_a_failure_leaves_the_program_usable():
    program = compiled(ops.dense_solve, (("N", "N"), "f64"), (("N",), "f64"))
    for n in (2, 3):
        with pytest.raises(OpError, match=rf"a matrix of A \({n}x{n}\) is singular"):
            run(program, np.ones((n, n)), np.ones(n))
        np.testing.assert_array_equal(run(program, 2 * np.eye(n), np.ones(n))[0], np.full(n, 0.5))


def test_what_is_not_a_number_stays_so():
    """Neither NumPy nor the reference find anything wrong with these."""
    (x,) = native(ops.dense_solve, NOT_NUMBERS, np.ones(2), checks=1)
    assert np.isnan(x[0])
    (factor,) = native(ops.cholesky, NOT_NUMBERS, checks=1)
    assert np.isnan(factor[0, 0])
    w, v = native(ops.eigh, NOT_NUMBERS)
    assert np.isnan(w).any() and np.isnan(v).any()


def solved_again_and_again(matrices, x):
    return rlx.scan(lambda x, a: (ops.dense_solve(a, x), x), x, matrices)


def test_scans_are_native_and_their_checks_come_behind_them():
    good = random(3, 2, 2) + 3 * np.eye(2)
    x, xs = native(solved_again_and_again, good, np.ones(2), checks=1)
    wanted = [np.ones(2)]
    for a in good:
        wanted.append(np.linalg.solve(a, wanted[-1]))
    np.testing.assert_allclose([*xs, x], wanted, rtol=1e-13)
    program = compiled(solved_again_and_again, ((3, 2, 2), "f64"), ((2,), "f64"))
    with pytest.raises(OpError, match=r"dense_solve: a matrix of A \(2x2\) is singular"):
        run(program, np.stack([np.eye(2), SINGULAR, np.eye(2)]), np.ones(2))


def test_scans_inside_of_scans():
    def twice(stacks):
        def factors_of_all(carry, matrices):
            return carry, rlx.scan(lambda c, a: (c, (ops.cholesky(a), ops.pinv(a))), np.zeros(()), matrices)[1]

        return rlx.scan(factors_of_all, np.zeros(()), stacks)[1]

    a = positive(2, 3, 4, 4)
    factors, inverses = native(twice, a, checks=2)
    np.testing.assert_allclose(factors, np.linalg.cholesky(a), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(inverses @ a, np.broadcast_to(np.eye(4), a.shape), atol=1e-11)
    a[1, 2] = -np.eye(4)
    with pytest.raises(OpError, match="cholesky: a matrix is not positive definite"):
        run(compiled(twice, (a.shape, "f64")), a)


def test_gradients_of_scans():
    """Gradients of scans: carries are saved, and read again from the last to the first."""

    def loss(matrices, x):
        y, _ = rlx.scan(lambda x, a: (ops.dense_solve(a, x), None), x, matrices)
        return ops.reduce_sum(y * y)

    a, b = random(3, 2, 2) + 3 * np.eye(2), np.ones(2)
    both = [rlx.jit(rlx.grad(loss, argnums=(0, 1)), device=device)(a, b) for device in ("cpu", "reference")]
    for got, wanted in zip(*both, strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-12)


def test_effects_of_a_body_come_before_its_error(capsys):
    def printed(matrices):
        def step(carry, a):
            return carry, ops.cholesky(ops.debug_print("next", a))

        return rlx.scan(step, np.zeros(()), matrices)[1]

    with pytest.raises(OpError, match="not positive definite"):
        run(compiled(printed, ((3, 2, 2), "f64")), np.stack([np.eye(2), INDEFINITE, np.eye(2)]))
    assert capsys.readouterr().out == "next\nnext\n"


def test_while_loops_and_branches_raise_where_they_are():
    """The host runs these: a loop that waits for a number might wait forever for what a failure leaves behind."""

    def until_it_is_small(a, x):
        return rlx.while_loop(lambda x: ops.reduce_max(x) > 1.0, lambda x: ops.dense_solve(a, x), x)

    program = compiled(until_it_is_small, ((2, 2), "f64"), ((2,), "f64"))
    assert calls(program) == ["while"]
    np.testing.assert_array_equal(run(program, 2 * np.eye(2), np.array([7.0, 8.0]))[0], [0.875, 1.0])
    with pytest.raises(OpError, match=r"dense_solve: a matrix of A .* is singular"):
        run(program, SINGULAR, np.array([7.0, 8.0]))

    def factor_if_asked(asked, a):
        return rlx.cond(asked, ops.cholesky, lambda a: a, a)

    program = compiled(factor_if_asked, ((), "bool"), ((2, 2), "f64"))
    np.testing.assert_array_equal(run(program, np.bool_(False), INDEFINITE)[0], INDEFINITE)
    with pytest.raises(OpError, match="cholesky: a matrix is not positive definite"):
        run(program, np.bool_(True), INDEFINITE)


def test_what_cannot_fail_runs_in_native_loops():
    def turned_again_and_again(matrices):
        return rlx.scan(lambda carry, a: (carry, ops.qr(a)), np.zeros(()), matrices)[1]

    a = random(4, 5, 5)
    q, r = native(turned_again_and_again, a)
    np.testing.assert_allclose(q @ r, a, atol=1e-13)


def test_a_solve_with_weights_alone_is_done_when_they_are_set():
    graph = rlx.Graph("weights")
    w, x = graph.param("w", (2, 2), "f64"), graph.input("x", (2, 2), "f64")
    graph.set_outputs([ops.inv(w) @ x])
    program = rlx.Session("cpu").compile(graph)
    program.set_param("w", 2 * np.eye(2))
    np.testing.assert_array_equal(program.run(x=np.eye(2))[0], np.eye(2) / 2)
    with pytest.raises(OpError, match=r"batched_dense_solve: a matrix of A .* is singular"):
        program.set_param("w", SINGULAR)
        program.run(x=np.eye(2))


# Kernels.

KERNELS = {
    "lu": (Lu(), (2, 7, 7)),
    "lu flat": (Lu(), (3, 9)),
    "lu of two panels": (Lu(), (36, 35)),
    "cholesky": (CholeskyFactor(), (2, 9, 9)),
    "reflectors": (Reflectors(), (2, 6, 5)),
    "reflectors flat": (Reflectors(), (3, 9)),
    "orthogonal rows": (OrthogonalRows(), (2, 3, 9)),
    "orthogonal rows of one element": (OrthogonalRows(), (3, 1)),
    "orthogonal rows of many matrices": (OrthogonalRows(), (11, 3, 6)),
    "qr": (Qr(True), (5, 3)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_same_bits_everywhere(name):
    op, dims = KERNELS[name]
    a = positive(*dims) if name == "cholesky" else random(*dims)
    program = Program(lambda a: op(a), (dims, "f64"))
    assert program.kinds[0] == "factorize"
    program.check_everywhere(a)


def test_the_basis_has_the_same_bits_everywhere():
    packed, scales = Reflectors().eval(random(2, 7, 4))
    program = Program(lambda p, s: ReflectedBasis(6)(p, s), ((2, 7, 4), "f64"), ((2, 4), "f64"), kinds=["factorize"])
    program.check_everywhere(packed.copy(), scales)


def test_steps_agree_with_their_definitions():
    a = random(2, 9, 6)
    for got, wanted in zip(native(Reflectors(), a), Reflectors().eval(a), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-13, atol=1e-14)
    for p in (positive(2, 6, 6), np.stack([np.eye(2), INDEFINITE])):
        np.testing.assert_allclose(native(CholeskyFactor(), p)[0], CholeskyFactor().eval(p), rtol=1e-13)
    rotated, rotation, lengths, is_found = native(OrthogonalRows(), a)
    np.testing.assert_allclose(rotation @ a, rotated, atol=1e-13)
    gram = rotated @ turned(rotated)
    np.testing.assert_allclose(gram, gram * np.eye(9), atol=1e-13)
    np.testing.assert_allclose(np.sort(lengths), np.sort(OrthogonalRows().eval(a)[2]), atol=1e-13)
    assert is_found.all()
    assert native(OrthogonalRows(), np.stack([a[0], np.full((9, 6), np.inf)]))[3].tolist() == [True, False]


@pytest.mark.parametrize("dims", [(8, 1, 1), (9, 2, 3), (3, 5, 4, 9), (10, 12, 5), (17, 5, 21)])
def test_rows_of_many_matrices_are_orthogonal(dims):
    """Lanes are matrices here: some that need no rotation, that are 0, of any size, and that are not finite."""
    a = random(*dims)
    flat = a.reshape(-1, *dims[-2:])
    flat[1], flat[2], flat[3], flat[4] = 0, flat[2] * 1e200, flat[3] * 1e-200, np.eye(*dims[-2:])
    flat[5, 0, -1], flat[6, -1, 0] = np.nan, -np.inf
    rotated, rotation, lengths, is_found = (
        x.reshape(len(flat), *x.shape[len(dims) - 2 :]) for x in native(OrthogonalRows(), a)
    )
    assert is_found.tolist() == np.isfinite(flat).all((1, 2)).tolist()
    for i in np.flatnonzero(is_found):
        size = np.abs(flat[i]).max() or 1.0
        np.testing.assert_allclose(rotation[i] @ (flat[i] / size), rotated[i] / size, atol=1e-14 * dims[-1])
        gram = (rotated[i] / size) @ (rotated[i] / size).T
        np.testing.assert_allclose(gram, gram * np.eye(dims[-2]), atol=1e-14 * dims[-1])
        np.testing.assert_allclose(rotation[i] @ rotation[i].T, np.eye(dims[-2]), atol=1e-14)
        np.testing.assert_allclose(np.sqrt(np.diag(gram)), lengths[i] / size, atol=1e-14)
