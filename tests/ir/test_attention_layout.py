"""Strides against NumPy's own, reference attention against SciPy, packed QKV on small graphs."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

from rlx.compat.attention_layout import (
    ATTENTION_FLASH_MAX_HEAD_DIM,
    attention_dispatch_use_row,
    attention_geom,
    attention_launch_strides,
    cpu_attention_bshd,
    cpu_attention_packed_bshd_qkv,
    detect_packed_bshd_qkv_attention,
    mask_strides_bhsd,
    mask_strides_for_shape,
    packed_bshd_narrow_elidable,
    packed_bshd_qkv_strides,
    strides_bhsd,
    strides_bshd,
)
from rlx.errors import OpError, ShapeError
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ir.shape import Shape
from rlx.ops.pointwise.conversion import Cast
from rlx.ops.shape.movement import Narrow, Reshape

B, S, H, D, SK = 2, 5, 3, 4, 7


def element_strides(*dims):
    return np.zeros(dims, np.uint8).strides


def test_strides_are_numpys():
    b, h, s, _ = element_strides(B, H, S, D)
    assert strides_bhsd(H, D, S) == (b, h, s)
    b, s, h, _ = element_strides(B, S, H, D)
    assert strides_bshd(H, D, S) == (b, h, s)
    b, s, _, h, _ = element_strides(B, S, 3, H, D)
    assert packed_bshd_qkv_strides(H, D, S) == (b, h, s)
    assert mask_strides_bhsd(H, S, SK) == element_strides(B, H, S, SK)


@pytest.mark.parametrize(
    ("q", "k", "expected"),
    [
        ((B, H, S, D), (B, H, SK, D), (B, S, SK, True)),
        ((B, S, H, D), (B, SK, H, D), (B, S, SK, False)),
        ((B, S, H * D), (B, SK, H * D), (B, S, SK, False)),
        ((S, H * D), (SK, H * D), (1, S, SK, False)),
        ((B, H, H, D), (B, H, SK, D), (B, H, SK, True)),
    ],
)
def test_geometry(q, k, expected):
    geom = attention_geom(Shape(q), Shape(k), H, D)
    assert (geom.batch, geom.seq_q, geom.seq_k, geom.bhsd) == expected
    assert (geom.heads, geom.head_dim, geom.is_bshd()) == (H, D, not geom.bhsd)


def test_layout_settles_what_shapes_cannot():
    q = Shape((B, H, H, D))
    assert attention_geom(q, q, H, D).bhsd
    assert attention_geom(q, q, H, D, layout="bshd").is_bshd()


def test_symbolic_geometry():
    geom = attention_geom(Shape(("B", "S", H * D)), Shape(("B", "P + S", H * D)), H, D)
    assert [str(x) for x in geom[:3]] == ["B", "S", "P + S"]


def test_geometry_errors():
    with pytest.raises(ShapeError, match=r"last axis of q f32\[2,5,13\] must be 12 for 3 heads of 4"):
        attention_geom(Shape((B, S, 13)), Shape((B, S, 13)), H, D)
    with pytest.raises(ShapeError, match="rank of 2, 3 or 4"):
        attention_geom(Shape((S,)), Shape((S,)), H, D)
    with pytest.raises(OpError, match="layout must be"):
        attention_geom(Shape((B, S, H, D)), Shape((B, S, H, D)), H, D, layout="sbhd")


@pytest.mark.parametrize(
    ("mask", "broadcast"),
    [
        ((B, SK), (B, 1, 1, SK)),
        ((B, S, SK), (B, 1, S, SK)),
        ((B, H, S, SK), (B, H, S, SK)),
        ((1, 1, S, SK), (1, 1, S, SK)),
        ((1, SK), (1, 1, 1, SK)),
    ],
)
def test_mask_strides_read_the_broadcast_mask(mask, broadcast):
    values = np.arange(np.prod(mask))
    wanted = np.broadcast_to(values.reshape(broadcast), (B, H, S, SK))
    strides = mask_strides_for_shape(Shape(mask), H, S, SK)
    index = np.indices((B, H, S, SK))
    assert np.array_equal(values[np.tensordot(strides, index, axes=1)], wanted)


@pytest.mark.parametrize("bhsd", [True, False])
def test_launch_strides_with_fewer_kv_heads(bhsd):
    kv_heads, heads = 2, 6
    dims = (B, heads, S, D) if bhsd else (B, S, heads, D)
    kv_dims = (B, kv_heads, SK, D) if bhsd else (B, SK, kv_heads, D)
    q, k = Shape(dims), Shape(kv_dims)
    geom = attention_geom(q, k, heads, D, layout="bhsd" if bhsd else "bshd")
    strides = attention_launch_strides(geom, q, k, k, q, Shape((B, SK)))
    steps, kv_steps = element_strides(*dims), element_strides(*kv_dims)
    head, seq = (1, 2) if bhsd else (2, 1)
    assert strides.q == strides.o == (steps[0], steps[head], steps[seq])
    assert strides.k == strides.v == (kv_steps[0], kv_steps[head], kv_steps[seq])
    assert strides.mask == (SK, 0, 0, 1)


def test_launch_strides_of_joined_heads():
    q = Shape((B, S, H * D))
    strides = attention_launch_strides(attention_geom(q, q, H, D), q, q, q, q)
    assert strides.q == strides_bshd(H, D, S)
    assert strides.mask is None


def test_row_kernel_choice():
    assert ATTENTION_FLASH_MAX_HEAD_DIM == 128
    assert [attention_dispatch_use_row(d) for d in (64, 128, 129)] == [False, False, True]
    assert attention_dispatch_use_row(64, force_row=True)


def test_reference_attention():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((B, S, H, D)).astype(np.float32)
    k, v = (rng.standard_normal((B, SK, H, D)).astype(np.float32) for _ in range(2))
    got = cpu_attention_bshd(q, k, v)
    assert got.dtype == np.float32
    for b in range(B):
        for h in range(H):
            scores = q[b, :, h].astype(np.float64) @ k[b, :, h].T / np.sqrt(D)
            wanted = scipy.special.softmax(scores, axis=-1) @ v[b, :, h]
            np.testing.assert_allclose(got[b, :, h], wanted, rtol=1e-6, atol=1e-7)


def test_packed_reference_attention():
    qkv = np.random.default_rng(1).standard_normal((B, S, 3, H, D))
    wanted = cpu_attention_bshd(*(np.ascontiguousarray(qkv[:, :, i]) for i in range(3)))
    np.testing.assert_array_equal(cpu_attention_packed_bshd_qkv(qkv), wanted)
    with pytest.raises(ShapeError, match=r"wanted \[batch, seq, 3, heads, head_dim\]"):
        cpu_attention_packed_bshd_qkv(qkv[0])


# Stand-ins: the detection goes by the name of the class.


class Attention(Op):
    def infer(self, q: Shape, k: Shape, v: Shape, mask: Shape | None = None) -> Shape:
        return q


class Copy(Op):
    def infer(self, x: Shape) -> Shape:
        return x


def packed(dims=(B, S, H * D), parent=(B, S, 3, H, D), starts=(0, 1, 2), axis=2, casts=()):
    """A graph with attention over three slices of one input; returns it, the q/k/v ids and the narrow ids."""
    g = Graph("packed")
    x = g.input("qkv", parent)
    views, narrows = [], []
    for start in starts:
        here = g.append(Narrow(axis, start, 1), [x.id]).id
        narrows.append(here)
        for to in casts:
            here = g.append(Cast(to), [here]).id
        views.append(g.append(Reshape(dims), [here]).id)
    g.set_outputs([g.append(Attention(), views).id])
    return g, views, narrows


@pytest.mark.parametrize("dims", [(B, S, H * D), (B, S, H, D)])
def test_packed_qkv_is_found(dims):
    g, views, narrows = packed(dims)
    found = detect_packed_bshd_qkv_attention(g, *views)
    assert found == (g.leaf("qkv").id, H * D, tuple(narrows))
    assert all(packed_bshd_narrow_elidable(g, n) for n in narrows)


def test_packed_qkv_by_a_negative_axis():
    g, views, _ = packed(axis=-3)
    assert detect_packed_bshd_qkv_attention(g, *views) is not None


def test_packed_qkv_with_symbolic_sizes():
    dims, parent = ("B", "S", H * D), ("B", "S", 3, H, D)
    g, views, narrows = packed(dims, parent)
    assert detect_packed_bshd_qkv_attention(g, *views) is not None
    assert packed_bshd_narrow_elidable(g, narrows[2])
    # Whether S equals the number of heads is not known, and with it the layout.
    g, views, _ = packed(("B", "S", H, D), parent)
    assert detect_packed_bshd_qkv_attention(g, *views) is None


def test_packed_qkv_through_a_cast_that_changes_nothing():
    g, views, narrows = packed(casts=("f32",))
    assert detect_packed_bshd_qkv_attention(g, *views) is not None
    assert packed_bshd_narrow_elidable(g, narrows[0])


@pytest.mark.parametrize(
    "case",
    [
        {"starts": (0, 2, 1)},
        {"starts": (0, 0, 0)},
        {"axis": 1, "parent": (B, 3, 3, H, D), "dims": (B, 3, H * D)},
        {"casts": ("f16",)},
        {"parent": (B, S, 4, H, D)},
        {"dims": (B * S, H, D)},
        {"parent": (B, H, 3, H, D), "dims": (B, H, H, D)},
    ],
    ids=["order", "same slice", "axis", "real cast", "four slices", "other dims", "reads as BHSD"],
)
def test_not_packed_qkv(case):
    g, views, narrows = packed(**case)
    assert detect_packed_bshd_qkv_attention(g, *views) is None
    assert not packed_bshd_narrow_elidable(g, narrows[0])


def test_packed_qkv_needs_one_parent():
    g, views, _ = packed()
    other = g.append(Reshape((B, S, H * D)), [g.append(Narrow(2, 2, 1), [g.input("kv", (B, S, 3, H, D)).id]).id]).id
    assert detect_packed_bshd_qkv_attention(g, views[0], views[1], other) is None


@pytest.mark.parametrize("reader", ["other op", "output", "mask"])
def test_slice_that_others_read_is_kept(reader):
    g, views, narrows = packed()
    if reader == "other op":
        g.append(Copy(), [views[1]])
    elif reader == "output":
        g.set_outputs([*g.outputs, views[1]])
    else:
        g.append(Attention(), [*views, views[1]])
    assert [packed_bshd_narrow_elidable(g, n) for n in narrows] == [True, False, True]
