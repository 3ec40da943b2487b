"""`rlx.scipy.sparse`: the solvers of `jax.scipy.sparse.linalg`; `rlx.sparse` has the matrices."""

from rlx.scipy.sparse import linalg as linalg
