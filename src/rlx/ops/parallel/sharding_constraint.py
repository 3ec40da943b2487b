"""`ShardingConstraint`: an array as it is, with a word to the compiler about where its parts lie.

    y = rlx.with_sharding_constraint(x @ w, rlx.NamedSharding(mesh, rlx.P("x", None)))

It is the identity everywhere but in programs that XLA divides over devices. An input that is read by constraints of one
sharding only arrives in that sharding, and an output that is a constraint is returned in its sharding; this is how
`jit(in_shardings=, out_shardings=)` is written in a program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.define.samples import FLOATS, INTS, Sample, sample, spec
from rlx.sharding.named_sharding import NamedSharding
from rlx.sharding.partition_spec import UNCONSTRAINED

__all__ = ["ShardingConstraint"]

Array = np.ndarray[Any, np.dtype[Any]]


@op("sharding_constraint")
class ShardingConstraint(Op):
    """y = x, whose parts lie on devices as `sharding` says. Axes must divide evenly. Its gradient lies the same way."""

    precision_class = "data_movement"

    linear_in = (0,)

    sharding: NamedSharding

    def infer(self, x: Shape) -> Shape:
        self.sharding.require_divides(x.dims, self.mnemonic)
        return x

    def eval(self, x: Array) -> Array:
        return x

    def decompose(self, x: Any) -> Any:
        return x

    def vjp(self, ct: Tensor, y: Tensor, x: Tensor) -> Any:
        return self(ct)

    def batch(self, size: Size, operands: tuple[Tensor, ...], batched: tuple[bool, ...]) -> Any:
        # The compiler knows better than this rule how a batch axis is divided.
        return ShardingConstraint(self.sharding.with_leading(UNCONSTRAINED))(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("[x=2,y=1](x)"), spec(4, 3), dtypes=(*FLOATS, *INTS, "bool", "c64"))
        yield sample(cls("[x=2,y=2](None, (y, x))"), spec(3, 4))
        yield sample(cls("[x=2|1,0](?, x)"), spec("B", 2), B=3)
        yield sample(cls("[x=3]()"), spec())
