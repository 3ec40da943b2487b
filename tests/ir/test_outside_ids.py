"""Ids from the caller are checked; ids that the program computed follow the definition of their op."""

import numpy as np
import pytest

from rlx import ops
from rlx.errors import OpError
from rlx.ir.graph import Graph
from rlx.ir.index_checks import check_ids
from rlx.ir.interpret import interpret

TABLE = np.arange(14.0).reshape(7, 2)


def lookup(change=lambda ids: ids, rows=7, dtype="i32"):
    graph = Graph("lookup")
    table, tokens = graph.input("table", (rows, 2), "f64"), graph.input("tokens", (2,), dtype)
    graph.set_outputs([ops.gather(table, change(tokens))])
    return graph


def test_inputs_are_checked_and_named():
    valid = np.array([-7, 6], np.int32)
    np.testing.assert_array_equal(interpret(lookup(), [TABLE, valid])[0], TABLE[valid])
    with pytest.raises(
        OpError, match=r"gather: tokens holds 7, but the indexed axis has size 7: valid ids are -7\.\.6"
    ):
        interpret(lookup(), {"table": TABLE, "tokens": np.array([0, 7], np.int32)})
    with pytest.raises(OpError, match=r"tokens holds -8"):
        interpret(lookup(), [TABLE, np.array([-8, 0], np.int32)])


def test_the_size_may_be_symbolic():
    with pytest.raises(OpError, match=r"tokens holds 3, but the indexed axis has size 3"):
        interpret(lookup(rows="V"), [TABLE[:3], np.array([0, 3], np.int32)])


def test_computed_ids_follow_the_op():
    result = interpret(lookup(lambda ids: ids + 5), [TABLE, np.array([0, 5], np.int32)])[0]
    np.testing.assert_array_equal(result, TABLE[[5, 6]])


def test_other_modes_accept_any_id():
    graph = Graph("fill")
    table, ids = graph.input("table", (7, 2), "f64"), graph.input("ids", (1,), "i32")
    graph.set_outputs([ops.gather(table, ids, mode="fill")])
    np.testing.assert_array_equal(interpret(graph, [TABLE, np.array([99], np.int32)])[0], np.zeros((1, 2)))


def test_arrays_are_checked_at_once():
    with pytest.raises(OpError, match=r"gather: operand 1 holds 7"):
        ops.gather(TABLE, np.array([7]))
    with pytest.raises(OpError, match=r"scatter_add: operand 1 holds 3, .* size 3"):
        ops.scatter_add(np.ones(2), np.array([0, 3]), 3)
    with pytest.raises(OpError, match=r"size 0: no id is valid"):
        ops.gather(np.ones((0, 2)), np.array([0]))


def test_ids_of_a_body_are_computed_by_its_program():
    step = Graph("step")
    i, table = step.input("i", (), "i32"), step.input("table", (7, 2), "f64")
    step.set_outputs([i + 4, ops.gather(table, i)])
    graph = Graph("loop")
    first, rows = graph.input("first", (), "i32"), graph.input("table", (7, 2), "f64")
    graph.set_outputs(ops.Scan(step, 3, num_bcast=1)(first, rows)[1:])
    [found] = interpret(graph, [np.int32(0), TABLE])
    np.testing.assert_array_equal(found, TABLE[[0, 4, 6]])


@pytest.mark.parametrize("ids", [np.array([2.9]), np.array([-3.9])])
def test_float_ids_count_as_the_number_they_truncate_to(ids):
    check_ids(ops.Gather(0), ids, (3,))


@pytest.mark.parametrize("ids", [np.array([3.0]), np.array([-4.0]), np.array([np.nan]), np.array([np.inf])])
def test_float_ids_outside(ids):
    with pytest.raises(OpError, match="ids holds"):
        check_ids(ops.Gather(0), ids, (3,))


def test_large_unsigned_ids_do_not_wrap():
    with pytest.raises(OpError, match="18446744073709551615"):
        check_ids(ops.Gather(0), np.array([2**64 - 1], np.uint64), (3,))


def test_coordinates_have_a_size_each():
    check_ids(ops.GatherNd((0, 1)), np.array([[6, 1]]), (7, 2))
    with pytest.raises(OpError, match=r"gather_nd: ids holds 5, but the indexed axis has size 2"):
        check_ids(ops.GatherNd((0, 1)), np.array([[1, 1], [1, 5]]), (7, 2))


@pytest.mark.parametrize("wrong", [7, -8, np.nan, np.inf])
def test_one_wrong_id_of_many_is_found(wrong: float):
    """More than Python looks at one by one, of two axes, wherever it stands."""
    ids = np.stack([np.arange(-7, 7).repeat(9), np.zeros(126)], -1)
    kind = "f4" if wrong != wrong or np.isinf(wrong) else "i4"
    check_ids(ops.GatherNd((0, 1)), ids.astype(kind), (7, 1))
    for place in (0, 60, 125):
        bad = ids.copy()
        bad[place, 0] = wrong
        with pytest.raises(OpError, match=r"valid ids are -7\.\.6"):
            check_ids(ops.GatherNd((0, 1)), bad.astype(kind), (7, 1))
