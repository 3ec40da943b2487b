"""Loops and branches under transformation, against the same programs unrolled in Python."""

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import ops
from rlx.errors import UnboundedWhile

rng = np.random.default_rng(2)
L = 5
XS = rng.normal(size=(L, 3))
W = rng.normal(size=(3, 3)) / 2
C0 = rng.normal(size=3)


def close(got, expected, tolerance=1e-10):
    for a, b in zip(rlx.tree.leaves(got), rlx.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def unrolled(step, init, xs, reverse=False):
    """`rlx.scan` as a Python loop."""
    carry, ys = init, []
    length = len(rlx.tree.leaves(xs)[0])
    for t in reversed(range(length)) if reverse else range(length):
        carry, y = step(carry, rlx.tree.map(lambda x, t=t: x[t], xs))
        ys.append(y)
    if reverse:
        ys.reverse()
    return carry, rlx.tree.map(lambda *rows: rnp.stack(rows), *ys)


def cell(w):
    """Two carries, one of them an integer, a weight that every step reads, and two results per step."""

    def step(carry, x):
        h, count = carry
        h = rnp.tanh(h @ w + x) * (count + 1)
        return (h, count + 1), (rnp.sum(h**2), x * h[0])

    return step


def loss(loop, reverse=False):
    def f(w, c, xs):
        (h, count), (norms, rows) = loop(cell(w), (c, 0), xs, reverse=reverse)
        return rnp.sum(h * rnp.sin(h)) + rnp.sum(norms * rnp.arange(L)) + rnp.sum(rows[1] * rows[3]) + count

    return f


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_scan_is_that_of_the_unrolled_loop(reverse):
    arguments = (W, C0, XS)
    for numbers in ((0, 1, 2), (0,), (2,)):
        got = rlx.value_and_grad(loss(rlx.scan, reverse), numbers)(*arguments)
        close(got, rlx.value_and_grad(loss(unrolled, reverse), numbers)(*arguments))


def test_second_order_of_scan():
    v = rng.normal(size=(3, 3))
    got = rlx.hvp(lambda w: loss(rlx.scan)(w, C0, XS), (W,), (v,))
    expected = rlx.hvp(lambda w: loss(unrolled)(w, C0, XS), (W,), (v,))
    close(got, expected)
    reverse_twice = rlx.grad(lambda w: rnp.sum(rlx.grad(loss(rlx.scan))(w, C0, XS) * v))(W)
    close(reverse_twice, expected)


def test_forward_mode_of_scan():
    t = tuple(rng.normal(size=np.shape(a)) for a in (W, C0, XS))
    close(rlx.jvp(loss(rlx.scan), (W, C0, XS), t), rlx.jvp(loss(unrolled), (W, C0, XS), t))
    # Only some operands move.
    got = rlx.jvp(lambda c: loss(rlx.scan)(W, c, XS), (C0,), (t[1],))
    close(got, rlx.jvp(lambda c: loss(unrolled)(W, c, XS), (C0,), (t[1],)))


@pytest.mark.parametrize("axes", [(None, None, 0), (0, None, None), (None, 0, 1), (0, 0, 0)])
def test_batch_of_scan_and_of_its_gradient(axes):
    shapes = [W.shape, C0.shape, XS.shape]
    arrays = [rng.normal(size=s if a is None else (*s[:a], 2, *s[a:])) / 2 for s, a in zip(shapes, axes)]
    rows = [tuple(x if a is None else np.take(x, i, a) for x, a in zip(arrays, axes)) for i in range(2)]
    for make in (lambda f: f, lambda f: rlx.grad(f, (0, 2))):
        got = rlx.vmap(make(loss(rlx.scan)), axes)(*arrays)
        expected = [make(loss(unrolled))(*r) for r in rows]
        close(got, rlx.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *expected))


def test_nested_scans():
    def nested(loop):
        def f(w):
            def outer(c, x):
                def inner(d, y):
                    d = rnp.sin(d * w + y)
                    return d, d * c

                d, ys = loop(inner, c, x)
                return d + rnp.sum(ys), d

            c, ds = loop(outer, 0.1, XS)
            return c * rnp.sum(ds)

        return f

    w = np.float64(0.7)
    close(rlx.grad(nested(rlx.scan))(w), rlx.grad(nested(unrolled))(w), 1e-6)
    close(rlx.grad(rlx.grad(nested(rlx.scan)))(w), rlx.grad(rlx.grad(nested(unrolled)))(w), 1e-5)


def test_scan_without_steps():
    empty = XS[:0]
    value, gradients = rlx.value_and_grad(
        lambda c, xs: rnp.sum(rlx.scan(lambda c, x: (c * rnp.sum(x), c), c, xs)[0]), (0, 1)
    )(C0, empty)
    close(value, C0.sum())
    close(gradients, (np.ones(3), np.zeros((0, 3))))


