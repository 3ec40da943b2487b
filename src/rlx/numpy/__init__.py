"""The NumPy and array API names, on traced values and on arrays: `import rlx.numpy as rnp`.

Arguments may be tensors of a program that is being built, arrays (of rlx, NumPy or any library that NumPy reads),
Python numbers and lists. Inside `rlx.jit` calls are recorded, outside they are computed at once.

Where it differs from NumPy: values are immutable (no `out=`), the default dtypes are float32 and int32, Python numbers
never change the dtype of an array (`float16_array * 2.0` is float16), int32 with float32 is float32, and what would
have a size that depends on values takes `size=`. docs/numpy_coverage.md lists all names.
"""

# Each module lists its public names in __all__; `bool` is not in one, where it would hide Python's own.
# ruff: noqa: F401, F403

import typing as _typing

from rlx.foreign_names import no_attribute as _no_attribute
from rlx.numpy import fft as fft
from rlx.numpy import linalg as linalg
from rlx.numpy.along_axes import *
from rlx.numpy.concatenators import *
from rlx.numpy.creation import *
from rlx.numpy.differences import *
from rlx.numpy.dtypes import *
from rlx.numpy.dtypes import bool_ as bool
from rlx.numpy.elementwise import *
from rlx.numpy.files_and_text import *
from rlx.numpy.float_parts import *
from rlx.numpy.grids import *
from rlx.numpy.histograms import *
from rlx.numpy.indexing import *
from rlx.numpy.inspection import *
from rlx.numpy.joining import *
from rlx.numpy.linear_algebra import *
from rlx.numpy.logic import *
from rlx.numpy.manipulation import *
from rlx.numpy.nan_functions import *
from rlx.numpy.polynomials import *
from rlx.numpy.reductions import *
from rlx.numpy.sorting_searching import *
from rlx.numpy.statistics import *
from rlx.numpy.vectorized import *

# Type checkers must go on to find names that do not exist.
if not _typing.TYPE_CHECKING:

    def __getattr__(name):
        _no_attribute("rlx.numpy", name)
