"""Scans, whiles and branches as native loops: the same results as their definitions, without the host."""

import signal
import threading

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.backends.cpu import pool
from rlx.backends.cpu.executor import compile_executor, link_executor
from rlx.backends.cpu.pool import Pool
from rlx.backends.program import command_table
from rlx.backends.program.plan import Plan
from rlx.ir.graph import Graph
from rlx.ir.op import OP_CLASSES
from rlx.ir.shape import Shape
from rlx.kernels.machines import host
from rlx.ops.control.bodies import build_body
from rlx.ops.control.branches import If, While
from rlx.ops.control.scans import Scan

BODY_OPS = ("Scan", "While", "If", "Switch", "ScanBackward", "ScanBackwardXs", "CustomFn", "CustomDerivative")


def all_samples():
    for name in BODY_OPS:
        for number, sample in enumerate(OP_CLASSES[name].samples()):
            for dtype in sample.dtypes:
                if dtype not in ("c64", "c128"):
                    yield pytest.param(sample, dtype, id=f"{name}-{number}-{dtype}")


def normal(*dims, seed=0):
    return np.random.default_rng(seed).normal(size=dims).astype("f4")


def kinds(compiled):
    return [kernel.kind for kernel in compiled._executable.lir.kernels]


def graph_of(op, *shapes):
    graph = Graph("loop")
    result = op(*(graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)))
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    return graph


def run_both(graph, arrays):
    """The outputs of the native program, after a look that it is one, and those of the definition."""
    named = {node.op.key: a for node, a in zip(graph.inputs, arrays, strict=True)}
    compiled = rlx.Session("cpu").compile(graph)
    assert "call" not in kinds(compiled), compiled.report
    return compiled.run(named), rlx.Session("reference").compile(graph).run(named)


