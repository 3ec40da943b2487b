"""Runs on the CPU: the same bits for any number of threads, and nothing that a caller does gets into native code."""

import threading

import numpy as np
import pytest

import rlx
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend, pool, runner
from rlx.backends.program import command_table, plan
from rlx.backends.program.table_layout import Command
from rlx.errors import AssertionFailed, BindingError, RlxError

rng = np.random.default_rng(1)


def normal(*dims, dtype="f4"):
    return rng.normal(size=dims).astype(dtype)


def compiled(graph, **options):
    return CpuBackend().compile(graph, CompileOptions(**options))


def network():
    """Independent products, maps over odd sizes, values that are read twice, a view."""
    g = rlx.Graph("network")
    x, w, v = g.input("x", ("B", 96)), g.param("w", (96, 96)), g.param("v", (96, 40))
    left, right = rlx.tanh(x @ w), rlx.gelu(x @ w + 1.0)
    both = left * right + x
    g.set_outputs([both @ v, rlx.relu(both - left), (both @ w).reshape((-1,))])
    return g


WEIGHTS = {"w": normal(96, 96) / 10, "v": normal(96, 40)}


def expected(x):
    from scipy.special import erf

    x, w, v = x.astype("f8"), WEIGHTS["w"], WEIGHTS["v"]
    y = x @ w + 1
    left, right = np.tanh(x @ w), 0.5 * y * (1 + erf(y / np.sqrt(2)))
    both = left * right + x
    return both @ v, np.maximum(both - left, 0), (both @ w).reshape(-1)


def check(results, x):
    for got, wanted in zip(results, expected(x), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


@pytest.fixture
def shared_by_all(monkeypatch):
    """Every table is worth sharing, however small."""
    monkeypatch.setattr(command_table, "WORTH_SHARING", 0)


@pytest.mark.parametrize("batch", [1, 47, 500])
def test_the_same_bits_for_any_number_of_threads(shared_by_all, batch):
    run, x = compiled(network()), normal(batch, 96)
    with rlx.threads(1):
        alone = run.run({"x": x}, WEIGHTS)
    check(alone, x)
    for count in (2, 3, 4):
        with rlx.threads(count):
            for _ in range(5):
                for a, b in zip(alone, run.run({"x": x}, WEIGHTS), strict=True):
                    np.testing.assert_array_equal(a, b)


def waits(graph, batch):
    """For every command of the only table, whether it waits for all commands before it."""
    program = compiled(graph)._main.program
    [table] = plan.Plan(program, {"B": batch}).parts
    return [bool(c[Command.AFTER] == c[Command.FIRST] > 0) for s in table.segments for c in s.commands]


def test_commands_wait_only_where_they_must():
    g = rlx.Graph("fork")
    x, y = g.input("x", ("B", 96)), g.input("y", ("B", 96))
    w, v = g.param("w", (96, 96)), g.param("v", (96, 96))
    left, right = rlx.tanh(x @ w), rlx.relu(y @ v)
    g.set_outputs([left @ w, right @ w])
    assert waits(g, 4) == [False, False, True, False]
    assert waits(g, 0) == []


def test_commands_wait_for_readers_of_the_memory_they_write():
    g = rlx.Graph("reuse")
    x, y = g.input("x", ("B", 96)), g.input("y", ("B", 96))
    w, v = g.param("w", (96, 96)), g.param("v", (96, 96))
    first = rlx.tanh(x @ w)
    done = rlx.relu(first @ w)
    # It needs nothing of what came before, but its place in the arena is the one that `first` had.
    second = rlx.sigmoid(y @ v)
    g.set_outputs([done, rlx.relu(second @ w)])
    lir = compiled(g).lir
    assert lir.arena_size == lir.as_graph().shape(first.node.id).byte_size
    assert waits(g, 4) == [False, True, True, True]


def test_large_arrays():
    g = rlx.Graph("large")
    x = g.input("x", ("N",))
    g.set_outputs([rlx.relu(x) * 2.0, rlx.neg(x)])
    run, x = compiled(g, threads=2), normal(3_000_017)
    doubled, negated = run.run({"x": x}, {})
    np.testing.assert_array_equal(doubled, np.maximum(x, 0) * 2)
    np.testing.assert_array_equal(negated, -x)


def test_sizes_of_zero_and_scalars():
    run = compiled(network())
    results = run.run({"x": np.zeros((0, 96), "f4")}, WEIGHTS)
    assert [r.shape for r in results] == [(0, 40), (0, 96), (0,)]
    g = rlx.Graph("scalar")
    g.set_outputs([rlx.tanh(g.input("x", ())) + 1.0])
    [y] = compiled(g).run({"x": np.array(0.5, "f4")}, {})
    assert y.shape == () and y == pytest.approx(np.tanh(0.5) + 1)


def in_threads(*works):
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(w,)) for w in works]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


def test_many_threads_run_one_executable(shared_by_all):
    run = compiled(network(), threads=2)

    def work(i):
        x = normal(1 + 37 * i, 96)
        for _ in range(10):
            check(run.run({"x": x}, WEIGHTS), x)

    in_threads(*(lambda i=i: work(i) for i in range(6)))


