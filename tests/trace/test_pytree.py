"""Pytrees: flatten and unflatten are inverse, structures compare by value, errors name the path."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
import rlx.numpy as rnp
import rlx.tree as tree
import rlx.tree_util
from rlx.errors import TreeError

Point = namedtuple("Point", "x y")

trees = st.recursive(
    st.integers() | st.none() | st.text(max_size=3),
    lambda children: (
        st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), children, max_size=3)
        | st.builds(Point, children, children)
    ),
    max_leaves=12,
)


@given(trees)
def test_unflatten_inverts_flatten(value):
    leaves, structure = tree.flatten(value)
    assert tree.unflatten(structure, leaves) == value
    assert structure.num_leaves == len(leaves) == len(structure.paths())
    again = tree.structure(tree.unflatten(structure, range(len(leaves))))
    assert again == structure
    assert hash(again) == hash(structure)


@given(trees)
def test_map_visits_every_leaf_once(value):
    seen = []
    mapped = tree.map(lambda leaf: seen.append(leaf) or len(seen), value)
    assert seen == tree.leaves(value)
    assert tree.leaves(mapped) == list(range(1, len(seen) + 1))


def test_order_and_containers():
    assert tree.leaves({"b": 1, "a": {"d": 2, "c": 3}}) == [3, 2, 1]
    assert tree.leaves(OrderedDict([("b", 1), ("a", 2)])) == [1, 2]
    assert tree.leaves([1, (2, None, [3])]) == [1, 2, 3]
    assert tree.leaves(None) == []
    assert tree.leaves(7) == [7]
    counts = defaultdict(int, {"z": 1, "a": 2})
    again = tree.map(lambda n: n + 1, counts)
    assert again == {"z": 2, "a": 3}
    assert again["new"] == 0
    assert tree.map(lambda n: -n, Point(1, [2])) == Point(-1, [-2])


def test_structures_differ_by_kind_keys_and_class():
    structures = [
        tree.structure(t) for t in ([1, 2], (1, 2), {"a": 1, "b": 2}, {"a": 1, "c": 2}, Point(1, 2), [1, [2]])
    ]
    assert len(set(structures)) == len(structures)
    assert tree.structure({"a": 1, "b": 2}) == tree.structure({"b": 5, "a": 6})
    assert repr(tree.structure({"a": (1,), "b": [None, 2]})) == "TreeDef({'a': (*,), 'b': [None, *]})"
    assert repr(tree.structure(Point(1, 2))) == "TreeDef(Point(x=*, y=*))"


def test_depth_is_not_limited_by_the_recursion_limit():
    deep = 0
    for _ in range(20_000):
        deep = [deep]
    leaves, structure = tree.flatten(deep)
    assert leaves == [0]
    rebuilt = tree.unflatten(structure, [1])
    for _ in range(20_000):
        (rebuilt,) = rebuilt
    assert rebuilt == 1


def test_is_leaf_stops_the_walk():
    value = {"a": (1, 2), "b": [3]}
    assert tree.leaves(value, is_leaf=lambda t: isinstance(t, tuple)) == [(1, 2), 3]
    assert tree.map(len, value, is_leaf=lambda t: isinstance(t, tuple | list)) == {"a": 2, "b": 1}
    assert tree.leaves({"a": None}, is_leaf=lambda t: t is None) == [None]


def test_map_over_several_trees_takes_subtrees_of_the_others():
    assert tree.map(lambda a, b: (a, b), {"x": 1}, {"x": [2, 3]}) == {"x": (1, [2, 3])}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": 1}, "differ at the top: the second one lacks the keys ['b']"),
        ({"a": 1, "b": [2, 3], "c": 4}, "differ at the top: the second one has the extra keys ['c']"),
        ({"a": 1, "b": (2, 3)}, "differ at 'b': list of 2 is wanted, got tuple of 2"),
        ({"a": 1, "b": [2, 3, 4]}, "differ at 'b': list of 2 is wanted, got list of 3"),
        ({"a": 1, "b": 2}, "differ at 'b': list of 2 is wanted, got a leaf (int)"),
        ([1], "differ at the top: dict with the keys ['a', 'b'] is wanted, got list of 1"),
    ],
)
def test_mismatch_names_the_path(other, message):
    with pytest.raises(TreeError) as error:
        tree.map(lambda a, b: a, {"a": 1, "b": [2, 3]}, other)
    assert message in str(error.value)


def test_difference_below_the_top():
    from rlx.trace.pytree import tree_difference

    wanted = tree.structure({"p": {"w": 1, "b": [1, 2]}})
    got = tree.structure({"p": {"w": 1, "b": [1, (2,)]}})
    assert tree_difference(wanted, got) == "the trees differ at 'p.b.1': a leaf is wanted, got tuple of 1"
    assert tree_difference(wanted, wanted) is None


def test_wrong_leaf_count_and_unsortable_keys():
    with pytest.raises(TreeError, match="has 2 leaves, got 3"):
        tree.unflatten(tree.structure([1, 2]), [1, 2, 3])
    with pytest.raises(TreeError, match="must be sortable"):
        tree.leaves({1: 0, "a": 0})


def test_registered_classes():
    class Pair:
        def __init__(self, a, b, label):
            self.a, self.b, self.label = a, b, label

    tree.register_pytree_node(Pair, lambda p: ((p.a, p.b), p.label), lambda label, ab: Pair(*ab, label))
    doubled = tree.map(lambda n: 2 * n, Pair(1, [2], "tag"))
    assert (doubled.a, doubled.b, doubled.label) == (2, [4], "tag")
    assert tree.structure(Pair(1, 2, "x")) != tree.structure(Pair(1, 2, "y"))
    with pytest.raises(TreeError, match="Pair is already known"):
        tree.register_pytree_node(Pair, lambda p: ((), None), lambda aux, c: None)


def test_registered_dataclass_and_decorator_class():
    @tree.register_dataclass
    @dataclasses.dataclass
    class State:
        weights: dict
        step: int

    assert tree.leaves_with_path(State({"w": 1}, 2)) == [(("weights", "w"), 1), (("step",), 2)]
    assert tree.map(str, State({"w": 1}, 2)) == State({"w": "1"}, "2")

    @dataclasses.dataclass
    class Config:
        scale: float
        mode: str

    tree.register_dataclass(Config, data_fields=["scale"], meta_fields=["mode"])
    assert tree.leaves(Config(2.0, "fast")) == [2.0]
    assert tree.structure(Config(1.0, "fast")) != tree.structure(Config(1.0, "slow"))

    @dataclasses.dataclass
    class Wrong:
        a: int

    with pytest.raises(TreeError, match=r"has the fields \['a'\]"):
        tree.register_dataclass(Wrong, data_fields=["b"])

    @tree.register_pytree_node_class
    class Box:
        def __init__(self, content):
            self.content = content

        def tree_flatten(self):
            return (self.content,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    assert tree.map(lambda n: n + 1, Box(4)).content == 5


def test_paths_reduce_all_transpose():
    value = {"a": [1, 2], "b": Point(3, None)}
    assert [tree.path_text(p) for p, _ in tree.leaves_with_path(value)] == ["a.0", "a.1", "b.x"]
    assert tree.map_with_path(lambda path, n: (path[-1], n), value) == {
        "a": [(0, 1), (1, 2)],
        "b": Point(("x", 3), None),
    }
    assert tree.reduce(lambda a, b: 10 * a + b, value) == 123
    assert tree.reduce(lambda a, b: a + b, None, 5) == 5
    assert tree.all([True, (1, "x")])
    assert not tree.all([True, 0])
    rows = [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    turned = tree.transpose(tree.structure([0, 0]), tree.structure({"x": 0, "y": 0}), rows)
    assert turned == {"x": [1, 3], "y": [2, 4]}


def test_fields_that_are_marked_as_static():
    @tree.register_dataclass
    @dataclasses.dataclass
    class Layer:
        w: object
        power: int = dataclasses.field(metadata={"static": True}, default=2)
        name: str = tree.static(default="layer")

    layer = Layer(np.float32([1, 2]), 3)
    assert len(tree.leaves(layer)) == 1
    assert rlx.jit(lambda s: Layer(s.w**s.power, s.power))(layer).w.tolist() == [1, 8]
    assert rlx.grad(lambda s: rnp.sum(s.w**s.power))(layer).w.tolist() == [3, 12]


def test_static_objects_and_paths_as_text():
    @rlx.tree_util.register_static
    class Mode(str):
        pass

    leaves, structure = tree.flatten({"a": [1.0, Mode("fast")]})
    assert leaves == [1.0]
    assert structure.unflatten([2.0])["a"][1] == "fast"
    assert structure != tree.structure({"a": [1.0, Mode("slow")]})
    [path] = [p for p, _ in tree.leaves_with_path({"a": [1.0]})]
    assert rlx.tree_util.keystr(path) == "a.0"
    assert rlx.tree_util.keystr(path, simple=True, separator="/") == "a/0"
