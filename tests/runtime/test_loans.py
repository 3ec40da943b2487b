"""Arrays that go round: what a program stored over its inputs comes back as those inputs."""

import gc
import threading
import weakref

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.donation import Held, HeldInput
from rlx.errors import BindingError, RlxError

rng = np.random.default_rng(7)


def normal(*shape):
    return rng.standard_normal(shape).astype("f4")


def two_caches(name="caches"):
    """a[i] = row, b[i] = 2 row; and a sum over both."""
    g = rlx.Graph(name)
    a, b = g.input("a", ("C", 8)), g.input("b", ("C", 8))
    row, i = g.input("row", (1, 8)), g.input("i", (), "i32")
    first = ops.dynamic_update_slice(a, row, [i, 0])
    second = ops.dynamic_update_slice(b, row * 2.0, [i, 0])
    g.set_outputs([first, (first + second).sum(), second])
    g.alias(first, "a")
    g.alias(second, "b")
    return g


def expected(a, b, row, i):
    a, b = np.array(a), np.array(b)
    a[int(i)], b[int(i)] = row[0], 2 * row[0]
    return a, np.float32((a + b).sum(dtype="f8")), b


def check(outputs, wanted):
    for output, value in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(output), value, rtol=1e-5, atol=1e-5)


def step(c, a, b, i=0, **more):
    given = {"a": a, "b": b, "row": normal(1, 8), "i": np.int32(i), **more}
    wanted = expected(**given)
    outputs = c.run(given)
    check(outputs, wanted)
    return outputs


@pytest.fixture
def c():
    return rlx.Session("cpu").compile(two_caches())


def test_arrays_that_come_back_are_returned_themselves(c):
    a, _, b = step(c, normal(5, 8), normal(5, 8))
    for i in range(4):
        first, _, second = step(c, a, b, i)
        assert first is a and second is b


def test_every_number_of_threads(c):
    a, _, b = step(c, normal(5, 8), normal(5, 8))
    for count in (1, 2, 3):
        with rlx.threads(count):
            assert step(c, a, b, count)[0] is a


def test_sizes_that_change(c):
    for rows in (3, 9, 3):
        a, _, b = step(c, normal(rows, 8), normal(rows, 8))
        step(c, a, b, rows - 1)
    with pytest.raises(BindingError):
        c.run({"a": a, "b": normal(4, 8), "row": normal(1, 8), "i": np.int32(0)})


def test_two_sets_by_turns(c):
    sets = [step(c, normal(n, 8), normal(n, 8)) for n in (4, 4, 6)]
    for i in range(4):
        for a, _, b in sets:
            assert step(c, a, b, i)[2] is b


def test_arrays_in_each_others_place(c):
    a, _, b = step(c, normal(5, 8), normal(5, 8))
    a, _, b = step(c, b, a, 2)
    assert step(c, a, b, 3)[0] is a


def test_arrays_of_two_runs_mixed(c):
    (a, _, _), (_, _, b) = (step(c, normal(5, 8), normal(5, 8)) for _ in range(2))
    a, _, b = step(c, a, b, 1)
    assert step(c, a, b, 2)[2] is b


def test_one_array_twice(c):
    a, _, _ = step(c, normal(5, 8), normal(5, 8))
    before = np.array(a)
    first, _, second = step(c, a, a, 1)
    assert not np.shares_memory(np.asarray(first), np.asarray(second))
    np.testing.assert_array_equal(np.asarray(a), before)


def test_an_input_that_lies_in_lent_memory(c):
    a, _, b = step(c, normal(5, 8), normal(5, 8))
    before = np.array(a)
    first, _, _ = step(c, a, b, 1, row=np.asarray(a)[3:4])
    np.testing.assert_array_equal(np.asarray(a), before)
    assert not np.shares_memory(np.asarray(first), np.asarray(a))


def test_views_and_copies_are_no_loans(c):
    a, _, b = step(c, normal(5, 8), normal(5, 8))
    for same in (a.view(), a[:], np.array(a), np.asarray(a), rlx.Array.copy(a)):
        first, _, _ = step(c, same, b, 1)
        assert first is not a
    np.testing.assert_array_equal(a.view(), a)


def test_another_program(c):
    other = rlx.Session("cpu").compile(two_caches("others"))
    a, _, b = step(c, normal(5, 8), normal(5, 8))
    for i in range(3):
        a, _, b = step(other, a, b, i)
        a, _, b = step(c, a, b, i + 1)
    twin = c.clone()
    assert step(twin, a, b)[0] is a


