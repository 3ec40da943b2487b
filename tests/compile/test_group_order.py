"""The order of groups: kept up while they are joined and removed, against a search of the whole graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.compile.fuse.group_graph import MAX_SEARCH, Group, GroupOrder
from rlx.errors import InternalError


def groups_of(count):
    graph = rlx.Graph("g")
    return [Group("map", graph.input(f"x{i}", (1,)).node) for i in range(count)]


def reachable(needs, start):
    """Everything that `start` needs, by following all edges."""
    found, stack = set(), [start]
    while stack:
        for earlier in needs[stack.pop()]:
            if earlier not in found:
                found.add(earlier)
                stack.append(earlier)
    return found


@settings(max_examples=200)
@given(st.data())
def test_joining_and_removing_keep_the_order(data):
    count = data.draw(st.integers(2, 12))
    groups = groups_of(count)
    edges = data.draw(
        st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda e: e[0] < e[1]))
    )
    needs = {g: {groups[a] for a, b in edges if b == i} for i, g in enumerate(groups)}
    order = GroupOrder({g: sorted(n, key=lambda p: p.head) for g, n in needs.items()})
    for _ in range(data.draw(st.integers(0, 8))):
        if len(needs) < 2:
            break
        one, other = data.draw(st.permutations(list(needs)))[:2]
        assert order.reaches(one, other) == (one in reachable(needs, other))
        between = any(one in reachable(needs, g) for g in needs[other] if g is not one)
        assert order.is_between(one, other) == between
        if data.draw(st.booleans()):
            order.remove(one)
            needs = {g: (n - {one}) | (needs[one] if one in n else set()) for g, n in needs.items() if g is not one}
        elif not between and not any(other in reachable(needs, g) for g in needs[one] if g is not other):
            order.join(one, other)
            one.nodes += other.nodes
            joined = (needs[one] | needs[other]) - {one, other}
            needs = {g: {one if p is other else p for p in n} for g, n in needs.items() if g is not other}
            needs[one] = joined
    found = list(order)
    assert sorted(g.head for g in found) == sorted(g.head for g in needs)
    place = {g: i for i, g in enumerate(found)}
    assert all(place[p] < place[g] for g, n in needs.items() for p in n)


def test_groups_that_need_each_other_are_refused():
    one, other = groups_of(2)
    with pytest.raises(InternalError, match="need each other"):
        list(GroupOrder({one: [other], other: [one]}))


def test_what_is_joined_may_stand_far_apart():
    """More groups between two than a search may see: a chain is joined without one."""
    count = MAX_SEARCH + 10
    groups = groups_of(count)
    order = GroupOrder({g: [groups[i - 1]] if i > 1 else [] for i, g in enumerate(groups)})
    order.join(groups[-1], groups[0])
    assert [g.head for g in order] == [*(g.head for g in groups[1:-1]), groups[-1].head]


@pytest.mark.long
def test_a_long_program_whose_end_reads_its_beginning():
    x = np.float32([0.5, 1.0])

    def program(x):
        early, before, now = rlx.cos(x), x, x * 1.5
        for _ in range(MAX_SEARCH // 2 + 20):
            # Read twice each, so that no two of them are a chain.
            before, now = now, rlx.sin(before + now)
            before, now = now, before - now * 0.5
        return now + early

    wanted = np.asarray(rlx.Session("reference").compile(rlx.make_graph(program)(x)).run({"x": x})[0])
    np.testing.assert_allclose(rlx.jit(program)(x), wanted, rtol=1e-3)
