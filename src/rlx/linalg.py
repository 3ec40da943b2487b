"""Linear algebra: the functions of `rlx.numpy.linalg`, on arrays and inside programs.

rlx.linalg.solve(a, b), rlx.linalg.cholesky(a), rlx.linalg.eigh(a)
"""

from rlx.numpy.linalg import *  # noqa: F403
from rlx.numpy.linalg import __all__ as __all__
