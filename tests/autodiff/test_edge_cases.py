"""Derivatives where generated tests cannot look: kinks, zeros, infinities, defined derivatives, names of ops."""

from __future__ import annotations

import numpy as np
import pytest

from rlx.autodiff.graphs import GradWithLossOptions, grad_with_loss_opts, hvp, jvp
from rlx.errors import AutodiffError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ops.pointwise import arithmetic, bits, complex_numbers, unary
from rlx.ops.pointwise.conversion import cast
from rlx.ops.reduction import cumulative, reductions, sort, window_reductions
from rlx.ops.reduction.cumulative import cumprod, logcumsumexp
from rlx.ops.reduction.reductions import reduce_max, reduce_prod, reduce_sum


def graph_of(fn, *arrays):
    """A graph with inputs x0, x1, ... and the one output fn(x0, x1, ...)."""
    graph = Graph("case")
    with building(graph):
        graph.set_outputs([fn(*(graph.input(f"x{i}", Shape(a.shape, a.dtype)) for i, a in enumerate(arrays)))])
    return graph


def named(arrays):
    return {f"x{i}": a for i, a in enumerate(arrays)}


def gradients(fn, *values):
    """The gradient of the sum of fn's results with respect to every argument."""
    arrays = [np.asarray(v) for v in values]
    backward = grad_with_loss_opts(graph_of(fn, *arrays), list(named(arrays)), GradWithLossOptions.TRAINING, None)
    return interpret(backward, named(arrays))[1:]


def hessian(fn, x):
    """Of the sum of fn's results, a column per direction."""
    graph = hvp(graph_of(lambda v: reduce_sum(fn(v)), x), ["x0"])
    return np.stack([interpret(graph, {"x0": x, "tangent_x0": e})[-1] for e in np.eye(len(x))])


def ops_in_gradient(fn, *values):
    arrays = [np.asarray(v) for v in values]
    backward = grad_with_loss_opts(graph_of(fn, *arrays), list(named(arrays)), GradWithLossOptions.TRAINING)
    return {node.op.mnemonic for node in backward.nodes}


def guarded_log(x):
    positive = x > 0.0
    return arithmetic.where(positive, unary.log(arithmetic.where(positive, x, 1.0)), 0.0)


@pytest.mark.parametrize(
    ("fn", "x", "expected"),
    [
        (unary.sqrt, [0.0, 4.0], [np.inf, 0.25]),
        (unary.relu, [0.0, -1.0, 2.0], [0.0, 0.0, 1.0]),
        (unary.abs_, [0.0, -3.0, 3.0], [1.0, -1.0, 1.0]),
        (unary.round_, [0.4, 1.5, -2.6], [1.0, 1.0, 1.0]),
        (unary.floor, [0.4, 1.5], [0.0, 0.0]),
        (unary.sign, [0.0, -2.0], [0.0, 0.0]),
        (unary.stop_gradient, [1.0, 2.0], [0.0, 0.0]),
        (lambda x: x * unary.stop_gradient(x), [3.0, 5.0], [3.0, 5.0]),
        (lambda x: x**2, [0.0, -3.0], [0.0, -6.0]),
        (lambda x: x**1.0, [0.0, 2.0], [1.0, 1.0]),
        (lambda x: x**0.0, [0.0, 2.0], [0.0, 0.0]),
        (lambda x: arithmetic.clamp(x, -1.0, 1.0), [-2.0, 0.5, 3.0], [0.0, 1.0, 0.0]),
        (lambda x: arithmetic.floordiv(x, 2.0), [3.0], [0.0]),
        (
            lambda x: arithmetic.where(x > 0.0, unary.log(arithmetic.where(x > 0.0, x, 1.0)), 0.0),
            [0.0, 2.0],
            [0.0, 0.5],
        ),
    ],
)
def test_gradients_at_edges(fn, x, expected):
    np.testing.assert_array_equal(gradients(fn, x)[0], expected)


