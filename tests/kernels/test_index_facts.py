"""What is known of indices holds for all of them, and what never runs is no code."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.ir.dtype import DType
from rlx.kernels.ir.builder import KernelBuilder
from rlx.kernels.ir.index_facts import ANYTHING, Fact, comparison, counted, either, exactly, of_operation
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import For, If, LoopKind, walk

F32 = DType.F32


def truncated(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": truncated,
    "rem": lambda a, b: a - b * truncated(a, b),
    "min": min,
    "max": max,
}
COMPARISONS = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}


def wrapped(number):
    """As a number of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def holds(fact, number):
    return fact.low <= number <= fact.high and (number % fact.multiple if fact.multiple else number) == 0


@st.composite
def numbers_and_fact(draw):
    """A few numbers, and something true of all of them; some bounds are not known."""
    multiple = draw(st.sampled_from([1, 2, 3, 4, 6, 16]))
    some = st.one_of(st.integers(-9, 9), st.integers(-(2**63) // 16 + 1, 2**63 // 16 - 1))
    numbers = [multiple * n for n in draw(st.lists(some, min_size=1, max_size=4))]
    low, high = draw(st.booleans()), draw(st.booleans())
    if len(set(numbers)) == 1 and low and high:
        return numbers, exactly(numbers[0])
    return numbers, Fact(min(numbers) if low else -math.inf, max(numbers) if high else math.inf, multiple)


@given(numbers_and_fact(), numbers_and_fact())
def test_facts_hold_for_all_numbers_that_they_are_said_of(first, second):
    (xs, x), (ys, y) = first, second
    for name, compute in OPERATIONS.items():
        fact = of_operation(name, x, y)
        for a in xs:
            assert all(holds(fact, wrapped(compute(a, b))) for b in ys if b or name not in ("div", "rem")), (name, fact)
    for name, compare in COMPARISONS.items():
        known = comparison(name, x, y)
        assert known is None or all(compare(a, b) is known for a in xs for b in ys), name
    assert all(holds(either(x, y), n) for n in (*xs, *ys))


@given(numbers_and_fact(), numbers_and_fact(), st.integers(1, 20))
def test_the_index_of_a_loop(first, second, step):
    (starts, start), (stops, stop) = first, second
    fact = counted(start, stop, exactly(step))
    assert all(holds(fact, i) for a in starts for b in stops for i in range(a, b, step)[:50])
    assert all(holds(fact, i) for a in starts for b in stops for i in range(a, b, step)[-50:])


def test_what_may_wrap_around_may_be_anything_but_for_powers_of_two():
    large = Fact(1 << 40, 1 << 60, 1)
    assert of_operation("mul", large, large) == of_operation("add", ANYTHING, large) == ANYTHING
    assert of_operation("add", Fact(0, math.inf, 1), exactly(1)) == ANYTHING
    assert of_operation("mul", ANYTHING, exactly(48)) == ANYTHING._replace(multiple=16)


@pytest.mark.parametrize("x", [2**62, 2**63 - 1, -(2**63), 5])
def test_integers_of_users_wrap_around(x):
    """A map of one lane computes them by the operations of indices."""
    g = rlx.Graph("wraps")
    given = g.input("x", (1,), "i64")
    above = rlx.maximum(given, 0) + 1
    g.set_outputs([(given * 3) % 3, rlx.where(above > 0, 1, 0)])
    number = np.array([x])
    with np.errstate(over="ignore"):
        wanted = (number * 3) % 3, (np.maximum(number, 0) + 1 > 0).astype("i8")
    for got, exact in zip(rlx.Session("cpu").compile(g).run(x=number), wanted, strict=True):
        np.testing.assert_array_equal(got, exact)


def panels(columns, width):
    """y[i] = 1 by panels, the last one element by element if it is smaller."""
    k = KernelBuilder("panels")
    y = k.pointer("y", F32, write=True)
    count = k.as_index(columns) if isinstance(columns, int) else k.index(columns)
    with k.loop("panel", 0, count, width) as panel:
        left = k.min(count - panel, width)
        with k.when(left >= width):
            k.store(y, panel, k.const(1.0, F32), mask=None)
            with k.loop("i", 1, width) as i:
                k.store(y, panel + i, k.const(1.0, F32))
        with k.otherwise(), k.loop("j", 0, left) as j:
            k.store(y, panel + j, k.const(1.0, F32))
        whole = left // 4 * 4
        with k.loop("rest", whole, left) as rest:
            k.store(y, panel + rest, k.const(1.0, F32))
    return k.build()


@pytest.mark.parametrize(("columns", "loops"), [(64, {"panel", "i"}), (65, {"panel", "i", "j", "rest"})])
def test_code_that_no_panel_needs_is_left_out(columns, loops):
    kernel = panels(columns, 16)
    assert {s.index.name for s in walk(kernel.body) if isinstance(s, For)} == loops
    y = np.zeros(columns, "f4")
    interpret(kernel, {"y": y})
    assert (y == 1).all()
    same = np.zeros(columns, "f4")
    interpret(panels("n", 16), {"y": same, "n": columns})
    assert (same == 1).all()


def test_a_choice_that_is_known_is_no_branch():
    k = KernelBuilder("sums")
    x, y = k.pointer("x", F32), k.pointer("y", F32, write=True)
    with k.loop("step", 0, 100, 128) as step:
        (first,) = k.choose(k.eq(step, 0), lambda: [k.const(0.0, F32)], lambda: [k.load(x, 0)])
        k.store(y, 0, k.select(k.ne(step, 0) | (step < 0), first, first + k.load(x, step)))
    kernel = k.build()
    assert not any(isinstance(s, If) for s in walk(kernel.body))
    y = np.zeros(1, "f4")
    interpret(kernel, {"x": np.full(1, 7, "f4"), "y": y})
    assert y[0] == 7


def test_what_callers_pass_may_be_anything():
    k = KernelBuilder("given")
    y, n = k.pointer("y", F32, write=True), k.index("n")
    for at, condition in enumerate((n >= 0, n < 1 << 40, k.eq(n % 2, 0))):
        with k.when(condition):
            k.store(y, at, k.const(1.0, F32))
    with k.loop_of(LoopKind.PARALLEL, "i", 0, n) as fold:
        fold.next()
    kernel = k.build()
    for n, wanted in ((-3, [0, 1, 0]), (4, [1, 1, 1])):
        y = np.zeros(3, "f4")
        interpret(kernel, {"y": y, "n": n})
        assert y.tolist() == wanted
