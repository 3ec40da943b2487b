"""Attention with sinks: the same as with one more key whose value is 0, in the op and in the native kernel."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.backends.cpu import CpuBackend
from rlx.errors import OpError
from rlx.ir.shape import Shape
from rlx.ops.attn.sinks import AttentionWithSinks

rng = np.random.default_rng(23)


def normal(*dims, dtype="f4"):
    return rng.normal(size=dims).astype(dtype)


def run(op, arrays):
    """On the CPU, which must have one kernel for it."""
    graph = rlx.Graph("sinks")
    shapes = [Shape(a.shape, rlx.DType.of(a.dtype)) for a in arrays]
    graph.set_outputs([op(*(graph.input(f"x{i}", shape) for i, shape in enumerate(shapes)))])
    executable = CpuBackend().compile(graph, CompileOptions())
    assert [kernel.kind for kernel in executable.lir.kernels] == ["attention"]
    (result,) = executable.run({f"x{i}": a for i, a in enumerate(arrays)}, {})
    return np.asarray(result)


def with_one_more_key(q, k, v, sinks, visible):
    """f64 [B, H, S, W] by SciPy, for as many heads of k as of q."""
    scores = np.where(visible, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    more = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
    weights = softmax(np.concatenate([scores, more], -1), -1)
    return weights @ np.concatenate([v, np.zeros_like(v[:, :, :1])], 2)


@pytest.mark.parametrize("seq", [1, 3, 70])
@pytest.mark.parametrize("window", [None, 9])
def test_it_is_one_more_key_with_the_value_0(seq, window):
    q, k, v = normal(2, 4, seq, 16), normal(2, 2, 80, 16), normal(2, 2, 80, 16)
    sinks, lengths = np.array([-3.0, 0.0, 2.0, 30.0], "f4"), np.array([80, 75], "i4")
    positions = lengths[:, None] - seq + np.arange(seq, dtype="i4")
    kind = "causal" if window is None else "sliding_window"
    op = AttentionWithSinks(
        4, 16, kind, (window or 1) - 1 if window else 0, 2, "bhsd", has_kv_len=True, has_positions=True
    )
    arrays = [q, k, v, lengths, positions.astype("i4"), sinks]
    distance = positions[:, None, :, None] - np.arange(80)
    visible = (distance >= 0) & (distance < (window or 1000))
    exact = [a.astype("f8") for a in (q, np.repeat(k, 2, 1), np.repeat(v, 2, 1))]
    expected = with_one_more_key(*exact, sinks.astype("f8"), visible)
    np.testing.assert_allclose(op.eval(*arrays), expected, atol=1e-6)
    np.testing.assert_allclose(run(op, arrays), expected, atol=4e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("heads", "kv_heads", "seq"), [(16, 1, 2), (4, 4, 5)])
@pytest.mark.parametrize("stored", ["bf16", "i8"])
def test_stored_caches(heads, kv_heads, seq, stored):
    q, sinks = normal(1, heads, seq, 16), normal(heads)
    dtype, scales = rlx.DType.of(stored).numpy, ()
    if stored == "i8":
        k, v = (rng.integers(-99, 99, (1, kv_heads, 40, 16)).astype("i1") for _ in range(2))
        scales = tuple(rng.uniform(0.001, 0.02, (1, kv_heads, 40)).astype("f4") for _ in range(2))
    else:
        k, v = (normal(1, kv_heads, 40, 16).astype(dtype) for _ in range(2))
    op = AttentionWithSinks(heads, 16, "causal", 0, kv_heads, "bhsd", has_scales=bool(scales))
    arrays = [q, k, v, *scales, sinks]
    expected = op.eval(*arrays)
    np.testing.assert_allclose(run(op, arrays), expected, atol=1e-5 * np.abs(expected).max())


def test_a_query_without_keys_and_what_is_refused():
    q, k = normal(1, 2, 3, 4), normal(1, 2, 5, 4)
    nothing = ops.attention(q, k, k, sinks=normal(2), layout="bhsd", kv_len=np.array([0], "i4"))
    assert not np.asarray(nothing).any()
    with pytest.raises(OpError, match=r"sinks must be \[2\], got f32\[3\]"):
        ops.attention(q, k, k, sinks=normal(3), layout="bhsd")
