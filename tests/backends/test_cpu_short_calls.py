"""Short calls: the same results and refusals as the road that all programs take, whatever the arguments are."""

import gc
import os
import sys
import threading
import weakref

import numpy as np
import pytest

import rlx
from rlx.backends.cpu import short_calls
from rlx.backends.cpu.executor_call import Record
from rlx.backends.cpu.short_calls import LONGEST_NS, has_short_calls
from rlx.errors import BindingError, NanFound, OpError, OutOfRange
from rlx.runtime.arrays import Array, as_array


def sum_and_product(dims=("N", 4)):
    g = rlx.Graph("both")
    x, y = g.input("x", dims), g.input("y", dims)
    g.set_outputs([x * y, x + y])
    return rlx.Session("cpu").compile(g)


def pair(rows=3, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((rows, 4)).astype("f4") for name in "xy"}


def settled(run):
    """Run until the call is known; how long a run takes is measured, and another process may have had the CPU."""
    for _ in range(200):
        run()


def short_of(compiled):
    settled(lambda: compiled.run(pair()))
    assert compiled._short is not None
    return compiled._short.call


def check(outputs, given):
    np.testing.assert_array_equal(outputs[0], given["x"] * given["y"])
    np.testing.assert_array_equal(outputs[1], given["x"] + given["y"])


def test_results_are_read_only_arrays_of_their_own():
    compiled = sum_and_product()
    call = short_of(compiled)
    given = pair(seed=1)
    outputs = compiled.run(given)
    check(outputs, given)
    first = [np.array(o) for o in outputs]
    others = compiled.run(pair(seed=2))
    for before, now, other, usual in zip(first, outputs, others, map(as_array, first)):
        np.testing.assert_array_equal(before, now)
        assert type(now) is Array and not np.shares_memory(now, other)
        assert now.flags.num == usual.view(Array).flags.num and not now.flags.writeable
        assert type(now.base) is np.ndarray and now.base.flags.owndata and now.base.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(now)[0] = 1.0
    assert compiled._short.call is call


def test_what_does_not_fit_takes_the_other_road():
    compiled = sum_and_product()
    call = short_of(compiled)
    given = pair()
    x, y = given.values()
    unaligned = np.frombuffer(bytearray(x.nbytes + 1), np.uint8)[1:].view("f4").reshape(x.shape)
    unaligned[...] = x
    read_only = x.copy()
    read_only.flags.writeable = False

    class Other(np.ndarray):
        pass

    strange = (None, 1.0, [1.0], x.astype("f8"), x[::-1], np.asfortranarray(x), unaligned, x.view(Other), x.tolist())
    for other in (*strange, x[:2], x[0], np.zeros((3, 4, 1), "f4"), np.zeros((), "f4")):
        assert call(other, y) is None and call(y, other) is None
    assert call() is None and call(x) is None and call(x, y, y) is None
    for fitting in (read_only, as_array(x), x):
        check(call(fitting, y), given)
    for other in (x[:], np.asfortranarray(x), unaligned, read_only):
        check(compiled.run(x=other, y=y), given)
    with pytest.raises(BindingError, match="input 'x'"):
        compiled.run(x=x.astype("i4"), y=y)
    with pytest.raises(BindingError, match="'y'"):
        compiled.run(x=x)
    with pytest.raises(BindingError, match="'z'"):
        compiled.run(x=x, z=y)
    with pytest.raises(BindingError):
        compiled.run(x=x, y=y[:2])


def test_shapes_may_change_from_call_to_call():
    compiled = sum_and_product()
    for number in range(60):
        given = pair(number % 3 + 1, number)
        check(compiled.run(given), given)


def test_new_weights_are_seen():
    g = rlx.Graph("scaled")
    g.set_outputs([g.input("x", (3,)) * g.param("w", (3,))])
    compiled = rlx.Session("cpu").compile(g)
    x = np.array([1, 2, 3], "f4")
    for scale in (2.0, 3.0):
        compiled.set_param("w", np.full(3, scale, "f4"))
        settled(lambda: compiled.run(x=x))
        assert compiled._short is not None
        np.testing.assert_array_equal(compiled.run(x=x)[0], x * np.float32(scale))
    weights = weakref.ref(compiled._ready.prepared)
    compiled.set_param("w", np.full(3, 3.0, "f4"))
    compiled.run(x=x)
    gc.collect()
    assert weights() is None  # neither the call nor the program keeps them
    twin = compiled.clone()
    twin.set_param("w", np.full(3, 5.0, "f4"))
    np.testing.assert_array_equal(twin.run(x=x)[0], x * 5)
    np.testing.assert_array_equal(compiled.run(x=x)[0], x * 3)