@pytest.mark.parametrize(
    ("fn", "a", "b", "expected"),
    [
        (arithmetic.maximum, 2.0, 2.0, (0.5, 0.5)),
        (arithmetic.minimum, 2.0, 2.0, (0.5, 0.5)),
        (arithmetic.hypot, 0.0, 0.0, (0.5, 0.5)),
        (arithmetic.atan2, 0.0, 0.0, (np.nan, np.nan)),
        (arithmetic.pow_, 0.0, 3.0, (0.0, 0.0)),
        (arithmetic.pow_, -2.0, 3.0, (12.0, np.nan)),
        (arithmetic.pow_, 0.0, 0.0, (0.0, 0.0)),
        (arithmetic.logaddexp, -np.inf, -np.inf, (0.5, 0.5)),
        (arithmetic.logaddexp, 1000.0, -1000.0, (1.0, 0.0)),
        (arithmetic.rem, 7.5, 2.0, (1.0, -3.0)),
        (arithmetic.rem, -7.5, 2.0, (1.0, 3.0)),
        (arithmetic.copysign, -3.0, 2.0, (-1.0, 0.0)),
    ],
)
def test_gradients_of_two_operands_at_edges(fn, a, b, expected):
    np.testing.assert_array_equal([float(g) for g in gradients(fn, a, b)], expected)


def test_remainder_counts_whole_divisors_where_the_quotient_rounds_up():
    a, b = 1.0, 0.1
    # 0.1 is a little more than a tenth, so it goes nine times into 1; the rounded quotient says ten.
    assert a / b == 10.0
    assert np.fmod(a, b) > 0.09
    assert float(gradients(arithmetic.rem, a, b)[1]) == -9.0


def test_powers_have_all_derivatives_at_zero():
    x = np.zeros(1)
    np.testing.assert_array_equal(hessian(lambda v: v**3, x), [[0.0]])
    np.testing.assert_array_equal(hessian(lambda v: v**2, x), [[2.0]])
    np.testing.assert_array_equal(hessian(lambda v: v**1, x), [[0.0]])


