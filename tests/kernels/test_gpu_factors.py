"""Matrices factorised by blocks of a GPU, in the interpreter, against the definitions: sizes below, at and above those
that fill a wave, matrices without factors, and numbers that are none."""

import numpy as np
import pytest

from rlx.compile.compiler import CompilePipeline
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.kernels.emit.llvm_codegen import compile_assembly
from rlx.kernels.from_lir import make_kernel
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.verify import verify
from rlx.kernels.machines import machine_named
from rlx.ops.linalg.factorizations import Lu
from rlx.ops.lowered.factor_steps import CholeskyFactor, SmallCholesky, SmallSolve

SM_90A = machine_named("sm_90a")


def kernel_of(op, *operands, machine=SM_90A, target="cuda"):
    graph = Graph("factors")
    inputs = [graph.input(f"x{i}", x.shape, DType.of(x.dtype.name).name.lower()) for i, x in enumerate(operands)]
    results = graph.append_node(op, inputs)
    graph.set_outputs(results if isinstance(results, tuple) else [results])
    lir = CompilePipeline.new(target).compile(graph).lir
    (kernel,) = (k for k in lir.kernels if k.kind in ("factorize", "solve"))
    made = make_kernel("factor", lir.as_graph(), kernel, machine).kernel
    assert any(a.name == "matrix" for a in made.arrays)
    return made


def ran(op, *operands, seed=None, **chosen):
    """The results of an op by its kernel."""
    kernel = kernel_of(op, *operands, **chosen)
    verify(kernel)
    with np.errstate(all="ignore"):
        wanted = op.eval(*operands)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    results = [np.zeros(w.shape, w.dtype) for w in wanted]
    given = {f"x{i}": x.reshape(-1) for i, x in enumerate(operands)}
    given |= {f"y{i}": y.reshape(-1) for i, y in enumerate(results)}
    interpret(kernel, {p.name: given[p.name] for p in kernel.params}, seed=seed)
    return results, wanted


def check(op, *operands, rtol=1e-9, **chosen):
    results, wanted = ran(op, *operands, **chosen)
    for got, want in zip(results, wanted):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol, err_msg=op.mnemonic)


def positive(count, size, dtype="f8"):
    a = np.random.default_rng(size).standard_normal((count, size, size))
    return (a @ a.transpose(0, 2, 1) + size * np.eye(size)).astype(dtype)


def general(*dims, dtype="f8"):
    return np.random.default_rng(dims[-1]).standard_normal(dims).astype(dtype)


@pytest.mark.parametrize("size", [1, 3, 8, 13, 33])
def test_cholesky(size):
    check(CholeskyFactor(), positive(3 if size < 9 else 1, size))


@pytest.mark.parametrize(("size", "dtype"), [(4, "f4"), (11, "f4"), (6, "f8")])
def test_cholesky_with_what_was_found(size, dtype):
    check(SmallCholesky(), positive(3, size, dtype), rtol=1e-6 if dtype == "f4" else 1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (9, 9), (64, 2), (4, 11), (1, 5), (34, 33)])
def test_lu(shape):
    check(Lu(), general(3 if shape[1] < 9 else 1, *shape))


@pytest.mark.parametrize(
    ("size", "sides", "dtype"), [(1, 1, "f8"), (3, 2, "f4"), (4, 7, "f8"), (9, 3, "f4"), (2, 0, "f8"), (17, 1, "f8")]
)
def test_solve(size, sides, dtype):
    a = general(2, size, size, dtype=dtype) + 3 * np.eye(size, dtype=dtype)
    check(SmallSolve(), a, general(2, size, sides, dtype=dtype), rtol=1e-5 if dtype == "f4" else 1e-9)


def test_solve_of_vectors():
    check(SmallSolve(), general(1, 2, 9, 9), general(1, 2, 9))


@pytest.mark.parametrize(("size", "seed"), [(5, 1), (9, 2)])
def test_threads_may_run_in_any_order(size, seed):
    # Elements as large as others: the first one is the pivot.
    check(Lu(), np.sign(general(2, size, size)), seed=seed)
    check(CholeskyFactor(), positive(2, size), seed=seed)
    check(SmallSolve(), general(2, size, size), general(2, size, 2), seed=seed)


@pytest.mark.parametrize("size", [4, 9])
def test_numbers_that_are_none_and_matrices_without_pivots(size):
    a = general(8, size, size)
    a[1], a[2] = 0, 1
    a[3, 1] = a[3, 2]
    a[4, :, 0] = 0
    a[5, 2, 1], a[6, 0, 0], a[7, size - 1, 0] = np.nan, np.inf, -np.inf
    check(Lu(), a)
    b = general(8, size, 1)
    results, wanted = ran(SmallSolve(), a, b)
    for i in range(8):
        np.testing.assert_array_equal(results[1][i].all(), wanted[1][i].all())
        if wanted[1][i].all():
            np.testing.assert_allclose(results[0][i], wanted[0][i], rtol=1e-9)
    symmetric = positive(6, size)
    symmetric[1] = 0
    symmetric[2, 2, 2] = -1
    symmetric[3, 1, 0], symmetric[4, 2, 2], symmetric[5, 3, 1] = np.nan, np.inf, np.inf
    # What stands above the diagonal is not read.
    symmetric[0, 0, 3] = np.nan
    results, wanted = ran(SmallCholesky(), symmetric)
    for i in range(6):
        np.testing.assert_array_equal(results[1][i].all(), wanted[1][i].all())
        if wanted[1][i].all():
            np.testing.assert_allclose(results[0][i], wanted[0][i], rtol=1e-9)


def test_no_matrices():
    check(Lu(), general(0, 3, 3))


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (CholeskyFactor(), [(8, 77, 77)]),
        (SmallCholesky(), [(8, 32, 32)]),
        (Lu(), [(8, 77, 77)]),
        (Lu(), [(8, 4, 4)]),
        (SmallSolve(), [(8, 32, 32), (8, 32, 1)]),
    ],
)
def test_code(op, shapes):
    kernel = kernel_of(op, *(np.zeros(s) for s in shapes))
    used = sum(a.dtype.size_bytes * a.size for a in kernel.arrays)
    ptx = compile_assembly(kernel, SM_90A)
    assert used <= SM_90A.shared_bytes and ".shared" in ptx and "bar.sync" in ptx and ".local" not in ptx