def test_two_executables_at_once(shared_by_all):
    g = rlx.Graph("other")
    g.set_outputs([rlx.tanh(g.input("x", ("N",))) * 3.0])
    run, other = compiled(network(), threads=2), compiled(g, threads=2)

    def networks():
        x = normal(150, 96)
        for _ in range(20):
            check(run.run({"x": x}, WEIGHTS), x)

    def others():
        x = normal(50_000)
        for _ in range(20):
            np.testing.assert_allclose(other.run({"x": x}, {})[0], 3 * np.tanh(x), rtol=1e-5)

    in_threads(networks, others, networks, others)


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: x[::-1][::-1].copy()[::-1][::-1],
        lambda x: np.frombuffer(b"\0" + x.tobytes(), "u1")[1:].view("f4").reshape(x.shape),
        lambda x: np.broadcast_to(x[:1], x.shape),
    ],
    ids=["fortran", "strided", "reversed twice", "misaligned", "broadcast"],
)
def test_inputs_of_any_layout(layout):
    run, x = compiled(network()), layout(normal(5, 96))
    before = np.array(x)
    check(run.run({"x": x}, WEIGHTS), before)
    np.testing.assert_array_equal(x, before)


def test_params_of_any_layout():
    run, x = compiled(network()), normal(5, 96)
    check(run.run({"x": x}, {"w": np.asfortranarray(WEIGHTS["w"]), "v": WEIGHTS["v"][::-1][::-1]}), x)


def test_outputs_are_new_aligned_and_writable():
    run, x = compiled(network()), normal(7, 96)
    first, second = run.run({"x": x}, WEIGHTS), run.run({"x": x}, WEIGHTS)
    for a, b in zip(first, second, strict=True):
        assert not np.shares_memory(a, b) and a.flags.writeable
    assert first[0].ctypes.data % 64 == first[1].ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("inputs", "params", "message"),
    [
        ({}, WEIGHTS, r"@network: no value for input 'x' \(f32\[B,96\]\)"),
        ({"x": normal(3, 96, dtype="f8")}, WEIGHTS, r"input 'x' is declared f32\[B,96\], got float64\[3, 96\]"),
        ({"x": normal(3, 96).astype(">f4")}, WEIGHTS, r"input 'x' is declared f32\[B,96\], got >f4"),
        ({"x": [[0.0] * 96]}, WEIGHTS, r"input 'x' is declared f32\[B,96\], got list"),
        ({"x": normal(3, 95)}, WEIGHTS, r"'x': axis 1 must be 96, got 95"),
        ({"x": normal(96)}, WEIGHTS, r"'x' is declared f32\[B,96\] \(rank 2\)"),
        ({"x": normal(3, 96)}, {"w": WEIGHTS["w"]}, r"param 'v' \(f32\[96,40\]\) has no value yet"),
        (
            {"x": normal(3, 96)},
            WEIGHTS | {"v": normal(96, 41)},
            r"param 'v' is declared f32\[96,40\], got float32\[96, 41\]",
        ),
        (
            {"x": normal(3, 96)},
            WEIGHTS | {"v": np.ones((96, 40), int)},
            r"param 'v' is declared f32\[96,40\], got int64",
        ),
    ],
)
def test_what_does_not_fit_never_reaches_native_code(monkeypatch, inputs, params, message):
    run = compiled(network())
    monkeypatch.setattr(pool.Pool, "run", lambda *_: pytest.fail("native code ran"))
    with pytest.raises(BindingError, match=message):
        run.run(inputs, params)


def test_sizes_that_must_agree():
    g = rlx.Graph("pair")
    g.set_outputs([g.input("a", ("A",)) + g.input("b", ("B",))])
    run = compiled(g)
    np.testing.assert_array_equal(run.run({"a": np.ones(3, "f4"), "b": np.ones(3, "f4")}, {})[0], [2, 2, 2])
    with pytest.raises(BindingError, match="add needs A == B, but with A=3, B=2 they are 3 and 2"):
        run.run({"a": np.ones(3, "f4"), "b": np.ones(2, "f4")}, {})


def test_params_with_symbolic_sizes():
    g = rlx.Graph("table")
    g.set_outputs([g.param("w", ("N", 4)) * g.input("x", (4,))])
    run, x = compiled(g), normal(4)
    for rows in (3, 0, 9):
        w = normal(rows, 4)
        np.testing.assert_array_equal(run.run({"x": x}, {"w": w})[0], w * x)


def test_outputs_that_no_kernel_stores():
    g = rlx.Graph("plain")
    x, w = g.input("x", ("B", 4)), g.param("w", (4,))
    y = rlx.relu(x)
    g.set_outputs([x, w, y, y, y.reshape((-1,)), g.constant(np.arange(3, dtype="i4"))])
    run, x, w = compiled(g), normal(2, 4), normal(4)
    results = run.run({"x": x}, {"w": w})
    relu = np.maximum(x, 0)
    for got, wanted in zip(results, [x, w, relu, relu, relu.reshape(-1), np.arange(3, dtype="i4")], strict=True):
        np.testing.assert_array_equal(got, wanted)
    for i, a in enumerate(results):
        assert not any(np.shares_memory(a, b) for b in (x, w, *results[:i]))