def test_singular_matrices_are_refused_each_time():
    solve = rlx.jit(rlx.numpy.linalg.solve)
    a, b = np.eye(3) + 0.1, np.arange(3.0)
    settled(lambda: solve(a, b))
    assert solve._short is not None
    np.testing.assert_allclose(solve(a, b), np.linalg.solve(a, b))
    for _ in range(2):
        with pytest.raises(OpError, match="singular"):
            solve(np.zeros((3, 3)), b)
        np.testing.assert_allclose(solve(a, b), np.linalg.solve(a, b))


def test_jit_does_all_that_it_does_besides_running():
    traces = []

    def scaled(x, y):
        traces.append(x)
        return {"out": x / y * 0.1}

    fn = rlx.jit(scaled)
    x, y = pair().values()
    settled(lambda: fn(x, y))
    assert fn._short is not None and fn.cache_info().hits == 199 and len(traces) == 1
    np.testing.assert_array_equal(fn(x, y)["out"], x / y * np.float32(0.1))
    assert fn(x, y=y)["out"].shape == x.shape
    with rlx.debug_nans(), pytest.raises(NanFound):
        fn(0 * x, 0 * y)
    before = len(traces)
    with rlx.disable_jit():
        assert type(fn(x, y)["out"]) is not dict and len(traces) == before + 1
    inner = rlx.jit(lambda x, y: fn(x, y)["out"] + 1.0)
    np.testing.assert_allclose(inner(x, y), x / y * 0.1 + 1.0, rtol=1e-6)
    before = fn.cache_info().misses
    with rlx.default_float("f64"):
        fn(x, y)
    assert fn.cache_info().misses == before + 1
    fn.clear_cache()
    assert fn._short is None
    fn(x, y)


def test_measured_runs_have_times():
    compiled = sum_and_product()
    short_of(compiled)
    assert compiled.profile(pair(), runs=2).kernels


