"""`rlx.sparse`: sparse matrices, their products, and solvers for sparse systems.

    A = rlx.sparse.from_scipy(S)                            # csr, csc, coo or bsr; nothing is copied
    x, info = rlx.sparse.cg(A, b, tol=1e-8, preconditioner="ic0")
    g = rlx.grad(lambda v: loss(rlx.sparse.solve(A.with_values(v), b)))(A.values)

A matrix is a tree whose leaf is its values; where its entries are is known to every program that it is part of. What is
done with it are ops (`ops_*.py`) with kernels of their own (`kernels_*.py`), which compile, differentiate and batch as
all others.
"""

from rlx.sparse import engine_forms as engine_forms
from rlx.sparse import kernels_blocks as kernels_blocks
from rlx.sparse import kernels_masked as kernels_masked
from rlx.sparse import kernels_products as kernels_products
from rlx.sparse import kernels_supernodal as kernels_supernodal
from rlx.sparse import kernels_triangular as kernels_triangular
from rlx.sparse.arrays import BSR as BSR
from rlx.sparse.arrays import COO as COO
from rlx.sparse.arrays import CSC as CSC
from rlx.sparse.arrays import CSR as CSR
from rlx.sparse.arrays import SparseArray as SparseArray
from rlx.sparse.construct import bsr as bsr
from rlx.sparse.construct import coo as coo
from rlx.sparse.construct import csc as csc
from rlx.sparse.construct import csr as csr
from rlx.sparse.construct import diags as diags
from rlx.sparse.construct import eye as eye
from rlx.sparse.construct import from_dense as from_dense
from rlx.sparse.construct import from_scipy as from_scipy
from rlx.sparse.construct import to_scipy as to_scipy
from rlx.sparse.direct import forget_factors as forget_factors
from rlx.sparse.eigen import lobpcg as lobpcg
from rlx.sparse.factors import LU as LU
from rlx.sparse.factors import Cholesky as Cholesky
from rlx.sparse.factors import cholesky as cholesky
from rlx.sparse.factors import ic0 as ic0
from rlx.sparse.factors import ilu0 as ilu0
from rlx.sparse.factors import lu as lu
from rlx.sparse.factors import solve as solve
from rlx.sparse.factors import triangular_solve as triangular_solve
from rlx.sparse.named_ops import bicgstab_solve as bicgstab_solve
from rlx.sparse.named_ops import cg_solve as cg_solve
from rlx.sparse.named_ops import cholesky_solve as cholesky_solve
from rlx.sparse.named_ops import csr_transpose_pattern as csr_transpose_pattern
from rlx.sparse.named_ops import gmres_solve as gmres_solve
from rlx.sparse.named_ops import ilu_pcg_solve as ilu_pcg_solve
from rlx.sparse.named_ops import lsqr_solve as lsqr_solve
from rlx.sparse.named_ops import lu_solve as lu_solve
from rlx.sparse.named_ops import lu_solve_general as lu_solve_general
from rlx.sparse.named_ops import mat_vec as mat_vec
from rlx.sparse.named_ops import pcg_solve as pcg_solve
from rlx.sparse.named_ops import sddmm as sddmm
from rlx.sparse.named_ops import spgemm as spgemm
from rlx.sparse.named_ops import spmv as spmv
from rlx.sparse.named_ops import transpose_values as transpose_values
from rlx.sparse.named_ops import values_grad as values_grad
from rlx.sparse.patterns import Coordinates as Coordinates
from rlx.sparse.patterns import Pattern as Pattern
from rlx.sparse.solvers import SolveInfo as SolveInfo
from rlx.sparse.solvers import bicgstab as bicgstab
from rlx.sparse.solvers import cg as cg
from rlx.sparse.solvers import gmres as gmres
from rlx.sparse.solvers import lsqr as lsqr
from rlx.sparse.solvers import minres as minres
from rlx.sparse.solvers import pcg as pcg

# The name that the Rust RLX gives its sparse array.
SparseTensor = CSR
# A product with many vectors is the same product.
spmm = spmv
