"""Meshes, specs and shardings as values, and in the text of programs. No device and no jaxlib is needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx import Mesh, NamedSharding, P, PartitionSpec
from rlx.backends.xla.adapter import Division
from rlx.backends.xla.lowering import lowered
from rlx.backends.xla.shardy import Placement, named_division, one_mesh, wanted_arguments, wanted_results
from rlx.backends.xla.stablehlo import module_of
from rlx.errors import ShardingError
from rlx.sharding import UNCONSTRAINED, MeshDevice

MESH = Mesh((4, 2), ("x", "y"))


def test_a_mesh_numbers_its_devices():
    assert MESH.shape == {"x": 4, "y": 2} and MESH.size == 8 and MESH.flat_ids == tuple(range(8))
    assert MESH.coordinates(5) == {"x": 2, "y": 1}
    assert MESH.groups(["y"]) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert MESH.groups(["x"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert MESH.groups(["y", "x"]) == [[0, 2, 4, 6, 1, 3, 5, 7]]


def test_a_mesh_of_an_array_of_devices():
    devices = np.empty((2, 2), object)
    for i in range(4):
        devices[i // 2, i % 2] = MeshDevice(3 - i)
    mesh = Mesh(devices, ("a", "b"))
    assert mesh == Mesh(np.array([[3, 2], [1, 0]]), ("a", "b")) != Mesh((2, 2), ("a", "b"))
    assert str(mesh) == "a=2,b=2|3,2,1,0" and Mesh.of(str(mesh)) == mesh
    assert Mesh([MeshDevice(1), MeshDevice(0)], "x") == Mesh(np.array([1, 0]), ("x",))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mesh((4, 2), ("x",)), r"2 axes of devices .* but 1 names"),
        (lambda: Mesh((4, 2), ("x", "x")), "two axes have one name"),
        (lambda: Mesh((0,), ("x",)), "at least one device"),
        (lambda: Mesh((1 << 12, 1 << 12), ("x", "y")), "at most"),
        (lambda: Mesh((2,), ("x y",)), "no name of an axis"),
        (lambda: Mesh(np.array([0, 0]), ("x",)), "twice"),
        (lambda: Mesh([[MeshDevice(0)], []], ("x", "y")), "a full grid of devices"),
        (lambda: Mesh(np.zeros(2), ("x",)), "devices or their numbers"),
        (lambda: Mesh.of("x"), "write x=4,y=2"),
        (lambda: Mesh.of("x=2|0"), "2 places and 1 devices"),
        (lambda: P("x", ("y", "x")), "'x' is used twice"),
        (lambda: P(3), "a name of a mesh axis"),
        (lambda: NamedSharding(MESH, P("z")), r"has no axis 'z'; it has 'x', 'y'"),
        (lambda: NamedSharding(Mesh((2,), ("model",)), P("modle")), r"did you mean 'model'\?"),
        (lambda: NamedSharding(MESH, ("x",)), "a PartitionSpec is needed"),
        (lambda: NamedSharding("x=2", P("x")), "a Mesh is needed"),
        (lambda: NamedSharding(MESH, P("x")).shard_shape((6, 2)), r"size 6, which does not divide into 4 .* make it 8"),
        (lambda: NamedSharding(MESH, P("x", "y")).shard_shape((8,)), "2 entries for an array with 1 axes"),
        (lambda: NamedSharding.of("x=4"), "is no sharding"),
        (lambda: NamedSharding.of("[x=4]((x)"), "no entries"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(ShardingError, match=message):
        make()


def test_specs_are_values():
    assert P("x") == P("x", None) == PartitionSpec("x", None, None) != P(None, "x")
    assert hash(P("x")) == hash(P("x", None)) and P(("x",)) == P("x") and P(()) == P()
    assert list(P("x", None)) == ["x", None] and len(P("x", None)) == 2 and P("x")[0] == "x"


ENTRIES = [None, "x", "y", ("x", "y"), ("y", "x"), UNCONSTRAINED]


@given(st.lists(st.sampled_from(ENTRIES), max_size=4), st.permutations(range(8)))
def test_shardings_are_read_back_from_their_text(entries, order):
    used = set()
    kept = []
    for entry in entries:
        names = {entry} if isinstance(entry, str) else set(entry) if isinstance(entry, tuple) else set()
        kept.append(None if names & used else entry)
        used |= names
    sharding = NamedSharding(Mesh(np.array(order).reshape(4, 2), ("x", "y")), P(*kept))
    assert NamedSharding.of(str(sharding)) == sharding


@pytest.mark.parametrize("spec", [P(), P("x"), P("y", "x"), P(None, ("x", "y")), P(("y", "x"))])
def test_parts_cover_the_array(spec):
    sharding = NamedSharding(MESH, spec)
    whole = np.arange(16 * 8).reshape(16, 8)
    seen = np.zeros_like(whole)
    for index in sharding.indices(whole.shape):
        assert whole[index].shape == sharding.shard_shape(whole.shape)
        seen[index] += 1
    assert (seen == 8 // np.prod(sharding.counts(2))).all()
    assert sharding.is_fully_replicated == (spec == P())


def test_the_first_name_is_the_slowest():
    indices = NamedSharding(MESH, P(("y", "x"))).indices((8,))
    assert [i[0].start for i in indices] == [0, 4, 1, 5, 2, 6, 3, 7]


def constrained(x, *entries):
    return rlx.with_sharding_constraint(x, NamedSharding(MESH, P(*entries)))


def test_a_constraint_is_an_op_that_changes_nothing():
    g = rlx.Graph("g")
    x = g.input("x", ("B", 4), "f32")
    g.set_outputs([constrained(x * 2.0, "x", None)])
    assert 'sharding_constraint(%1) {sharding="[x=4,y=2](x, None)"}' in str(g)
    assert rlx.parse(str(g)) == g
    given = np.ones((8, 4), "f4")
    for device in ("cpu", "reference"):
        (y,) = rlx.Session(device).compile(g).run({"x": given})
        np.testing.assert_array_equal(y, given * 2)
        with pytest.raises(rlx.RlxError, match=r"B ?%|%|sharding_constraint"):
            rlx.Session(device).compile(g).run({"x": np.ones((6, 4), "f4")})


def test_constraints_are_saved(tmp_path):
    g = rlx.Graph("g")
    g.set_outputs([constrained(g.input("x", (8, 4), "f32"), None, "y")])
    rlx.save_graph(g, tmp_path / "g.rlx")
    assert rlx.load_graph(tmp_path / "g.rlx") == g


def test_constraints_under_transformations():
    x = np.arange(8.0, dtype="f4").reshape(4, 2)
    f = lambda x: (constrained(x * x, "x") * 3.0).sum()  # noqa: E731
    np.testing.assert_array_equal(rlx.grad(f)(x), 6 * x)
    np.testing.assert_array_equal(rlx.vmap(rlx.grad(f))(np.stack([x, x])), np.stack([6 * x, 6 * x]))
    value, tangent = rlx.jvp(f, (x,), (np.ones_like(x),))
    assert float(value) == 3 * (x * x).sum() and float(tangent) == 6 * x.sum()
    text = str(rlx.make_graph(rlx.grad(f))(x))
    assert text.count('sharding="[x=4,y=2](x)"') == 2, "the cotangent lies as the value did"
    assert '(?, x)"' in str(rlx.make_graph(rlx.vmap(lambda x: constrained(x, "x")))(np.stack([x, x])))


def test_trees_take_one_sharding_or_a_tree_of_them():
    whole, rows = NamedSharding(MESH), NamedSharding(MESH, P("x"))
    values = {"a": np.ones(4, "f4"), "b": (np.ones(8, "f4"), np.ones(4, "f4"))}
    for shardings, count in ((rows, 3), ({"a": rows, "b": None}, 1), ({"a": whole, "b": rows}, 3)):
        g = rlx.make_graph(lambda v, s=shardings: rlx.with_sharding_constraint(v, s))(values)
        assert str(g).count("sharding_constraint") == count
    with pytest.raises(ShardingError, match="do not fit the values"):
        rlx.with_sharding_constraint(values, {"a": rows})
    with pytest.raises(ShardingError, match="a NamedSharding or None is needed, got PartitionSpec"):
        rlx.with_sharding_constraint(values, P("x"))
    with pytest.raises(ShardingError, match="does not divide into 4 parts"):
        rlx.with_sharding_constraint(np.ones(6), rows)


def test_jit_writes_shardings_into_the_program():
    rows, columns = NamedSharding(MESH, P("x")), NamedSharding(MESH, P(None, "y"))
    f = rlx.jit(lambda a, b: {"c": a @ b}, device="cpu", in_shardings=(rows, columns), out_shardings=rows)
    a, b = np.ones((8, 4), "f4"), np.ones((4, 2), "f4")
    graph = f.lower(a, b).graph
    leaves = [n.id for n in graph.inputs]
    assert wanted_arguments(graph, leaves) == [rows, columns] and wanted_results(graph) == [rows]
    np.testing.assert_array_equal(f(a, b)["c"], a @ b)
    one = rlx.jit(lambda a, b: a @ b, device="cpu", in_shardings=rows).lower(a, b).graph
    assert wanted_arguments(one, [n.id for n in one.inputs]) == [rows, rows] and wanted_results(one) == [None]
    with pytest.raises(ShardingError, match="in_shardings: the shardings do not fit"):
        rlx.jit(lambda a, b: a @ b, device="cpu", in_shardings=(rows,))(a, b)


def test_the_text_for_xla():
    rows = NamedSharding(MESH, P("x", "y"))
    g = rlx.Graph("g")
    x = g.input("x", (8, 4), "f32")
    g.set_outputs([constrained(x, ("x", "y")), x + 1.0])
    text = module_of(lowered(g), None, Placement(MESH, (rows,), (None, rows))).text
    assert "mhlo.num_partitions = 8" in text and 'sdy.mesh @mesh = <["x"=4, "y"=2]>' in text
    assert '%0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}' in text
    assert '"sdy.sharding_constraint"(%0) {sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}' in text
    alone = module_of(lowered(g)).text
    assert "sdy" not in alone and "num_partitions = 1" in alone


def test_what_xla_chose_gets_names():
    assert named_division(MESH, Division((), ())) == NamedSharding(MESH)
    for spec in (P("x"), P("y"), P(None, "x"), P(("y", "x")), P("y", "x")):
        sharding = NamedSharding(MESH, spec)
        counts = sharding.counts(2)
        starts = [tuple(s.start for s in i) for i in sharding.indices(counts)]
        numbers = {s: n for n, s in enumerate(sorted(set(starts)))}
        assert named_division(MESH, Division(tuple(counts), tuple(numbers[s] for s in starts))) == sharding
    assert named_division(MESH, Division((2, 1), (0, 0, 0, 0, 1, 1, 1, 1))) is None


def test_a_program_has_one_mesh():
    with pytest.raises(ShardingError, match="the meshes x=2 and x=4,y=2; a program has one mesh"):
        one_mesh({MESH, Mesh((2,), ("x",))}, "@f")
