"""Attention against loops over single rows with SciPy's softmax, and its gradients against differences."""

import numpy as np
import pytest
from directional import assert_gradients
from scipy.special import softmax

from rlx import ops
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ops import MaskKind

rng = np.random.default_rng(5)
B, H, D = 2, 4, 3


def normal(*dims):
    return rng.standard_normal(dims)


def row_by_row(q, k, v, visible, scale=None, softcap=None, bias=None):
    """[B,H,S,D] operands; `visible(b, h, i)` are the keys that one query sees."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    share = q.shape[1] // k.shape[1]
    for b, h, i in np.ndindex(*q.shape[:3]):
        keys = np.asarray(visible(b, h, i), dtype=int)
        if not len(keys):
            continue
        scores = k[b, h // share, keys] @ q[b, h, i] * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if bias is not None:
            scores = scores + bias[b, h, i, keys]
        out[b, h, i] = softmax(scores) @ v[b, h // share, keys]
    return out


def qkv(seq_q=4, seq_k=6, kv_heads=H):
    return normal(B, H, seq_q, D), normal(B, kv_heads, seq_k, D), normal(B, kv_heads, seq_k, D)


def check(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_query_sees_all_keys(both, kv_heads):
    q, k, v = qkv(kv_heads=kv_heads)
    got = both(lambda *xs: ops.attention(*xs, layout="bhsd"), q, k, v)
    check(got, row_by_row(q, k, v, lambda b, h, i: range(6)))


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "bsm"])
def test_heads_of_v_may_have_another_width(both, layout):
    q, k, _ = qkv(kv_heads=2)
    v, dy = normal(B, 2, 6, 7), normal(B, H, 4, 7)

    def laid_out(x):
        x = x if layout == "bhsd" else x.swapaxes(1, 2)
        return x.reshape(*x.shape[:2], -1) if layout == "bsm" else x

    expected = laid_out(row_by_row(q, k, v, lambda b, h, i: range(6)))
    operands = [laid_out(x) for x in (q, k, v)]
    options = {"layout": layout, "num_heads": H, "head_dim": D, "num_kv_heads": 2}
    check(both(lambda *xs: ops.attention(*xs, **options), *operands), expected)
    gradients = ops.attention_backward_all(*operands, laid_out(dy), **options)
    assert_gradients(lambda *xs: ops.attention(*xs, **options), operands, gradients, laid_out(dy))


@pytest.mark.parametrize(("seq_q", "seq_k"), [(5, 5), (2, 6), (6, 2), (1, 4)])
def test_causal_aligns_the_last_query_with_the_last_key(both, seq_q, seq_k):
    q, k, v = qkv(seq_q, seq_k)
    offset = max(0, seq_k - seq_q)
    symbolic = [("B", H, "S", D), ("B", H, "T", D), ("B", H, "T", D)]
    got = both(lambda *xs: ops.attention(*xs, layout="bhsd", mask_kind="causal"), q, k, v, dims=symbolic)
    check(got, row_by_row(q, k, v, lambda b, h, i: range(min(offset + i + 1, seq_k))))


def test_a_window_keeps_that_many_keys_and_the_own_one(both):
    q, k, v = qkv(5, 7)
    got = both(lambda *xs: ops.attention(*xs, layout="bhsd", mask_kind=MaskKind.SlidingWindow(2)), q, k, v)
    check(got, row_by_row(q, k, v, lambda b, h, i: range(max(0, 2 + i - 2), 2 + i + 1)))


@pytest.mark.parametrize("rank", [2, 3, 4])
@pytest.mark.parametrize("dtype", [bool, np.float64, np.int32])
def test_custom_masks_of_any_rank(both, rank, dtype):
    q, k, v = qkv()
    dims = {2: (B, 6), 3: (B, 4, 6), 4: (B, H, 4, 6)}[rank]
    mask = rng.integers(0, 2, dims).astype(dtype)
    mask.reshape(B, -1)[1] = 0
    full = np.broadcast_to(mask.reshape({2: (B, 1, 1, 6), 3: (B, 1, 4, 6), 4: dims}[rank]), (B, H, 4, 6))
    got = both(lambda *xs: ops.attention(*xs, layout="bhsd"), q, k, v, mask)
    check(got, row_by_row(q, k, v, lambda b, h, i: np.flatnonzero(full[b, h, i])))
    assert not got[1].any(), "a row without any key gives 0"


def test_order_is_scale_softcap_bias(both):
    q, k, v = qkv(kv_heads=2)
    bias = normal(B, H, 4, 6)
    bias[0, 0, 0] = -np.inf
    options = {"score_scale": 2.0, "softcap": 1.5, "mask_kind": "bias", "layout": "bhsd"}
    got = both(lambda *xs: ops.attention(*xs, **options), q, k, v, bias)
    expected = row_by_row(q, k, v, lambda b, h, i: range(6), 2.0, 1.5, np.where(np.isinf(bias), 0, bias))
    expected[0, 0, 0] = 0
    check(got, expected)


@pytest.mark.parametrize("mask_kind", ["none", "causal", MaskKind.SlidingWindow(1)])
def test_a_filled_cache_is_like_one_cut_to_its_length(both, mask_kind):
    q, k, v = qkv(2, 6)
    lengths = np.array([5, 1], np.int32)
    k[1, :, 1:], v[1, :, 1:], v[0, :, 5:] = np.nan, np.nan, np.inf
    options = {"layout": "bhsd", "mask_kind": mask_kind}
    got = both(lambda *xs: ops.attention(*xs[:3], kv_len=xs[3], **options), q, k, v, lengths)
    for b, n in enumerate(lengths):
        alone = ops.attention(q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n], **options)
        check(got[b : b + 1], alone)


def test_positions_say_where_queries_stand(both):
    q, k, v = qkv(3, 6)
    positions = np.array([[0, 5, 2], [4, 4, 1]], np.int32)
    options = {"layout": "bhsd", "mask_kind": MaskKind.SlidingWindow(2)}
    got = both(lambda *xs: ops.attention(*xs[:3], positions=xs[3], **options), q, k, v, positions)
    check(got, row_by_row(q, k, v, lambda b, h, i: range(max(0, positions[b, i] - 2), positions[b, i] + 1)))


def test_layouts_agree():
    q, k, v = qkv(kv_heads=2)
    expected = ops.attention(q, k, v, layout="bhsd", mask_kind="causal")
    apart = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    check(ops.attention(*apart, layout="bshd", mask_kind="causal").transpose(0, 2, 1, 3), expected)
    joined = [x.reshape(*x.shape[:2], -1) for x in apart]
    got = ops.attention(*joined, num_heads=H, mask_kind="causal")
    check(got.reshape(B, 4, H, D).transpose(0, 2, 1, 3), expected)
    single = ops.attention(*(x[0] for x in joined), num_heads=H, mask_kind="causal")
    check(single, got[0])


def test_layout_is_guessed_only_where_one_fits():
    graph = Graph()
    x = graph.input("x", ("B", "S", H, D), "f32")
    assert ops.attention(x, x, x, num_heads=H).node.op.layout == "bshd"
    y = graph.input("y", (1, H, 7, D), "f32")
    assert ops.attention(y, y, y, num_heads=H).node.op.layout == "bhsd"
    z = graph.input("z", (1, H, H, D), "f32")
    with pytest.raises(ShapeError, match=r"layout of .* is not clear for 4 heads; pass layout="):
        ops.attention(z, z, z, num_heads=H)


def test_half_precision_accumulates_wide(both):
    q, k, v = (x.astype(np.float16) for x in qkv())
    exact = ops.attention(*(x.astype(np.float64) for x in (q, k, v)), layout="bhsd")
    got = both(lambda *xs: ops.attention(*xs, layout="bhsd"), q, k, v)
    np.testing.assert_array_equal(got, exact.astype(np.float16))


GRADIENT_CASES = [
    ({}, None),
    ({"mask_kind": "causal", "softcap": 0.7, "score_scale": 0.9}, None),
    ({"mask_kind": "sliding_window", "window": 1}, None),
    ({"mask_kind": "custom"}, np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]])),
]


@pytest.mark.parametrize(("options", "mask"), GRADIENT_CASES)
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_gradients(options, mask, kv_heads):
    operands = list(qkv(3, 5, kv_heads))
    dy = normal(*operands[0].shape)
    gradients = ops.attention_backward_all(*operands, dy, mask, layout="bhsd", **options)
    assert_gradients(lambda *xs: ops.attention(*xs, mask, layout="bhsd", **options), operands, gradients, dy)
    for wrt, gradient in zip(("query", "key", "value"), gradients):
        alone = ops.attention_backward(wrt, *operands, dy, mask, layout="bhsd", **options)
        np.testing.assert_array_equal(alone, gradient)


@pytest.mark.parametrize("dims", [(B, H, 3, 5), (1, H, 1, 5), (B, 1, 3, 5)])
def test_bias_gradient_is_summed_where_the_bias_is_shared(dims):
    *operands, bias = *qkv(3, 5, 2), normal(*dims)
    dy = normal(*operands[0].shape)
    options = {"mask_kind": "bias", "layout": "bhsd", "softcap": 1.0}
    gradients = ops.attention_backward_all(*operands, dy, bias, **options)
    assert len(gradients) == 4
    assert_gradients(lambda *xs: ops.attention(*xs, **options), [*operands, bias], gradients, dy)


def test_gradients_ignore_what_lies_behind_the_fill_level():
    q, k, v = qkv(2, 4)
    k[:, :, 3:], v[:, :, 3:] = np.nan, np.nan
    lengths = np.array([3, 2], np.int32)
    dq, dk, dv = ops.attention_backward_all(q, k, v, normal(*q.shape), layout="bhsd", kv_len=lengths)
    assert np.isfinite(dq).all()
    assert not dk[0, :, 3:].any()
    assert not dv[1, :, 2:].any()


def test_attention_kind_op():
    op = ops.attention_kind_op(2, 8, MaskKind.SlidingWindow(4), 0.5, 30.0)
    assert op == ops.Attention(2, 8, "sliding_window", 4, score_scale=0.5, softcap=30.0)


def test_errors_teach():
    x = np.ones((B, H, 4, D), np.float32)
    with pytest.raises(OpError, match="num_heads=4 must be a multiple of num_kv_heads=3"):
        ops.Attention(4, 3, num_kv_heads=3)
    with pytest.raises(OpError, match="window=3 needs the mask kind sliding_window"):
        ops.Attention(4, 3, "causal", 3)
    with pytest.raises(OpError, match="softcap must be positive"):
        ops.Attention(4, 3, softcap=0.0)
    with pytest.raises(OpError, match=r"only MaskKind\.SlidingWindow has a window"):
        MaskKind.Causal(3)
    with pytest.raises(OpError, match="optional operands are: mask or bias; got 0"):
        ops.Attention(H, D, "custom")(x, x, x)
    with pytest.raises(OpError, match="layout bsm does not fit q"):
        ops.Attention(H, D, layout="bsm")(x, x, x)
    with pytest.raises(OpError, match=r"q must hold 4 heads of 3 in layout bshd, got f32\[2,4,5,3\]"):
        ops.Attention(H, D, layout="bshd")(*(np.ones((B, 4, 5, D), np.float32),) * 3)
    with pytest.raises(OpError, match="k and v one length"):
        ops.Attention(H, D)(x, x, np.ones((B, H, 5, D), np.float32))
    with pytest.raises(OpError, match=r"custom operand must be \[2, 4\] or \[2, 4, 4\] or \[2, 4, 4, 4\]"):
        ops.attention(x, x, x, np.ones((B, 5)), layout="bhsd")
    with pytest.raises(OpError, match=r"kv_len must be \[2\], got i32\[3\]"):
        ops.attention(x, x, x, layout="bhsd", kv_len=np.ones(3, np.int32))
    with pytest.raises(OpError, match=r"positions must be \[4\] or \[2, 4\]"):
        ops.attention(x, x, x, layout="bhsd", mask_kind="causal", positions=np.ones((1, 4), np.int32))
    with pytest.raises(OpError, match="positions matter for causal"):
        ops.attention(x, x, x, layout="bhsd", positions=np.ones(4, np.int32))
    with pytest.raises(ShapeError, match=r"layout bhsd does not fit q \[2, 4, 4, 3\] and k \[4, 3\]"):
        ops.attention(x, x[0, 0], x, layout="bhsd")
    with pytest.raises(OpError, match="need num_heads"):
        ops.attention(*(np.ones((B, 4, 12), np.float32),) * 3)
    with pytest.raises(OpError, match="there is no bias to differentiate"):
        ops.AttentionBackward(H, D, wrt="bias")
    with pytest.raises(OpError, match="dy must have the type of the result"):
        ops.attention_backward("query", x, x, x, x[:1], layout="bhsd")
