"""`rlx.scipy`: functions under the names of SciPy. `special` holds those of numbers."""

from rlx.scipy import special as special
