"""Calls of small programs: how many Python functions each enters, and that the fast road takes the same care."""

import sys

import numpy as np
import pytest

import rlx
from rlx.errors import BindingError, OpError

X = np.arange(4, dtype="f4")


def graph():
    g = rlx.Graph("three")
    a, b = g.input("a", ("N",)), g.input("b", ("N",))
    g.set_outputs([(a + b) * 3.0 - b])
    return g


def functions_entered(call):
    """Python functions that a call enters, when it has been made before."""
    for _ in range(3):
        call()
    entered = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered[1:]  # without the lambda of the test


def test_a_jitted_call_enters_few_functions():
    f = rlx.jit(lambda a, b: (a + b) * 3.0 - b)
    entered = functions_entered(lambda: f(X, X))
    assert len(entered) <= 19, entered


def test_a_run_enters_few_functions():
    compiled = rlx.Session("cpu").compile(graph())
    given = {"a": X, "b": X}
    entered = functions_entered(lambda: compiled.run(given))
    assert len(entered) <= 14, entered


def test_a_solve_whose_matrix_is_checked_enters_few_functions():
    """The flags are looked at when the kernels are done, without a call of the host in between."""
    f = rlx.jit(rlx.linalg.solve)
    a, b = np.diag([2.0, 4.0, 8.0]), np.ones(3)
    entered = functions_entered(lambda: f(a, b))
    assert len(entered) <= 22, entered
    with pytest.raises(OpError, match=r"singular"):
        f(np.ones((3, 3)), b)
    np.testing.assert_array_equal(f(a, b), [0.5, 0.25, 0.125])
    both = rlx.jit(lambda a, b: (rlx.linalg.cholesky(a), rlx.linalg.solve(a, b)))
    both(a, b)
    with pytest.raises(OpError, match=r"not positive definite"):
        both(-a, b)


@pytest.fixture(params=["run", "jit"])
def three(request):
    if request.param == "jit":
        return rlx.jit(lambda a, b: (a + b) * 3.0 - b)
    compiled = rlx.Session("cpu").compile(graph())
    return lambda a, b: compiled.run(a=a, b=b)[0]


def strided(array):
    return np.repeat(array, 2)[::2]


def unaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    moved = raw[1:].view(array.dtype)
    moved[...] = array
    return moved


@pytest.mark.parametrize("kind", [np.copy, strided, unaligned, rlx.numpy.asarray])
def test_arrays_of_all_kinds(three, kind):
    rng = np.random.default_rng(3)
    for size in (4, 1, 0, 300, 4, 300):
        a, b = rng.normal(size=(2, size)).astype("f4")
        found = three(kind(a), b)
        np.testing.assert_array_equal(found, (a + b) * np.float32(3) - b)
        assert isinstance(found, rlx.Array) and not found.flags.writeable


def test_results_are_arrays_of_their_own(three):
    first = three(X, X)
    kept = np.array(first)
    second = three(X + 1, X)
    assert not np.may_share_memory(first, second) and not np.may_share_memory(first, X)
    np.testing.assert_array_equal(first, kept)


def test_wrong_sizes_and_types_are_refused_as_before():
    compiled = rlx.Session("cpu").compile(graph())
    compiled.run(a=X, b=X)
    with pytest.raises(BindingError, match="N"):
        compiled.run(a=X, b=X[:2])
    with pytest.raises(BindingError, match="declared f32"):
        compiled.run(a=X, b=X.astype("f8"))
    with pytest.raises(BindingError, match="no value for input 'b'"):
        compiled.run(a=X)
    with pytest.raises(BindingError, match="has no input 'c'"):
        compiled.run(a=X, c=X)
    assert compiled.run(a=X, b=X)[0][1] == 5


def test_a_jitted_function_is_part_of_a_program_that_is_traced():
    """Also where its arguments are arrays, which the fast road would take."""
    inner = rlx.jit(lambda a, b: (a + b) * 3.0 - b)
    inner(X, X)
    outer = rlx.jit(lambda a: a + inner(X, X))
    kinds = {n.op.mnemonic for n in outer.trace(X).graph.nodes}
    assert "constant" in kinds and "mul" in kinds
    np.testing.assert_array_equal(outer(X), X + X * 5)


def test_calls_with_static_arguments_and_other_types_keep_apart():
    f = rlx.jit(lambda a, n: a * n, static_argnums=1)
    assert f(X, 2)[1] == 2 and f(X, 3)[1] == 3
    g = rlx.jit(lambda a: a * 2)
    assert [g(X.astype(t)).dtype for t in ("f4", "f8", "i4", "f4")] == ["f4", "f8", "i4", "f4"]
    g.clear_cache()
    g(X)
    assert g.cache_info().misses == 4 and g.cache_info().entries == 1
