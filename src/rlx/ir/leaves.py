"""Ops that a graph itself knows: `Input`, `Param`, `Constant`, and `Project`, which reads one of several results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.errors import InternalError
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape
from rlx.ir.tensor_data import TensorData


class _Leaf(Op):
    primitive = True
    is_structural = True

    @classmethod
    def samples(cls) -> Iterator[Any]:
        # Leaves have no operands to sample; they occur in every generated test of other ops.
        return iter(())

    def eval(self) -> Any:
        raise InternalError(f"{self.mnemonic} takes its value from the caller, not from eval")


@op("input")
class Input(_Leaf):
    """A tensor given at every run, called `key`."""

    precision_class = "boundary"

    key: str
    type: Shape

    def infer(self) -> Shape:
        return self.type


@op("param")
class Param(_Leaf):
    """A weight called `key`, set once and kept between runs."""

    precision_class = "boundary"

    key: str
    type: Shape

    def infer(self) -> Shape:
        return self.type


@op("constant")
class Constant(_Leaf):
    """A value that is part of the program."""

    only_moves = True
    precision_class = "boundary"

    value: TensorData

    def infer(self) -> Shape:
        return self.value.shape

    def eval(self) -> Any:
        return self.value.array


@op("project")
class Project(Op):
    """Result number `index` of an operand with several results; the only op that may read such an operand."""

    only_moves = True
    primitive = True
    is_structural = True
    precision_class = "data_movement"

    index: int

    def infer(self, *results: Shape) -> Shape:
        if len(results) == 1:
            raise self.fail("the operand has one result, which is read without project")
        if not 0 <= self.index < len(results):
            raise self.fail(f"index {self.index} is out of range for {len(results)} results")
        return results[self.index]

    def eval(self, *results: np.ndarray[Any, Any]) -> Any:
        return results[self.index]

    @classmethod
    def samples(cls) -> Iterator[Any]:
        # Needs an op with several results as operand; exercised by every such op.
        return iter(())
