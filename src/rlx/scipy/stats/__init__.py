"""Distributions and statistics under the names of `scipy.stats`, on traced values and on arrays, with derivatives.

>>> [round(float(norm.cdf(x)), 4) for x in (-1.0, 0.0, 1.96)]
[0.1587, 0.5, 0.975]
>>> round(float(poisson.pmf(2, 3.0)), 4)
0.224
"""

# ruff: noqa: F403

from rlx.scipy.stats.continuous import *
from rlx.scipy.stats.discrete import *
from rlx.scipy.stats.multivariate import *
from rlx.scipy.stats.samples import *
