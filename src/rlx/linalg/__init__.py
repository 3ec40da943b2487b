"""Linear algebra on arrays and inside programs: all of `rlx.numpy.linalg`, and what scipy.linalg has beyond it.

    rlx.linalg.solve(a, b), rlx.linalg.cholesky(a), rlx.linalg.expm(a), rlx.linalg.solve_toeplitz(c, b)

Matrices are the last two axes; leading axes are a batch. Names and arguments are NumPy's and SciPy's. docs/linalg.md
says what becomes of singular matrices, of NaN, and of derivatives at equal eigenvalues.
"""

from rlx.linalg import factors, functions, structured
from rlx.linalg.factors import *  # noqa: F403
from rlx.linalg.functions import *  # noqa: F403
from rlx.linalg.structured import *  # noqa: F403
from rlx.numpy import linalg as _numpy
from rlx.numpy.linalg import *  # noqa: F403

__all__ = sorted({*_numpy.__all__, *factors.__all__, *functions.__all__, *structured.__all__})
