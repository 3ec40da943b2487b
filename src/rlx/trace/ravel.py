"""`ravel_pytree`: a tree of arrays as one vector, and the way back.

>>> import numpy as np
>>> flat, unravel = ravel_pytree({"b": np.ones(2, "f4"), "w": np.zeros((1, 2), "f4")})
>>> flat.tolist(), unravel(flat * 3)["b"].tolist()
([1.0, 1.0, 0.0, 0.0], [3.0, 3.0])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from rlx import ops
from rlx.errors import ShapeError, TreeError
from rlx.ops.define.operands import common_dtype, convert, dims_of, dtype_of
from rlx.trace.pytree import tree_flatten
from rlx.trace.tracing import spec_of


def ravel_pytree(tree: Any) -> tuple[Any, Callable[[Any], Any]]:
    """(all leaves one after the other in their common dtype, a function from such a vector to a tree like this one)."""
    leaves, structure = tree_flatten(tree)
    if not leaves:
        raise TreeError("ravel_pytree: the tree has no leaves")
    types = [spec_of(x, "ravel_pytree: a leaf").type for x in leaves]
    if not all(t.is_static for t in types):
        raise ShapeError("ravel_pytree: leaves need fixed sizes, because a vector has one size")
    wide = common_dtype(*leaves)
    flat = ops.concat([ops.reshape(convert(x, wide), (-1,)) for x in leaves], 0)
    ends = list(itertools.accumulate(math.prod(t.static_dims) for t in types))

    def unravel(vector: Any) -> Any:
        if dims_of(vector) != (ends[-1],):
            raise ShapeError(f"unravel: a vector of {ends[-1]} elements is needed, got dims {dims_of(vector)}")
        if dtype_of(vector) is not wide:
            raise TreeError(f"unravel: a vector of {wide} is needed, got {dtype_of(vector)}; cast it first")
        starts = [0, *ends[:-1]]
        parts = [ops.narrow(vector, 0, start, end - start) for start, end in zip(starts, ends)]
        return structure.unflatten(convert(ops.reshape(p, t.dims), t.dtype) for p, t in zip(parts, types))

    return flat, unravel
