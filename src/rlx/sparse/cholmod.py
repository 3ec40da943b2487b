"""Sparse Cholesky factors by CHOLMOD, through scikit-sparse, where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx.errors import NotInstalled, OpError
from rlx.ir.tensor import Tensor
from rlx.ops.linalg.solve import not_positive_definite
from rlx.sparse.arrays import CSR

Array = np.ndarray[Any, np.dtype[Any]]

# The orders that have the same name there.
_ORDERS = ("amd", "natural")


def is_installed() -> bool:
    try:
        import sksparse.cholmod  # noqa: F401
    except ImportError:
        return False
    return True


def can_factorise(m: CSR, order: str, is_wanted: bool) -> bool:
    """Whether CHOLMOD takes this matrix; if it `is_wanted` and cannot, that is an error."""
    if isinstance(m.values, Tensor):
        reason = "it factorises outside of programs, and this matrix is inside of one"
    elif order not in _ORDERS:
        reason = f"it has the orders {_ORDERS}, not {order!r}"
    elif not is_installed():
        if is_wanted:
            raise NotInstalled(
                "sparse.cholesky: CHOLMOD needs scikit-sparse and SuiteSparse (apt install libsuitesparse-dev, "
                'pip install scikit-sparse); engine="own" needs neither'
            )
        return False
    else:
        return m.shape[0] > 0
    if is_wanted:
        raise OpError(f'sparse.cholesky: CHOLMOD cannot be used here, {reason}; use engine="own"')
    return False


def factor(m: CSR, order: str) -> tuple[Array, Any]:
    """(P, L) with A[P][:, P] = L Lᴴ; L is a SciPy array in compressed rows with ascending columns."""
    from scipy.sparse import csc_array, csc_matrix, csr_array
    from sksparse import cholmod

    values = np.asarray(m.values)
    wide = values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
    matrix = csr_array((wide, m.indices, m.indptr), shape=m.shape)
    try:
        # Since 0.5 scikit-sparse returns the factor itself.
        if hasattr(cholmod, "cho_factor"):
            found, permutation = cholmod.cholesky(csc_array(matrix), lower=True, order=order)
        else:
            made = cholmod.cholesky(csc_matrix(matrix), ordering_method=order, mode="supernodal")
            found, permutation = made.L(), made.P()
    except cholmod.CholmodNotPositiveDefiniteError:
        raise not_positive_definite("sparse.cholesky") from None
    lower = csr_array(found)
    if not np.isfinite(lower.data).all():
        raise not_positive_definite("sparse.cholesky")
    lower.sort_indices()
    return np.asarray(permutation), lower
