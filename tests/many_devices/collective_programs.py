"""Functions on parts, with their meshes and specs: what `shard_map` means is told by a run in step of all of them."""

import numpy as np

import rlx
import rlx.numpy as rnp
from rlx import Mesh, P
from rlx.ir.graph import Graph
from rlx.ir.leaves import Constant, Input, Project
from rlx.ops.parallel.collectives import AxisIndex, Collective
from rlx.ops.parallel.shard_map import ShardMap

MESH = Mesh((4, 2), ("x", "y"))


def ring(x):
    """Each participant adds what all others along x have, passed round step by step."""
    total, moving = x, x
    for _ in range(3):
        moving = rlx.ppermute(moving, "x", [(i, (i + 1) % 4) for i in range(4)])
        total = total + moving
    return total


# name: (function, in_specs, out_specs, shapes of the arguments)
PROGRAMS = {
    "psum": (lambda a: rlx.psum(a, "x"), P("x"), P(), [(8, 3)]),
    "psum_of_both": (lambda a: rlx.psum(a, ("x", "y")), P(("x", "y")), P(), [(8, 3)]),
    "pmean": (lambda a: rlx.pmean(a, "y"), P("x", "y"), P("x"), [(8, 6)]),
    "pmax": (lambda a: rlx.pmax(a, "x") - rlx.pmin(a, "y"), P("x", "y"), P("x", "y"), [(8, 6)]),
    "all_gather": (lambda a: rlx.all_gather(a, "x", axis=1), P("x"), P("y"), [(8, 3)]),
    "all_gather_tiled": (lambda a: rlx.all_gather(a, "x", axis=0, tiled=True), P(("x", "y")), P("y"), [(16, 3)]),
    "psum_scatter": (lambda a: rlx.psum_scatter(a, "x", scatter_dimension=1), P("x"), P("x"), [(8, 4)]),
    "psum_scatter_tiled": (lambda a: rlx.psum_scatter(a, "x", tiled=True), P(None, "x"), P("x"), [(8, 8)]),
    "all_to_all": (lambda a: rlx.all_to_all(a, "x", 1, 0), P("x"), P(None, "x"), [(8, 4, 3)]),
    "all_to_all_tiled": (lambda a: rlx.all_to_all(a, "x", 1, 0, tiled=True), P("x"), P(None, "x"), [(8, 4)]),
    "ppermute": (lambda a: rlx.ppermute(a, "y", [(0, 1)]), P("x", "y"), P("x", "y"), [(8, 4)]),
    "ring": (ring, P("x"), P("x"), [(8, 3)]),
    "axis_index": (lambda a: a * (1.0 + rlx.axis_index("x") + 10 * rlx.axis_index("y")), P("x"), P("x", "y"), [(8, 2)]),
    "matmul": (lambda a, b: rlx.psum(a @ b, "y"), (P("x", "y"), P("y")), P("x"), [(8, 6), (6, 5)]),
    "tree": (
        lambda t, s: {"sum": rlx.psum(t["a"] * s, "x"), "b": rnp.tanh(t["b"])},
        ({"a": P("x"), "b": P(None, "y")}, P()),
        {"sum": P(), "b": P(None, "y")},
        [{"a": (8, 2), "b": (3, 4)}, ()],
    ),
    "in_a_loop": (
        lambda a: rlx.scan(lambda c, r: (c + rlx.psum(r, "x"), rlx.pmax(c, "y")), a[0], a),
        P(None, "x"),
        (P("x"), P(None, "x")),
        [(3, 8)],
    ),
}


def arguments(shapes, seed=0):
    rng = np.random.default_rng(seed)
    is_shape = lambda s: isinstance(s, tuple)  # noqa: E731
    return [rlx.tree.map(lambda s: rng.standard_normal(s).astype("f4"), shape, is_leaf=is_shape) for shape in shapes]


def run_in_step(op: ShardMap, operands):
    """The results of all participants, one node after the other on every participant's own arrays."""
    mesh = op.mesh
    parts = []
    for x, sharding in zip(operands, op.in_shardings):
        parts.append([x[index] for index in sharding.indices(x.shape)])
    outputs = _step(op.body, parts, mesh)
    whole = []
    for values, sharding in zip(outputs, op.out_shardings):
        dims = [d * n for d, n in zip(values[0].shape, sharding.counts(values[0].ndim))]
        result = np.empty(dims, values[0].dtype)
        for position in reversed(range(mesh.size)):
            result[sharding.indices(dims)[position]] = values[position]
        whole.append(result)
    return whole


def _step(body: Graph, parts, mesh):
    made, rest = [], iter(parts)
    for node in body.nodes:
        op = node.op
        if isinstance(op, Input):
            made.append(next(rest))
        elif isinstance(op, Constant):
            made.append([op.value.array] * mesh.size)
        elif isinstance(op, Project):
            made.append([v[op.index] for v in made[node.inputs[0]]])
        elif isinstance(op, Collective):
            results = [None] * mesh.size
            for group in mesh.groups([op.axis_name]):
                own = () if isinstance(op, AxisIndex) else (np.stack([made[node.inputs[0]][p] for p in group]),)
                for p, result in zip(group, op.stacked(*own)):
                    results[p] = result
            made.append(results)
        else:
            assert not node.op.bodies, "bodies run alone here"
            made.append([op.eval(*(made[i][p] for i in node.inputs)) for p in range(mesh.size)])
    return [made[o] for o in body.outputs]
