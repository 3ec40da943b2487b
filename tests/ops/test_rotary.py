"""Rotary embedding against multiplication by e^{iθ} of complex numbers."""

import numpy as np
import pytest
from directional import assert_gradients

from rlx import ops
from rlx.errors import OpError, ShapeError

rng = np.random.default_rng(8)
B, S, H, D, P = 2, 3, 2, 6, 7
ANGLES = rng.uniform(-3, 3, (P, D // 2))
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)


def turned(x, angles, n_rot, style):
    """x [.., n] with its first n_rot features turned by angles [.., n_rot/2]."""
    y = np.array(x)
    half = n_rot // 2
    first, second = (
        (slice(0, half), slice(half, n_rot)) if style == "neox" else (slice(0, n_rot, 2), slice(1, n_rot, 2))
    )
    z = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles[..., :half])
    y[..., first], y[..., second] = z.real, z.imag
    return y


@pytest.mark.parametrize("style", ["neox", "gptj"])
@pytest.mark.parametrize("n_rot", [2, 4, 6])
def test_joined_heads(both, style, n_rot):
    x = rng.standard_normal((B, S, H * D))
    got = both(lambda *xs: ops.rope(*xs, D, n_rot, style=style), x, COS, SIN, dims=[("B", "S", H * D), None, None])
    expected = turned(x.reshape(B, S, H, D), ANGLES[:S, None], n_rot, style)
    np.testing.assert_allclose(got.reshape(B, S, H, D), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_separate_heads(both, layout):
    x = rng.standard_normal((B, S, H, D))
    expected = turned(x, ANGLES[:S, None], D, "neox")
    if layout == "bhsd":
        x, expected = x.transpose(0, 2, 1, 3), expected.transpose(0, 2, 1, 3)
    got = both(lambda *xs: ops.rope(*xs, D, layout=layout), x, COS, SIN)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", ["bsm", "bhsd"])
def test_positions_choose_rows(both, layout):
    x = rng.standard_normal((B, S, H, D))
    positions = np.array([[6, 0, 3], [1, 1, 5]], np.int32)
    expected = turned(x, ANGLES[positions][:, :, None], 4, "neox")
    order = (0, 2, 1, 3) if layout == "bhsd" else (0, 1, 2, 3)
    dims = (B, H, S, D) if layout == "bhsd" else (B, S, H * D)
    got = both(
        lambda *xs: ops.rope(*xs[:3], D, 4, xs[3], layout=layout), x.transpose(order).reshape(dims), COS, SIN, positions
    )
    np.testing.assert_allclose(got, expected.transpose(order).reshape(dims), rtol=1e-12, atol=1e-12)
    one_row = ops.rope(x[0].reshape(S, H * D), COS, SIN, D, 4, positions[0])
    np.testing.assert_allclose(one_row, expected[0].reshape(S, H * D), rtol=1e-12, atol=1e-12)


def test_tables_may_be_narrow_or_flat():
    x = rng.standard_normal((B, S, H * D))
    expected = ops.rope(x, COS, SIN, D, 4)
    np.testing.assert_array_equal(ops.rope(x, COS[:, :2], SIN[:, :2], D, 4), expected)
    np.testing.assert_array_equal(ops.rope(x, COS.ravel(), SIN.ravel(), D, 4), expected)


@pytest.mark.parametrize("style", ["neox", "gptj"])
def test_gradient(style):
    x, dy = rng.standard_normal((2, B, S, H * D))
    cos, sin = rng.standard_normal((2, P, D // 2))
    gradient = ops.rope_backward(dy, cos, sin, D, 4, style=style)
    assert_gradients(lambda x: ops.rope(x, cos, sin, D, 4, style=style), [x], [gradient], dy)
    np.testing.assert_allclose(ops.rope_backward(ops.rope(x, COS, SIN, D), COS, SIN, D), x, rtol=1e-12)


@pytest.mark.parametrize("repeat", [1, 2])
def test_axial(both, repeat):
    end_x, end_y, head_dim, theta = 3, 2, 8, 100.0
    tokens = end_x * end_y * repeat
    x = rng.standard_normal((B, tokens, H * head_dim))
    got = both(lambda x: ops.axial_rope2d(x, end_x, end_y, head_dim, H, theta, repeat), x).reshape(
        B, tokens, H, head_dim
    )
    heads = x.reshape(B, tokens, H, head_dim)
    for token in range(tokens):
        column, row = (token // repeat) % end_x, (token // repeat) // end_x
        for c in range(head_dim // 4):
            for start, place in ((0, column), (head_dim // 2, row)):
                pair = slice(start + 2 * c, start + 2 * c + 2)
                angle = place * theta ** (-4 * c / head_dim)
                z = (heads[:, token, :, pair] @ [1, 1j]) * np.exp(1j * angle)
                np.testing.assert_allclose(got[:, token, :, pair] @ [1, 1j], z, rtol=1e-12, atol=1e-12)


def test_errors_teach():
    x = np.ones((B, S, H * D), np.float32)
    table = np.ones((P, D // 2), np.float32)
    with pytest.raises(OpError, match="n_rot must be even and from 2 to head_dim=6, got 3"):
        ops.rope(x, table, table, D, 3)
    with pytest.raises(OpError, match=r"must be \[positions,3\] or \[positions,2\] of one dtype"):
        ops.rope(x, table[:, :1], table[:, :1], D, 4)
    with pytest.raises(OpError, match="rows for 2 positions, the sequence has 3"):
        ops.rope(x, table[:2], table[:2], D)
    with pytest.raises(OpError, match="multiple of head_dim=5"):
        ops.Rope(5, 4)(x, table[:, :2], table[:, :2])
    with pytest.raises(OpError, match=r"positions must be \[3\] or \[2,3\], got i32\[2\]"):
        ops.rope(x, table, table, D, None, np.zeros(2, np.int32))
    with pytest.raises(ShapeError, match="pass layout="):
        ops.rope(np.ones((1, 2, 2, D), np.float32), table, table, D)
    with pytest.raises(OpError, match="head_dim a multiple of 4"):
        ops.AxialRope2d(2, 2, 6, 1)
    with pytest.raises(OpError, match=r"needs x \[B,4,8\], got f32\[2,3,12\]"):
        ops.axial_rope2d(x, 2, 2, 8, 1)
