"""Repeated differentiation: exact derivatives of powers, directions, losses on derivatives."""

import math
from itertools import pairwise

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import autodiff, ops
from rlx.errors import AutodiffError
from rlx.ir.interpret import interpret

rng = np.random.default_rng(7)


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


def graph_of(fn, dims=(), dtype="f64", name="f"):
    graph = rlx.Graph(name)
    graph.set_outputs([fn(graph.input("x", dims, dtype))])
    return graph


@pytest.mark.parametrize("power", [1, 3, 5])
def test_derivatives_of_powers_are_exact(power):
    graph = graph_of(lambda x: x**power)
    for order in range(power + 2):
        derivative = autodiff.nth_order_grad(graph, "x", order)
        factor = math.perm(power, order)
        assert float(interpret(derivative, [np.float64(2.0)])[0]) == factor * 2.0 ** max(power - order, 0)


def test_names_and_structure():
    graph = graph_of(rnp.sin, name="wave")
    assert autodiff.nth_order_grad(graph, "x", 0) is graph
    third = autodiff.nth_order_grad(graph, "x", 3)
    assert third.name == "wave_d3"
    assert len(third.outputs) == 1
    assert not any("Backward" in rlx.kind_of(n.op) for n in third.nodes)
    close(interpret(third, [np.float64(0.4)])[0], -np.cos(0.4))


def test_what_does_not_depend_has_zero_derivatives():
    graph = rlx.Graph("constant")
    x, y = graph.input("x", (2,), "f32"), graph.input("y", (), "f32")
    graph.set_outputs([y * y])
    result = interpret(autodiff.nth_order_grad(graph, "x", 2), {"x": np.ones(2, "f4"), "y": np.float32(3)})[0]
    close(result, np.zeros(2))
    assert result.dtype == np.float32
    # Piecewise linear: no second derivative, and no error.
    close(interpret(autodiff.nth_order_grad(graph_of(ops.relu), "x", 2), [np.float64(1.0)])[0], 0)
    del x


def test_tensors_are_differentiated_as_sums():
    x = rng.normal(size=3)
    close(interpret(autodiff.nth_order_grad(graph_of(lambda x: rnp.sum(x**4), (3,)), "x", 2), [x])[0], 12 * x**2)


def test_options():
    options = autodiff.HigherOrderOptions.new()
    assert options.fuse_elementwise
    assert not autodiff.HigherOrderOptions().fuse_elementwise
    graph = graph_of(lambda x: rnp.exp(x) * x)
    fused = autodiff.nth_order_grad_with_options(graph, "x", 2, options)
    close(interpret(fused, [np.float64(0.5)])[0], np.exp(0.5) * 2.5)


def test_fusion_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("RLX_HIGHER_ORDER_NO_FUSE", "1")
    assert not autodiff.HigherOrderOptions.new().fuse_elementwise


def test_wrong_orders():
    with pytest.raises(AutodiffError, match="cannot be negative"):
        autodiff.nth_order_grad(graph_of(rnp.sin), "x", -1)
    graph = graph_of(rnp.sin)
    graph.set_outputs([*graph.outputs, *graph.outputs])
    with pytest.raises(AutodiffError, match="must have one output"):
        autodiff.nth_order_grad(graph, "x", 1)


def test_directional_derivatives():
    x, u, v, w = rng.normal(size=(4, 3))

    def f(x):
        return rnp.sum(rnp.sin(x[0] * x) * x[1])

    graph = graph_of(f, (3,))
    first = autodiff.directional_nth_grad(graph, "x", ["u"])
    assert [n.name for n in first.inputs] == ["x", "dir_0"]
    close(interpret(first, {"x": x, "dir_0": u})[0], np.asarray(rlx.grad(f)(x)) @ u)
    second = autodiff.directional_nth_grad(graph, "x", ["v", "v"])
    close(interpret(second, {"x": x, "dir_0": v, "dir_1": v})[0], v @ np.asarray(rlx.hessian(f)(x)) @ v)
    third = autodiff.directional_nth_grad(graph, "x", ["u", "v", "w"])
    along = {"dir_0": u, "dir_1": v, "dir_2": w}
    tensor = np.asarray(rlx.jacfwd(rlx.hessian(f))(x))
    close(interpret(third, {"x": x} | along)[0], np.einsum("ijk,i,j,k", tensor, u, v, w))


def test_scalars_are_not_expanded():
    graph = graph_of(lambda x: x * rnp.broadcast_to(2.0, (3,)) + 1.0, (3,))
    peeled = autodiff.peel_scalar_expands(graph)
    assert "expand" not in str(peeled.graph)
    x = rng.normal(size=3)
    close(interpret(peeled.graph, [x])[0], 2 * x + 1)
    # The only operand that gives the result its shape must keep it.
    graph = graph_of(lambda x: x * rnp.broadcast_to(2.0, (3,)))
    close(interpret(autodiff.peel_scalar_expands(graph).graph, [np.float64(1.0)])[0], [2, 2, 2])


# Energies and forces: E = Σ_i softplus(k) |x_i|² + Σ_{i<j} q / |x_i - x_j|.


def energy_graph(shape=()):
    graph = rlx.Graph("energy")
    x, k = graph.input("x", (3, 2), "f64"), graph.param("k", (), "f64")
    pairs = x[:, None] - x[None]
    distance = rnp.sqrt(rnp.sum(pairs**2, -1) + 1.0)
    graph.set_outputs([rnp.reshape(k * rnp.sum(x**2) + k**2 * rnp.sum(1 / distance), shape)])
    return graph


