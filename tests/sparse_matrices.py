"""Matrices for the tests of rlx.sparse, as SciPy arrays."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def random(rows, columns, density=0.3, dtype="f8", seed=0, index=np.int32):
    """A matrix with some empty rows and columns, if it is large enough to have any."""
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(rows, columns))
    if np.dtype(dtype).kind == "c":
        dense = dense + 1j * rng.normal(size=(rows, columns))
    a = sp.csr_array(np.where(rng.random((rows, columns)) < density, dense, 0).astype(dtype))
    a.indices, a.indptr = a.indices.astype(index), a.indptr.astype(index)
    return a


def regular(size, dtype="f8", seed=0, density=0.3):
    """A matrix that is far from singular and not symmetric."""
    a = random(size, size, density, dtype, seed).tolil()
    a.setdiag(size * (1.0 + 0.1 * np.arange(size)))
    return sp.csr_array(a.tocsr().astype(dtype))


def positive(size, dtype="f8", seed=0, density=0.2):
    """Hermitian and positive definite."""
    a = random(size, size, density, dtype, seed)
    both = (a + a.conj().T).tolil()
    both.setdiag(2.0 * size * (1.0 + 0.1 * np.arange(size)) ** 0.5)
    found = sp.csr_array(both.tocsr().astype(dtype))
    found.sort_indices()
    return found


def grid(size, dtype="f8"):
    """The five-point Laplacian on a square grid."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(size, size))
    one = sp.eye_array(size)
    a = sp.csr_array((sp.kron(one, line) + sp.kron(line, one)).astype(dtype))
    a.sort_indices()
    return a