def test_wrong_arguments_change_nothing(c):
    a, _, b = step(c, normal(5, 8), normal(5, 8))
    before = np.array(a), np.array(b)
    row, i = normal(1, 8), np.int32(0)
    for wrong in (
        {"a": a, "b": b, "row": row},
        {"a": a, "b": b, "row": row, "j": i},
        {"a": a, "row": row, "i": i, "j": i},
        {"a": a, "b": b, "row": row.astype("f8"), "i": i},
        {"a": a, "b": b, "row": normal(2, 8), "i": i},
        {"a": a, "b": b, "row": row, "i": i, "more": i},
    ):
        with pytest.raises(BindingError):
            c.run(wrong)
    np.testing.assert_array_equal(np.asarray(a), before[0])
    np.testing.assert_array_equal(np.asarray(b), before[1])
    assert step(c, a, b, 2)[0] is a


def test_the_shape_of_an_array_is_fixed(c):
    a, _, _ = step(c, normal(5, 8), normal(5, 8))
    for name, value in (("shape", (8, 5)), ("dtype", np.int32), ("strides", (4, 4)), ("data", memoryview(b""))):
        with pytest.raises(RlxError, match=name):
            setattr(a, name, value)
    assert a.shape == (5, 8)


def test_one_array_does_not_keep_the_others(c):
    given = normal(5, 8)
    owner = weakref.ref(given)
    a, _, b = step(c, given, normal(5, 8))
    del given, a
    gc.collect()
    assert owner() is None
    assert b.shape == (5, 8)


def test_ids_are_looked_at_each_time():
    g = rlx.Graph("ids")
    table, ids = g.input("table", (4, 2)), g.input("ids", (1,), "i32")
    row = ops.gather(table, ids, 0)
    held = ops.dynamic_update_slice(table, row + 1.0, [0, 0])
    g.set_outputs([held])
    g.alias(held, "table")
    c = rlx.Session("cpu").compile(g)
    [table] = c.run(table=np.zeros((4, 2), "f4"), ids=np.array([3], "i4"))
    [again] = c.run(table=table, ids=np.array([0], "i4"))
    assert again is table
    np.testing.assert_array_equal(np.asarray(table)[0], 2)
    for wrong in (4, -5, 2**31 - 1):
        with pytest.raises(RlxError, match="valid ids"):
            c.run(table=table, ids=np.array([wrong], "i4"))


def test_ids_that_are_overwritten_themselves():
    g = rlx.Graph("overwritten ids")
    table, ids = g.input("table", (4, 2)), g.input("ids", (1,), "i32")
    following = ids + np.int32(2)
    g.set_outputs([following, ops.gather(table, ids, 0)])
    g.alias(following, "ids")
    c = rlx.Session("cpu").compile(g)
    table = normal(4, 2)
    ids, row = c.run(table=table, ids=np.array([1], "i4"))
    np.testing.assert_array_equal(row, table[1:2])
    ids, row = c.run(table=table, ids=ids)
    np.testing.assert_array_equal(row, table[3:4])
    with pytest.raises(RlxError, match="ids holds 5"):
        c.run(table=table, ids=ids)


def test_threads_with_arrays_of_their_own(c):
    failures = []

    def work(seed):
        own = np.random.default_rng(seed)
        a, b = (own.standard_normal((5, 8)).astype("f4") for _ in range(2))
        for i in range(60):
            row = own.standard_normal((1, 8)).astype("f4")
            wanted = expected(a, b, row, i % 5)
            a, _, b = c.run(a=a, b=b, row=row, i=np.int32(i % 5))
            if not (np.array_equal(np.asarray(a), wanted[0]) and np.array_equal(np.asarray(b), wanted[2])):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_functions_return_donated_arrays_themselves():
    update = rlx.jit(lambda p, g: {k: p[k] - 0.5 * g[k] for k in p}, donate_argnums=0)
    params = {"w": normal(3, 4), "b": normal(4)}
    grads = {"w": normal(3, 4), "b": normal(4)}
    wanted = {k: params[k] - 0.5 * grads[k] for k in params}
    new = update(params, grads)
    again = update(new, grads)
    for k in params:
        assert again[k] is new[k]
        np.testing.assert_allclose(np.asarray(again[k]), wanted[k] - 0.5 * grads[k], rtol=1e-6, atol=1e-6)


def test_held_memory():
    held = Held([HeldInput(0, 100, (5,)), HeldInput(2, 40, (3,)), HeldInput(3, 60, (0,))], [20, 12, 0])
    inside = {*range(100, 120), *range(40, 52)}
    for start in range(30, 130):
        for size in range(12):
            assert held.meets(start, size) == any(byte in inside for byte in range(start, start + size))
