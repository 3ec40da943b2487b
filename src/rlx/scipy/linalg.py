"""`rlx.scipy.linalg`: all of `rlx.linalg`, where SciPy and JAX have it."""

from rlx.linalg import *  # noqa: F403
from rlx.linalg import __all__ as __all__
