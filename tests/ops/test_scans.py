"""`Scan` and its backward sweeps: against loops in NumPy, and gradients against central differences in f64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.shape import Shape
from rlx.ops.control.bodies import build_body
from rlx.ops.control.scan_gradients import ScanBackward, ScanBackwardXs
from rlx.ops.control.scans import Scan, checkpoint_steps

ROW = Shape((2,), "f64")
# c' = tanh(c * x + c): a recurrence in which every carry matters for the gradient.
FORWARD = build_body("forward", lambda c, x: ops.tanh(c * x + c), carry=ROW, x=ROW)


def _vjp(c, x, d):
    y = ops.tanh(c * x + c)
    inner = d * (1.0 - y * y)
    return inner * (x + 1.0), inner * c


BACKWARD = build_body("backward", _vjp, carry=ROW, x=ROW, d_output=ROW)


def run(build, *arrays):
    """What `build` makes of graph inputs of the arrays' types, interpreted; and again with sweeps decomposed."""
    graph = Graph("test")
    result = build(*[graph.input(f"x{i}", Shape(a.shape, a.dtype)) for i, a in enumerate(arrays)])
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    got = interpret(graph, arrays)
    sweeps = (ScanBackward, ScanBackwardXs)
    decomposed = rebuild(graph, lambda n, xs: n.op.decompose(*xs) if isinstance(n.op, sweeps) else None).graph
    for a, b in zip(got, interpret(decomposed, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)
    return got[0] if len(got) == 1 else got


def carries(init, xs):
    """All carries of FORWARD, in NumPy."""
    found, c = [], init
    for x in xs:
        c = np.tanh(c * x + c)
        found.append(c)
    return np.array(found).reshape(len(xs), *init.shape)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def test_seed_builders():
    init, xs, w = random(2), random(5, 2, seed=1), random(2, seed=2)
    trajectory = carries(init, xs)
    np.testing.assert_allclose(run(lambda i, x: ops.scan_with_xs(i, [x], FORWARD, 5), init, xs), trajectory[-1])
    doubling = build_body("doubling", lambda c: c + c, carry=ROW)
    np.testing.assert_array_equal(run(lambda i: ops.scan(i, doubling, 3), init), init * 8)
    np.testing.assert_array_equal(run(lambda i: ops.scan_checkpointed(i, doubling, 3, 2), init), init * 8)
    powers = np.array([2, 4, 8])[:, None] * init
    np.testing.assert_array_equal(run(lambda i: ops.scan_trajectory(i, doubling, 3), init), powers)
    weighted = build_body("weighted", lambda c, w, x: c * w + x, carry=ROW, w=ROW, x=ROW)
    wanted = init
    for x in xs:
        wanted = wanted * w + x
    got = run(lambda i, w, x: ops.scan_with_bcasts_and_xs(i, [w], [x], weighted, 5), init, w, xs)
    np.testing.assert_allclose(got, wanted, rtol=1e-15)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_checkpoints_are_rows_of_the_trajectory(count, reverse):
    init, xs = random(2), random(7, 2, seed=1)
    full = Scan(FORWARD, 7, num_xs=1, reverse=reverse, save_trajectory=True)
    few = full.replace(num_checkpoints=count)
    everything = run(lambda i, x: full(i, x), init, xs)
    saved = run(lambda i, x: few(i, x), init, xs)
    steps = [math.ceil((k + 1) * 7 / count) - 1 for k in range(count)]
    assert checkpoint_steps(7, count) == steps
    rows = [6 - s for s in reversed(steps)] if reverse else steps
    np.testing.assert_array_equal(saved, everything[rows])
    order = xs[::-1] if reverse else xs
    plain = carries(init, order)
    np.testing.assert_allclose(everything, plain[::-1] if reverse else plain, rtol=1e-14)


def test_several_carries_bcasts_xs_and_ys():
    body = build_body(
        "body",
        lambda n, c, w, a, b: (n + 1, c * w + a, c < a, b),
        n=Shape((), "i32"), c=Shape(()), w=Shape(()), a=Shape(()), b=Shape((2,), "i32"),
    )  # fmt: skip
    a, b = np.array([1, 2, 3], "f4"), np.arange(6, dtype="i4").reshape(3, 2)
    op = Scan(body, 3, num_carry=2, num_bcast=1, num_xs=2)
    n, c, smaller, copy = run(op, np.int32(5), np.float32(1), np.float32(2), a, b)
    # c: 1 -> 3 -> 8 -> 19
    assert (n, c) == (8, 19)
    np.testing.assert_array_equal(smaller, [False, False, False])
    np.testing.assert_array_equal(copy, b)


def test_symbolic_length():
    graph = Graph("g")
    init, xs = graph.input("c", (2,), "f64"), graph.input("xs", ("S", 2), "f64")
    rows = Scan(FORWARD, "S", num_xs=1, save_trajectory=True)(init, xs)
    graph.set_outputs([rows])
    assert str(rows.type) == "f64[S,2]"
    data = random(4, 2, seed=1)
    np.testing.assert_allclose(interpret(graph, [np.ones(2), data])[0], carries(np.ones(2), data), rtol=1e-14)


def test_scan_errors():
    init, xs = np.zeros(2), np.zeros((3, 2))
    with pytest.raises(OpError, match="needs 1 carries, 0 bcasts and 1 xs, got 1 operands"):
        run(Scan(FORWARD, 3, num_xs=1), init)
    with pytest.raises(OpError, match=r"xs 0 needs 4 rows, \[4,\*step\], got f64\[3,2\]"):
        run(Scan(FORWARD, 4, num_xs=1), init, xs)
    with pytest.raises(ShapeError, match=r"scan: the body takes 'x' as f64\[2\], got f64\[3\]"):
        run(Scan(FORWARD, 3, num_xs=1), init, np.zeros((3, 3)))
    with pytest.raises(OpError, match=r"carry 0 is f64\[2\], but the body @smaller returns bool\[2\] for it"):
        run(Scan(build_body("smaller", lambda c: c < 1.0, c=ROW), 3), init)
    with pytest.raises(OpError, match=r"the body @forward returns 1 values, fewer than the 2 carries"):
        Scan(FORWARD, 3, num_carry=2)
    with pytest.raises(OpError, match="num_checkpoints must be between 0 and length=3, got 4"):
        Scan(FORWARD, 3, num_checkpoints=4)
    with pytest.raises(OpError, match="cannot be negative"):
        Scan(FORWARD, 3, num_xs=-1)
    with pytest.raises(OpError, match="scan_checkpointed: num_checkpoints must be between 1 and 3, got 0"):
        ops.scan_checkpointed(init, FORWARD, 3, 0)


def central_difference(f, x, step=1e-6):
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        high, low = x.copy(), x.copy()
        high[index] += step
        low[index] -= step
        gradient[index] = (f(high) - f(low)) / (2 * step)
    return gradient


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 6])
@pytest.mark.parametrize("save_trajectory", [True, False])
def test_backward_sweeps_are_the_gradient(count, save_trajectory):
    length = 6
    init, xs = random(2), random(length, 2, seed=1)
    steps = checkpoint_steps(length, count or length)
    trajectory = carries(init, xs)[steps]
    upstream = random(*(trajectory.shape if save_trajectory else init.shape), seed=2)

    def loss(i, x):
        rows = carries(i, x)
        return float(np.sum((rows[steps] if save_trajectory else rows[-1]) * upstream))

    operands = (init, trajectory, upstream, xs)
    dinit = run(
        lambda i, t, u, x: ops.scan_backward_with_checkpoints(
            i, t, u, [x], BACKWARD, length, save_trajectory, count, FORWARD
        ),
        *operands,
    )
    np.testing.assert_allclose(dinit, central_difference(lambda i: loss(i, xs), init), rtol=1e-7, atol=1e-9)
    dxs = run(
        lambda i, t, u, x: ops.scan_backward_xs_with_checkpoints(
            i, t, u, [x], BACKWARD, length, save_trajectory, 0, count, FORWARD
        ),
        *operands,
    )
    np.testing.assert_allclose(dxs, central_difference(lambda x: loss(init, x), xs), rtol=1e-7, atol=1e-9)


