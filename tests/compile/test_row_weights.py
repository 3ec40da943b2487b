"""Weights of products as files have them: what CUDA programs keep of them, and that nothing else is computed."""

import ml_dtypes
import numpy as np

import rlx
from rlx import ops
from rlx.compile.compiler import CompilePipeline
from rlx.compile.weights.row_weights import join_rows
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.ir.tensor import building
from rlx.ops.shape.movement import Concat, Transpose

K = 32


def two_products(stored="bf16"):
    """Rows times two weights [n, k] that are stored in a narrower type than is computed in."""
    graph = rlx.Graph("products")
    x = graph.input("x", ("B", K), "f32")
    with building(graph):
        results = []
        for name, n in (("a", 8), ("b", 24)):
            weight = ops.cast(graph.param(name, (n, K), stored), DType.F32)
            results.append(ops.matmul(x, ops.transpose(weight, (1, 0))))
        graph.set_outputs([ops.concat([ops.tanh(results[0]), results[1]], 1)])
    return graph


def test_weights_stay_as_narrow_as_they_are_stored_and_are_joined_by_rows():
    done = CompilePipeline.new("cuda").compile(two_products())
    assert done.prepare is not None
    (kept,) = done.prepare.as_graph().outputs
    assert str(done.prepare.as_graph().shape(kept)) == f"bf16[32,{K}]"
    # No kernel of a run turns or widens a weight.
    graph = done.lir.as_graph()
    kinds = [k.kind for k in done.lir.kernels if k.kind != "view"]
    assert kinds.count("matmul") == 1 and len(kinds) == 2
    (product,) = (k for k in done.lir.kernels if k.kind == "matmul")
    assert {graph.nodes[n].op.mnemonic for n in product.nodes} >= {"matmul", "transpose", "cast"}


def test_weights_that_others_read_widened_are_still_converted():
    graph = two_products()
    with building(graph):
        weight = next(n for n in graph.nodes if n.op.mnemonic == "cast")
        graph.set_outputs([*graph.outputs, ops.mul(graph.tensor(weight.id), 2.0)])
    done = CompilePipeline.new("cuda").compile(graph)
    assert any(k.kind == "map" for k in done.lir.kernels)


def test_joined_weights_are_turned_once_and_mean_the_same():
    graph = rlx.Graph("joined")
    a, b = graph.param("a", (3, 4), "f32"), graph.param("b", (5, 4), "f32")
    with building(graph):
        joined = Concat(1)(*(ops.transpose(x, (1, 0)) for x in (a, b)))
        graph.set_outputs([ops.matmul(graph.input("x", (2, 4), "f32"), joined)])
    after = join_rows(graph)
    turned = [n for n in after.nodes if isinstance(n.op, Transpose)]
    assert [str(n.shape) for n in turned if after.use_map()[n.id]] == ["f32[4,8]"]
    rng = np.random.default_rng(0)
    values = {"a": rng.standard_normal((3, 4)), "b": rng.standard_normal((5, 4)), "x": rng.standard_normal((2, 4))}
    values = {name: v.astype("f4") for name, v in values.items()}
    before, now = (interpret(g, values)[0] for g in (graph, after))
    np.testing.assert_array_equal(before, now)
    # What has nothing to join stays what it was.
    plain = rlx.Graph("plain")
    with building(plain):
        plain.set_outputs([ops.matmul(plain.input("x", (2, 4), "f32"), plain.param("w", (4, 4), "f32"))])
    assert join_rows(plain) is plain


def test_results_are_those_of_other_devices():
    rng = np.random.default_rng(1)
    values = {n: rng.standard_normal((d, K)).astype(ml_dtypes.bfloat16) for n, d in (("a", 8), ("b", 24))}
    x = rng.standard_normal((3, K)).astype("f4")
    compiled = rlx.Session("cpu").compile(two_products())
    compiled.set_params(values)
    a, b = (x.astype("f8") @ values[n].astype("f8").T for n in "ab")
    np.testing.assert_allclose(compiled.run(x=x)[0], np.concatenate([np.tanh(a), b], 1), rtol=2e-5, atol=1e-5)
