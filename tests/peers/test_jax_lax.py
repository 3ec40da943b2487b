"""`rlx.lax` beside `jax.lax`: the same calls with the same arguments, the library being the only difference."""

import numpy as np
import pytest
from libraries import assert_agree, jax

import rlx
from rlx import lax as ours

pytestmark = pytest.mark.peers

RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 4))
S = A @ A.T + 4 * np.eye(4)
IMAGES = RNG.normal(size=(2, 7, 6, 3))
KERNELS = RNG.normal(size=(3, 2, 3, 5))
X, Y, P = np.array([0.5, 2.0]), np.array([1.0, 3.0]), np.array([0.2, 0.7])
HALF, LAST = np.float32(A), (0, 3, 1, 2)

CALLS = {
    "igamma": lambda m: m.igamma(X, Y),
    "igammac": lambda m: m.igammac(X, Y),
    "igamma_grad_a": lambda m: m.igamma_grad_a(X, Y),
    "betainc": lambda m: m.betainc(X, Y, P),
    "bessel": lambda m: (m.bessel_i0e(A), m.bessel_i1e(A)),
    "polygamma": lambda m: m.polygamma(np.array([1.0, 2.0]), Y),
    "zeta": lambda m: m.zeta(np.array([1.5, 2.0]), Y),
    "approx_k": lambda m: (m.approx_max_k(HALF, 2), m.approx_min_k(HALF, 2)),
    "broadcast_shapes": lambda m: np.array(m.broadcast_shapes((2, 1), (3,))),
    "broadcast_to_rank": lambda m: m.broadcast_to_rank(A, 4),
    "split": lambda m: m.split(A, (1, 3), 1),
    "stack": lambda m: (m.stack([A, A], 1), m.unstack(A, 1), m.tile(A, (2, 3))),
    "reduce": lambda m: (m.reduce(A, 0.0, m.add, (1,)), m.reduce(A, -np.inf, m.max, (0,))),
    "reduce_xor": lambda m: m.reduce_xor(np.arange(35).reshape(5, 7), (1,)),
    "reduce_integers": lambda m: m.reduce(np.arange(35).reshape(5, 7), 0, m.bitwise_xor, (0, 1)),
    "reduce_precision": lambda m: (m.reduce_precision(A, 8, 7), m.reduce_precision(HALF, 5, 10)),
    "mulhi": lambda m: m.mulhi(np.int32([2**30, -(2**30)]), np.int32([12345, 777])),
    "fft": lambda m: (m.fft(A + 0j, "FFT", (4,)), m.fft(A, "RFFT", (4, 4))),
    "ragged_dot": lambda m: m.ragged_dot(A[[0, 1, 2, 3, 0, 1]], np.stack([A, S, A]), np.int32([2, 1, 2])),
    "patches": lambda m: m.conv_general_dilated_patches(
        IMAGES, (3, 2), (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    "patches_nchw": lambda m: m.conv_general_dilated_patches(IMAGES.transpose(LAST), (3, 2), (1, 1), "VALID"),
    "conv_with_general_padding": lambda m: m.conv_with_general_padding(
        IMAGES.transpose(LAST), KERNELS.transpose(3, 2, 0, 1), (1, 2), [(1, 0), (2, 1)], (2, 1), (1, 2)
    ),
    "windows": lambda m: m.reduce_window(IMAGES, -np.inf, m.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"),
    "windows_by_default": lambda m: m.reduce_window(IMAGES, 0.0, m.add, (1, 3, 2, 1)),
    "windows_dilated": lambda m: m.reduce_window(
        IMAGES, 0.0, m.add, (1, 3, 2, 1), (1, 1, 2, 1), "SAME", (1, 2, 1, 1), (1, 1, 2, 1)
    ),
    "padtype_to_pads": lambda m: np.array(m.padtype_to_pads((7, 6), (3, 2), (2, 2), "SAME")),
    "cholesky": lambda m: m.linalg.cholesky(S),
    "eigh": lambda m: [np.abs(x) for x in m.linalg.eigh(S)],
    "lu": lambda m: m.linalg.lu(A),
    "qr": lambda m: [np.abs(x) for x in m.linalg.qr(A[:, :2])],
    "svd": lambda m: [np.abs(x) for x in m.linalg.svd(A[:, :3], full_matrices=False)],
    "svd_values": lambda m: m.linalg.svd(A, compute_uv=False),
    "tridiagonal_solve": lambda m: m.linalg.tridiagonal_solve(A[0], A[1] + 5, A[2], S[:, :2]),
    "lu_pivots": lambda m: m.linalg.lu_pivots_to_permutation(np.int32([2, 3, 2, 3]), 4),
    "schur": lambda m: np.sort(np.abs(np.linalg.eigvals(m.linalg.schur(A)[0]))),
}
CALLS |= {
    f"triangular_solve_{left}_{turned}": lambda m, left=left, turned=turned: m.linalg.triangular_solve(
        np.tril(S), A, left_side=left, lower=True, transpose_a=turned
    )
    for left in (False, True)
    for turned in (False, True)
}
CALLS |= {
    f"conv_transpose_{padding}_{strides}_{turned}": lambda m, padding=padding, strides=strides, turned=turned: (
        m.conv_transpose(
            *(IMAGES, KERNELS.swapaxes(2, 3) if turned else KERNELS, strides, padding), transpose_kernel=turned
        )
    )
    for padding in ("SAME", "VALID", ((1, 2), (0, 1)))
    for strides in ((2, 2), (1, 3))
    for turned in (False, True)
}


@pytest.mark.parametrize("name", CALLS)
def test_call(name):
    call = CALLS[name]
    plain = [jax.tree.map(np.asarray, call(m)) for m in (ours, jax.lax)]
    assert_agree(*(jax.tree.leaves(tree) for tree in plain), 1e-8 if name != "reduce_precision" else 0)


def test_eig_has_left_vectors():
    (values, left, right), wanted = ours.linalg.eig(A), jax.lax.linalg.eig(A)
    np.testing.assert_allclose(np.sort_complex(values), np.sort_complex(wanted[0]), rtol=1e-8)
    np.testing.assert_allclose(A @ right, right * values, atol=1e-10)
    np.testing.assert_allclose(np.conj(left).T @ A, np.asarray(values)[:, None] * np.conj(left).T, atol=1e-10)


def test_custom_linear_solve():
    """The same source on both: values, and derivatives in the matrix and the right side."""

    def loss(m, np_, matrix, b):
        def solve(matvec, y):
            return np_.linalg.solve(np_.asarray(S), y)

        return np_.sum(m.custom_linear_solve(lambda x: matrix @ x, b, solve, solve) ** 2)

    found = rlx.value_and_grad(lambda s, b: loss(ours, rlx.numpy, s, b), argnums=(0, 1))(S, A[0])
    wanted = jax.value_and_grad(lambda s, b: loss(jax.lax, jax.numpy, s, b), argnums=(0, 1))(S, A[0])
    assert_agree(found, wanted, 1e-9)
