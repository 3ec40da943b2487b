"""Effects under transformation: derivatives pass by, effects happen once, and once per example of a batch."""

import numpy as np
import pytest
from derivatives import gradients, mapped, tangent

from rlx import ops
from rlx.autodiff.vectorize import vmap
from rlx.errors import AssertionFailed, AutodiffError, OpError
from rlx.ir.shape import Shape

X = np.arange(6.0).reshape(2, 3)


def test_printing_passes_derivatives_on_and_happens_once(capsys):
    def watched(x):
        return ops.debug_print("seen", x * x)

    np.testing.assert_allclose(gradients(watched, [X], np.ones_like(X))[0], 2 * X)
    np.testing.assert_allclose(tangent(watched, [X], [np.ones_like(X)]), 2 * X)
    assert capsys.readouterr().out == "seen\nseen\n"


def test_a_batch_prints_line_by_line(capsys):
    result = mapped(lambda x, y: ops.debug_print("{:.1f} {}", x, y), [X[0], np.arange(2)], [True, False])
    np.testing.assert_array_equal(result, X[0])
    assert capsys.readouterr().out == "0.0 [0 1]\n1.0 [0 1]\n2.0 [0 1]\n"


def test_nested_maps_print_in_row_major_order(capsys):
    mapped(lambda x: vmap(lambda x: ops.debug_print("{:g}", x))(x), [X])
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3", "4", "5"]


def test_an_empty_batch_prints_nothing(capsys):
    assert ops.DebugPrint("{}", 1)(np.zeros((0, 3))).shape == (0, 3)
    assert capsys.readouterr().out == ""


def test_lanes_must_agree():
    with pytest.raises(OpError, match=r"debug_print: lanes=1 needs that many leading axes, the same for all operands"):
        ops.DebugPrint("{} {}", 1).infer(Shape((2, 3)), Shape((3,)))
    with pytest.raises(OpError, match="lanes=1"):
        ops.DebugPrint("{}", 1).infer(Shape(()))


def test_assertions_hold_for_all_examples():
    def positive_root(x):
        return ops.sqrt(ops.runtime_assert(x > 0, "x must be positive", x))

    np.testing.assert_allclose(gradients(positive_root, [X[1:]], np.ones((1, 3)))[0], 0.5 / np.sqrt(X[1:]))
    np.testing.assert_allclose(mapped(positive_root, [X[1:]]), np.sqrt(X[1:]))
    with pytest.raises(AssertionFailed, match=r"x must be positive \(first at index \[0, 0\] of \[2, 3\]\)"):
        mapped(positive_root, [X])
    with pytest.raises(AssertionError):
        mapped(lambda x, ok: ops.runtime_assert(ok, "no", x), [X[0], np.array([True, False])], [False, True])


def test_callbacks_without_results_pass_derivatives_on():
    seen = []

    def function(x):
        return ops.host_callback(lambda v: seen.append(v.copy()), None, x * x)

    np.testing.assert_allclose(gradients(function, [X], np.ones_like(X))[0], 2 * X)
    assert len(seen) == 1
    mapped(function, [X])
    assert [v.tolist() for v in seen[1:]] == [[0, 1, 4], [9, 16, 25]]


def test_callbacks_with_results_have_no_derivative():
    def function(x):
        return ops.host_callback(np.sin, x, x)

    for transform in (lambda: gradients(function, [X], X), lambda: tangent(function, [X], [X])):
        with pytest.raises(AutodiffError, match=r"host_callback has no .*rlx.custom_vjp"):
            transform()


def test_callbacks_are_called_for_each_example():
    def extremes(x, shift):
        return x.min() + shift, np.sort(x)

    smallest, ordered = mapped(
        lambda x, s: ops.host_callback(extremes, ["f64[]", x], x, s), [-X, np.float64(10)], [True, False]
    )
    np.testing.assert_array_equal(smallest, [8, 5])
    np.testing.assert_array_equal(ordered, np.sort(-X))
