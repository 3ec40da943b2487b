"""Functions and ops with derivatives of their own."""

import gc
from functools import partial

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.autodiff import grad_with_loss, jvp, vmap
from rlx.errors import AutodiffError, NoJvpRule, NoVjpRule, NoVmapRule, UnregisteredOp
from rlx.ir.interpret import interpret
from rlx.ops.control.bodies import build_body

rng = np.random.default_rng(4)
X = rng.normal(size=3)


def close(got, expected, tolerance=1e-10):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=tolerance, atol=tolerance)


@rlx.custom_jvp
def log1pexp(x):
    return rnp.log(1 + rnp.exp(x))


@log1pexp.defjvp
def log1pexp_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return log1pexp(x), (1 - 1 / (1 + rnp.exp(x))) * t


def test_custom_jvp_is_used_in_every_mode():
    x = np.float32(100.0)
    with np.errstate(over="ignore"):
        assert float(rlx.jvp(log1pexp, (x,), (np.float32(1),))[1]) == 1.0
        # Through the function itself, inf / inf would be NaN.
        assert float(rlx.grad(log1pexp)(x)) == 1.0
        assert float(rlx.jit(rlx.grad(log1pexp))(x)) == 1.0
        close(rlx.vmap(rlx.grad(log1pexp))(np.array([0.0, 100.0], np.float32)), [0.5, 1.0])
        close(rlx.grad(rlx.grad(log1pexp))(np.float32(0.0)), 0.25, 1e-6)


def test_rules_may_call_their_own_function():
    @rlx.custom_jvp
    def exponential(x):
        return rnp.exp(x)

    @exponential.defjvp
    def rule(primals, tangents):
        y = exponential(*primals)
        return y, 2 * y * tangents[0]

    x = np.float64(0.3)
    derivative = exponential
    for order in range(1, 5):
        derivative = rlx.grad(derivative)
        close(derivative(x), 2**order * np.exp(x))
    close(rlx.vmap(rlx.grad(rlx.grad(exponential)))(X), 4 * np.exp(X))
    close(rlx.jvp(rlx.vmap(rlx.grad(exponential)), (X,), (np.ones(3),))[1], 4 * np.exp(X))


def test_custom_jvp_on_trees_with_constants():
    def power(n, p, scale=1.0):
        return {"y": p["x"] ** n * scale}

    power = rlx.custom_jvp(power, nondiff_argnums=(0,))

    @power.defjvp
    def rule(n, primals, tangents):
        (p, scale), (t, _) = primals, tangents
        return power(n, p, scale), {"y": 10 * n * p["x"] ** (n - 1) * scale * t["x"]}

    gradient = rlx.grad(lambda p: rnp.sum(power(3, p, scale=2.0)["y"]))({"x": X})
    close(gradient["x"], 60 * X**2)


def test_defjvps():
    @rlx.custom_jvp
    def f(x, y):
        return x * y

    f.defjvps(lambda t, value, x, y: 5 * t * y, None)
    close(rlx.grad(f, (0, 1))(np.float64(2), np.float64(3)), [15, 0])


@rlx.custom_vjp
def clipped(x, limit):
    return x * 1.0


def clipped_fwd(x, limit):
    return x * 1.0, (limit, {"unused": x})


def clipped_bwd(residuals, ct):
    limit, _ = residuals
    return rnp.clip(ct, -limit, limit), None


clipped.defvjp(clipped_fwd, clipped_bwd)


def test_custom_vjp():
    def f(x):
        return rnp.sum(clipped(x, 0.5) * np.array([3.0, 0.1, -9.0]))

    expected = [0.5, 0.1, -0.5]
    close(f(X), np.sum(X * np.array([3.0, 0.1, -9.0])))
    close(rlx.grad(f)(X), expected)
    close(rlx.jit(rlx.grad(f))(X), expected)
    close(rlx.vmap(rlx.grad(f))(np.stack([X, X])), [expected, expected])
    # Forward mode differentiates the function itself.
    close(rlx.jvp(f, (X,), (np.ones(3),))[1], 3 + 0.1 - 9)