def layered(loop, length=7):
    """Weights whose rows are kept: one that meets few in every step, one that meets many; and one whose are not."""

    def f(w, u, v, c, xs):
        def step(carry, x):
            h = rnp.tanh(carry @ w + x[:2])
            return h, (rnp.sum(x @ v), rnp.sum(rnp.sin(h @ u)))

        last, (rows, ys) = loop(step, c, xs)
        return rnp.sum(last**2) + rnp.sum(ys * rnp.arange(length)) + rnp.sum(rows**2)

    return f


@pytest.mark.parametrize("length", [0, 1, 7])
@pytest.mark.parametrize("rows", [2, 80])
def test_gradients_of_weights_are_taken_from_all_steps_at_once(length, rows):
    arguments = (W, rng.normal(size=(3, 4)), rng.normal(size=(3, 2)), rng.normal(size=(2, 3)))
    xs = rng.normal(size=(length, rows, 3))
    gradient = rlx.grad(layered(rlx.scan, length), tuple(range(5)))
    if length:
        close(gradient(*arguments, xs), rlx.grad(layered(unrolled, length), tuple(range(5)))(*arguments, xs))
        again = lambda f: rlx.grad(lambda w: rnp.sum(rlx.grad(f)(w, *arguments[1:], xs) ** 2))(W)  # noqa: E731
        close(again(layered(rlx.scan, length)), again(layered(unrolled, length)))
    else:
        assert all(np.all(np.asarray(g) == 0) for g in gradient(*arguments, xs)[:3])


def test_products_of_few_rows_leave_the_loop_where_these_are_kept():
    """As those of an LSTM: the states before each step, and the gradients of what each step is given."""

    def f(w, c, xs):
        return rnp.sum(rlx.scan(lambda c, x: (rnp.tanh(c @ w + x), None), c, xs)[0])

    for rows, wrt, in_loop in ((2, (0, 2), 0), (2, 0, 1), (80, (0, 2), 1)):
        graph = rlx.trace(rlx.grad(f, wrt), W, np.ones((rows, 3)), np.ones((6, rows, 3))).graph
        backward = [node.op for node in graph.nodes if isinstance(node.op, ops.Scan)][-1]
        sums = [n for n in backward.body.nodes if isinstance(n.op, ops.MatMul) and n.shape.dims == (3, 3)]
        assert len(sums) == in_loop, (rows, wrt)


def test_weights_are_summed_in_f32():
    x = np.full(300, 1.0, np.float16)
    ones = np.ones((), np.float16)

    def f(w):
        return rnp.sum(rlx.scan(lambda c, x: (c, w * x), ones, x)[1].astype("f4")) / 300

    # Summed in f16, 1/300 each, the total would be off by much more than one rounding.
    close(rlx.grad(f)(ones), np.float16(300 * float(np.float16(1 / 300))), 1e-3)


def test_fori_loop_and_map():
    def power(x):
        return rlx.fori_loop(0, 4, lambda i, v: v * x + i, x)

    x = np.float64(1.3)
    close(rlx.grad(power)(x), 5 * x**4 + 2 * x + 2, 1e-6)
    close(rlx.grad(lambda v: rnp.sum(rlx.map(lambda r: rnp.sum(r) ** 2, v)))(XS), 2 * XS.sum(1)[:, None] * np.ones(3))


def branches(x, p):
    return rlx.cond(rnp.sum(x) > 0, lambda v: (rnp.sin(v) * p, v[0]), lambda v: (v**2, rnp.sum(v * p)), x)


def plain_branches(x, p):
    taken = float(np.sum(np.asarray(x))) > 0
    return (rnp.sin(x) * p, x[0]) if taken else (x**2, rnp.sum(x * p))


@pytest.mark.parametrize("sign", [1, -1])
def test_cond(sign):
    x, p = sign * np.abs(C0), rng.normal(size=3)
    t = (rng.normal(size=3), rng.normal(size=3))
    if sign > 0:
        expected = ((np.cos(x) * p * t[0] + np.sin(x) * t[1], t[0][0]), (np.sin(x) * p, x[0]))
    else:
        expected = ((2 * x * t[0], t[0] @ p + x @ t[1]), (x**2, x @ p))
    value, tangent = rlx.jvp(branches, (x, p), t)
    close(tangent, expected[0])
    close(value, expected[1])
    _, pull = rlx.vjp(branches, x, p)
    ct = (rng.normal(size=3), 2.0)
    gx, gp = pull(ct)
    inner = np.sum(ct[0] * np.asarray(tangent[0])) + ct[1] * np.asarray(tangent[1])
    close(np.sum(np.asarray(gx) * t[0]) + np.sum(np.asarray(gp) * t[1]), inner)


def test_cond_per_lane():
    x, p = np.stack([np.abs(C0), -np.abs(C0)]), rng.normal(size=3)
    got = rlx.vmap(branches, (0, None))(x, p)
    expected = [plain_branches(r, p) for r in x]
    close(got, tuple(np.stack([np.asarray(e[i]) for e in expected]) for i in range(2)))
    # The predicate does not differ along the batch: one branch is chosen for all.
    text = str(rlx.trace(rlx.vmap(lambda v, q: rlx.cond(q, rnp.sin, rnp.cos, v), (0, None)), x, True).graph)
    assert " = if(" in text
    assert "where" not in text


