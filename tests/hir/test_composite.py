"""Composite and sequence blocks against NumPy written from their formulas, with loops and repeated heads."""

import numpy as np
import pytest

from rlx.errors import OpError
from rlx.hir import LlamaDecoderBlock, Qwen35MtpHead, Qwen35MtpInputs
from rlx.ir.interpret import interpret
from rlx.ir.module import FusionPolicy, HirModule

RNG = np.random.default_rng(7)


def draw(*dims):
    return RNG.standard_normal(dims)


def rms(x, gamma, beta, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gamma + beta


def rotate(x, cos, sin, heads, n_rot):
    """Rotary positions, head by head and position by position; x is [B, S, heads·D]."""
    _, seq, width = x.shape
    dim, half = width // heads, n_rot // 2
    y = x.copy()
    for s in range(seq):
        for h in range(heads):
            for i in range(half):
                a, b = x[:, s, h * dim + i], x[:, s, h * dim + half + i]
                y[:, s, h * dim + i] = a * cos[s, i] - b * sin[s, i]
                y[:, s, h * dim + half + i] = b * cos[s, i] + a * sin[s, i]
    return y


def repeat_heads(x, kv_heads, times):
    """Every key head written `times` times in a row, so that queries and keys have one head count."""
    return np.concatenate([h for part in np.split(x, kv_heads, -1) for h in [part] * times], -1)


def attend(q, k, v, heads, allowed):
    """softmax(q·kᵀ/√D)·v per head; `allowed` is [B, Sq, Sk]."""
    out = np.zeros_like(q)
    dim = q.shape[-1] // heads
    for b in range(q.shape[0]):
        for h in range(heads):
            part = slice(h * dim, (h + 1) * dim)
            scores = q[b, :, part] @ k[b, :, part].T / np.sqrt(dim)
            weights = np.where(allowed[b], np.exp(scores), 0.0)
            out[b, :, part] = weights / weights.sum(-1, keepdims=True) @ v[b, :, part]
    return out


def silu(x):
    return x / (1 + np.exp(-x))


def causal(batch, seq):
    return np.broadcast_to(np.tril(np.ones((seq, seq), bool)), (batch, seq, seq))


def llama_operands(batch, seq, heads, kv_heads, dim=4, hidden=6, inner=5):
    wide, narrow = heads * dim, kv_heads * dim
    angles = np.outer(np.arange(seq + 2), 0.7 ** np.arange(dim // 2))
    return {
        "x": draw(batch, seq, hidden),
        "ln1_g": draw(hidden),
        "ln1_b": draw(hidden),
        "q_w": draw(hidden, wide),
        "k_w": draw(hidden, narrow),
        "v_w": draw(hidden, narrow),
        "o_w": draw(wide, hidden),
        "ln2_g": draw(hidden),
        "ln2_b": draw(hidden),
        "gate_w": draw(hidden, inner),
        "up_w": draw(hidden, inner),
        "down_w": draw(inner, hidden),
        "cos": np.cos(angles),
        "sin": np.sin(angles),
    }


def llama_reference(t, heads, kv_heads, eps, allowed):
    n = rms(t["x"], t["ln1_g"], t["ln1_b"], eps)
    dim = t["q_w"].shape[1] // heads
    q = rotate(n @ t["q_w"], t["cos"], t["sin"], heads, dim)
    k = rotate(n @ t["k_w"], t["cos"], t["sin"], kv_heads, dim)
    k, v = (repeat_heads(z, kv_heads, heads // kv_heads) for z in (k, n @ t["v_w"]))
    h = t["x"] + attend(q, k, v, heads, allowed) @ t["o_w"]
    m = rms(h, t["ln2_g"], t["ln2_b"], eps)
    return h + (silu(m @ t["gate_w"]) * (m @ t["up_w"])) @ t["down_w"]


def run(module, values):
    """The only output under both policies, which must agree."""
    results = []
    for policy in FusionPolicy:
        graph = module.with_fusion_policy(policy).lower_to_mir().as_graph()
        results.append(interpret(graph, values)[0])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12, atol=1e-12)
    return results[0]


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (4, 1)])
def test_llama_block_with_grouped_queries(heads, kv_heads):
    values = llama_operands(2, 3, heads, kv_heads)
    m = HirModule("llama")
    operands = {
        name: m.input(name, ("B", "S", 6), "f64") if name == "x" else m.param(name, value.shape, "f64")
        for name, value in values.items()
    }
    m.set_outputs([m.llama_decoder_block(**operands, num_heads=heads, head_dim=4, num_kv_heads=kv_heads, eps=1e-5)])
    expected = llama_reference(values, heads, kv_heads, 1e-5, causal(2, 3))
    np.testing.assert_allclose(run(m, values), expected, rtol=1e-10, atol=1e-10)
    attention = [n for n in m.lower_to_mir().as_graph().nodes if n.op.mnemonic == "attention"]
    # Heads of keys and values are shared by the op, not copied before it.
    assert [n.op.kv_heads for n in attention] == [kv_heads]
    assert not any(n.op.mnemonic in ("concat", "narrow") for n in m.lower_for_autodiff().as_graph().nodes)


def test_llama_block_with_a_mask_operand():
    values = llama_operands(2, 3, 2, 1)
    mask = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    m = HirModule("llama")
    operands = {name: m.input(name, value.shape, "f64") for name, value in values.items()}
    options = {"num_heads": 2, "head_dim": 4, "num_kv_heads": 1, "mask_kind": "custom"}
    m.set_outputs([m.llama_decoder_block(**operands, **options, mask=m.input("mask", (2, 3), "f64"))])
    allowed = np.broadcast_to(mask[:, None, :] > 0.5, (2, 3, 3))
    expected = llama_reference(values, 2, 1, 1e-6, allowed)
    np.testing.assert_allclose(run(m, values | {"mask": mask}), expected, rtol=1e-10, atol=1e-10)


def test_llama_block_direct_uses_fused_ops():
    values = llama_operands(1, 2, 2, 2)
    m = HirModule("llama")
    operands = [m.input(name, value.shape, "f64") for name, value in values.items()]
    block = m.transformer_block(*operands, 2, 4)
    m.set_outputs([block])
    assert block.node.name == "transformer_block"
    graph = m.lower_to_mir().as_graph()
    found = {n.op.mnemonic for n in graph.nodes}
    assert {"fused_residual_rms_norm", "fused_swiglu"} <= found
    assert {n.name for n in graph.nodes if not n.is_leaf} == {"transformer_block"}


def test_llama_block_refuses_weights_that_do_not_fit():
    values = llama_operands(1, 2, 2, 2)
    m = HirModule("llama")
    operands = {name: m.input(name, value.shape, "f64") for name, value in values.items()}
    with pytest.raises(OpError, match=r"hir\.llama_decoder_block: .*must hold 1 heads of 4"):
        m.llama_decoder_block(**operands, num_heads=2, head_dim=4, num_kv_heads=1)
    with pytest.raises(OpError, match=r"needs x \[B, S, hidden\]"):
        m.llama_decoder_block(**operands | {"x": m.input("rows", (2, 6), "f64")}, num_heads=2, head_dim=4)
    with pytest.raises(OpError, match="needs 14 to 15 operands, got 1"):
        m.append_node(LlamaDecoderBlock(2, 4, 2), [operands["x"]])


def mtp_operands(batch, seq, heads, kv_heads, dim, width, inner, vocab, trunk_vocab=9):
    angles = np.outer(np.arange(seq), 0.7 ** np.arange(dim // 2))
    wide, narrow = heads * dim, kv_heads * dim
    shapes = {
        "h_pre_norm": (batch, seq, width),
        "embed_w": (trunk_vocab, width),
        "eh_w": (2 * width, width),
        "q_gate_w": (width, 2 * wide),
        "k_w": (width, narrow),
        "v_w": (width, narrow),
        "o_w": (wide, width),
        "gate_w": (width, inner),
        "up_w": (width, inner),
        "down_w": (inner, width),
        "lm_head_w": (width, vocab),
    }
    values = {name: draw(*dims) for name, dims in shapes.items()}
    for norm in ("hnorm", "enorm", "attn_norm", "q_norm", "k_norm", "post_norm", "head_norm"):
        size = dim if norm in ("q_norm", "k_norm") else width
        values |= {f"{norm}_w": draw(size), f"{norm}_b": draw(size)}
    ids = RNG.integers(0, trunk_vocab, (batch, seq)).astype("i4")
    last = RNG.integers(0, seq, batch).astype("i4")
    values |= {"input_ids": ids, "last_token_idx": last, "cos": np.cos(angles), "sin": np.sin(angles)}
    return Qwen35MtpInputs(**values)


def mtp_reference(t, heads, kv_heads, dim, n_rot, eps):
    def norm(x, name):
        return rms(x, getattr(t, f"{name}_w"), getattr(t, f"{name}_b"), eps)

    cur = np.concatenate([norm(t.embed_w[t.input_ids], "enorm"), norm(t.h_pre_norm, "hnorm")], -1) @ t.eh_w
    x = norm(cur, "attn_norm")
    batch, seq, _ = x.shape
    q_gate = (x @ t.q_gate_w).reshape(batch, seq, heads, 2, dim)
    q, gate = q_gate[..., 0, :], q_gate[..., 1, :].reshape(batch, seq, -1)
    q = rotate(norm(q, "q_norm").reshape(batch, seq, -1), t.cos, t.sin, heads, n_rot)
    k = norm((x @ t.k_w).reshape(batch, seq, kv_heads, dim), "k_norm").reshape(batch, seq, -1)
    k = repeat_heads(rotate(k, t.cos, t.sin, kv_heads, n_rot), kv_heads, heads // kv_heads)
    v = repeat_heads(x @ t.v_w, kv_heads, heads // kv_heads)
    mixed = attend(q, k, v, heads, causal(batch, seq)) / (1 + np.exp(-gate))
    h = cur + mixed @ t.o_w
    m = norm(h, "post_norm")
    h = h + (silu(m @ t.gate_w) * (m @ t.up_w)) @ t.down_w
    last = np.stack([h[b, i] for b, i in enumerate(t.last_token_idx)])
    return norm(last, "head_norm") @ t.lm_head_w


@pytest.mark.parametrize("n_rot", [2, 4])
def test_mtp_head_picks_its_own_row_for_every_sequence(n_rot):
    t = mtp_operands(3, 4, heads=4, kv_heads=2, dim=4, width=6, inner=5, vocab=7)
    m = HirModule("mtp")
    symbolic = {"h_pre_norm": ("B", "S", 6), "input_ids": ("B", "S"), "last_token_idx": ("B",)}
    inputs = [m.input(n, symbolic.get(n, v.shape), v.dtype) for n, v in t._asdict().items()]
    logits = m.qwen35_mtp_head(inputs, 4, 2, 4, n_rot, 6, 5, 7, 1e-5)
    assert [str(d) for d in logits.shape] == ["B", "7"]
    m.set_outputs([logits])
    expected = mtp_reference(t, 4, 2, 4, n_rot, 1e-5)
    np.testing.assert_allclose(run(m, t._asdict()), expected, rtol=1e-10, atol=1e-10)


def test_mtp_head_checks_its_attributes():
    t = mtp_operands(1, 2, heads=2, kv_heads=1, dim=4, width=6, inner=5, vocab=7)
    m = HirModule("mtp")
    inputs = [m.input(n, v.shape, v.dtype) for n, v in t._asdict().items()]
    with pytest.raises(OpError, match=r"lm_head_w must be \[6, 8\] with these attributes, got f64\[6,7\]"):
        m.qwen35_mtp_head(inputs, 2, 1, 4, 4, 6, 5, 8)
    with pytest.raises(OpError, match="needs 29 operands, got 28"):
        m.qwen35_mtp_head(inputs[:-1], 2, 1, 4, 4, 6, 5, 7)
    assert Qwen35MtpHead.arity() == (29, 29)


@pytest.mark.parametrize("taps", [1, 3])
def test_depthwise_causal_convolution(taps):
    x, w, pad = draw(2, 5, 3), draw(3, 1, 1, taps), draw(2, taps - 1, 3)
    m = HirModule("conv")
    leaves = m.input("x", ("B", "S", 3), "f64"), m.param("w", w.shape, "f64"), m.input("pad", ("B", taps - 1, 3), "f64")
    m.set_outputs([m.depthwise_conv1d_causal(*leaves, taps)])
    joined = np.concatenate([pad, x], 1)
    expected = np.zeros_like(x)
    for s in range(5):
        for k in range(taps):
            expected[:, s] += w[:, 0, 0, k] * joined[:, s + k]
    np.testing.assert_allclose(run(m, {"x": x, "w": w, "pad": pad}), expected, rtol=1e-12, atol=1e-12)


def test_gated_delta_net_carries_its_state():
    """Two halves with the state handed over give what one run gives."""
    q, k, v = (draw(1, 4, 2, 3) for _ in range(3))
    g, beta = -np.abs(draw(1, 4, 2)), np.abs(draw(1, 4, 2))
    whole = HirModule("whole")
    given = [whole.input(n, a.shape, "f64") for n, a in zip("qkvgb", (q, k, v, g, beta), strict=True)]
    whole.set_outputs([whole.gated_delta_net(*given, 3)])
    [expected] = interpret(whole, [q, k, v, g, beta])

    halves = HirModule("halves")
    given = [halves.input(n, a.shape, "f64") for n, a in zip("qkvgb", (q, k, v, g, beta), strict=True)]
    first = [halves.narrow_(x, 1, 0, 2) for x in given]
    second = [halves.narrow_(x, 1, 2, 2) for x in given]
    out0, state = halves.gated_delta_net(*first, 3, return_state=True)
    out1 = halves.gated_delta_net_carry(*second, state, 3)
    halves.set_outputs([halves.concat([out0, out1], 1)])
    got = run(halves, dict(zip("qkvgb", (q, k, v, g, beta), strict=True)))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_dequant_matmul_block():
    x = draw(2, 32).astype("f4")
    codes = RNG.integers(-127, 128, (3, 32)).astype("i1")
    scales = np.array([0.5, 0.25, 2.0], "f2")
    rows = [scales[i : i + 1].tobytes() + codes[i].tobytes() for i in range(3)]
    packed = np.frombuffer(b"".join(rows), np.uint8)
    m = HirModule("q")
    m.set_outputs([m.dequant_matmul(m.input("x", (2, 32)), m.param("w", (102,), "u8"), None, None, "gguf_q8_0")])
    expected = x @ (codes * scales[:, None].astype("f4")).T
    np.testing.assert_allclose(run(m, {"x": x, "w": packed}), expected, rtol=1e-5, atol=1e-4)


def test_attention_block_takes_a_window():
    from rlx.ops import MaskKind

    q, k, v = (draw(1, 4, 4) for _ in range(3))
    m = HirModule("a")
    given = [m.input(n, (1, 4, 4), "f64") for n in "qkv"]
    m.set_outputs([m.attention(*given, None, 2, 2, MaskKind.SlidingWindow(1))])
    keys, queries = np.arange(4)[None, :], np.arange(4)[:, None]
    allowed = ((keys <= queries) & (keys >= queries - 1))[None]
    expected = attend(q, k, v, 2, allowed)
    np.testing.assert_allclose(run(m, dict(zip("qkv", (q, k, v), strict=True))), expected, rtol=1e-12, atol=1e-12)