def test_custom_vjp_sums_over_the_batch_for_shared_arguments():
    @rlx.custom_vjp
    def scale(w, x):
        return w * x

    scale.defvjp(lambda w, x: (w * x, (w, x)), lambda r, ct: (7 * ct * r[1], ct * r[0]))
    rows = rng.normal(size=(4, 3))

    def f(w):
        return rnp.sum(rlx.vmap(scale, (None, 0))(w, rows))

    close(rlx.grad(f)(X), 7 * rows.sum(0))


def test_fwd_runs_only_for_gradients():
    calls = []

    @rlx.custom_vjp
    def f(x):
        calls.append("fun")
        return x * 2

    def fwd(x):
        calls.append("fwd")
        return x * 2, ()

    f.defvjp(fwd, lambda residuals, ct: (ct * 2,))
    rlx.jit(f)(X)
    assert calls == ["fun"]
    rlx.grad(lambda x: rnp.sum(f(x)))(X)
    assert calls == ["fun", "fun", "fwd"]


def test_second_derivatives_go_through_residuals():
    """The gradient is a function of what fwd kept, and that is a function of x."""

    @rlx.custom_vjp
    def root(x):
        return rnp.sqrt(x)

    def fwd(x):
        y = root(x)
        return y, {"y": y}

    root.defvjp(fwd, lambda kept, ct: (ct / (2 * kept["y"]),))
    x = np.array([0.5, 1.0, 3.0])
    close(rlx.vmap(rlx.grad(rlx.grad(root)))(x), -0.25 * x**-1.5)
    close(rlx.vmap(rlx.jacfwd(rlx.grad(root)))(x), -0.25 * x**-1.5)
    close(rlx.grad(rlx.grad(rlx.grad(root)))(x[0]), 0.375 * x[0] ** -2.5)

    def twice(x):
        return rnp.sum(rlx.scan(lambda c, _: (root(c), None), x, length=2)[0])

    close(rlx.jacrev(rlx.grad(rlx.checkpoint(twice)))(x), np.diag(-0.1875 * x**-1.75))


def test_residuals_are_computed_once():
    @rlx.custom_vjp
    def f(x):
        return rnp.sin(x)

    f.defvjp(lambda x: (rnp.sin(x), rnp.cosh(x)), lambda c, ct: (ct * c,))
    graph = rlx.trace(rlx.grad(lambda x: rnp.sum(f(x))), X).graph
    from rlx.ir.rewrite.rebuild import decompose_all

    text = str(decompose_all(graph, keep=lambda node: not node.op.bodies))
    assert text.count("cosh") == 1


def test_custom_vjp_with_constants_and_in_a_scan():
    def root(tolerance, x):
        return rnp.sqrt(x)

    root = rlx.custom_vjp(root, nondiff_argnums=(0,))
    root.defvjp(lambda tolerance, x: (rnp.sqrt(x), x), lambda tolerance, x, ct: (ct * x * tolerance,))

    def f(x):
        return rlx.scan(lambda c, _: (root(0.1, c), None), x, length=2)[0]

    x = np.float64(4.0)
    close(rlx.grad(f)(x), (0.1 * 4.0) * (0.1 * 2.0))


def test_captured_values_have_no_rule():
    def outer(a):
        @rlx.custom_vjp
        def f(x):
            return x * a

        f.defvjp(lambda x: (x, None), lambda r, ct: (ct,))
        return rnp.sum(f(X))

    close(outer(2.0), 2 * X.sum(), 1e-6)
    with pytest.raises(AutodiffError, match="make it an argument"):
        rlx.grad(outer)(np.float64(2.0))


def test_rules_are_checked():
    @rlx.custom_vjp
    def f(x, y):
        return x * y

    def gradient():
        return rlx.grad(f)(np.float64(1), np.float64(2))

    with pytest.raises(AutodiffError, match="call defvjp"):
        gradient()
    f.defvjp(lambda x, y: x * y, lambda r, ct: (ct, ct))
    with pytest.raises(AutodiffError, match=r"fwd must return \(value, residuals\)"):
        gradient()
    f.defvjp(lambda x, y: ((x, y), None), lambda r, ct: (ct, ct))
    with pytest.raises(AutodiffError, match="fwd and the function return different trees"):
        gradient()
    f.defvjp(lambda x, y: (x * y, None), lambda r, ct: ct)
    with pytest.raises(AutodiffError, match="one cotangent for each of the 2 arguments"):
        gradient()
    f.defvjp(lambda x, y: (x * y, None), lambda r, ct: (rnp.ones(3), None))
    with pytest.raises(AutodiffError, match=r"argument 0 that bwd returns is f64\[3\]|f32\[3\]"):
        gradient()
    g = rlx.custom_jvp(lambda x: x)
    with pytest.raises(AutodiffError, match="call defjvp"):
        rlx.grad(g)(np.float64(1))
    g.defjvp(lambda primals, tangents: tangents[0])
    with pytest.raises(AutodiffError, match=r"must return \(value, tangent\)"):
        rlx.grad(g)(np.float64(1))


