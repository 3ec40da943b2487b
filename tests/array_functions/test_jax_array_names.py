"""Names of jax.numpy that were missing: joining by brackets, files, printing, masks, types."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
import rlx.numpy as rnp
from rlx.errors import OpError


def test_joining_by_brackets():
    for ours, theirs in [
        (rnp.r_[1:4, 9, [7, 8]], np.r_[1:4, 9, [7, 8]]),
        (rnp.r_[0:1:5j], np.r_[0:1:5j]),
        (rnp.r_[np.ones((1, 2)), np.zeros((2, 2))], np.r_[np.ones((1, 2)), np.zeros((2, 2))]),
        (rnp.c_[[1, 2, 3], [4, 5, 6]], np.c_[[1, 2, 3], [4, 5, 6]]),
        (rnp.c_[np.ones((2, 2)), [3, 4]], np.c_[np.ones((2, 2)), [3, 4]]),
    ]:
        np.testing.assert_allclose(ours, theirs)
    np.testing.assert_array_equal(rlx.jit(lambda x: rnp.r_[x, 5.0])(np.float32([1, 2])), [1, 2, 5])
    with pytest.raises(OpError, match="concatenate with an axis"):
        rnp.r_["0,2", [1, 2]]


def test_files(tmp_path):
    x = rnp.asarray([[1.5, 2.5]])
    rnp.save(tmp_path / "x.npy", x)
    assert isinstance(rnp.load(tmp_path / "x.npy"), rlx.Array)
    np.testing.assert_array_equal(rnp.load(tmp_path / "x.npy"), x)
    rnp.savez(tmp_path / "y.npz", x, b=rnp.arange(3))
    found = rnp.load(tmp_path / "y.npz")
    assert found.keys() == {"arr_0", "b"} and found["b"].tolist() == [0, 1, 2]
    np.asarray(x).tofile(tmp_path / "raw")
    assert rnp.fromfile(tmp_path / "raw", "f32").tolist() == [1.5, 2.5]
    assert rnp.fromstring("1 2 3", sep=" ").tolist() == [1, 2, 3]
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="pickle"):
        rnp.load(tmp_path / "o.npy")


def test_printing():
    x = rnp.asarray([0.123456])
    assert rnp.array_repr(x) == repr(x) and rnp.array_str(x) == str(x)
    with rnp.printoptions(precision=2):
        assert rnp.array_str(x) == "[0.12]" and rnp.get_printoptions()["precision"] == 2


def test_masks_and_places():
    for ours, theirs in zip(rnp.mask_indices(3, rnp.triu, 1), np.mask_indices(3, np.triu, 1)):
        np.testing.assert_array_equal(ours, theirs)
    x = np.arange(6.0, dtype="f4").reshape(2, 3)
    wanted = x.copy()
    np.place(wanted, x > 1, [10, 20])
    np.testing.assert_array_equal(rnp.place(x, x > 1, [10, 20]), wanted)
    np.testing.assert_array_equal(rlx.jit(lambda x: rnp.place(x, x > 1, [10, 20]))(x), wanted)
    assert rnp.trim_zeros([0, 0, 1, 0, 2, 0]).tolist() == [1, 0, 2]
    assert rnp.trim_zeros([0, 1, 0], "b").tolist() == [0, 1]
    with pytest.raises(OpError, match="trim_zeros"):
        rlx.jit(rnp.trim_zeros)(np.float32([0, 1]))


def test_order_of_complex_numbers():
    z = np.complex64([2 + 1j, 1 - 1j, 2 - 3j, 1 + 2j])
    np.testing.assert_array_equal(rnp.sort_complex(z), np.sort_complex(z))
    assert rnp.sort_complex(np.float32([3, 1])).dtype == np.complex64


def test_types():
    assert isinstance(rnp.ones(2), rnp.ndarray) and not isinstance(np.ones(2), rnp.ndarray)
    seen = []
    rlx.jit(lambda x: (seen.append(isinstance(x, rnp.ndarray)), x)[1])(np.ones(2, "f4"))
    assert seen == [True]
    assert rnp.ones(2, rnp.float_).dtype == np.float32 and rnp.ones(2, rnp.complex_).dtype == np.complex64
    with rlx.default_float("f64"):
        assert rnp.ones(2, rnp.float_).dtype == np.float64 and rnp.ones(2, rnp.complex_).dtype == np.complex128


def test_vectorize_agrees_with_numpy():
    fn = lambda a, b: a * b + 1  # noqa: E731
    a, b = np.arange(6.0, dtype="f4").reshape(2, 3), np.float32([1, 2, 3])
    np.testing.assert_array_equal(rnp.vectorize(fn)(a, b), np.vectorize(fn)(a, b))


def test_zeros_of_polynomials():
    for p in ([0.0, 0, 1, -6, 11, -6, 0], [2.0, 3, 4], [5.0], [0.0, 0.0], [1.0, 0, 0], [1 + 2j, 3, 1]):
        found, wanted = rnp.roots(np.asarray(p)), np.roots(p)
        np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(wanted), atol=1e-12)
        assert found.dtype == "complex128"
    computed = rlx.jit(lambda p: rnp.roots(p, strip_zeros=False))(np.array([1.0, -3, 2]))
    np.testing.assert_allclose(np.sort_complex(computed), [1, 2], atol=1e-12)
    with pytest.raises(OpError, match="strip_zeros=False"):
        rlx.jit(rnp.roots)(np.array([1.0, -3, 2]))


def test_the_order_of_products():
    shapes = [(3, 4), (4, 5), (5, 6)]
    wanted = np.einsum_path("ij,jk,kl->il", *map(np.ones, shapes))
    assert rnp.einsum_path("ij,jk,kl->il", *map(rnp.ones, shapes)) == wanted
    seen = []
    rlx.jit(lambda *xs: (seen.append(rnp.einsum_path("ij,jk,kl->il", *xs)[0]), xs[0])[1])(*map(np.ones, shapes))
    assert seen == [wanted[0]]


def test_hints_how_to_search():
    edges, x = np.float32([0, 1, 2]), np.float32([0.5, 1.0, 7.0])
    np.testing.assert_array_equal(rnp.searchsorted(edges, x, method="scan_unrolled"), np.searchsorted(edges, x))
    np.testing.assert_array_equal(rnp.digitize(x, edges, method="sort"), np.digitize(x, edges))
    np.testing.assert_array_equal(rnp.isin(x, edges, True, True), np.isin(x, edges, True, True))
    np.testing.assert_array_equal(rnp.isin(x, edges, assume_unique=True, method="auto"), [False, True, False])