def test_checkpointed_gradient_equals_the_plain_one():
    init, xs, upstream = random(2), random(9, 2, seed=1), random(2, seed=2)
    rows = carries(init, xs)
    plain = run(lambda i, t, u, x: ops.scan_backward(i, t, u, [x], BACKWARD, 9, False), init, rows, upstream, xs)
    few = rows[checkpoint_steps(9, 4)]
    again = run(
        lambda i, t, u, x: ops.scan_backward_with_checkpoints(i, t, u, [x], BACKWARD, 9, False, 4, FORWARD),
        init, few, upstream, xs,
    )  # fmt: skip
    np.testing.assert_allclose(again, plain, rtol=1e-14)
    dx = run(lambda i, t, u, x: ops.scan_backward_xs(i, t, u, [x], BACKWARD, 9, False, 0), init, rows, upstream, xs)
    assert dx.shape == (9, 2)


def test_backward_errors():
    init, rows = np.zeros(2), np.zeros((3, 2))
    with pytest.raises(OpError, match="num_checkpoints=2 needs forward_body"):
        ScanBackward(BACKWARD, 3, num_xs=1, num_checkpoints=2)
    with pytest.raises(OpError, match="xs_idx=1 is not one of the 1 xs"):
        ScanBackwardXs(BACKWARD, 3, num_xs=1, xs_idx=1)
    with pytest.raises(OpError, match=r"trajectory must be f64\[3,2\], got f64\[2\]"):
        run(ScanBackward(BACKWARD, 3, num_xs=1), init, init, rows, rows)
    with pytest.raises(OpError, match=r"upstream must be f64\[2\], got f64\[3,2\]"):
        run(ScanBackward(BACKWARD, 3, False, num_xs=1), init, rows, rows, rows)
    with pytest.raises(OpError, match="needs init, trajectory, upstream and 1 xs, got 3 operands"):
        run(ScanBackward(BACKWARD, 3, num_xs=1), init, rows, rows)
    with pytest.raises(OpError, match=r"body_vjp must return the gradients of the carry and of each step"):
        lacking = build_body("lacking", lambda c, x, d: d * x, carry=ROW, x=ROW, d_output=ROW)
        run(ScanBackward(lacking, 3, num_xs=1), init, rows, rows, rows)