def energy_and_forces(x, k):
    pairs = x[:, None] - x[None]
    distance = np.sqrt(np.sum(pairs**2, -1) + 1.0)
    energy = k * np.sum(x**2) + k**2 * np.sum(1 / distance)
    return energy, -(2 * k * x - 2 * k**2 * np.sum(pairs / distance[..., None] ** 3, 1))


def test_grad_subgraph():
    x, k = rng.normal(size=(3, 2)), np.float64(0.8)
    energy, forces = energy_and_forces(x, k)
    for build in (autodiff.grad_subgraph, autodiff.grad_subgraph_for_jvp):
        graph = build(energy_graph(), ["x"])
        assert [n.name for n in graph.inputs] == ["x"]
        close(interpret(graph, {"x": x, "k": k})[0], energy)
        close(interpret(graph, {"x": x, "k": k})[1], -forces)
    t = rng.normal(size=(3, 2))
    assert len(interpret(rlx.jvp(graph, ["x"]), {"x": x, "k": k, "tangent_x": t})) == 4


@pytest.mark.parametrize("shape", [(), (1,)])
def test_force_energy_loss_and_its_parameter_gradient(shape):
    x, forces, energy = rng.normal(size=(3, 2)), rng.normal(size=(3, 2)), np.float64(1.3)
    weights = autodiff.ForceEnergyLossWeights(force=0.7, energy=0.3)
    loss = autodiff.build_force_energy_loss(energy_graph(shape), "x", "f_ref", "e_ref", weights)
    references = {"x": x, "f_ref": forces, "e_ref": energy}

    def expected(k):
        e, f = energy_and_forces(x, k)
        return 0.7 * np.mean((f - forces) ** 2) + 0.3 * (e - energy) ** 2

    k = np.float64(0.8)
    value, gradient = interpret(autodiff.grad_with_loss(loss, ["k"], seed=None), references | {"k": k})
    close(value, expected(k))
    close(gradient, (expected(k + 1e-6) - expected(k - 1e-6)) / 2e-6, 1e-7)


def test_force_energy_loss_needs_one_energy():
    graph = energy_graph()
    graph.set_outputs([graph.leaf("x").id])
    with pytest.raises(AutodiffError, match="must have one element"):
        autodiff.build_force_energy_loss(graph, "x", "f", "e")


def test_physics_informed_network_with_third_derivatives():
    """The residual u_t + u u_x + u_xxx of a small network, and its gradient in the weights."""
    sizes = [2, 5, 1]
    params = [(rng.normal(size=(a, b)), rng.normal(size=b)) for a, b in pairwise(sizes)]

    def u(params, x, t):
        h = rnp.stack([x, t])
        for w, b in params[:-1]:
            h = rnp.tanh(h @ w + b)
        w, b = params[-1]
        return (h @ w + b)[0]

    def residual(params, x, t):
        u_x = rlx.grad(u, 1)
        u_xxx = rlx.grad(rlx.grad(u_x, 1), 1)
        return rlx.grad(u, 2)(params, x, t) + u(params, x, t) * u_x(params, x, t) + u_xxx(params, x, t)

    points = rng.normal(size=(6, 2))

    def loss(params):
        return rnp.mean(rlx.vmap(residual, (None, 0, 0))(params, points[:, 0], points[:, 1]) ** 2)

    # The third derivative of one tanh layer in closed form.
    (w, b), (v, c) = params
    z = points @ w + b
    th = np.tanh(z)
    sech = 1 - th**2
    first = (sech * w[0]) @ v
    third = ((-2 * sech**2 + 4 * th**2 * sech) * w[0] ** 3) @ v
    expected = (sech * w[1]) @ v + (th @ v + c) * first + third
    close(loss(params), np.mean(expected**2))

    gradients = rlx.jit(rlx.grad(loss))(params)
    direction = [tuple(rng.normal(size=p.shape) for p in layer) for layer in params]

    def moved(h):
        return [tuple(p + h * d for p, d in zip(*layers)) for layers in zip(params, direction)]

    slope = sum(np.sum(np.asarray(g) * d) for gs, ds in zip(gradients, direction) for g, d in zip(gs, ds))
    close(slope, (float(loss(moved(1e-5))) - float(loss(moved(-1e-5)))) / 2e-5, 1e-6)


# Where a first derivative has a value by convention or by a limit, the second one is still that of the function.
@pytest.mark.parametrize(
    ("function", "at", "second"),
    [
        (lambda x: rnp.logaddexp(x, 0.0), 0.0, 0.25),
        (rlx.nn.softplus, 0.0, 0.25),
        (rlx.nn.log_sigmoid, 0.0, -0.25),
        (lambda x: rnp.logaddexp2(x, 1.0), 1.0, math.log(2) / 4),
        (lambda x: rlx.scipy.special.xlogy(x, x + 2.0), 0.0, 1.0),
        (lambda x: rlx.scipy.special.xlog1py(x, x + 1.0), 0.0, 1.0),
        # Of (2 + x)^x it is log(2)² + 2/2.
        (lambda x: (2.0 + x) ** x, 0.0, math.log(2) ** 2 + 1),
    ],
)
def test_second_derivatives_where_the_first_is_special(function, at, second):
    at = np.float64(at)
    found = [rlx.hessian(function)(at), rlx.grad(rlx.grad(function))(at), rlx.jacfwd(rlx.jacfwd(function))(at)]
    np.testing.assert_allclose(found, second, rtol=1e-12)


def test_third_derivative_of_lgamma():
    for x, wanted in ((1.0, -2.404113806319188), (2.0, -0.4041138063191886), (5.0, -0.04878973224511449)):
        np.testing.assert_allclose(rlx.grad(rlx.grad(rlx.grad(rlx.lgamma)))(np.float64(x)), wanted, rtol=1e-9)
