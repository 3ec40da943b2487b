"""Compiled graphs by key and by size."""

import numpy as np
import pytest

import rlx
from rlx.compat.engine_caches import BucketedCompileCache, CompileCache, pad_rows, slice_rows
from rlx.errors import BindingError
from rlx.runtime.device import dispatch_report_for_device, first_unsupported_op, full_name, supports, supports_graph


def rows(count):
    g = rlx.Graph("rows")
    x, w = g.input("x", (count, 3)), g.input("w", (3,))
    g.set_outputs([rlx.tanh(x * w), rlx.reduce_sum(w, (0,))])
    return g


def test_a_key_is_compiled_once_and_the_oldest_leaves():
    built = []

    def build(n):
        built.append(n)
        return rows(n)

    cache = CompileCache("reference", 2)
    assert cache.is_empty
    for n in (1, 2, 1, 3, 1, 2):
        cache.get_or_compile(n, lambda n=n: build(n))
    assert built == [1, 2, 3, 2]
    assert len(cache) == 2
    assert 2 in cache
    assert not cache.contains(3)
    with pytest.raises(BindingError, match="at least 1"):
        CompileCache("reference", 0)


def test_weights_stay_with_the_entry():
    def build():
        g = rlx.Graph("weighted")
        g.set_outputs([g.input("x", (2,)) * g.param("w", (2,))])
        return g

    cache = CompileCache("cpu", 1)
    cache.get_or_compile("a", build).set_param("w", np.full(2, 5.0))
    assert cache.get_or_compile("a", build).run(x=np.ones(2, "f4"))[0][0] == 5.0


def test_the_ladder():
    cache = BucketedCompileCache.power_of_two_ladder("reference", 8, 256)
    assert [b.stop - 1 for b in cache.buckets] == [8, 16, 32, 64, 128, 256]
    assert cache.buckets[0] == range(1, 9)
    assert cache.buckets[1] == range(9, 17)
    assert cache.bucket_for(0) is None
    assert cache.bucket_for(257) is None
    assert cache.bucket_for(33) == range(33, 65)


@pytest.mark.parametrize("ranges", [[], [range(3, 3)], [range(1, 5), range(4, 9)]])
def test_ranges_must_be_apart(ranges):
    with pytest.raises(BindingError):
        BucketedCompileCache("reference", ranges)


def test_runs_are_padded_and_cut():
    cache = BucketedCompileCache.power_of_two_ladder("cpu", 4, 16)
    w = np.array([1, 2, 3], "f4")
    for size in (1, 4, 5, 7, 16):
        x = np.random.default_rng(size).normal(size=(size, 3)).astype("f4")
        y, total = cache.run_padded(size, rows, {"x": x, "w": w}, rows=["x"])
        np.testing.assert_allclose(y, np.tanh(x * w), rtol=1e-5, atol=1e-6)
        assert total == 6
    assert cache.compiled_count == 3
    assert cache.get_or_compile(99, rows) is None
    with pytest.raises(BindingError, match="no bucket holds 99"):
        cache.run_padded(99, rows, {})


def test_rows_are_checked():
    np.testing.assert_array_equal(slice_rows(pad_rows(np.ones((2, 2)), 3), 2), np.ones((2, 2)))
    with pytest.raises(BindingError, match="at most 1 rows"):
        pad_rows(np.ones((2, 2)), 1)
    with pytest.raises(BindingError, match="at least 3 rows"):
        slice_rows(np.ones((2, 2)), 3)


def test_what_devices_support():
    graph = rows(2)
    assert supports("cpu", graph.nodes[-1].op)
    assert supports_graph("cpu", graph)
    assert first_unsupported_op("cpu", graph) is None
    assert not supports("tpu", graph.nodes[-1].op)
    assert not supports_graph("tpu", graph)
    assert full_name("cpu").startswith("cpu (")
    assert "map" in str(dispatch_report_for_device("cpu", graph))
