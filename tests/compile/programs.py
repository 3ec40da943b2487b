"""Programs that the tests of the compiler share."""

import numpy as np

import rlx


def random_values(graph, binding, seed=0):
    """Values for all leaves of a graph of floats."""
    rng = np.random.default_rng(seed)
    shapes = {n.op.key: n.shape.bind(binding) for n in graph.nodes if n.is_leaf}
    return {key: rng.normal(0, 0.5, s.dims).astype(s.dtype.numpy) for key, s in shapes.items()}


def llama(layers=1, hidden=32, heads=4, kv_heads=2, inner=64):
    """Decoder blocks with symbolic batch and length, as an HIR module."""
    head = hidden // heads

    def build(h):
        x = h.input("x", ("B", "S", hidden))
        cos, sin = h.input("cos", ("S", head // 2)), h.input("sin", ("S", head // 2))
        for i in range(layers):
            dims = {"g1": (hidden,), "b1": (hidden,), "q": (hidden, hidden), "k": (hidden, kv_heads * head)}
            dims |= {"v": (hidden, kv_heads * head), "o": (hidden, hidden), "g2": (hidden,), "b2": (hidden,)}
            dims |= {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
            weights = [h.param(f"{i}.{name}", d) for name, d in dims.items()]
            settings = {"num_heads": heads, "head_dim": head, "num_kv_heads": kv_heads, "eps": 1e-5}
            x = h.llama_decoder_block(x, *weights, cos, sin, **settings, mask_kind="causal")
        return x

    return rlx.Graph.define("llama", build)


def cached_llama_block(hidden=32, heads=4, kv_heads=2, inner=64):
    """A decoder block that appends its keys and values to a cache, each sequence at its own positions."""
    head = hidden // heads
    g = rlx.Graph("cached_llama")
    x, positions, kv_len = (
        g.input("x", ("B", "S", hidden)),
        g.input("positions", ("B", "S"), "i32"),
        g.input("kv_len", ("B",), "i32"),
    )
    tables = [g.input(name, ("C", head // 2)) for name in ("cos", "sin")]
    caches = [g.input(name, ("B", kv_heads, "C", head)) for name in ("keys", "values")]
    h = rlx.rms_norm(x, g.param("g1", (hidden,)))
    counts = {"wq": heads, "wk": kv_heads, "wv": kv_heads}
    q, k, v = ((h @ g.param(w, (hidden, n * head))).reshape(("B", "S", n, head)) for w, n in counts.items())
    q, k = (rlx.rope(t, *tables, head, head, positions, layout="bshd") for t in (q, k))
    places = positions.reshape(("B", "S", 1))
    caches = [rlx.scatter_nd(c, places, t, axes=(2,), batch_dims=1, mode="drop") for c, t in zip(caches, (k, v))]
    mixed = rlx.attention(
        rlx.transpose(q, (0, 2, 1, 3)), *caches, layout="bhsd", mask_kind="causal", kv_len=kv_len, positions=positions
    )
    joined = rlx.transpose(mixed, (0, 2, 1, 3)).reshape(("B", "S", hidden))
    x = x + joined @ g.param("wo", (hidden, hidden))
    h = rlx.rms_norm(x, g.param("g2", (hidden,)))
    gate, up = (h @ g.param(w, (hidden, inner)) for w in ("gate", "up"))
    x = x + (rlx.silu(gate) * up) @ g.param("down", (inner, hidden))
    g.set_outputs([x, *caches])
    for cache, name in zip(caches, ("keys", "values")):
        g.alias(cache, name)
    return g


def bert_block(hidden=32, heads=4, inner=64):
    """Post-norm, with biases everywhere and padding masked."""
    head = hidden // heads
    g = rlx.Graph("bert")
    x, mask = g.input("x", ("B", "S", hidden)), g.input("mask", ("B", "S"), "i32")
    visible = rlx.where(rlx.expand_dims(rlx.gt(mask, 0), (1, 2)), 0.0, -1e9)
    sides = [x @ g.param(f"w{s}", (hidden, hidden)) + g.param(f"b{s}", (hidden,)) for s in "qkv"]
    q, k, v = (s.reshape(("B", "S", heads, head)) for s in sides)
    mixed = rlx.attention(q, k, v, mask=visible, num_heads=heads, head_dim=head, mask_kind="bias")
    mixed = mixed.reshape(("B", "S", hidden)) @ g.param("wo", (hidden, hidden)) + g.param("bo", (hidden,))
    x = rlx.layer_norm(x + mixed, g.param("g1", (hidden,)), g.param("c1", (hidden,)))
    inside = rlx.gelu(x @ g.param("up", (hidden, inner)) + g.param("bu", (inner,)))
    outside = inside @ g.param("down", (inner, hidden)) + g.param("bd", (hidden,))
    g.set_outputs([rlx.layer_norm(x + outside, g.param("g2", (hidden,)), g.param("c2", (hidden,)))])
    return g


def mlp_loss():
    g = rlx.Graph("mlp")
    x, target = g.input("x", ("B", 8)), g.input("target", ("B", 4))
    hidden = rlx.tanh(x @ g.param("w0", (8, 16)) + g.param("b0", (16,)))
    difference = hidden @ g.param("w1", (16, 4)) - target
    g.set_outputs([rlx.reduce_mean(difference * difference)])
    return g


def gpt_loss():
    g = rlx.Graph("gpt")
    x, target = g.input("x", ("B", 6, 16)), g.input("target", ("B", 6, 16))
    h = rlx.layer_norm(x, g.param("g0", (16,)), g.param("c0", (16,)))
    qkv = h @ g.param("qkv", (16, 48))
    q, k, v = (g.narrow_(qkv, 2, 16 * i, 16).reshape(("B", 6, 2, 8)) for i in range(3))
    mixed = rlx.attention(q, k, v, num_heads=2, head_dim=8, mask_kind="causal")
    x = x + mixed.reshape(("B", 6, 16)) @ g.param("out", (16, 16))
    h = rlx.layer_norm(x, g.param("g1", (16,)), g.param("c1", (16,)))
    x = x + rlx.gelu(h @ g.param("up", (16, 32))) @ g.param("down", (32, 16))
    g.set_outputs([rlx.reduce_mean((x - target) * (x - target))])
    return g


def two_layers(policy="direct"):
    """Linear, gelu, linear over a symbolic batch and length; columns are one panel on every machine, or none."""

    def build(h):
        h.fusion_policy = rlx.FusionPolicy(policy)
        x = h.input("x", ("B", "S", 64))
        y = h.linear(x, h.param("w0", (64, 16)), h.param("b0", (16,)), "gelu")
        return h.linear(y, h.param("w1", (16, 12)), h.param("b1", (12,)))

    return rlx.Graph.define("two_layers", build)