def test_programs_keep_their_rule_in_text():
    graph = rlx.trace(log1pexp, rlx.Spec((3,), "f64")).graph
    text = str(graph)
    assert rlx.parse(text) == graph
    op = next(n.op for n in graph.nodes if isinstance(n.op, ops.CustomDerivative))
    forgotten = rlx.parse(text.replace(op.rule.key, "log1pexp.999999"))
    close(interpret(forgotten, [X])[0], np.log1p(np.exp(X)))
    with pytest.raises(UnregisteredOp, match=r"log1pexp\.999999"):
        grad_with_loss(forgotten, ["x"])


def test_rules_are_forgotten_with_their_programs():
    def f(x):
        local = rlx.custom_jvp(lambda v: v * 2)
        local.defjvp(lambda p, t: (p[0] * 2, t[0]))
        return local(x)

    from rlx.ops.control import custom_derivatives

    rlx.trace(f, rlx.Spec((), "f64"))
    gc.collect()
    before = len(custom_derivatives._known)
    for _ in range(3):
        rlx.trace(f, rlx.Spec((), "f64"))
    gc.collect()
    assert len(custom_derivatives._known) <= before + 1


# Programs with derivative programs: the graph level.

VECTOR = rlx.Shape((3,), "f64")
SQUARE = build_body("square", lambda x: x * x, x=VECTOR)


def custom_graph(**bodies):
    graph = rlx.Graph("g")
    x = graph.input("x", (3,), "f64")
    graph.set_outputs([rnp.sum(ops.CustomFn(SQUARE, **bodies)(x))])
    return graph


def gradient_of(graph):
    return interpret(grad_with_loss(graph, ["x"], seed=None), {"x": X})[1]


def tangent_of(graph):
    return interpret(jvp(graph, ["x"]), {"x": X, "tangent_x": np.ones(3)})[1]


def test_derivative_programs_are_used():
    vjp_body = build_body("vjp", lambda x, y, d: d * 100, x=VECTOR, primal_output=VECTOR, d_output=VECTOR)
    jvp_body = build_body("jvp", lambda x, t: t * 1000, x=VECTOR, tangent_0=VECTOR)
    graph = custom_graph(vjp_body=vjp_body, jvp_body=jvp_body)
    close(gradient_of(graph), [100] * 3)
    close(tangent_of(graph), 3000)
    batched = vmap(graph, ["x"], 2)
    close(gradient_of(custom_graph(vjp_body=vjp_body)), [100] * 3)
    gradients = interpret(grad_with_loss(batched, ["x"]), {"x": np.stack([X, X]), "d_output": np.ones(2)})[1]
    close(gradients, np.full((2, 3), 100))


def test_missing_programs_fall_back_to_the_function():
    vjp_body = build_body("vjp", lambda x, y, d: d * 100, x=VECTOR, primal_output=VECTOR, d_output=VECTOR)
    jvp_body = build_body("jvp", lambda x, t: t * 1000, x=VECTOR, tangent_0=VECTOR)
    close(tangent_of(custom_graph(vjp_body=vjp_body)), 2 * X.sum())
    close(gradient_of(custom_graph(jvp_body=jvp_body)), 2 * X)
    close(gradient_of(custom_graph()), 2 * X)


def test_saving_programs_return_the_outputs_first():
    saving = build_body("saving", lambda x: (x + x, x), x=VECTOR)
    results = {"primal_output_0": VECTOR, "primal_output_1": VECTOR, "d_output_0": VECTOR, "d_output_1": VECTOR}
    vjp_body = build_body("vjp", lambda x, y, r, dy, dr: dy * r * 3, x=VECTOR, **results)
    close(gradient_of(custom_graph(vjp_body=vjp_body, saving_body=saving)), 3 * X)
    with pytest.raises(rlx.RlxError, match="saving_body must return the outputs of fwd_body"):
        custom_graph(saving_body=build_body("saving", rnp.sum, x=VECTOR))