def test_only_what_ends_soon_is_called_so(monkeypatch):
    compiled = sum_and_product()
    big = {name: np.ones((short_calls.LARGEST_RESULT // 16 + 1, 4), "f4") for name in "xy"}
    settled(lambda: compiled.run(pair()))
    for _ in range(5):
        compiled.run(big)
    assert compiled._short is None
    monkeypatch.setattr(short_calls, "LONGEST_NS", 0)
    other = sum_and_product()
    other.run(pair())
    runner = other.executable._main
    assert runner._last_plain.fastest_ns < LONGEST_NS * 1000 and other._short is None
    counting = rlx.jit(lambda n: rlx.while_loop(lambda c: c < n, lambda c: c + 1, np.int32(0)))
    adding = rlx.jit(lambda x: rlx.scan(lambda c, v: (c + v, c), np.float32(0), x))
    for fn, argument in ((counting, np.array(5, np.int32)), (adding, np.ones(4, "f4"))):
        fn(argument)
        (made,) = fn._compiled.values()
        assert not has_short_calls(made.compiled_graph.executable._main.program)


@pytest.mark.parametrize("rows", [63, 64, 65, 1023, 4097])
def test_larger_results_begin_at_cache_lines(rows):
    compiled = sum_and_product()
    given = pair(rows)
    settled(lambda: compiled.run(given))
    call = compiled._short.call
    for _ in range(5):
        outputs = call(given["x"], given["y"])
        check(outputs, given)
        for output in outputs:
            usual = as_array(np.array(output)).view(Array)
            assert output.flags.num == usual.flags.num and output.shape == (rows, 4) and output.dtype == np.float32
            assert output.ctypes.data % 64 == 0 or output.nbytes <= 1024
            assert type(output.base) is np.ndarray and output.base.flags.owndata and output.base.flags.writeable


@pytest.fixture
def two_threads():
    rlx.knobs.set(threads=2)
    yield
    rlx.knobs.reset()


def shared_call(compiled, given):
    """The call of a program that threads share, once it is known; another process may have had the CPU meanwhile."""
    settled(lambda: compiled.run(given))
    assert compiled._short is not None
    return compiled._short.call


def test_programs_with_enough_work_are_shared_by_threads(two_threads):
    compiled = sum_and_product()
    given = pair(20_000)
    x, y = given.values()
    call = shared_call(compiled, given)
    assert call.__self__[Record.THREADS] == 2
    for _ in range(50):
        check(call(x, y), given)
    for scope in (rlx.threads(1), rlx.knobs(threads=1)):
        with scope:
            assert call(x, y) is None
            check(compiled.run(given), given)
    check(call(x, y), given)
    rlx.knobs.set(threads=1)
    assert call(x, y) is None
    alone = shared_call(compiled, given)
    assert alone.__self__[Record.THREADS] == 1
    check(alone(x, y), given)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_does_not_use_the_workers_of_its_parent(two_threads):
    compiled = sum_and_product()
    given = pair(20_000)
    x, y = given.values()
    call = shared_call(compiled, given)
    child = os.fork()
    if child == 0:
        problem = 1
        try:
            assert call(x, y) is None
            for _ in range(20):
                check(compiled.run(given), given)
            problem = 0
        finally:
            os._exit(problem)
    assert os.waitpid(child, 0)[1] == 0
    check(call(x, y), given)


def test_nothing_is_kept_and_nothing_is_lost():
    """References are counted: of arguments, of dtypes, and of results when they are dropped."""
    compiled = sum_and_product()
    call = short_of(compiled)
    given = pair()
    x, y = given.values()
    gc.collect()
    counted = (x, y, x.dtype, None, Array, np.ndarray, compiled)
    before = [sys.getrefcount(thing) for thing in counted]
    for _ in range(1000):
        call(x, y)
        call(x, None)
    after = [sys.getrefcount(thing) for thing in counted]
    assert all(abs(a - b) < 50 for a, b in zip(before, after)), (before, after)


def test_threads_have_results_of_their_own():
    compiled = sum_and_product()
    short_of(compiled)
    problems = []

    def work(seed):
        given = pair(seed=seed)
        try:
            for _ in range(300):
                check(compiled.run(given), given)
        except AssertionError as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_callers_in_many_threads_share_one_pool(two_threads):
    compiled = sum_and_product()
    shared_call(compiled, pair(20_000))
    problems = []

    def work(seed):
        given = pair(20_000, seed)
        try:
            for _ in range(50):
                check(compiled.run(given), given)
        except AssertionError as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_collection_in_the_middle_of_a_call_may_call_again():
    """Making a result may collect garbage, whose finalisers may run the same program."""
    compiled = sum_and_product()
    short_of(compiled)
    seen = []

    class Calling:
        def __del__(self):
            given = pair(seed=7)
            check(compiled.run(given), given)
            seen.append(1)

    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for number in range(200):
            cycle = Calling()
            cycle.itself = cycle
            del cycle
            given = pair(seed=number)
            check(compiled.run(given), given)
    finally:
        gc.set_threshold(*thresholds)
    assert seen


def test_processes_without_the_interface_do_without(monkeypatch):
    monkeypatch.setattr(short_calls, "_interface", lambda: None)
    compiled = sum_and_product(("M", 4))  # another program: executables are shared
    given = pair()
    for _ in range(5):
        check(compiled.run(given), given)
    assert compiled._short is None and not compiled.executable.has_short_calls


def test_calls_with_ids_are_short_and_refuse_ids_from_outside():
    """Ids are looked at before the call; what is wrong with them is said by the road that all programs take."""
    table = np.arange(60, dtype="f4").reshape(12, 5)
    for dtype in ("i1", "u1", "i2", "i4", "u4", "i8"):
        for count in (3, 100):
            look_up = rlx.jit(lambda x, ids: x[ids])
            ids = np.arange(count).astype(dtype) % np.asarray(12, dtype)
            settled(lambda f=look_up, i=ids: f(table, i))
            assert look_up._short is not None
            np.testing.assert_array_equal(look_up(table, ids), table[ids])
            for outside in (12, 127, *((-13,) if dtype[0] == "i" else ())):
                ids[count // 2] = outside
                with pytest.raises(OutOfRange, match=f"ids holds {outside}, but the indexed axis has size 12"):
                    look_up(table, ids)
            if dtype[0] == "i":
                ids[count // 2] = -12
                np.testing.assert_array_equal(look_up(table, ids), table[ids])


def test_sessions_call_programs_with_ids_short():
    g = rlx.Graph("rows")
    g.set_outputs([rlx.gather(g.input("x", (12, 5)), g.input("ids", (40,), "i32"), 0)])
    compiled = rlx.Session("cpu").compile(g)
    table, ids = np.arange(60, dtype="f4").reshape(12, 5), np.arange(40, dtype="i4") % 12
    settled(lambda: compiled.run({"x": table, "ids": ids}))
    assert compiled._short is not None
    np.testing.assert_array_equal(compiled.run({"x": table, "ids": ids})[0], table[ids])
    ids[7] = 12
    with pytest.raises(OutOfRange, match="ids holds 12"):
        compiled.run({"x": table, "ids": ids})
