"""Results in the memory of an operand or of an input that was given away: only the touched part is written, and nobody
sees a value that was overwritten too early."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.backends.program import command_table
from rlx.compile.memory.interpret import interpret_lir
from rlx.errors import InternalError
from rlx.ir.interpret import interpret
from rlx.ir.lir import LirModule, LirViewAlias
from rlx.kernels.from_lir import generator
from rlx.kernels.machines import host
from rlx.ops.shape.indexing import ScatterKind, scatter_nd

GENERATOR = generator(host())

rng = np.random.default_rng(5)


def normal(*dims):
    return rng.normal(size=dims).astype("f4")


def compiled(graph, **options):
    return CpuBackend().compile(graph.copy(), CompileOptions(**options))


def kinds(executable):
    return [k.kind for k in executable.lir.kernels if k.kind != "view"]


def append_graph(aliased=True):
    """A cache of any capacity to which rows are appended, at another place for every batch."""
    g = rlx.Graph("append")
    cache = g.input("cache", ("B", 3, "C", 8))
    new, positions = g.input("new", ("B", "S", 3, 8)), g.input("positions", ("B", "S"), "i32")
    held = scatter_nd(cache, ops.expand_dims(positions, -1), new, axes=(2,), batch_dims=1)
    g.set_outputs([held])
    if aliased:
        g.alias(held, "cache")
    return g


def append(cache, new, positions):
    after = cache.copy()
    for b in range(len(cache)):
        after[b][:, positions[b]] = np.moveaxis(new[b], 0, 1)
    return after


def append_arguments(batch=2, capacity=7, steps=2):
    positions = np.stack([rng.permutation(capacity)[:steps] for _ in range(batch)]).astype("i4")
    return {"cache": normal(batch, 3, capacity, 8), "new": normal(batch, steps, 3, 8), "positions": positions}


@pytest.mark.parametrize("sizes", [(1, 5, 1), (2, 7, 2), (3, 64, 17), (1, 4, 0)])
def test_appending_to_a_cache_writes_the_new_rows_only(sizes):
    run, given = compiled(append_graph()), append_arguments(*sizes)
    assert kinds(run) == ["scatter"]
    cache, wanted = given["cache"], append(**given)
    [result] = run.run(given, {})
    assert result is cache
    np.testing.assert_array_equal(cache, wanted)


def test_without_an_alias_the_input_stays_as_it_is():
    run, given = compiled(append_graph(aliased=False)), append_arguments()
    before = given["cache"].copy()
    [result] = run.run(given, {})
    np.testing.assert_array_equal(given["cache"], before)
    np.testing.assert_array_equal(result, append(**given))
    assert kinds(run) == ["map", "scatter"]


def test_a_window_is_stored_in_place():
    g = rlx.Graph("window")
    cache, new, start = g.input("cache", ("B", "C", 4)), g.input("new", ("B", "S", 4)), g.input("start", (), "i32")
    held = ops.dynamic_update_slice_in_dim(cache, new, start, 1)
    g.set_outputs([held])
    g.alias(held, "cache")
    run = compiled(g)
    assert kinds(run) == ["update"]
    cache = normal(2, 9, 4)
    for first in (0, 3, 7, 100, -1):
        new, wanted = normal(2, 2, 4), cache.copy()
        place = min(max(first + 9 if first < 0 else first, 0), 7)
        wanted[:, place : place + 2] = new
        [result] = run.run({"cache": cache, "new": new, "start": np.array(first, "i4")}, {})
        assert result is cache
        np.testing.assert_array_equal(cache, wanted)


def layers(count):
    """As a decoder has them: append, then read everything; the last output is what follows from all caches."""
    g = rlx.Graph("layers")
    x, position = g.input("x", ("B", 8)), g.input("position", ("B",), "i32")
    caches = [g.input(f"cache{i}", ("B", "C", 8)) for i in range(count)]
    held = []
    for cache in caches:
        at = ops.reshape(position, ("B", 1, 1))
        held.append(scatter_nd(cache, at, ops.expand_dims(x, 1), axes=(1,), batch_dims=1))
        x = rlx.tanh(x + ops.reduce_sum(held[-1], (1,)))
    g.set_outputs([*held, x])
    for i, h in enumerate(held):
        g.alias(h, f"cache{i}")
    return g


def test_many_caches():
    graph = layers(4)
    run = compiled(graph)
    given = {f"cache{i}": normal(3, 5, 8) for i in range(4)} | {
        "x": normal(3, 8),
        "position": np.array([0, 4, 2], "i4"),
    }
    wanted = interpret(graph, {k: v.copy() for k, v in given.items()})
    caches = [given[f"cache{i}"] for i in range(4)]
    *held, x = run.run(given, {})
    assert all(h is c for h, c in zip(held, caches))
    for a, b in zip([*held, x], wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def old_and_new(order):
    """Somebody reads what was in the cache before: before the update in the program, or after it."""
    g = rlx.Graph("old")
    cache, new = g.input("cache", (6, 8)), g.input("new", (1, 8))
    if order == "reader first":
        total = ops.reduce_sum(cache * 2.0, (0,))
        held = ops.dynamic_update_slice_in_dim(cache, new, 2, 0)
    else:
        held = ops.dynamic_update_slice_in_dim(cache, new, 2, 0)
        total = ops.reduce_sum(cache * 2.0, (0,))
    g.set_outputs([held, total])
    g.alias(held, "cache")
    return g


@pytest.mark.parametrize("order", ["reader first", "reader last"])
def test_readers_of_the_old_value_run_first(order):
    graph = old_and_new(order)
    run, cache, new = compiled(graph), normal(6, 8), normal(1, 8)
    # The reader is moved in front of the update, so nothing has to be copied.
    assert kinds(run) == ["reduce", "update"]
    before = cache.copy()
    held, total = run.run({"cache": cache, "new": new}, {})
    assert held is cache
    np.testing.assert_allclose(total, 2 * before.sum(0), rtol=1e-5)
    before[2] = new
    np.testing.assert_array_equal(cache, before)


def test_an_old_value_that_is_needed_after_the_update_is_copied():
    g = rlx.Graph("change")
    cache, new = g.input("cache", (6, 8)), g.input("new", (1, 8))
    held = ops.dynamic_update_slice_in_dim(cache, new, 2, 0)
    g.set_outputs([held, rlx.tanh(ops.reverse(held, (0,))) @ ops.transpose(cache, (1, 0))])
    g.alias(held, "cache")
    run, cache, new = compiled(g), normal(6, 8), normal(1, 8)
    before = cache.copy()
    held, product = run.run({"cache": cache, "new": new}, {})
    assert held is cache
    after = before.copy()
    after[2] = new
    np.testing.assert_array_equal(cache, after)
    np.testing.assert_allclose(product, np.tanh(after[::-1]) @ before.T, rtol=1e-5, atol=1e-5)


def test_an_update_that_reads_what_it_replaces_gets_a_copy():
    g = rlx.Graph("shift")
    x, ids = g.input("x", (5,)), g.input("ids", (5, 1), "i32")
    y = scatter_nd(x, ids, x)
    g.set_outputs([y])
    g.alias(y, "x")
    run, x = compiled(g), normal(5)
    before = x.copy()
    [y] = run.run({"x": x, "ids": np.array([[1], [2], [3], [4], [0]], "i4")}, {})
    assert y is x
    np.testing.assert_array_equal(x, np.roll(before, 1))


def test_a_chain_of_updates_has_one_memory():
    g = rlx.Graph("chain")
    x = rlx.tanh(g.input("x", (64, 64)))
    for i in range(4):
        x = ops.dynamic_update_slice_in_dim(x, rlx.exp(ops.narrow(x, 0, i, 1)), i + 8, 0)
    g.set_outputs([x * 2.0])
    run = compiled(g)
    # Each row is taken out before the next update; no copy of the whole is made, and there is one slot for all.
    assert kinds(run).count("map") == 6
    assert run.lir.arena_size <= 64 * 64 * 4 + 4 * 64 * 4
    value = normal(64, 64)
    wanted = np.tanh(value.astype("f8"))
    for i in range(4):
        wanted[i + 8] = np.exp(wanted[i])
    np.testing.assert_allclose(run.run({"x": value}, {})[0], wanted * 2, rtol=1e-5, atol=1e-6)


def test_an_output_that_is_updated_step_by_step_never_lies_in_the_arena():
    g = rlx.Graph("sums")
    rows, ids = g.input("rows", ("N", 8)), g.input("ids", ("N",), "i32")
    g.set_outputs([ops.scatter_add(rows, ids, 5)])
    run = compiled(g)
    assert kinds(run) == ["map", "scatter"] and run.lir.arena_size == 0
    assert run._main.program.is_native
    rows, ids = normal(33, 8), rng.integers(0, 5, 33).astype("i4")
    wanted = np.zeros((5, 8))
    np.add.at(wanted, ids, rows.astype("f8"))
    np.testing.assert_allclose(run.run({"rows": rows, "ids": ids}, {})[0], wanted, rtol=1e-5, atol=1e-5)


def test_both_versions_can_be_returned():
    g = rlx.Graph("both")
    x = g.input("x", (4, 3))
    first = rlx.exp(x)
    second = ops.dynamic_update_slice(first, ops.narrow(x, 0, 0, 1), [1, 0])
    third = ops.dynamic_update_slice(second, ops.narrow(x, 0, 1, 1), [2, 0])
    g.set_outputs([first, second, third, third])
    run, x = compiled(g), normal(4, 3)
    results = run.run({"x": x}, {})
    for a, b in zip(results, interpret(g, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert not any(np.shares_memory(a, b) for i, a in enumerate(results) for b in results[:i])


# Outputs over inputs without an update.


def test_a_pointwise_result_is_stored_over_its_operand():
    g = rlx.Graph("step")
    w, d = g.input("w", ("N",)), g.input("d", ("N",))
    after = w - d * 0.1
    g.set_outputs([after, ops.reduce_sum(w * w, (0,))])
    g.alias(after, "w")
    run, w, d = compiled(g), normal(1000), normal(1000)
    before = w.copy()
    [after, total] = run.run({"w": w, "d": d}, {})
    assert after is w
    np.testing.assert_allclose(after, before - d * np.float32(0.1), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(total, (before.astype("f8") ** 2).sum(), rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [lambda x: ops.reverse(x, (0,)), lambda x: x @ x, lambda x: ops.sort(x), lambda x: rlx.softmax(x, 0)],
    ids=["reverse", "product", "sort", "softmax"],
)
def test_a_result_that_cannot_be_computed_in_place_is_copied_there(function):
    g = rlx.Graph("moved")
    y = function(g.input("x", (9, 9)))
    g.set_outputs([y])
    g.alias(y, "x")
    run, x = compiled(g), normal(9, 9)
    [wanted] = interpret(g, {"x": x.copy()})
    [y] = run.run({"x": x}, {})
    assert y is x
    np.testing.assert_allclose(x, wanted, rtol=1e-4, atol=1e-4)


def test_exchanged_inputs():
    g = rlx.Graph("exchange")
    a, b = g.input("a", (5,)), g.input("b", (5,))
    g.set_outputs([rlx.neg(b), rlx.neg(a), a])
    g.alias(g.outputs[0], "a")
    g.alias(g.outputs[1], "b")
    a, b = normal(5), normal(5)
    old_a, old_b = a.copy(), b.copy()
    x, y, z = compiled(g).run({"a": a, "b": b}, {})
    assert x is a and y is b
    np.testing.assert_array_equal(x, -old_b)
    np.testing.assert_array_equal(y, -old_a)
    np.testing.assert_array_equal(z, old_a)


# Memory that cannot be used, and memory that others use.


def unusable():
    cache = normal(2, 3, 7, 8)
    read_only = cache.copy()
    read_only.flags.writeable = False
    odd = np.empty(cache.nbytes + 1, np.uint8)[1:].view("f4").reshape(cache.shape)
    odd[...] = cache
    yield "not contiguous", np.asfortranarray(cache)
    yield "a part", np.repeat(cache, 2, axis=-1)[..., ::2]
    yield "read only", read_only
    yield "not aligned", odd


@pytest.mark.parametrize("case", [*unusable()], ids=lambda case: case[0])
def test_memory_that_cannot_be_used_is_copied_and_left_alone(case):
    cache = case[1]
    run, given = compiled(append_graph()), append_arguments() | {"cache": cache}
    before, wanted = cache.copy(), append(**given)
    [result] = run.run(given, {})
    assert not np.shares_memory(result, cache)
    np.testing.assert_array_equal(cache, before)
    np.testing.assert_array_equal(result, wanted)


def test_one_array_passed_twice():
    g = rlx.Graph("twice")
    a, b = g.input("a", (8,)), g.input("b", (8,))
    first = ops.dynamic_update_slice(a, ops.narrow(b, 0, 0, 2), [3])
    g.set_outputs([first, first + b])
    g.alias(first, "a")
    run = compiled(g)
    x = normal(8)
    for other in (x, x[:]):
        before = x.copy()
        first, total = run.run({"a": x, "b": other}, {})
        wanted = before.copy()
        wanted[3:5] = before[:2]
        np.testing.assert_array_equal(x, before)
        np.testing.assert_array_equal(first, wanted)
        np.testing.assert_array_equal(total, wanted + before)
    # Neighbours in one array do not share a byte.
    pair = normal(16)
    first, _ = run.run({"a": pair[:8], "b": pair[8:]}, {})
    assert np.shares_memory(first, pair)


def test_threads_with_caches_of_their_own(monkeypatch):
    monkeypatch.setattr(command_table, "WORTH_SHARING", 0)
    run = compiled(append_graph(), threads=2)
    given = [append_arguments(2, 50, 9) for _ in range(4)]
    wanted = [append(**g) for g in given]
    failures = []

    def work(g, expected):
        for _ in range(30):
            [result] = run.run(g, {})
            if result is not g["cache"] or not np.array_equal(result, expected):
                failures.append(result)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(given, wanted)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_a_host_call_that_returns_its_operand_is_not_overwritten(capsys):
    g = rlx.Graph("host")
    x = g.input("x", (4,))
    same = ops.debug_print("x is {}", x)
    held = ops.dynamic_update_slice(x, ops.narrow(same, 0, 2, 1) * 2.0, [0])
    g.set_outputs([held, same])
    g.alias(held, "x")
    run, x = compiled(g), np.arange(4, dtype="f4")
    held, same = run.run({"x": x}, {})
    assert "x is [0. 1. 2. 3.]" in capsys.readouterr().out
    assert held is x
    np.testing.assert_array_equal(held, [4, 1, 2, 3])
    np.testing.assert_array_equal(same, [0, 1, 2, 3])


# Through the runtime.


def test_donated_arguments_of_functions_keep_their_memory():
    step = rlx.jit(lambda cache, row, i: ops.dynamic_update_slice(cache, row, [i, 0]), donate_argnums=0)
    cache = step(np.zeros((4, 8), "f4"), normal(1, 8), np.int32(0))
    address = np.asarray(cache).ctypes.data
    rows = normal(3, 1, 8)
    for i in range(3):
        cache = step(cache, rows[i], np.int32(i + 1))
        assert np.asarray(cache).ctypes.data == address
    np.testing.assert_array_equal(np.asarray(cache)[1:], rows[:, 0])


def test_a_part_of_an_array_is_not_given_away():
    whole = rlx.jit(lambda x: x * 1.0)(normal(8, 8))
    before = np.array(whole)
    replace = rlx.jit(lambda x: ops.dynamic_update_slice(x, x[:1] * 0.0, [0, 0]), donate_argnums=0)
    for part in (whole[2:6], whole[1:], whole[:, :4]):
        replaced = np.asarray(replace(part))
        assert not replaced[0].any() and not np.shares_memory(replaced, np.asarray(whole))
    np.testing.assert_array_equal(np.asarray(whole), before)
    assert np.shares_memory(np.asarray(replace(whole)), np.asarray(whole))


def test_compiled_graphs_take_back_the_caches_that_they_returned():
    compiled_graph = rlx.Session("cpu").compile(append_graph())
    given = append_arguments(1, 8, 1)
    [cache] = compiled_graph.run(given)
    address = np.asarray(cache).ctypes.data
    assert address == given["cache"].ctypes.data
    wanted = append(**{**given, "cache": np.array(cache)})
    [again] = compiled_graph.run({**given, "cache": cache})
    assert np.asarray(again).ctypes.data == address
    np.testing.assert_array_equal(np.asarray(again), wanted)


# The plan itself, run in NumPy with every access checked.


@pytest.mark.parametrize("order", ["reader first", "reader last"])
def test_the_interpreter_accepts_the_plan(order):
    for graph in (old_and_new(order), append_graph(), append_graph(False), layers(3)):
        lir = compiled(graph).lir
        sizes = {"B": 2, "C": 5, "S": 2}
        values = {}
        for node in graph.inputs:
            dims = tuple(sizes.get(str(d), d) for d in node.shape.dims)
            values[node.op.key] = normal(*dims) if node.shape.dtype.is_float else rng.integers(0, 4, dims).astype("i4")
        for a, b in zip(interpret(graph, values), interpret_lir(lir, values), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


def test_the_interpreter_refuses_plans_that_write_into_inputs_or_lose_a_value():
    kept = compiled(append_graph(aliased=False)).lir
    graph = kept.as_graph()
    held = graph.outputs[0]
    buffers = kept.buffers.bind({})
    buffers.view_aliases = {held: LirViewAlias(graph.leaf("cache").id, 0)}
    values = append_arguments()
    with pytest.raises(InternalError, match="is not the program's"):
        interpret_lir(LirModule(graph, buffers, kept.kernels), values)
    early = compiled(old_and_new("reader last")).lir
    reordered = LirModule(early.as_graph(), early.buffers, early.kernels[::-1])
    with pytest.raises(InternalError, match="was stored over it"):
        interpret_lir(reordered, {"cache": normal(6, 8), "new": normal(1, 8)})


def test_specialising_keeps_results_in_place():
    from rlx.compile.compiler import CompilePipeline

    pipeline = CompilePipeline.new("cpu")
    result = pipeline.compile(append_graph())
    bound = result.specialize(pipeline, {"B": 2, "C": 7, "S": 2})
    assert bound.lir.buffers.view_aliases.keys() == result.lir.buffers.view_aliases.keys()
    values = append_arguments()
    np.testing.assert_array_equal(interpret_lir(bound.lir, values)[0], append(**values))


@pytest.mark.parametrize("kind", ScatterKind)
def test_every_kind_of_scatter_for_any_number_of_threads(monkeypatch, kind):
    monkeypatch.setattr(command_table, "WORTH_SHARING", 0)
    g = rlx.Graph("scatter")
    x, ids, rows = g.input("x", ("V", "D")), g.input("ids", ("N", 1), "i64"), g.input("rows", ("N", "D"))
    g.set_outputs([scatter_nd(x, ids, rows, kind, mode="drop")])
    run = compiled(g)
    meet = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    for v, d, n in [(1, 1, 1), (7, 130, 40), (50, 3, 1000), (5, 0, 3), (5, 3, 0), (3, 257, 5)]:
        values = {"x": normal(v, d), "rows": normal(n, d), "ids": rng.integers(-v - 2, v + 2, (n, 1))}
        wanted = values["x"].astype("f8")
        for i, row in zip(values["ids"][:, 0], values["rows"]):
            if -v <= i < v:
                wanted[i] = row if kind == "set" else meet[kind](wanted[i], row)
        with rlx.threads(1):
            [alone] = run.run(values, {})
        np.testing.assert_allclose(alone, wanted, rtol=2e-5, atol=1e-5)
        for count in (2, 3):
            with rlx.threads(count):
                np.testing.assert_array_equal(run.run(values, {})[0], alone)


def test_own_kernels_are_found():
    g = append_graph()
    assert [own.updates for n in g.nodes if (own := GENERATOR.own_kernel(g, n)) is not None] == [0]


def test_an_input_is_left_alone_if_its_output_ends_up_elsewhere():
    """The first update is returned, too, so that the second one needs a copy: then the first one gets it."""
    g = rlx.Graph("two")
    x = g.input("x", (4, 3))
    first = ops.dynamic_update_slice(x, ops.narrow(x, 0, 3, 1), [0, 0])
    second = ops.dynamic_update_slice(first, ops.narrow(x, 0, 2, 1), [1, 0])
    g.set_outputs([first, second])
    g.alias(second, "x")
    lir = compiled(g).lir
    assert all(v.root != lir.as_graph().leaf("x").id for v in lir.buffers.view_aliases.values())
    x = normal(4, 3)
    wanted = interpret(g, {"x": x.copy()})
    results = compiled(g).run({"x": x}, {})
    assert results[1] is x
    for a, b in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("reads_later", [False, True])
def test_large_values_are_stored_over_those_they_are_computed_of(monkeypatch, reads_later):
    """Powers of numbers over these numbers, unless somebody reads them afterwards."""
    from rlx.compile.memory import in_place
    from rlx.compile.memory.lir_liveness import stored_over

    monkeypatch.setattr(in_place, "LARGE_BYTES", 1)
    g = rlx.Graph("logits")
    a, b = g.input("a", (33, 16)), g.input("b", (16, 40))
    logits = a @ b
    weights = ops.exp(logits * 0.1) * (ops.transpose(logits, (1, 0)) @ logits)[:1]
    results = [weights @ ops.transpose(b, (1, 0))]
    if reads_later:
        results.append(results[0] @ b + logits)
    g.set_outputs(results)
    run = compiled(g)
    given = {"a": normal(33, 16), "b": normal(16, 40)}
    wanted = interpret(g, given)
    for found in (run.run({k: v.copy() for k, v in given.items()}, {}), interpret_lir(run.lir, given)):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6 * np.abs(y).max())
    assert bool(stored_over(run.lir)) == (not reads_later)
