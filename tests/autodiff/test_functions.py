"""Derivatives of Python functions: values, trees, options, and compositions."""

from typing import NamedTuple

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.errors import AutodiffError

rng = np.random.default_rng(0)
X = rng.normal(size=5)
W = rng.normal(size=(5, 3))


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=tolerance, atol=tolerance)


def numeric_gradient(fn, x, step=1e-5):
    """Central differences of a scalar function of one array."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        unit = np.zeros_like(x)
        unit[i] = step
        gradient[i] = (float(fn(x + unit)) - float(fn(x - unit))) / (2 * step)
    return gradient


def energy(x):
    return rnp.sum(rnp.tanh(x @ W) ** 2) + rnp.sum(rnp.cos(x) * x[0])


def test_grad_is_the_gradient():
    gradient = rlx.grad(energy)(X)
    assert isinstance(gradient, rlx.Array)
    close(gradient, numeric_gradient(energy, X), 1e-8)


def test_value_and_grad():
    value, gradient = rlx.value_and_grad(energy)(X)
    close(value, energy(X))
    close(gradient, rlx.grad(energy)(X))


def test_grad_of_python_numbers():
    assert float(rlx.grad(lambda x: x**3)(2.0)) == 12.0
    assert rlx.grad(lambda x: x**3)(2.0).dtype == np.float32


class Layer(NamedTuple):
    w: np.ndarray
    b: np.ndarray


def network(layers, x):
    for layer in layers["hidden"]:
        x = rnp.tanh(x @ layer.w + layer.b)
    return rnp.sum(x * layers["out"])


def test_grad_has_the_structure_of_its_argument():
    layers = {
        "hidden": [Layer(rng.normal(size=(3, 4)), rng.normal(size=4)), Layer(rng.normal(size=(4, 2)), np.zeros(2))],
        "out": rng.normal(size=2),
    }
    x = rng.normal(size=(6, 3))
    gradients = rlx.grad(network)(layers, x)
    assert isinstance(gradients["hidden"][1], Layer)
    close(
        gradients["hidden"][0].w,
        numeric_gradient(
            lambda w: network({**layers, "hidden": [Layer(w, layers["hidden"][0].b), layers["hidden"][1]]}, x),
            layers["hidden"][0].w,
        ),
        1e-7,
    )
    assert gradients["out"].shape == (2,)


def test_argnums():
    def f(a, b, c):
        return rnp.sum(a * b**2 * c)

    a, b, c = X, X + 1, X + 2
    close(rlx.grad(f, argnums=1)(a, b, c), 2 * a * b * c)
    close(rlx.grad(f, argnums=-1)(a, b, c), a * b**2)
    both = rlx.grad(f, argnums=(2, 0))(a, b, c)
    assert isinstance(both, tuple)
    close(both[0], a * b**2)
    close(both[1], b**2 * c)
    (single,) = rlx.grad(f, argnums=(0,))(a, b, c)
    close(single, b**2 * c)


def test_has_aux():
    def f(x):
        return rnp.sum(x**2), {"doubled": 2 * x, "count": 3}

    gradient, aux = rlx.grad(f, has_aux=True)(X)
    close(gradient, 2 * X)
    close(aux["doubled"], 2 * X)
    (value, aux), gradient = rlx.value_and_grad(f, has_aux=True)(X)
    close(value, np.sum(X**2))
    assert int(aux["count"]) == 3


def test_other_arguments_stay_python_values():
    def loss(x, mode, *, steps, train=False):
        for _ in range(steps):
            x = rnp.sin(x) if mode == "sin" else x
        return rnp.sum(x) if train else rnp.sum(x * 0)

    close(rlx.grad(loss)(X, "sin", steps=1, train=True), np.cos(X))
    close(rlx.grad(loss)(X, "sin", steps=2), 0 * X)


def test_unused_arguments_have_zero_gradients():
    gradients = rlx.grad(lambda p: p["a"] ** 2)({"a": 3.0, "b": np.ones((2, 2), "f4")})
    close(gradients["b"], np.zeros((2, 2)))
    assert gradients["b"].dtype == np.float32


def test_integers_do_not_carry_derivatives():
    def f(x, n):
        return rnp.sum(x * n)

    close(rlx.grad(f)(X, np.int32(3)), np.full(5, 3.0))
    with pytest.raises(AutodiffError, match="'n' is i32"):
        rlx.grad(f, argnums=1)(X, np.int32(3))


def test_loss_must_be_a_real_scalar():
    with pytest.raises(AutodiffError, match="must return one real float scalar"):
        rlx.grad(lambda x: x * 2)(X)
    with pytest.raises(AutodiffError, match="must return one real float scalar"):
        rlx.grad(lambda x: rnp.sum(x > 0))(X)
    with pytest.raises(AutodiffError, match=r"must return \(value, aux\)"):
        rlx.grad(rnp.sum, has_aux=True)(X)
    with pytest.raises(AutodiffError, match="argnums=3"):
        rlx.grad(rnp.sum, argnums=3)(X)


def test_jvp():
    t = rng.normal(size=5)
    value, tangent = rlx.jvp(energy, (X,), (t,))
    close(value, energy(X))
    close(tangent, numeric_gradient(energy, X) @ t, 1e-8)
    value, tangent, aux = rlx.jvp(lambda x: (x**2, x + 1), (X,), (t,), has_aux=True)
    close(tangent, 2 * X * t)
    close(aux, X + 1)


def test_jvp_checks_its_tangents():
    with pytest.raises(AutodiffError, match="structure of the primals"):
        rlx.jvp(energy, (X,), ({"x": X},))
    with pytest.raises(AutodiffError, match=r"\(4,\)"):
        rlx.jvp(energy, (X,), (X[:4],))


def test_vjp():
    def f(x, p):
        return {"a": x * p["s"], "b": rnp.sum(x)}

    value, pull = rlx.vjp(f, X, {"s": 2.0})
    close(value["a"], 2 * X)
    ct = rng.normal(size=5)
    gx, gp = pull({"a": ct, "b": 3.0})
    close(gx, 2 * ct + 3)
    close(gp["s"], np.sum(ct * X), 1e-6)
    # The same pullback again, and for another cotangent.
    close(pull({"a": 2 * ct, "b": 0.0})[0], 4 * ct)
    with pytest.raises(AutodiffError, match="structure of the result"):
        pull(ct)
    with pytest.raises(AutodiffError, match=r"shape \(2,\) at 'a'; it must be that of the result, f64\[5\]"):
        pull({"a": ct[:2], "b": 3.0})


def test_vjp_has_aux_and_integer_results():
    value, pull, aux = rlx.vjp(lambda x: ((rnp.sin(x), rnp.argmax(x)), x[0]), X, has_aux=True)
    close(value[1], np.argmax(X))
    close(aux, X[0])
    close(pull((np.ones(5), 0))[0], np.cos(X))


def test_linearize_computes_the_function_once():
    calls = []

    def f(x):
        calls.append(1)
        return rnp.exp(x) * x

    value, push = rlx.linearize(f, X)
    assert len(calls) == 1
    for t in (np.ones(5), X):
        close(push(t), np.exp(X) * (1 + X) * t)
    assert len(calls) == 1
    close(value, np.exp(X) * X)


def test_hvp():
    v = rng.normal(size=5)
    difference = (rlx.grad(energy)(X + 1e-5 * v) - rlx.grad(energy)(X - 1e-5 * v)) / 2e-5
    close(rlx.hvp(energy, (X,), (v,)), np.asarray(difference), 1e-7)
    hx, hy = rlx.hvp(lambda x, y: rnp.sum(x**2 * y), (X, X), (v, 0 * v))
    close(hx, 2 * X * v)
    close(hy, 2 * X * v)


def test_jacobians():
    def f(x):
        return rnp.sin(x[:3]), {"q": x[:, None] * x}

    expected = np.diag(np.cos(X))[:3]
    for transform in (rlx.jacrev, rlx.jacfwd):
        jacobian = transform(f)(X)
        close(jacobian[0], expected)
        assert jacobian[1]["q"].shape == (5, 5, 5)
        close(jacobian[1]["q"], np.einsum("ik,j->ijk", np.eye(5), X) + np.einsum("jk,i->ijk", np.eye(5), X))


def test_jacobian_of_several_arguments_and_aux():
    def f(a, p):
        return a * p["s"], p["s"]

    for transform in (rlx.jacrev, rlx.jacfwd):
        (ja, jp), aux = transform(f, argnums=(0, 1), has_aux=True)(X, {"s": np.float64(2.0)})
        close(ja, 2 * np.eye(5))
        close(jp["s"], X)
        close(aux, 2.0)


def test_hessian_matches_differences_of_the_gradient():
    hessian = np.asarray(rlx.hessian(energy)(X))
    differences = np.stack(
        [np.asarray(rlx.grad(energy)(X + e) - rlx.grad(energy)(X - e)) / 2e-5 for e in 1e-5 * np.eye(5)]
    )
    close(hessian, differences, 1e-7)
    close(hessian, hessian.T)


def test_jacobian_needs_float_arguments():
    with pytest.raises(AutodiffError, match="i32"):
        rlx.jacrev(lambda n: n * 2.0)(np.arange(3, dtype=np.int32))


COMPOSITIONS = {
    "grad of jit": lambda f: rlx.grad(rlx.jit(f)),
    "jit of grad": lambda f: rlx.jit(rlx.grad(f)),
    "jvp of vjp": lambda f: lambda x: rlx.jvp(lambda y: rlx.vjp(f, y)[1](1.0)[0], (x,), (0 * x,))[0],
    "vjp in jit": lambda f: rlx.jit(lambda x: rlx.vjp(f, x)[1](1.0)[0]),
    "linearize in jit": lambda f: rlx.jit(lambda x: rlx.vmap(rlx.linearize(f, x)[1])(np.eye(5))),
    "jacrev": rlx.jacrev,
    "jacfwd in jit": lambda f: rlx.jit(rlx.jacfwd(f)),
    "checkpoint": lambda f: rlx.grad(rlx.checkpoint(f)),
    "vmap of grad": lambda f: lambda x: rlx.vmap(rlx.grad(f))(x[None])[0],
    "grad of vmap": lambda f: rlx.grad(lambda x: rnp.sum(rlx.vmap(f)(x[None]))),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions_agree(name):
    close(COMPOSITIONS[name](energy)(X), np.asarray(rlx.grad(energy)(X)))


def test_third_order_through_all_modes():
    def f(x):
        return rnp.sin(x) * rnp.exp(x)

    x = 0.7
    # (sin x · e^x)''' = 2 e^x (cos x - sin x)
    expected = 2 * np.exp(x) * (np.cos(x) - np.sin(x))
    orders = [
        rlx.grad(rlx.grad(rlx.grad(f))),
        rlx.jacfwd(rlx.jacfwd(rlx.jacfwd(f))),
        rlx.grad(rlx.jacfwd(rlx.grad(f))),
        rlx.jit(rlx.jacfwd(rlx.jit(rlx.grad(rlx.jit(rlx.jacrev(f)))))),
    ]
    for derivative in orders:
        close(derivative(np.float64(x)), expected)


def test_closures_over_traced_values():
    def outer(a):
        return rnp.sum(rlx.grad(lambda x: rnp.sum(a * x**2))(X) * a)

    close(rlx.grad(outer)(X), 4 * X * X)


def test_transforms_on_graph_tensors():
    graph = rlx.Graph("g")
    x = graph.input("x", (3,), "f64")
    graph.set_outputs([rlx.grad(lambda v: rnp.sum(v**3))(x)])
    (result,) = rlx.Session("reference").compile(graph).run({"x": X[:3]})
    close(result, 3 * X[:3] ** 2)


def test_complex_gradients_are_conjugate_wirtinger():
    z = X[:3] + 1j * X[2:]
    # L = |z|²: dL/d conj(z) = z.
    close(rlx.grad(lambda z: rnp.sum(rnp.real(z * rnp.conj(z))))(z), z)


def test_equal_programs_are_compiled_once(monkeypatch):
    from rlx.autodiff import calls

    compiled = []
    monkeypatch.setattr(calls, "_programs", type(calls._programs)())
    original = calls.compile_graph
    monkeypatch.setattr(calls, "compile_graph", lambda graph, *rest: compiled.append(graph) or original(graph, *rest))
    for scale in (1.0, 2.0, 3.0):
        rlx.grad(lambda x: rnp.sum(x**2))(scale * X)
    assert len(compiled) == 1


def test_gradients_do_not_leak_into_other_programs():
    def f(x):
        return rlx.stop_gradient(x) * x

    close(rlx.grad(f)(np.float64(3.0)), 3.0)
    tree = rlx.stop_gradient({"a": X, "n": (1, 2)})
    close(tree["a"], X)


def test_stop_gradient_hides_what_has_no_rule():
    def f(x):
        return x * rlx.ops.Bitcast("f64")(rlx.stop_gradient(x))

    close(rlx.grad(f)(np.float64(3.0)), 3.0)


@pytest.mark.parametrize(
    ("cuts", "is_joined"),
    [
        ([(0, 2), (2, 3), (5, 1)], True),
        ([(4, 2), (0, 3)], True),  # with a gap
        ([(1, 2), (4, 1)], True),  # and with ends that nobody reads
        ([(0, 4), (2, 4)], False),  # what is read twice is added up
        ([(1, 3)], False),
    ],
)
def test_gradients_of_parts_are_joined(cuts, is_joined):
    """Parts that lie side by side become one array again, without zeros around each of them."""
    weights = [rng.normal(size=(3, size)) for _, size in cuts]

    def loss(x):
        parts = [ops.narrow(x, 1, start, size) for start, size in cuts]
        return sum(rnp.sum(w * p * p) for w, p in zip(weights, parts))

    x = rng.normal(size=(3, 6))
    wanted = np.zeros((3, 6))
    for (start, size), w in zip(cuts, weights):
        wanted[:, start : start + size] += 2 * w * x[:, start : start + size]
    np.testing.assert_allclose(rlx.grad(loss)(x), wanted, rtol=1e-12)
    kinds = [node.op.mnemonic for node in rlx.trace(rlx.grad(loss), x).graph.nodes]
    assert ("pad" not in kinds) == is_joined and kinds.count("concat") == is_joined
    second = rlx.jacfwd(rlx.grad(loss))(x).reshape(18, 18)
    np.testing.assert_allclose(second, np.diag((wanted / x).reshape(-1)), rtol=1e-12)


def test_jacobians_of_holomorphic_functions():
    z = np.array([1 + 2j, 0.5 - 1j])
    for transform in (rlx.jacfwd, rlx.jacrev):
        close(np.asarray(transform(lambda z: z**3, holomorphic=True)(z)), np.diag(3 * z**2))
        with pytest.raises(rlx.RlxError, match="holomorphic=True needs complex"):
            transform(lambda x: x**2, holomorphic=True)(X)
    close(np.asarray(rlx.hessian(lambda z: rnp.sum(z**3), holomorphic=True)(z)), np.diag(6 * z))


def test_primals_that_are_no_tuple():
    with pytest.raises(AutodiffError, match=r"tangents are a tuple .*; write \(tangent,\)"):
        rlx.jvp(rnp.sin, (X,), X)
