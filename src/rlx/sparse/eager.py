"""Sparse functions outside of any program: compiled once per kind of operand, with symbolic sizes, not interpreted.

    y = apply(CsrMatMul(), values, indices, indptr, x)

Inside of a program the function is traced, as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

import rlx
from rlx.ir.tensor import target_graph
from rlx.ops.define.operands import dtype_of


class Function(Hashable, Protocol):
    """An op, or another immutable description of a computation on tensors."""

    def __call__(self, *operands: Any) -> Any: ...


# Sizes as text, axis by axis: "N", "N + 1".
Sizes = tuple[tuple[str, ...], ...]


def apply(function: Function, *operands: Any, sizes: Sizes | None = None) -> Any:
    """`function` on tensors or arrays. `sizes` names those sizes that the function needs to be equal."""
    if target_graph(operands) is not None:
        return function(*operands)
    arrays = [np.asarray(x) for x in operands]
    dims = sizes or tuple(tuple(f"D{i}_{axis}" for axis in range(a.ndim)) for i, a in enumerate(arrays))
    return program(function, tuple((dtype_of(a).value, d) for a, d in zip(arrays, dims, strict=True)))(*arrays)


@lru_cache(maxsize=256)
def program(function: Function, types: tuple[tuple[str, tuple[str, ...]], ...]) -> Callable[..., Any]:
    """The compiled form of a function for operands of these types, whatever their sizes."""
    specs = [rlx.Spec(dims, dtype) for dtype, dims in types]
    return rlx.jit(lambda *xs: function(*xs)).lower(*specs).compile()