@pytest.mark.parametrize("zeros", [(), (1,), (0, 2)])
def test_products_with_zeros(zeros):
    x = np.array([2.0, 3.0, -1.5, 4.0])
    x[list(zeros)] = 0.0
    others = [np.prod(np.delete(x, i)) for i in range(4)]
    np.testing.assert_allclose(gradients(reduce_prod, x)[0], others)
    pairs = [[0.0 if i == j else np.prod(np.delete(x, (i, j))) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(hessian(reduce_prod, x), pairs)


@pytest.mark.parametrize("zeros", [(), (1,), (0, 2)])
def test_running_products_with_zeros(zeros):
    x = np.array([2.0, 3.0, -1.5, 4.0])
    x[list(zeros)] = 0.0
    expected = [sum(np.prod(np.delete(x[:n], i)) for n in range(i + 1, 5)) for i in range(4)]
    np.testing.assert_allclose(gradients(cumprod, x)[0], expected)
    pairs = [
        [sum(np.prod(np.delete(x[:n], (i, j))) for n in range(max(i, j) + 1, 5)) if i != j else 0.0 for j in range(4)]
        for i in range(4)
    ]
    np.testing.assert_allclose(hessian(cumprod, x), pairs)


def test_window_products_with_zeros():
    x = np.array([2.0, 0.0, 3.0, 0.0])
    grads = gradients(lambda v: window_reductions.reduce_window(v, "prod", (2,)), x)[0]
    np.testing.assert_array_equal(grads, [0.0, 2.0 + 3.0, 0.0, 3.0])


def test_running_logsumexp_of_vanishing_terms():
    x = np.array([-np.inf, -np.inf, 0.0, 1000.0])
    np.testing.assert_allclose(gradients(logcumsumexp, x)[0], [0.0, 0.0, 1.0, 1.0])


def test_equal_extremes_share_the_gradient():
    np.testing.assert_array_equal(gradients(reduce_max, np.array([1.0, 3.0, 3.0]))[0], [0.0, 0.5, 0.5])


def test_equal_extremes_of_windows_give_it_to_the_first():
    x = np.array([[1.0, 1.0], [1.0, 1.0]])
    grads = gradients(lambda v: window_reductions.reduce_window(v, "max", (2, 2)), x)[0]
    np.testing.assert_array_equal(grads, [[1.0, 0.0], [0.0, 0.0]])


def test_extremes_of_nothing_have_no_gradient_and_no_nan():
    x = np.zeros((0, 3))
    assert gradients(lambda v: reduce_max(v, 0), x)[0].shape == (0, 3)
    forward = jvp(graph_of(lambda v: reduce_max(v, 0), x), ["x0"])
    np.testing.assert_array_equal(interpret(forward, {"x0": x, "tangent_x0": x})[1], np.zeros(3))


def test_means_of_many_halves_do_not_overflow_their_count():
    x = np.ones(70_000, np.float16)
    (grad,) = gradients(reductions.reduce_mean, x)
    np.testing.assert_allclose(grad[:3].astype(np.float64), 1 / 70_000, rtol=0.05)


def test_softmax_of_masked_scores():
    x = np.array([0.0, -np.inf, 0.0])
    graph = jvp(graph_of(reductions.softmax, x), ["x0"])
    tangent = interpret(graph, {"x0": x, "tangent_x0": np.array([1.0, 5.0, 0.0])})[1]
    np.testing.assert_allclose(tangent, [0.25, 0.0, -0.25])


def test_sorting_moves_gradients_back():
    x, weights = np.array([3.0, 1.0, 2.0]), np.array([10.0, 20.0, 30.0])
    np.testing.assert_array_equal(gradients(lambda v: sort.sort(v) * weights, x)[0], [30.0, 10.0, 20.0])
    np.testing.assert_array_equal(gradients(lambda v: sort.top_k(v, 2)[0] * weights[:2], x)[0], [10.0, 0.0, 20.0])


def test_conversion_passes_derivatives_through_floats_only():
    x = np.array([1.25, -2.5], np.float32)
    for narrow in ("f16", "bf16", "f8e4m3"):
        grads = gradients(lambda v, to=narrow: cast(cast(v, to), "f32") * 3.0, x)[0]
        assert grads.dtype == np.float32
        np.testing.assert_array_equal(grads, [3.0, 3.0])
    np.testing.assert_array_equal(gradients(lambda v: cast(cast(v, "i32"), "f32"), x)[0], [0.0, 0.0])


def test_narrow_cotangents_add_up():
    x = np.array([0.5, 1.0], np.float32)

    def twice(v):
        stored = cast(v, "f8e4m3")
        return cast(stored, "f32") + cast(stored, "f32") * 2.0

    np.testing.assert_array_equal(gradients(twice, x)[0], [3.0, 3.0])


def test_the_gradient_of_the_squared_modulus_is_z():
    z = np.array([1.0 + 2.0j, -3.0j])
    np.testing.assert_array_equal(gradients(complex_numbers.complex_norm_sq, z)[0], z)


def test_real_functions_through_complex_numbers_have_their_real_gradient():
    x, y = np.array([3.0, -1.0]), np.array([4.0, 0.5])
    squared = gradients(lambda a, b: complex_numbers.complex_norm_sq(complex_numbers.complex_(a, b)), x, y)
    np.testing.assert_array_equal(squared, [2 * x, 2 * y])
    parts = gradients(lambda a: complex_numbers.real(unary.exp(cast(a, "c128"))), x)[0]
    np.testing.assert_allclose(parts, np.exp(x))
    # Im(e^{ix}) = sin x.
    turned = gradients(lambda a: complex_numbers.imag(unary.exp(complex_numbers.complex_(a * 0.0, a))), x)[0]
    np.testing.assert_allclose(turned, np.cos(x))


@pytest.mark.parametrize(
    ("fn", "mnemonic"),
    [
        (unary.gelu, "activation_backward"),
        (unary.relu, "relu_backward"),
        (lambda x: cumulative.cumsum(x, 0), "cumsum_backward"),
        (lambda x: complex_numbers.complex_norm_sq(cast(x, "c128")), "complex_norm_sq_backward"),
    ],
)
def test_first_class_backward_ops(fn, mnemonic):
    assert mnemonic in ops_in_gradient(fn, np.ones(3))


def test_reinterpreted_bits_have_no_derivative():
    with pytest.raises(AutodiffError, match="bitcast has no gradient: bits have no derivative"):
        gradients(lambda x: bits.bitcast(x, "f64"), np.ones(3))