def check(graph, *arrays, rtol=1e-5):
    got, wanted = run_both(graph, arrays)
    for a, b in zip(got, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(np.asarray(a, "f8"), np.asarray(b, "f8"), rtol=rtol, atol=rtol)
    return got


@pytest.fixture
def shared_by_all(monkeypatch):
    """Every segment is dealt out to all threads, however small."""
    monkeypatch.setattr(command_table, "WORTH_SHARING", 0)


@pytest.mark.parametrize("sample, dtype", list(all_samples()))
def test_samples_run_natively(sample, dtype):
    graph = Graph("sample")
    result = graph.append_node(sample.op, [graph.input(f"x{i}", s) for i, s in enumerate(sample.shapes(dtype))])
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    check(graph, *sample.arrays(dtype), rtol={"f16": 1e-3, "bf16": 1e-2}.get(dtype, 1e-5))


HIDDEN = 24


def lstm(params, xs):
    def step(carry, x):
        h, c = carry
        i, f, g, o = rnp.split(x @ params["wx"] + h @ params["wh"] + params["b"], 4, axis=-1)
        c = rlx.sigmoid(f) * c + rlx.sigmoid(i) * rlx.tanh(g)
        h = rlx.sigmoid(o) * rlx.tanh(c)
        return (h, c), h

    zeros = rnp.zeros((xs.shape[1], HIDDEN), "float32")
    return rlx.scan(step, (zeros, zeros), xs)[1]


def lstm_by_numpy(params, xs):
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    params = {name: value.astype("f8") for name, value in params.items()}
    h = c = np.zeros((xs.shape[1], HIDDEN))
    ys = []
    for x in xs:
        i, f, g, o = np.split(x @ params["wx"] + h @ params["wh"] + params["b"], 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        ys.append(h)
    return np.stack(ys)


def lstm_arguments(steps=19, batch=3):
    params = {"wx": normal(8, 4 * HIDDEN) / 3, "wh": normal(HIDDEN, 4 * HIDDEN, seed=1) / 5, "b": normal(4 * HIDDEN)}
    return params, normal(steps, batch, 8, seed=2)


def test_an_lstm_by_scan():
    params, xs = lstm_arguments()
    np.testing.assert_allclose(rlx.jit(lstm)(params, xs), lstm_by_numpy(params, xs), rtol=2e-5, atol=2e-6)


def test_the_gradient_of_an_lstm():
    params, xs = lstm_arguments()
    gradient = rlx.grad(lambda p, x: rnp.sum(lstm(p, x) ** 2))
    native, defined = (rlx.jit(gradient, device=device)(params, xs) for device in ("cpu", "reference"))
    for name in params:
        np.testing.assert_allclose(native[name], defined[name], rtol=1e-4, atol=1e-5)
    # Against differences of what NumPy computes in double precision.
    direction, step = normal(HIDDEN, 4 * HIDDEN, seed=3).astype("f8"), 1e-5
    losses = [
        (lstm_by_numpy({**params, "wh": params["wh"] + sign * step * direction}, xs) ** 2).sum() for sign in (1, -1)
    ]
    np.testing.assert_allclose((np.asarray(native["wh"]) * direction).sum(), (losses[0] - losses[1]) / (2 * step), 1e-3)


def test_the_same_bits_for_any_number_of_threads(shared_by_all):
    params, xs = lstm_arguments(steps=50, batch=7)
    run = rlx.jit(rlx.value_and_grad(lambda p, x: rnp.sum(lstm(p, x) ** 2)))
    with rlx.threads(1):
        loss, grads = run(params, xs)
    for count in (2, 3):
        with rlx.threads(count):
            for _ in range(3):
                again, more = run(params, xs)
                np.testing.assert_array_equal(loss, again)
                for name in grads:
                    np.testing.assert_array_equal(grads[name], more[name])


def test_nested_scans():
    def outer(total, row):
        inner_total, seen = rlx.scan(lambda c, x: (c * 0.5 + x, c), total, row)
        return inner_total, (seen, inner_total)

    def both(start, rows):
        return rlx.scan(outer, start, rows)

    start, rows = normal(5), normal(4, 3, 5, seed=1)
    total, (seen, totals) = rlx.jit(both)(start, rows)
    carry, wanted_seen, wanted_totals = start.astype("f8"), [], []
    for row in rows:
        line = []
        for x in row:
            line.append(carry)
            carry = carry * 0.5 + x
        wanted_seen.append(line)
        wanted_totals.append(carry)
    for got, wanted in ((total, carry), (seen, wanted_seen), (totals, wanted_totals)):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_while_inside_of_a_scan_inside_of_a_branch():
    def halvings(x):
        return rlx.while_loop(lambda s: s[0] > 1.0, lambda s: (s[0] / 2, s[1] + 1), (x, np.int32(0)))[1]

    def count(xs):
        return rlx.scan(lambda total, x: (total + halvings(x), halvings(x)), np.int32(0), xs)

    def program(flag, xs):
        return rlx.cond(flag, count, lambda xs: (np.int32(-1), rnp.zeros(xs.shape, "int32")), xs)

    xs = np.array([1, 2, 3, 1000, 0.5], "f4")
    total, each = rlx.jit(program)(True, xs)
    np.testing.assert_array_equal(each, [0, 1, 2, 10, 0])
    assert total == 13
    total, each = rlx.jit(program)(False, xs)
    assert total == -1
    np.testing.assert_array_equal(each, np.zeros(5))


def test_carries_that_change_places():
    """What a body returns without computing it is copied: a carry, a row, a constant, what it returns twice."""
    pair, one = Shape((3,), "f32"), Shape((), "f32")

    def swap(a, b, w, x):
        return b, a + w, a, x, x, w

    body = build_body("swap", swap, a=pair, b=pair, w=one, x=one)
    for length in (0, 1, 2, 5):
        graph = graph_of(Scan(body, length, num_carry=2, num_bcast=1, num_xs=1), pair, pair, one, Shape((length,)))
        check(graph, normal(3), normal(3, seed=1), np.float32(2), normal(length))
    constant = build_body("constant", lambda a: (rlx.full((3,), 7.0, "f32"), a), a=pair)
    check(graph_of(Scan(constant, 4), pair), normal(3))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length, checkpoints", [(1, 1), (7, 3), (8, 2), (8, 8), (9, 4)])
def test_checkpoints(reverse, length, checkpoints):
    x = Shape((2,), "f64")
    body = build_body("body", lambda c, x: (c * 0.5 + x, c), carry=x, x=x)
    op = Scan(body, length, num_xs=1, reverse=reverse, save_trajectory=True, num_checkpoints=checkpoints)
    check(graph_of(op, x, Shape((length, 2), "f64")), normal(2).astype("f8"), normal(length, 2, seed=1).astype("f8"))


def test_a_cache_is_updated_in_place():
    """A carry of which every round changes a part is one piece of memory, whatever else reads and returns it."""
    cache, row = Shape((40, 8), "f32"), Shape((1, 8), "f32")

    def append(cache, position, x):
        after = rlx.dynamic_update_slice(cache, x, [position, np.int32(0)])
        return after, position + 1, rlx.reduce_sum(after, (0,))

    body = build_body("append", append, cache=cache, position=Shape((), "i32"), x=row)
    graph = graph_of(Scan(body, 30, num_carry=2, num_xs=1), cache, Shape((), "i32"), Shape((30, 1, 8), "f32"))
    start = normal(40, 8)
    kept = start.copy()
    final, *_ = check(graph, start, np.int32(4), normal(30, 1, 8, seed=1))
    np.testing.assert_array_equal(start, kept)
    np.testing.assert_array_equal(final[4:34], normal(30, 8, seed=1))
    program = rlx.Session("cpu").compile(graph)._executable._main.program
    assert Plan(program, {}).arena_bytes < start.nbytes, "there is no second cache"


def test_whiles_store_carries_in_place():
    x, count = Shape((5,), "f32"), Shape((), "i32")
    below = build_body("below", lambda i, a, b: i < 7, i=count, a=x, b=x)
    step = build_body("step", lambda i, a, b: (i + 1, a + b, a * 0.5), i=count, a=x, b=x)
    for start in (0, 6, 9):
        check(graph_of(While(below, step), count, x, x), np.int32(start), normal(5), normal(5, seed=1))


def test_one_compile_serves_every_length():
    x = Shape(("B",), "f32")
    body = build_body("body", lambda c, x: (c * 0.5 + x, c * x), carry=x, x=x)
    graph = graph_of(Scan(body, "S", num_xs=1), x, Shape(("S", "B"), "f32"))
    native, defined = (rlx.Session(device).compile(graph) for device in ("cpu", "reference"))
    for steps, width in ((3, 2), (0, 5), (1, 1), (129, 17)):
        arrays = {"x0": normal(width), "x1": normal(steps, width, seed=1)}
        for a, b in zip(native.run(arrays), defined.run(arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_predicate_may_be_any_number():
    x = Shape((2,), "f32")
    then, otherwise = build_body("then", lambda x: x + 1.0, x=x), build_body("otherwise", lambda x: x, x=x)
    for dtype, values in (("f32", (0.0, -0.0, 0.25, np.nan)), ("i64", (0, 1 << 40)), ("u8", (0, 128)), ("f16", (0, 1))):
        graph = graph_of(If(then, otherwise), Shape((1, 1), dtype), x)
        for value in values:
            check(graph, np.full((1, 1), value, Shape((), dtype).dtype.numpy), normal(2))


def test_a_loop_between_other_kernels_and_host_calls():
    """Segments, tables and host calls in one program, run again and again with other numbers."""
    x = Shape((6,), "f32")
    body = build_body("body", lambda c, w: c * w, c=x, w=x)

    def program(x, w):
        before = rlx.tanh(x) + 1.0
        looped = Scan(body, 5, num_bcast=1)(before, w)
        ordered = rlx.sort(looped) if hasattr(rlx, "sort") else looped
        return rlx.exp(Scan(body, 3, num_bcast=1)(ordered, w)), looped

    native, defined = (rlx.jit(program, device=device) for device in ("cpu", "reference"))
    for seed in range(4):
        x, w = normal(6, seed=seed), normal(6, seed=seed + 9) / 2
        for a, b in zip(native(x, w), defined(x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


def test_several_callers_at_once(shared_by_all):
    """Python threads that run the same loops, each with the pool or without it, do not disturb each other."""
    params, xs = lstm_arguments(steps=40, batch=4)
    run = rlx.jit(lstm)
    wanted = [np.asarray(run(params, xs * factor)) for factor in range(4)]
    wrong = []

    def call(factor):
        with rlx.threads(2 + factor % 2):
            for _ in range(20):
                if not np.array_equal(run(params, xs * factor), wanted[factor]):
                    wrong.append(factor)

    callers = [threading.Thread(target=call, args=(factor,)) for factor in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert not any(caller.is_alive() for caller in callers)
    assert wrong == []


def test_bodies_with_host_calls_are_compiled(monkeypatch):
    """A body of which something has no kernel runs as a program, not op by op; loops inside of it are native again."""
    from rlx.backends.program import host_bodies
    from rlx.ir import interpret

    def refuse(*args, **options):
        raise AssertionError("a body was interpreted")

    def program(a, x):
        def step(x, row):
            halved, _ = rlx.scan(lambda c, r: (c * 0.5 + r, None), x, row)
            return rlx.solve(a, halved), rlx.tanh(halved)

        return rlx.scan(step, x, np.ones((4, 3, 2), "f4"))

    a, x = np.array([[3, 1], [1, 2]], "f4"), np.ones(2, "f4")
    wanted = rlx.jit(program, device="reference")(a, x)
    host_bodies._program.cache_clear()
    monkeypatch.setattr(interpret, "interpret", refuse)
    got = rlx.jit(program)(a, x)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_effects_in_bodies_happen_in_every_round(capsys):
    def noisy(total, x):
        rlx.debug.print("at {}", x)
        return total + x, None

    assert rlx.jit(lambda xs: rlx.scan(noisy, np.int32(0), xs)[0])(np.int32([1, 2, 3])) == 6
    assert capsys.readouterr().out.split() == ["at", "1", "at", "2", "at", "3"]


def test_a_long_loop_is_interrupted_and_goes_on():
    """Runs come back to Python while they go on, so that signals are handled; the next run is not disturbed."""
    count = Shape((), "i64")
    below = build_body("below", lambda i, n: i < n, i=count, n=count)
    step = build_body("step", lambda i, n: i + 1, i=count, n=count)
    compiled = rlx.Session("cpu").compile(graph_of(While(below, step, num_bcast=1), count, count))
    assert "call" not in kinds(compiled)

    class Alarm(Exception):
        pass

    def ring(number, frame):
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        with pytest.raises(Alarm):
            compiled.run(x0=np.int64(0), x1=np.int64(1 << 62))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    [result] = compiled.run(x0=np.int64(0), x1=np.int64(1_000_000))
    assert result == 1_000_000


def test_a_run_that_is_stopped_between_rounds_goes_on_there(shared_by_all):
    """A loop that takes several of the pauses of the executor counts every round once."""
    count, x = Shape((), "i64"), Shape((256,), "f32")
    below = build_body("below", lambda i, x: i < 60_000, i=count, x=x)
    step = build_body("step", lambda i, x: (i + 1, x + 1.0), i=count, x=x)
    compiled = rlx.Session("cpu").compile(graph_of(While(below, step), count, x))
    with rlx.threads(2):
        rounds, total = compiled.run(x0=np.int64(0), x1=np.zeros(256, "f4"))
    assert rounds == 60_000
    np.testing.assert_array_equal(total, np.full(256, 60_000, "f4"))


def test_a_pause_after_every_ticket_changes_nothing(monkeypatch, shared_by_all):
    params, xs = lstm_arguments(steps=9, batch=5)
    run = rlx.jit(rlx.value_and_grad(lambda p, x: rnp.sum(lstm(p, x) ** 2)))
    loss, grads = run(params, xs)
    paused = Pool(link_executor(compile_executor(host(), pause_ns=1), host()))
    monkeypatch.setattr(pool, "_pool", paused)
    for count in (1, 2, 3):
        with rlx.threads(count):
            again, more = run(params, xs)
        np.testing.assert_array_equal(again, loss)
        for name in grads:
            np.testing.assert_array_equal(more[name], grads[name])
    paused.close()


def test_loops_take_memory_for_one_round():
    """The arena does not grow with the number of rounds."""
    x = Shape((1000,), "f32")
    body = build_body("body", lambda c: rlx.softmax(c * 3.0, -1), c=x)
    sizes = set()
    for length in (3, 300):
        compiled = rlx.Session("cpu").compile(graph_of(Scan(body, length), x))
        sizes.add(Plan(compiled._executable._main.program, {}).arena_bytes)
    assert len(sizes) == 1
    assert sizes.pop() < 64 * 1024
