"""`debug_nans`: the first op that makes a NaN of numbers, by name and line.

    with rlx.debug_nans():
        rlx.jit(f)(x)          # NanFound: log makes NaN of numbers; train.py:41

While it is on, results of compiled functions are looked at. Where one holds a NaN, the program runs once more op by op
by its definition, until an op returns a NaN that none of its operands has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from rlx.errors import NanFound
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph, Node
from rlx.ir.interpret import bound_to, evaluate
from rlx.ir.leaves import Input

_is_on: ContextVar[bool] = ContextVar("debug_nans", default=False)


@contextmanager
def debug_nans(enabled: bool = True) -> Iterator[None]:
    """Inside, a NaN that an op makes is an error that names the op and the line of the program."""
    token = _is_on.set(enabled)
    try:
        yield
    finally:
        _is_on.reset(token)


# For calls that must know without a call: the variable, and its value where nobody looks.
LOOKS_FOR_NONE = (_is_on, False)


def looks_for_nans() -> bool:
    return _is_on.get()


def has_nan(value: Any) -> bool:
    array = np.asarray(value)
    return DType.of(array.dtype).is_inexact and bool(np.isnan(array).any())


def refuse_nans(graph: Graph, arrays: Sequence[Any], results: Sequence[Any]) -> None:
    """An error when a result of a run holds a NaN that an op has made."""
    if not any(has_nan(result) for result in results):
        return
    keys = [node.op.key for node in graph.inputs if isinstance(node.op, Input)]
    given = {key: np.asarray(array) for key, array in zip(keys, arrays, strict=True)}
    bound = bound_to(graph, given)
    values: dict[int, Sequence[Any]] = {}
    for node in bound.nodes:
        operands = [array for i in node.inputs for array in values[i]]
        made = [given[node.op.key]] if isinstance(node.op, Input) else list(evaluate(node, operands))
        if not node.is_leaf and any(map(has_nan, made)) and not any(map(has_nan, operands)):
            raise NanFound(_message(node))
        values[node.id] = made


def refuse_new_nans(what: str, operands: Sequence[Any], results: Any) -> None:
    """The same for one op that ran at once."""
    made = results if isinstance(results, tuple) else (results,)
    if any(map(has_nan, made)) and not any(map(has_nan, operands)):
        raise NanFound(f"{what} makes NaN of numbers")


def _message(node: Node) -> str:
    source = node.origin.source if node.origin else None
    place = f"; {source.file}:{source.line}" if source else ""
    return f"{node.op.mnemonic} ({node.id}) makes NaN of numbers{place}"