class Bare(ops.OpExtension):
    def name(self):
        return "test.bare"

    def num_inputs(self):
        return 1

    def infer_shape(self, inputs, attrs):
        return inputs[0]

    def eval(self, arrays, attrs):
        return arrays[0]


def test_custom_ops_without_rules_say_so():
    ops.register_op(Bare())
    graph = rlx.Graph("g")
    graph.set_outputs([ops.custom_op("test.bare", b"", [graph.input("x", (3,), "f64")])])
    with pytest.raises(NoVjpRule, match=r"'test.bare'.*OpExtension does not give vjp"):
        grad_with_loss(graph, ["x"])
    with pytest.raises(NoJvpRule, match="does not give jvp"):
        jvp(graph, ["x"])
    with pytest.raises(NoVmapRule, match="does not give vmap"):
        vmap(graph, ["x"], 2)


class Zero(Bare):
    def name(self):
        return "test.zero"

    def vjp(self, node, context):
        return []

    def jvp(self, node, context):
        return None


def test_custom_ops_may_have_zero_derivatives():
    ops.register_op(Zero())

    def f(x):
        return rnp.sum(x * ops.custom_op("test.zero", b"", [x]))

    close(rlx.grad(f)(X), X)
    close(rlx.jvp(f, (X,), (np.ones(3),))[1], X.sum())


def test_arguments_without_derivatives_are_named():
    @partial(rlx.custom_jvp, nondiff_argnames="power")
    def scaled(x, power, factor):
        return x**power * factor

    @scaled.defjvp
    def scaled_jvp(power, primals, tangents):
        (x, factor), (dx, _) = primals, tangents
        return scaled(x, power, factor), 100 * power * factor * dx

    assert rlx.grad(lambda x: scaled(x, 3, 2.0))(1.0) == 600
    with pytest.raises(rlx.RlxError, match="there is no argument 'exponent'; there are x, power, factor"):
        rlx.custom_vjp(scaled.fun, nondiff_argnames=("exponent",))


def test_residuals_may_hold_sizes_and_other_objects():
    @rlx.custom_vjp
    def pick(x, i):
        return x[i]

    def bwd(residuals, ct):
        shape, i, how = residuals
        return rnp.zeros(shape).at[i].set(ct * how["factor"]), None

    pick.defvjp(lambda x, i: (x[i], (x.shape, i, {"factor": 2.0, "name": "twice"})), bwd)
    x = np.arange(3.0, dtype="f4")
    close(rlx.grad(pick)(x, 1), [0, 2, 0])
    close(rlx.jit(rlx.grad(pick))(x, 2), [0, 0, 2])
    close(rlx.vmap(rlx.grad(pick), (None, 0))(x, np.int32([0, 1])), [[2, 0, 0], [0, 2, 0]])


def test_custom_gradient():
    @rlx.custom_gradient
    def scaled(x, y):
        product = rnp.sin(x) * y
        return product, lambda ct: (ct * product * 7.0, ct * 0.0)

    x, y = np.float64(0.5), np.float64(3.0)
    close(scaled(x, y), np.sin(x) * y)
    close(rlx.grad(scaled, (0, 1))(x, y), [7 * np.sin(x) * y, 0])
    close(rlx.jit(rlx.grad(rlx.custom_gradient(lambda x: (x**2, lambda ct: ct * 5.0))))(x), 5)
    close(rlx.grad(rlx.grad(lambda x: scaled(x, y)))(x), 7 * np.cos(x) * y)


def test_integers_have_zero_gradients_where_they_are_allowed():
    params = {"w": np.float32([1, 2]), "step": np.int32(3), "on": np.array([True])}

    def loss(p):
        return rnp.sum(p["w"] ** 2 * p["step"])

    with pytest.raises(AutodiffError, match="allow_int=True"):
        rlx.grad(loss)(params)
    value, found = rlx.value_and_grad(loss, allow_int=True)(params)
    close(value, 15)
    close(found["w"], [6, 12])
    assert (found["step"].dtype, int(found["step"]), found["on"].tolist()) == (np.int32, 0, [False])
    assert rlx.jit(rlx.grad(loss, allow_int=True))(params)["step"].dtype == np.int32
