"""`Block`: an op that stands for a piece of a model and is defined by what it lowers to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from rlx.errors import RlxError
from rlx.ir.dims import require_again
from rlx.ir.dtype import DType
from rlx.ir.interpret import interpret
from rlx.ir.module import FusionPolicy, block_program
from rlx.ir.op import Op
from rlx.ir.shape import Shape

Array = np.ndarray[Any, np.dtype[Any]]


class Block(Op):
    """Base of all blocks. A block gives `lower(policy, *operands)`; its type and its value follow from the result.

    `Direct` lowering uses fused ops where there are some, `Fusable` gives chains of primitive ops; both mean the same.
    """

    is_block = True

    lower: ClassVar[Callable[..., Any]]

    @property
    def label(self) -> str:
        """What reports call the block when the user gave it no name."""
        return self.mnemonic.removeprefix("hir.")

    @property
    def summary(self) -> str:
        """The block and its options in a few words, for `inspect_hir`."""
        return self.label

    def lowered_type(self, *operands: Shape | None) -> Shape | tuple[Shape, ...]:
        """The result type (or types), by lowering; operands that are None must be the last ones."""
        shapes = tuple(s for s in operands if s is not None)
        try:
            program = block_program(self, FusionPolicy.Fusable, shapes)
        except RlxError as error:
            raise self.fail(str(error).split("\n")[0]) from None
        for constraint in program.constraints:
            require_again(constraint)
        types = tuple(program.shape(o) for o in program.outputs)
        return types if len(types) > 1 else types[0]

    def eval(self, *operands: Array) -> Array | tuple[Array, ...]:
        shapes = tuple(Shape(x.shape, DType.of(x.dtype)) for x in operands)
        results = interpret(block_program(self, FusionPolicy.Fusable, shapes), operands, outside=False)
        return tuple(results) if len(results) > 1 else results[0]

    def decompose(self, *operands: Any) -> Any:
        return self.lower(FusionPolicy.Fusable, *operands)
