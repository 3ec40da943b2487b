"""Effects: what is printed, called and checked, in which order, and how failures read."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import AssertionFailed, OpError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.text.graph_text import parse, show

X = np.arange(3.0)


@pytest.fixture
def callback():
    """Registers functions for one test."""
    names = []

    def register(name, function):
        names.append(ops.register_callback(name, function))
        return name

    yield register
    for name in names:
        ops.unregister_callback(name)


def test_all_are_effects():
    assert all(op.effect and op.primitive for op in (ops.DebugPrint, ops.HostCallback, ops.RuntimeAssert))


def test_debug_print(capsys):
    np.testing.assert_array_equal(ops.debug_print("x = {}, n = {:.2f} {{}}", X, np.float32(0.5)), X)
    ops.debug_print("here", X)
    ops.debug_print("{!r} {}", np.int32(3), np.array(True))
    assert capsys.readouterr().out == "x = [0. 1. 2.], n = 0.50 {}\nhere\n3 True\n"


def test_effects_run_in_program_order(capsys):
    graph = Graph()
    x = graph.input("x", (3,), "f64")
    ops.debug_print("first {}", x)
    y = x + x
    ops.debug_print("second {}", y)
    ops.debug_print("third", x)
    graph.set_outputs([y])
    interpret(graph, [X])
    assert capsys.readouterr().out == "first [0. 1. 2.]\nsecond [0. 2. 4.]\nthird\n"


def test_runtime_assert():
    assert np.asarray(ops.runtime_assert(X >= 0, "must not be negative", X)).tolist() == X.tolist()
    assert np.asarray(ops.runtime_assert(np.True_, "fine")).item() is True
    with pytest.raises(AssertionFailed, match=r"runtime_assert: x must be below 2 \(first at index \[2\] of \[3\]\)"):
        ops.runtime_assert(X < 2, "x must be below 2", X)
    with pytest.raises(AssertionFailed, match=r"not now$"):
        ops.runtime_assert(np.False_, "not now")


def test_host_callback_returns_its_declared_results(both):
    def minimum_and_sorted(x):
        return x.min(), np.sort(x)[::-1]

    smallest, ordered = both(lambda x: ops.host_callback(minimum_and_sorted, ["f64[]", x], x), X)
    assert float(smallest) == 0.0
    np.testing.assert_array_equal(ordered, [2, 1, 0])


def test_host_callback_without_results_passes_its_operand_on(both):
    seen = []
    y = both(lambda x: ops.host_callback(seen.append, None, x), X)
    np.testing.assert_array_equal(y, X)
    assert len(seen) == 2


def test_host_callback_results_convert_within_their_kind(callback):
    name = callback("test.narrower", lambda: np.float64(1.5))
    assert np.asarray(ops.host_callback(name, "f32[]")).dtype == np.float32


def test_functions_of_one_name_are_told_apart():
    results = [float(ops.host_callback(lambda x, f=factor: x * f, "f64[]", np.float64(3))) for factor in (2, 5)]
    assert results == [6.0, 15.0]


def test_callbacks_survive_text(callback):
    name = callback("test.double", lambda x: 2 * x)
    graph = Graph()
    x = graph.input("x", ("B",), "f64")
    graph.set_outputs([ops.host_callback(name, x, x)])
    [result] = interpret(parse(show(graph)), [X])
    np.testing.assert_array_equal(result, 2 * X)


def test_registry(callback):
    def twice(x):
        return 2 * x

    callback("test.twice", twice)
    assert ops.register_callback("test.twice", twice) == "test.twice"
    with pytest.raises(OpError, match=r"another function is called 'test.twice'"):
        ops.register_callback("test.twice", abs)
    with pytest.raises(OpError, match="needs a function, got int"):
        ops.register_callback("test.three", 3)
    with pytest.raises(OpError, match=r"no callback is called 'test.absent'"):
        ops.unregister_callback("test.absent")


@pytest.mark.parametrize(
    ("returned", "results", "message"),
    [
        (np.zeros(2), "f64[3]", r"declares a result f64\[3\], but returned float64 of shape \[2\]"),
        (np.zeros(3), "i32[3]", r"declares a result i32\[3\], but returned float64"),
        ((1.0, 2.0), "f64[]", "declares 1 results, but returned 2"),
        (1.0, ["f64[]", "f64[]"], "declares 2 results, but returned 1"),
    ],
)
def test_wrong_results(callback, returned, results, message):
    name = callback("test.wrong", lambda x: returned)
    with pytest.raises(OpError, match=message):
        ops.host_callback(name, results, X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.host_callback("test.missing", X, X),
            r"no function is registered as 'test.missing'; call register",
        ),
        (lambda: ops.HostCallback("test.missing")(), "neither operands nor results"),
        (lambda: ops.debug_print("{} {}", X), "has 2 fields for 1 operands"),
        (lambda: ops.debug_print("{x}", X), "no names or numbers"),
        (lambda: ops.debug_print("{", X), "cannot be read"),
        (lambda: ops.runtime_assert(X, "message"), "needs a bool condition"),
    ],
)
def test_errors(call, message):
    with pytest.raises(OpError, match=message):
        call()
