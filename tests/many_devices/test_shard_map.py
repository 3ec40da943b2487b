"""`shard_map` by its meaning: as a program beside itself, against all participants run in step. No jaxlib is needed."""

import numpy as np
import pytest
from collective_programs import MESH, PROGRAMS, arguments, run_in_step

import rlx
import rlx.numpy as rnp
from rlx import Mesh, NamedSharding, P
from rlx.errors import OpError, ShapeError, ShardingError
from rlx.ops.parallel.shard_map import ShardMap


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "in_a_loop"])
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_all_participants_run_in_step(name, device):
    f, ins, outs, shapes = PROGRAMS[name]
    given = arguments(shapes)
    mapped = rlx.shard_map(f, MESH, ins, outs)
    got = rlx.tree.leaves(rlx.jit(mapped, device=device)(*given))
    graph = rlx.make_graph(mapped)(*given)
    (op,) = [n.op for n in graph.nodes if isinstance(n.op, ShardMap)]
    wanted = run_in_step(op, rlx.tree.leaves(given))
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5, atol=1e-6)
    assert rlx.parse(str(graph)) == graph


def test_collectives_in_a_loop():
    f, ins, outs, shapes = PROGRAMS["in_a_loop"]
    (a,) = arguments(shapes)
    total, rows = rlx.shard_map(f, MESH, ins, outs)(a)
    parts = a.reshape(3, 4, 2).sum(1)
    np.testing.assert_allclose(np.asarray(total), a[0] + np.tile(parts.sum(0), 4), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(rows)[0], a[0])


@pytest.mark.parametrize("name", ["psum", "all_gather_tiled", "psum_scatter_tiled", "ring", "matmul", "pmean"])
def test_gradients_are_those_of_the_numbers(name):
    f, ins, outs, shapes = PROGRAMS[name]
    given = [np.asarray(x, "f8") for x in arguments(shapes)]
    mapped = rlx.shard_map(f, MESH, ins, outs)

    def loss(*args):
        return rnp.sum(rnp.sin(mapped(*args)) * 0.5)

    for i, x in enumerate(given):
        gradient = np.asarray(rlx.grad(loss, argnums=i)(*given))
        direction = np.random.default_rng(3).standard_normal(x.shape)
        moved = [[*given[:i], x + s * 1e-5 * direction, *given[i + 1 :]] for s in (1, -1)]
        slope = (float(loss(*moved[0])) - float(loss(*moved[1]))) / 2e-5
        assert np.vdot(gradient, direction) == pytest.approx(slope, rel=1e-6, abs=1e-7)
        zeros = [np.zeros_like(z) for z in given]
        zeros[i] = direction
        _, tangent = rlx.jvp(loss, tuple(given), tuple(zeros))
        assert float(tangent) == pytest.approx(slope, rel=1e-6, abs=1e-7)


def test_it_is_one_op_under_transformations():
    mapped = rlx.shard_map(lambda a, b: rlx.psum(a @ b, "y"), MESH, (P("x", "y"), P("y")), P("x"))
    a, b = arguments([(8, 6), (6, 5)])
    text = str(rlx.make_graph(rlx.grad(lambda a, b: rnp.sum(mapped(a, b)), argnums=(0, 1)))(a, b))
    assert text.count("shard_map(") >= 1 and "psum" in text
    many = np.stack([a, 2 * a, 3 * a])
    batched = rlx.vmap(mapped, in_axes=(0, None))
    assert '(None, x)"' in str(rlx.make_graph(batched)(many, b))
    np.testing.assert_allclose(np.asarray(batched(many, b)), many @ b, rtol=1e-4, atol=1e-5)


def test_values_from_outside_are_on_all_devices():
    weight = np.arange(3.0, dtype="f4")

    def f(a, scale):
        def part(rows):
            return rlx.psum(rows * scale * weight, "x")

        return rlx.shard_map(part, MESH, P("x"), P())(a)

    (a,) = arguments([(8, 3)])
    want = (a * 2.5 * weight).reshape(4, 2, 3).sum(0)
    np.testing.assert_allclose(np.asarray(rlx.jit(f)(a, np.float32(2.5))), want, rtol=1e-5)
    assert float(rlx.grad(lambda s: rnp.sum(f(a, s)))(np.float32(2.5))) == pytest.approx((a * weight).sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda a: rlx.shard_map(lambda a: rlx.psum(a, "z"), MESH, P("x"), P())(a), OpError, "no axis is called 'z'"),
        (lambda a: rlx.shard_map(lambda a: a, MESH, P("z"), P())(a), ShardingError, "has no axis 'z'"),
        (lambda a: rlx.shard_map(lambda a: a, MESH, P(None, "x"), P())(a), ShardingError, r"'a': axis 1 .* 3, which"),
        (lambda a: rlx.shard_map(lambda a: a, MESH, (P(), P()), P())(a), ShardingError, "in_specs do not fit"),
        (lambda a: rlx.shard_map(lambda a: a, MESH, P(), (P(), P()))(a), ShardingError, "out_specs do not fit"),
        (lambda a: rlx.shard_map(lambda a: a, MESH, "x", P())(a), ShardingError, "a PartitionSpec is needed, got 'x'"),
        (lambda a: rlx.shard_map(lambda a: a, "mesh", P(), P())(a), ShardingError, "a Mesh is needed"),
        (
            lambda a: rlx.shard_map(
                lambda a: rlx.shard_map(lambda b: b, Mesh((2,), ("z",)), P(), P())(a), MESH, P(), P()
            )(a),
            OpError,
            "inside of another",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, error, message):
    (a,) = arguments([(8, 3)])
    with pytest.raises(error, match=message):
        make(a)


def test_attributes_are_checked():
    rows = NamedSharding(MESH, P("x"))
    body = rlx.make_graph(lambda a: a)(np.ones((2, 3), "f4"))
    with pytest.raises(OpError, match=r"\(1, 1\) operands and results, got \(2, 1\) shardings"):
        ShardMap(body, (rows, rows), (rows,))
    with pytest.raises(OpError, match="one mesh"):
        ShardMap(body, (rows,), (NamedSharding(Mesh((2,), ("x",))),))
    with pytest.raises(ShapeError, match=r"the body takes 'a' as f32\[2,3\], got f32\[4,3\]"):
        ShardMap(body, (rows,), (rows,))(np.ones((16, 3), "f4"))
