"""Recomputation in reverse mode: what is kept, how often steps run, and that values do not change."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.autodiff import grad_with_loss
from rlx.ir.interpret import interpret
from rlx.ops.control.bodies import build_body
from rlx.ops.control.scan_rules import saved_carries

rng = np.random.default_rng(3)


def scan_graph(length, checkpoints, **settings):
    """Σ c² of the final carry (or of the trajectory) of c = tanh(w c + x)² - 0.5, and Σ y²."""
    graph = rlx.Graph("loop")
    c, w = graph.input("c", (2,), "f64"), graph.input("w", (), "f64")
    xs = graph.input("xs", (length, 2), "f64")
    vector = rlx.Shape((2,), "f64")
    body = build_body(
        "step", lambda c, w, x: (rnp.tanh(w * c + x) ** 2 - 0.5, c * x), carry=vector, w=rlx.Shape((), "f64"), x=vector
    )
    op = ops.Scan(body, length, num_bcast=1, num_xs=1, num_checkpoints=checkpoints, **settings)
    final, ys = op(c, w, xs)
    graph.set_outputs([rnp.sum(final * final) + rnp.sum(ys * ys)])
    return graph


def saved_at_once(graph):
    """The most carries that are kept at any time: those of all scans of a program, and those inside the one that
    needs most."""
    own, inside = 0, 0
    for node in graph.nodes:
        if isinstance(node.op, ops.Scan):
            own += node.op.length * len(saved_carries(node.op))
        inside = max([inside, *(saved_at_once(body) for body in node.op.bodies.values())])
    return own + inside


def runs(graph, mnemonic):
    """How often an op is executed, loops counted."""
    total = 0
    for node in graph.nodes:
        total += node.op.mnemonic == mnemonic
        times = node.op.length if isinstance(node.op, ops.Scan) else 1
        total += times * sum(runs(body, mnemonic) for body in node.op.bodies.values())
    return total


def values(length):
    r = np.random.default_rng(length)
    return {"c": r.normal(size=2), "w": np.float64(0.7), "xs": r.normal(size=(length, 2))}


def gradients(graph, length):
    return interpret(grad_with_loss(graph, ["c", "w", "xs"], seed=None), values(length))


@pytest.mark.parametrize("length", [1, 2, 7, 12, 16])
@pytest.mark.parametrize("reverse", [False, True])
def test_values_and_gradients_are_those_without_checkpoints(length, reverse):
    expected = gradients(scan_graph(length, 0, reverse=reverse), length)
    for checkpoints in range(1, length + 1):
        graph = scan_graph(length, checkpoints, reverse=reverse)
        for got, wanted in zip(gradients(graph, length), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 7, 12])
@pytest.mark.parametrize("reverse", [False, True])
def test_saved_trajectories(length, reverse):
    """The rows of a trajectory with K checkpoints are rows of the whole one, and so are their gradients."""
    whole = scan_graph(length, 0, reverse=reverse, save_trajectory=True)
    every = gradients(scan_graph(length, length, reverse=reverse, save_trajectory=True), length)
    for got, wanted in zip(gradients(whole, length), every, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)
    for checkpoints in range(1, length):
        graph = scan_graph(length, checkpoints, reverse=reverse, save_trajectory=True)
        _, dc, dw, dxs = gradients(graph, length)
        start = values(length)
        for name, gradient in (("c", dc), ("w", dw), ("xs", dxs)):
            direction = rng.normal(size=np.shape(start[name]))
            moved = [interpret(graph, start | {name: start[name] + h * direction})[0] for h in (1e-5, -1e-5)]
            np.testing.assert_allclose(np.sum(gradient * direction), (moved[0] - moved[1]) / 2e-5, rtol=1e-6)


def test_every_carry_is_kept_without_checkpoints():
    backward = grad_with_loss(scan_graph(100, 0), ["c", "w", "xs"], seed=None)
    assert saved_at_once(backward) == 100
    assert runs(backward, "tanh") == 200


@pytest.mark.parametrize(
    ("length", "checkpoints"), [(100, 10), (100, 20), (100, 50), (1000, 40), (97, 10), (99, 30), (99, 70)]
)
def test_memory_with_checkpoints(length, checkpoints):
    backward = grad_with_loss(scan_graph(length, checkpoints), ["c", "w", "xs"], seed=None)
    # K between the segments, and those inside the longest one.
    assert saved_at_once(backward) <= checkpoints - (-length // checkpoints)
    # The value, the segment again, and the step again: one recomputation more than without checkpoints.
    assert runs(backward, "tanh") <= 3 * length


@pytest.mark.parametrize(
    ("length", "checkpoints", "limit"), [(1000, 10, 30), (4096, 8, 32), (1024, 2, 20), (64, 1, 13)]
)
def test_memory_with_few_checkpoints(length, checkpoints, limit):
    """Segments longer than K are cut again: K carries at each of about log(length) / log(K) levels."""
    backward = grad_with_loss(scan_graph(length, checkpoints), ["c", "w", "xs"], seed=None)
    levels = int(np.ceil(np.log(length) / np.log(max(checkpoints, 2))))
    assert saved_at_once(backward) <= limit
    assert runs(backward, "tanh") <= (levels + 2) * length


def test_only_what_the_backward_needs_is_saved():
    """A carry that enters linearly is not read by the backward step."""

    def f(w, xs):
        def step(carry, x):
            total, h = carry
            return (total + rnp.sum(h), rnp.sin(w * h + x)), None

        return rlx.scan(step, (0.0, xs[0] * 0), xs)[0][0]

    gradient = rlx.trace(rlx.grad(f), np.float64(1.0), np.zeros((10, 3)))
    forward = next(n.op for n in gradient.graph.nodes if isinstance(n.op, ops.Scan))
    assert list(saved_carries(forward)) == [1]


def test_sums_of_weight_gradients_are_not_saved_at_second_order():
    def f(w, xs):
        return rnp.sum(rlx.scan(lambda c, x: (rnp.tanh(w @ c + x), None), xs[0], xs)[0])

    w, xs = rng.normal(size=(3, 3)), rng.normal(size=(10, 3))
    twice = rlx.trace(rlx.grad(lambda w: rnp.sum(rlx.grad(f)(w, xs) ** 2)), w)
    for node in twice.graph.nodes:
        if isinstance(node.op, ops.Scan):
            for carry in saved_carries(node.op):
                assert node.op.body.inputs[carry].shape.dims != (3, 3)


def test_scan_function_takes_checkpoints():
    xs = rng.normal(size=(20, 3))

    def f(c, checkpoints):
        return rnp.sum(rlx.scan(lambda c, x: (rnp.sin(c + x), c), c, xs, num_checkpoints=checkpoints)[0])

    got, expected = (np.asarray(rlx.grad(f)(xs[0], k)) for k in (4, 0))
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    second = [np.asarray(rlx.hessian(f)(xs[0], k)) for k in (4, 0)]
    np.testing.assert_allclose(*second, rtol=1e-10, atol=1e-14)
    batch = [np.asarray(rlx.vmap(rlx.grad(f), (0, None))(xs, k)) for k in (4, 0)]
    np.testing.assert_allclose(*batch, rtol=1e-12, atol=1e-14)


def test_symbolic_lengths():
    def f(c, xs, checkpoints):
        final, ys = rlx.scan(lambda c, x: (rnp.sin(c + x), c * x), c, xs, num_checkpoints=checkpoints)
        return rnp.sum(final) + rnp.sum(ys)

    xs, results = rng.normal(size=(7, 2)), []
    for checkpoints in (0, 3):
        gradient = rlx.value_and_grad(lambda c, xs, k=checkpoints: f(c, xs, k), (0, 1))
        graph = rlx.trace(gradient, rlx.Spec(("B",), "f64"), rlx.Spec(("S", "B"), "f64")).graph
        results.append(interpret(graph, [xs[0], xs]))
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def block(x):
    return rnp.tanh(rnp.sin(x) * rnp.exp(x))


def test_checkpoint_keeps_values_and_derivatives():
    x = rng.normal(size=4)

    def plain(x):
        return rnp.sum(block(block(x)))

    def saved(x):
        return rnp.sum(rlx.checkpoint(block)(rlx.checkpoint(block)(x)))

    for transform in (
        lambda f: f,
        rlx.grad,
        rlx.hessian,
        rlx.jacfwd,
        lambda f: rlx.grad(lambda x: rnp.sum(rlx.grad(f)(x) ** 2)),
    ):
        np.testing.assert_allclose(np.asarray(transform(saved)(x)), np.asarray(transform(plain)(x)), rtol=1e-10)
    rows = rng.normal(size=(3, 4))
    np.testing.assert_allclose(*(np.asarray(rlx.vmap(rlx.grad(f))(rows)) for f in (saved, plain)), rtol=1e-12)


def test_checkpoint_recomputes_behind_a_barrier():
    graph = rlx.trace(rlx.value_and_grad(lambda x: rnp.sum(rlx.checkpoint(block)(x))), rlx.Spec((4,), "f64")).graph
    text = str(rlx.autodiff.cse(ops_only(graph)).graph)
    # Once for the value and once for the gradient, also when equal nodes are merged.
    assert text.count(" = sin(") == 2
    assert " = barrier(" in text
    without = rlx.trace(rlx.value_and_grad(lambda x: rnp.sum(block(x))), rlx.Spec((4,), "f64")).graph
    assert str(rlx.autodiff.cse(without).graph).count(" = sin(") == 1


def ops_only(graph):
    """With the checkpointed programs taken apart, as a compiler does it."""
    from rlx.ir.rewrite.rebuild import decompose_all

    return decompose_all(graph, keep=lambda node: not isinstance(node.op, ops.Checkpoint))


def test_checkpoint_as_decorator_with_static_arguments_and_closures():
    scale = 3.0

    @rlx.checkpoint(static_argnums=1)
    def f(tree, mode):
        assert isinstance(mode, str)
        return {"y": tree["x"] ** 2 * scale}

    gradient = rlx.grad(lambda t: rnp.sum(f(t, "train")["y"]))({"x": np.arange(3.0)})
    np.testing.assert_allclose(gradient["x"], 6 * np.arange(3.0))

    def outer(a):
        return rnp.sum(rlx.remat(lambda x: x * a)(a))

    np.testing.assert_allclose(rlx.grad(outer)(np.arange(3.0)), 2 * np.arange(3.0))


def test_arguments_of_jax():
    """`prevent_cse` is a hint to XLA."""
    close = rlx.checkpoint(lambda x: x * x, prevent_cse=False)
    assert rlx.jit(rlx.grad(close), inline=True, keep_unused=True)(np.float32(3)) == 6


def two_layers(w, x):
    hidden = rlx.checkpoint_name(rnp.sin(x @ w), "hidden")
    scores = rnp.einsum("bi,bj->bij", hidden, x)
    return rnp.sum(rnp.cos(hidden @ w)) + rnp.sum(rnp.exp(scores @ scores.mT))


POLICIES = rlx.checkpoint_policies
BOTH = POLICIES.save_from_both_policies(POLICIES.dots_saveable, POLICIES.save_only_these_names("hidden"))


# How many are not computed a second time: of sin(x @ w), of both products with w, and of that of scores.
@pytest.mark.parametrize(
    ("policy", "sines", "layers", "scores"),
    [
        (None, 0, 0, 0),
        (POLICIES.nothing_saveable, 0, 0, 0),
        (POLICIES.everything_saveable, 1, 2, 1),
        (POLICIES.dots_saveable, 0, 2, 1),
        (POLICIES.dots_with_no_batch_dims_saveable, 0, 2, 0),
        (POLICIES.save_only_these_names("hidden", "other"), 1, 0, 0),
        (POLICIES.save_any_names_but_these("hidden"), 0, 0, 0),
        (POLICIES.save_anything_except_these_names("hidden"), 1, 2, 1),
        (BOTH, 1, 2, 1),
        (lambda op, *operands: op.mnemonic == "sin" and operands[0].dims == (3, 4), 1, 0, 0),
    ],
)
def test_a_policy_says_what_is_kept(policy, sines, layers, scores):
    w, x = rng.normal(size=(4, 4)), rng.normal(size=(3, 4))
    kept = rlx.checkpoint(two_layers, policy=policy)
    for a, b in zip(rlx.grad(kept, (0, 1))(w, x), rlx.grad(two_layers, (0, 1))(w, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    program, again = (rlx.make_graph(rlx.grad(f))(w, x) for f in (kept, rlx.checkpoint(two_layers)))
    assert rlx.parse(str(program)) == program

    def products(graph, dims):
        own = sum(n.op.mnemonic == "matmul" and n.shapes[0].dims == dims for n in graph.nodes)
        return own + sum(products(body, dims) for n in graph.nodes for body in n.op.bodies.values())

    assert runs(again, "sin") - runs(program, "sin") == sines
    assert products(again, (3, 4)) - products(program, (3, 4)) == layers
    assert products(again, (3, 4, 4)) - products(program, (3, 4, 4)) == scores


@pytest.mark.parametrize("policy", [POLICIES.dots_saveable, BOTH, POLICIES.everything_saveable])
def test_derivatives_of_derivatives_with_a_policy(policy):
    w, x = rng.normal(size=(4, 4)), rng.normal(size=(3, 4))
    kept = rlx.checkpoint(two_layers, policy=policy)
    wanted = rlx.hessian(lambda s: two_layers(s * w, x))(0.5)
    np.testing.assert_allclose(rlx.hessian(lambda s: kept(s * w, x))(0.5), wanted, rtol=1e-10)
    np.testing.assert_allclose(rlx.grad(rlx.grad(lambda s: kept(s * w, x)))(0.5), wanted, rtol=1e-10)
    rows = rlx.vmap(rlx.grad(kept, 1), (None, 0))(w, x[:, None])
    np.testing.assert_allclose(rows, rlx.vmap(rlx.grad(two_layers, 1), (None, 0))(w, x[:, None]), rtol=1e-12)
    along = rlx.jvp(lambda w: kept(w, x), (w,), (w,))[1]
    np.testing.assert_allclose(along, rlx.jvp(lambda w: two_layers(w, x), (w,), (w,))[1], rtol=1e-12)
