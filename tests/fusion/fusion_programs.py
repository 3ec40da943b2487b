"""Programs and random-graph steps that hold what the fusion passes look for, next to what they must leave alone."""

import numpy as np
from hypothesis import strategies as st

import rlx
from rlx import ops
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.module import FusionPolicy
from rlx.ir.tensor import building
from rlx.ir.verify import verify_all


def values_of(graph, binding=None, seed=0):
    """Random values for all leaves, masks of zeros and ones included."""
    rng = np.random.default_rng(seed)
    values = {}
    for node in graph.nodes:
        if node.is_leaf:
            shape = node.shape.bind(binding or {})
            drawn = rng.integers(0, 2, shape.dims) if "mask" in node.op.key else rng.uniform(-1, 1, shape.dims)
            values[node.op.key] = drawn.astype(shape.dtype.numpy)
    return values


def assert_same_values(before, after, binding=None, rtol=1e-11, atol=1e-11):
    """`after` is valid and computes what `before` computes."""
    assert verify_all(after) == []
    values = values_of(before, binding)
    expected = interpret(before, values, binding)
    for want, got in zip(expected, interpret(after, values, binding), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True
        )


def program(name, build):
    """A graph from a function of the graph; all ops called inside are added to it."""
    graph = Graph(name)
    with building(graph):
        outputs = build(graph)
    graph.set_outputs(outputs if isinstance(outputs, list | tuple) else [outputs])
    return graph


def bert_block(batch=2, seq=3, dtype="f64", packed=False):
    """A post-norm encoder layer with biases everywhere."""
    heads, dim, model, inner = 2, 4, 8, 12

    def build(g):
        def weight(name, *dims):
            return g.param(name, dims, dtype)

        def linear(x, name, k, n):
            return ops.matmul(x, weight(f"{name}_w", k, n)) + weight(f"{name}_b", n)

        def norm(x, name):
            return ops.layer_norm(x, weight(f"{name}_g", model), weight(f"{name}_b", model))

        x, mask = g.input("x", (batch, seq, model), dtype), g.input("mask", (batch, seq), dtype)
        if packed:
            qkv = linear(x, "qkv", model, 3 * heads * dim)
            q, k, v = (ops.narrow(qkv, -1, i * heads * dim, heads * dim) for i in range(3))
        else:
            q, k, v = (linear(x, name, model, heads * dim) for name in "qkv")
        mixed = ops.attention(q, k, v, mask, num_heads=heads, head_dim=dim, layout="bsm")
        h = norm(x + linear(mixed, "out", heads * dim, model), "ln1")
        return norm(linear(ops.gelu(linear(h, "fc1", model, inner)), "fc2", inner, model) + h, "ln2")

    return program("bert", build)


LLAMA_DIMS = {"hidden": 8, "heads": 4, "kv_heads": 2, "dim": 4, "inner": 12}


def llama_block(policy=FusionPolicy.Fusable, layers=1, dtype="f64"):
    """Pre-norm decoder blocks with grouped queries, rotation and SwiGLU, lowered from HIR."""
    d = LLAMA_DIMS

    def build(m):
        x = m.input("x", ("B", "S", d["hidden"]), dtype)
        cos, sin = m.param("cos", (16, 2), dtype), m.param("sin", (16, 2), dtype)
        for i in range(layers):

            def weight(name, *dims, i=i):
                return m.param(f"{name}{i}", dims, dtype)

            norms = [weight(n, d["hidden"]) for n in ("ln1_g", "ln1_b", "ln2_g", "ln2_b")]
            wide, narrow = d["heads"] * d["dim"], d["kv_heads"] * d["dim"]
            attention = [weight("q", d["hidden"], wide), weight("k", d["hidden"], narrow)]
            attention += [weight("v", d["hidden"], narrow), weight("o", wide, d["hidden"])]
            ffn = [weight("gate", d["hidden"], d["inner"]), weight("up", d["hidden"], d["inner"])]
            ffn += [weight("down", d["inner"], d["hidden"])]
            block = rlx.HirOp.LlamaDecoderBlock(d["heads"], d["dim"], d["kv_heads"])
            x = m.append_node(block, [x, *norms[:2], *attention, *norms[2:], *ffn, cos, sin])
        return x

    return rlx.Graph.define("llama", build).with_fusion_policy(policy).into_mir().into_graph()


def swiglu_ffn(policy=FusionPolicy.Fusable, dtype="f64"):
    def build(m):
        x = m.input("x", ("B", 4), dtype)
        up, gate, down = m.param("up", (4, 6), dtype), m.param("gate", (4, 6), dtype), m.param("down", (6, 4), dtype)
        return m.swiglu_ffn(x, up, gate, down)

    return rlx.Graph.define("ffn", build).with_fusion_policy(policy).into_mir().into_graph()


# Steps for `random_graphs.graphs`: each adds a pattern whose parts later steps may read, which a guard must notice.


def _weight(x, *dims):
    return x.graph.param(f"w{len(x.graph)}", dims, x.dtype)


def _matrices(values):
    return [v for v in values if v.dtype.is_float and v.ndim >= 2 and isinstance(v.shape[-1], int) and v.shape[-1]]


def linear(draw, values):
    x = draw(st.sampled_from(_matrices(values)))
    y = ops.matmul(x, _weight(x, x.shape[-1], 3))
    values.append(y)
    y = y + _weight(x, *draw(st.sampled_from([(3,), (1,), (), (1, 3)])))
    if draw(st.booleans()):
        values.append(y)
    return ops.activation(draw(st.sampled_from(["gelu", "relu", "exp", "tanh"])), y)


def residual_norm(draw, values):
    x = draw(st.sampled_from(_matrices(values)))
    size = x.shape[-1]
    y = x + ops.tanh(x)
    if draw(st.booleans()):
        y = y + _weight(x, size)
    if draw(st.booleans()):
        values.append(y)
    return draw(st.sampled_from([ops.layer_norm, ops.rms_norm]))(y, _weight(x, size), _weight(x, size))


def gated(draw, values):
    x = draw(st.sampled_from(_matrices(values)))
    if draw(st.booleans()):
        both = ops.matmul(x, _weight(x, x.shape[-1], 4))
        up, gate = ops.narrow(both, -1, 0, 2), ops.narrow(both, -1, 2, 2)
    else:
        up, gate = (ops.matmul(x, _weight(x, x.shape[-1], 2)) for _ in range(2))
    if draw(st.booleans()):
        values.append(up)
    return ops.mul(*((up, ops.silu(gate)) if draw(st.booleans()) else (ops.silu(gate), up)))


def sliced(draw, values):
    x = draw(st.sampled_from([v for v in values if v.ndim and v.dtype.is_float and v.shape[0] == 2]))
    kinds = draw(st.sampled_from([("exp", "exp"), ("tanh", "exp")]))
    parts = [ops.activation(kind, ops.narrow(x, 0, i, 1)) for i, kind in enumerate(kinds)]
    return ops.concat([draw(st.sampled_from([ops.neg, ops.abs_]))(p) for p in parts], 0)


PATTERN_STEPS = (
    (linear, _matrices),
    (residual_norm, _matrices),
    (gated, _matrices),
    (sliced, lambda values: [v for v in values if v.ndim and v.dtype.is_float and v.shape[0] == 2]),
)