def test_host_calls_between_kernels(shared_by_all):
    g = rlx.Graph("mixed")
    x, w = g.input("x", ("B", 96)), g.param("w", (96, 96))
    ordered = rlx.sort(rlx.tanh(x @ w))
    values = rlx.top_k(ordered @ w, 3)
    g.set_outputs([rlx.relu(ordered) + 1.0, values[0] * 2.0])
    run, x = compiled(g, threads=2), normal(60, 96)
    ordered = np.sort(np.tanh(x.astype("f8") @ WEIGHTS["w"]))
    top = np.sort(ordered @ WEIGHTS["w"])[:, :-4:-1]
    for _ in range(3):
        got = run.run({"x": x}, WEIGHTS)
        np.testing.assert_allclose(got[0], np.maximum(ordered, 0) + 1, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got[1], 2 * top, rtol=1e-3, atol=1e-3)


def test_what_a_host_call_returns_is_safe_from_later_kernels():
    """Reversing gives a view of its operand, whose memory in the arena is free afterwards."""
    g = rlx.Graph("turned")
    x, w = g.input("x", ("B", 96)), g.param("w", (96, 96))
    turned = rlx.reverse(rlx.tanh(x @ w), (0,))
    later = x
    for _ in range(3):
        later = rlx.tanh(later @ w)
    g.set_outputs([turned * later])
    run, x, w = compiled(g), normal(8, 96), WEIGHTS["w"]
    wanted = np.tanh(x @ w)[::-1] * np.tanh(np.tanh(np.tanh(x @ w) @ w) @ w)
    np.testing.assert_allclose(run.run({"x": x}, {"w": w})[0], wanted, rtol=1e-4, atol=1e-4)


def test_a_failed_host_call_leaves_nothing_behind():
    g = rlx.Graph("asserting")
    x = g.input("x", ("B", 8))
    y = rlx.tanh(x)
    g.set_outputs([rlx.runtime_assert(rlx.reduce_sum(y, (0, 1)) < 4.0, "too large", y) * 2.0])
    run = compiled(g)
    for _ in range(3):
        with pytest.raises(AssertionFailed, match="too large"):
            run.run({"x": np.ones((3, 8), "f4")}, {})
        np.testing.assert_array_equal(run.run({"x": np.zeros((3, 8), "f4")}, {})[0], np.zeros((3, 8)))
    assert len(run._main._arenas._free) == 1, "the arena was given back each time"


def test_memory_does_not_grow_with_the_number_of_shapes():
    run = compiled(network())
    for batch in range(1, runner.KEPT_PLANS + 40):
        run.run({"x": np.ones((batch, 96), "f4")}, WEIGHTS)
    assert run._main._contexts.cache_info().currsize == runner.KEPT_PLANS
    assert len(run._main._arenas._free) == 1


def test_a_known_shape_costs_no_planning(monkeypatch):
    run, x = compiled(network()), normal(5, 96)
    prepared = run.prepare(WEIGHTS)
    first = run.run({"x": x}, prepared)
    monkeypatch.setattr(runner, "Plan", lambda *_: pytest.fail("planned again"))
    monkeypatch.setattr(runner, "bound_sizes", lambda *_: pytest.fail("bound again"))
    for a, b in zip(first, run.run({"x": x}, prepared), strict=True):
        np.testing.assert_array_equal(a, b)


def test_equal_kernels_are_one_piece_of_code():
    g = rlx.Graph("layers")
    x = g.input("x", ("B", 96))
    for i in range(3):
        x = rlx.tanh(x @ g.param(f"w{i}", (96, 96)))
    g.set_outputs([x])
    addresses = {step.code.address for step in compiled(g)._main.program.steps}
    assert len(addresses) == 1


def test_small_programs_stay_in_the_calling_thread(monkeypatch):
    asked = []
    monkeypatch.setattr(pool.Pool, "run", lambda self, job, threads: asked.append(threads))
    run = compiled(network(), threads=8)
    run.run({"x": normal(1, 96)}, WEIGHTS)
    run.run({"x": normal(4000, 96)}, WEIGHTS)
    assert asked == [8], "the first run needs no pool"


def test_the_number_of_threads(monkeypatch):
    asked = []
    monkeypatch.setattr(pool.Pool, "run", lambda self, job, threads: asked.append(threads))
    x = {"x": normal(4000, 96)}
    free, fixed = compiled(network()), compiled(network(), threads=3)
    with rlx.knobs(threads=2):
        free.run(x, WEIGHTS)
        fixed.run(x, WEIGHTS)
        with rlx.threads(5):
            free.run(x, WEIGHTS)
            fixed.run(x, WEIGHTS)
    assert asked == [2, 3, 5, 5]
    with pytest.raises(RlxError, match=r"CompileOptions.threads: the number of threads is from 1 to 1024, got 0"):
        compiled(network(), threads=0)