def test_switch():
    def f(i, x):
        return rlx.switch(i, [lambda v: v**2, rnp.sin, lambda v: 3 * v], x)

    derivative = np.array([2 * C0[0], np.cos(C0[0]), 3.0])
    for i in range(3):
        close(rlx.grad(f, 1)(np.int32(i), C0[0]), derivative[i])
    close(rlx.vmap(rlx.grad(f, 1), (0, None))(np.arange(3, dtype=np.int32), C0[0]), derivative)


def newton(x, **bound):
    """The square root of x, by as many rounds as it takes."""
    return rlx.while_loop(
        lambda state: rnp.abs(state[0] ** 2 - x) > 1e-12,
        lambda state: ((state[0] + x / state[0]) / 2, state[1] + 1),
        (x, 0),
        **bound,
    )[0]


def test_bounded_while():
    x = np.float64(7.0)
    for transform in (rlx.grad, rlx.jacfwd):
        close(transform(lambda v: newton(v, max_iterations=30))(x), 0.5 / np.sqrt(x), 1e-8)
    close(rlx.grad(rlx.grad(lambda v: newton(v, max_iterations=30)))(x), -0.25 * x**-1.5, 1e-6)
    # The bound cuts the loop short.
    two = (x + 1) / 2
    close(newton(x, max_iterations=2), (two + x / two) / 2)


def test_steps_after_the_end_of_a_while_do_not_count():
    """Rounds that the bound allows but the condition forbids neither run nor give NaN."""

    def f(x):
        return rlx.while_loop(lambda v: v > 1, lambda v: v / 2 + 1 / (v - 1) - 1 / (v - 1), x, max_iterations=6)

    close(rlx.grad(f)(np.float64(4.0)), 0.25)


def test_unbounded_while():
    x = np.float64(7.0)
    close(rlx.jvp(newton, (x,), (1.0,))[1], 0.5 / np.sqrt(x), 1e-8)
    with pytest.raises(UnboundedWhile, match="max_iterations"):
        rlx.grad(newton)(x)
    # What does not depend on the argument needs no bound.
    close(rlx.grad(lambda v: v * newton(x))(x), np.sqrt(x))


def test_while_per_lane():
    x = np.array([0.5, 2.0, 700.0])
    close(rlx.vmap(newton)(x), np.sqrt(x))
    close(rlx.vmap(rlx.grad(lambda v: newton(v, max_iterations=30)))(x), 0.5 / np.sqrt(x), 1e-7)
    close(rlx.vmap(lambda v: rlx.jvp(newton, (v,), (1.0,))[1])(x), 0.5 / np.sqrt(x), 1e-7)


def test_while_whose_condition_is_shared():
    def f(x):
        return rlx.while_loop(lambda s: s[1] < 3, lambda s: (s[0] * x, s[1] + 1), (x, 0))[0]

    x = np.array([1.0, 2.0])
    close(rlx.vmap(f)(x), x**4)
    assert "reduce_any" not in str(rlx.trace(rlx.vmap(f), x).graph)


def test_grad_of_grad_of_vmap_of_scan():
    def f(w):
        def one(x):
            return rlx.scan(lambda c, v: (rnp.sin(c * w + v), c), 0.3, x)[0]

        return rnp.sum(rlx.vmap(one)(XS))

    def plain(w):
        total = 0.0
        for row in XS:
            c = 0.3
            for v in row:
                c = rnp.sin(c * w + v)
            total = total + c
        return total

    w = np.float64(0.4)
    close(rlx.grad(rlx.grad(f))(w), rlx.grad(rlx.grad(plain))(w), 1e-5)


def test_effects_happen_once(capsys):
    def step(c, x):
        rlx.debug.print("step {}", c)
        return c * x, None

    rlx.grad(lambda c: rlx.scan(step, c, XS[:2, 0])[0])(np.float64(1.0))
    assert capsys.readouterr().out.count("step") == 2


def test_a_loop_without_a_bound_whose_value_has_no_slope():
    """Nobody asks for the gradient of a value behind `stop_gradient`, a rounding or a comparison."""

    def doubled(x):
        return rlx.while_loop(lambda s: s < 10, lambda s: s * 2, x)

    x = np.float64(1.5)
    assert float(rlx.grad(lambda x: x * rlx.stop_gradient(doubled(x)))(x)) == 12
    assert float(rlx.grad(lambda x: x * rnp.floor(doubled(x) / 5))(x)) == 2
    assert float(rlx.grad(lambda x: x * (doubled(x) // 5))(x)) == 2
    assert float(rlx.jit(rlx.grad(lambda x: rnp.where(doubled(x) > 3, x * 2, x)))(x)) == 2
    assert float(rlx.grad(lambda x: x**2 + 0 * rnp.sum(doubled(x).astype("int32")))(x)) == 3
    with pytest.raises(UnboundedWhile):
        rlx.grad(lambda x: x * doubled(x))(x)
