"""`rlx.scipy`: functions under the names of SciPy. `special` holds those of numbers, `linalg` those of
matrices, `stats` distributions."""

from rlx.scipy import linalg as linalg
from rlx.scipy import special as special
from rlx.scipy import stats as stats
