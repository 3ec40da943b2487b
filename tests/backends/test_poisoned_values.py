"""NaN and the ends of the range go where the formulas send them: one test for each way in which one was lost or spread.

`tests/conformance` puts poisons into every sample of every op; these are the cases that were wrong once, each against
what its formula says.
"""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.ops as ops
from rlx.ops.signal.fourier import FftButterflyStage

DEVICES = ("reference", "cpu")
# One number of q, k, v and dy is NaN, in head 1 of 2; the others are not to be touched.
AT = (0, 1, 2, 3)


def run(device, function, *arrays):
    graph = rlx.Graph("poisoned")
    result = function(*(graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)))
    graph.set_outputs(result if isinstance(result, tuple | list) else [result])
    compiled = rlx.Session(device).compile(graph)
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in compiled.run({f"x{i}": a for i, a in enumerate(arrays)})]


def values(*dims, dtype="f4", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(dims)
    return (x + 1j * rng.standard_normal(dims)).astype(dtype) if np.dtype(dtype).kind == "c" else x.astype(dtype)


def with_nan(x, place):
    changed = x.copy()
    changed[place] = np.nan
    return changed


def heads(keys=5):
    return [values(1, 2, rows, 4, seed=i) for i, rows in enumerate((3, keys, keys))]


@pytest.mark.parametrize("keys", [5, 70])
@pytest.mark.parametrize("operand, rows", [("q", [2]), ("k", [0, 1, 2]), ("v", [0, 1, 2])])
@pytest.mark.parametrize("device", DEVICES)
def test_nan_stays_in_attention(device, operand, rows, keys):
    """A row of q spoils its own result; k spoils the scores, and v the sums, of all rows, v in one column."""
    arrays = heads(keys)
    place = "qkv".index(operand)
    arrays[place] = with_nan(arrays[place], AT)
    [got] = run(device, lambda q, k, v: ops.attention(q, k, v, layout="bhsd"), *arrays)
    wanted = np.zeros(got.shape, bool)
    wanted[0, 1, rows, 3 if operand == "v" else slice(None)] = True
    assert np.array_equal(np.isnan(got), wanted)


@pytest.mark.parametrize("operand", ["q", "k", "v", "dy"])
@pytest.mark.parametrize("device", DEVICES)
def test_nan_stays_in_gradients_of_attention(device, operand):
    arrays = [*heads(), values(1, 2, 3, 4, seed=9)]
    place = ["q", "k", "v", "dy"].index(operand)
    arrays[place] = with_nan(arrays[place], AT)

    def gradients(q, k, v, dy):
        return ops.AttentionBackward(2, 4, layout="bhsd", wrt="all")(q, k, v, dy)

    dq, dk, dv = (np.isnan(r) for r in run(device, gradients, *arrays))
    assert not (dq[0, 0].any() or dk[0, 0].any() or dv[0, 0].any())
    # Row 2 of q is one row of the weights; any other NaN among the operands of all weights reaches all of them.
    rows = [2] if operand in ("q", "dy") else [0, 1, 2]
    assert dq[0, 1, rows].all() and dq[0, 1].sum() == 4 * len(rows)
    assert dk[0, 1].all()
    # dv = weights·dy does not see v, and a NaN of dy in its own column alone.
    columns = {"q": 4, "k": 4, "v": 0, "dy": 1}[operand]
    assert dv[0, 1].sum() == 5 * columns


@pytest.mark.parametrize("keys", [5, 70])
@pytest.mark.parametrize("softcap", [1e-300, 1e-46, 1e-40, 1e-30])
@pytest.mark.parametrize("device", DEVICES)
def test_a_softcap_near_zero_makes_keys_equal(device, softcap, keys):
    """c·tanh(S/c) goes to 0 with c, also where S is 0 itself: all keys weigh the same."""
    q, k, v = heads(keys)
    q[0, 0] = 0.0
    [got] = run(device, lambda q, k, v: ops.attention(q, k, v, layout="bhsd", softcap=softcap), q, k, v)
    np.testing.assert_allclose(got, np.broadcast_to(v.mean(2, keepdims=True), got.shape), rtol=1e-5, atol=1e-6)

    def gradients(q, k, v, dy):
        return ops.AttentionBackward(2, 4, layout="bhsd", wrt="all", softcap=softcap)(q, k, v, dy)

    dy = values(1, 2, 3, 4, seed=9)
    dq, dk, dv = run(device, gradients, q, k, v, dy)
    assert np.isfinite(dq).all() and np.isfinite(dk).all()
    np.testing.assert_allclose(dv, np.broadcast_to(dy.sum(2, keepdims=True) / keys, dv.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("reduce", [ops.reduce_sum, ops.reduce_mean, ops.reduce_prod])
@pytest.mark.parametrize("part", [complex(np.nan, 1.0), complex(1.0, np.nan)])
@pytest.mark.parametrize("device", DEVICES)
def test_nan_stays_in_complex_reductions(device, part, reduce, dtype):
    z = values(3, 37, dtype=dtype)
    z[1, 20] = part
    [rows] = run(device, lambda z: reduce(z, 1), z)
    assert np.isnan(rows).tolist() == [False, True, False]
    [columns] = run(device, lambda z: reduce(z, 0), z)
    assert np.flatnonzero(np.isnan(columns)).tolist() == [20]


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("device", DEVICES)
def test_complex_roots_of_what_is_not_finite(device, dtype):
    """As C99 and NumPy have it: NaN stays, an infinite imaginary part gives an infinity whatever is beside it."""
    nan, inf = np.nan, np.inf
    z = np.array([complex(nan, 1), complex(1, nan), complex(nan, nan), complex(nan, inf), complex(-inf, 1)], dtype)
    [got] = run(device, ops.sqrt, z)
    assert np.isnan(got[:3]).all() and np.isinf(got[3:]).all()
    with np.errstate(all="ignore"):
        assert np.array_equal(np.isinf(got), np.isinf(np.sqrt(z)))


@pytest.mark.parametrize("device", DEVICES)
def test_nan_stays_in_a_butterfly(device):
    state, ones, zeros = values(2, 8, 2), np.ones(4, "f4"), np.zeros(4, "f4")
    # Stage 1 joins 1 and 3; NaN is in the imaginary part of 3 in the first transform.
    state[0, 3, 1] = np.nan
    [got] = run(device, FftButterflyStage(1, 8), state, ones, zeros, values(4, seed=1), values(4, seed=2))
    assert sorted({tuple(p[:2]) for p in np.argwhere(np.isnan(got)).tolist()}) == [(0, 1), (0, 3)]
    assert np.isnan(got[0, [1, 3]]).all()


def reached(x, w, stride):
    """Where each x·w of a transposed convolution goes that has a NaN in it, by the formula."""
    found = np.zeros([(n - 1) * stride + k for n, k in zip(x.shape[2:], w.shape[2:])], bool)
    for i, j in np.ndindex(*x.shape[2:]):
        for a, b in np.ndindex(*w.shape[2:]):
            found[i * stride + a, j * stride + b] |= bool(np.isnan(x[0, 0, i, j] * w[0, 0, a, b]))
    return found


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_nan_of_an_image_spreads_as_far_as_weights_reach(device, stride):
    x, w = with_nan(values(1, 1, 4, 5), (0, 0, 1, 2)), values(1, 1, 2, 3, seed=1)
    wanted = reached(x, w, stride)
    [got] = run(device, lambda x, w: ops.conv_transpose(x, w, stride), x, w)
    assert np.array_equal(np.isnan(got[0, 0]), wanted)
    [got] = run(device, lambda y, w: ops.conv2d_backward_input(y, w, (1, 1, *wanted.shape), stride), x, w)
    assert np.array_equal(np.isnan(got[0, 0]), wanted)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_nan_of_a_weight_meets_inserted_zeros_on_the_cpu_only(stride):
    """The definition adds up existing products. Kernels lose none of its NaN, and what else they spoil is documented as
    a difference, "inserted zeros": the rest of what they give is right."""
    x, w = values(1, 1, 4, 5), with_nan(values(1, 1, 2, 3, seed=1), (0, 0, 1, 2))
    wanted = reached(x, w, stride)
    ([reference], [got]) = (run(d, lambda x, w: ops.conv_transpose(x, w, stride), x, w) for d in DEVICES)
    assert np.array_equal(np.isnan(reference[0, 0]), wanted)
    assert np.isnan(got[0, 0][wanted]).all()
    right = ~np.isnan(got)
    np.testing.assert_allclose(got[right], reference[right], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("device", DEVICES)
def test_acosh_to_the_end_of_the_range(device, dtype):
    """acosh x is ln 2 + ln x there, and x² and 2x overflow."""
    x = np.array([np.finfo(dtype).max, np.sqrt(np.finfo(dtype).max) * 2, 1.0, np.inf, np.nan], dtype)
    [got] = run(device, ops.acosh, x)
    wanted = np.log(2.0) + np.log(x[:2].astype("f8"))
    np.testing.assert_allclose(got[:2], wanted, rtol=4 * np.finfo(dtype).eps)
    assert got[2] == 0 and got[3] == np.inf and np.isnan(got[4])
