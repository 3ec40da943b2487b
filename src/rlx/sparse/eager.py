"""Sparse ops outside of any program: compiled once per kind of operand, with symbolic sizes, instead of interpreted.

    y = apply(CsrMatMul(), values, indices, indptr, x)

Inside of a program the op is recorded, as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

import rlx
from rlx.ir.op import Op
from rlx.ir.tensor import target_graph
from rlx.ops.define.operands import dims_of, dtype_of


def apply(op: Op, *operands: Any) -> Any:
    """`op` on tensors or arrays."""
    if target_graph(operands) is not None:
        return op(*operands)
    arrays = [np.asarray(x) for x in operands]
    return program(op, tuple((dtype_of(a).value, a.ndim) for a in arrays))(*arrays)


@lru_cache(maxsize=256)
def program(op: Op, types: tuple[tuple[str, int], ...]) -> Callable[..., Any]:
    """The compiled form of one op for operands of these dtypes and ranks.

    Sizes that must agree are one symbol: where they do not, the op itself says so when it is traced for the error.
    """
    specs = [rlx.Spec([f"D{i}_{axis}" for axis in range(rank)], dtype) for i, (dtype, rank) in enumerate(types)]
    return rlx.jit(lambda *xs: op(*xs)).lower(*specs).compile()


def is_traced(*operands: Any) -> bool:
    return target_graph(operands) is not None


def rank_of(x: Any) -> int:
    return len(dims_of(x))
