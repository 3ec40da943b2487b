"""Short calls on a GPU: the same results and refusals as the way that all runs go, with the launch alone."""

import gc
import threading

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx import nn
from rlx.backends.cuda.errors import CudaError
from rlx.errors import BindingError

rng = np.random.default_rng(0)


def normal(*dims):
    return rng.standard_normal(dims).astype("f4")


def put(*dims):
    return rlx.device_put(normal(*dims), "cuda")


def settled(run, *arrays):
    """Call until there is a short call."""
    for _ in range(3):
        run(*arrays)
    assert run._short is not None
    return run


def doubled():
    return settled(rlx.jit(lambda x, y: rnp.tanh(x * 2.0 + y), device="cuda"), put(4, 8), put(4, 8))


def check(result, x, y):
    np.testing.assert_allclose(result, np.tanh(np.asarray(x) * 2 + np.asarray(y)), rtol=1e-5)


def test_arrays_may_lie_elsewhere_at_each_call(fake):
    run, kept = doubled(), []
    for _ in range(20):
        x, y = put(4, 8), put(4, 8)
        fake.log.clear()
        result = run(x, y)
        assert fake.log.count("cuLaunchKernelEx") == 1 and fake.log.count("cuCtxSetCurrent") == 1
        kept.append((result, x, y))
    for result, x, y in kept:
        check(result, x, y)


def test_results_are_arrays_of_their_own(fake):
    run, x, y = doubled(), put(4, 8), put(4, 8)
    first, second = run(x, y), run(y, x)
    assert type(first) is rlx.DeviceArray and first.device == "cuda"
    assert first.value.address not in (second.value.address, x.value.address)
    check(first, x, y)
    check(second, y, x)
    before = fake.used
    for _ in range(5):
        run(x, y)
    gc.collect()
    assert fake.used <= before + 4 * 8 * 4


def test_what_does_not_fit_goes_the_other_way(fake):
    run, x, y = doubled(), put(4, 8), put(4, 8)
    call = run._short.call
    host = np.asarray(x)
    for other in (host, None, 1.0, put(8, 4), put(4), rlx.device_put(host.astype("f8"), "cuda")):
        assert call(other, y) is None and call(y, other) is None
    assert call() is None and call(x) is None and call(x, y, y) is None
    check(run(host, y), host, y)
    check(run(2.0, y), 2.0, y)
    for rows in (1, 5, 4):
        x, y = put(rows, 8), put(rows, 8)
        for _ in range(3):
            check(run(x, y), x, y)
    assert run._short.call is call, "what is known for these sizes is used again"


def test_rows_that_begin_anywhere(fake):
    """Code that reads whole vectors is launched where addresses allow it."""
    run = settled(rlx.jit(lambda x: rnp.exp(x), device="cuda"), put(32))
    whole = put(64)
    value = whole.value
    for offset in (0, 4, 16, 20):
        part = rlx.DeviceArray(type(value)(value.buffer, (32,), value.dtype, value.stream, offset))
        for _ in range(2):
            np.testing.assert_allclose(run(part), np.exp(np.asarray(whole)[offset // 4 :][:32]), rtol=1e-5)


def test_graphs_and_values_between_kernels(fake):
    def f(x, w):
        for _ in range(2):
            x = nn.softmax(x @ w, axis=-1)
        return x, x * 2.0

    x, w = put(3, 4), put(4, 4)
    run = settled(rlx.jit(f, device="cuda"), x, w)
    fake.log.clear()
    # The same memory comes again in turns.
    for _ in range(6):
        outputs = run(x, w)
    assert "cuGraphLaunch" in fake.log
    for got, wanted in zip(outputs, rlx.jit(f, device="cpu")(np.asarray(x), np.asarray(w)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_loops_go_their_rounds(fake):
    def f(xs):
        return rlx.scan(lambda c, x: (c * 0.5 + x, c + x), rnp.zeros(3, dtype="f4"), xs)

    xs = put(5, 3)
    run = settled(rlx.jit(f, device="cuda"), xs)
    for got, wanted in zip(run(xs), rlx.jit(f, device="cpu")(np.asarray(xs)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_an_argument_that_is_returned(fake):
    run = rlx.jit(lambda x: (x, x + 1.0), device="cuda")
    for _ in range(4):
        x = put(4)
        same, more = run(x)
        np.testing.assert_array_equal(same, np.asarray(x))
        np.testing.assert_array_equal(more, np.asarray(x) + 1)


def test_an_array_that_was_given_away_is_refused(fake):
    run, x, y = doubled(), put(4, 8), put(4, 8)
    x.given_away()
    with pytest.raises(BindingError, match="donated to a program"):
        run(x, y)


def test_programs_that_store_over_inputs_have_none(fake):
    run = rlx.jit(lambda x: x + 1.0, device="cuda", donate_argnums=0)
    for _ in range(4):
        x = put(4)
        wanted = np.asarray(x) + 1
        np.testing.assert_array_equal(run(x), wanted)
    assert run._short is None


def test_no_compiling_and_measuring_go_the_other_way(fake):
    from rlx.backends.kernel_times import timed

    run, x, y = doubled(), put(4, 8), put(4, 8)
    with timed() as noted:
        check(run(x, y), x, y)
    assert len(noted) == 1
    hits = run.cache_info().hits
    with rlx.disable_jit():
        check(run(x, y), x, y)
    assert run.cache_info().hits == hits


def test_no_memory_and_a_launch_that_fails(fake):
    run, x, y = doubled(), put(4, 8), put(4, 8)
    kept = [run(x, y) for _ in range(3)]
    used = fake.used
    fake.fail["cuLaunchKernelEx"] = [700]
    with pytest.raises(CudaError, match="ILLEGAL_ADDRESS: a kernel touched memory"):
        run(x, y)
    gc.collect()
    kept.append(run(x, y))
    limit, fake.memory = fake.memory, fake.used
    with pytest.raises(CudaError, match=r"OUT_OF_MEMORY.*wanted for an output"):
        kept += [run(x, y) for _ in range(3)]
    fake.memory = limit
    for result in (*kept, run(x, y)):
        check(result, x, y)
    assert fake.used <= used + 4 * 128


def test_threads(fake):
    run, wrong = doubled(), []

    def work(seed):
        x = rlx.device_put(np.full((4, 8), seed, "f4"), "cuda")
        for _ in range(20):
            if not np.allclose(run(x, x), np.tanh(3.0 * seed), rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_call_does_not_keep_weights(fake):
    from rlx.backends.cuda.backend import CudaBackend

    graph = rlx.Graph("scaled")
    x, w = graph.input("x", (4,)), graph.param("w", (4,))
    graph.set_outputs([x * w])
    executable = CudaBackend().compile(graph)
    params = executable.prepare({"w": np.full(4, 3.0, "f4")})
    x = put(4)
    executable.run({"x": x.value}, params)
    call = executable.short_call(params, rlx.DeviceArray)
    assert executable.short_call(params, rlx.DeviceArray) is call
    np.testing.assert_array_equal(call(x)[0], np.asarray(x) * 3)
    others = executable.prepare({"w": np.full(4, 5.0, "f4")})
    np.testing.assert_array_equal(executable.short_call(others, rlx.DeviceArray)(x)[0], np.asarray(x) * 5)
    np.testing.assert_array_equal(call(x)[0], np.asarray(x) * 3)
    del params
    gc.collect()
    assert call(x) is None, "its weights are gone"
