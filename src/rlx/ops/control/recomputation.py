"""Trading time for memory: `Checkpoint`, a program that is run again in reverse mode, `CheckpointName`, which names a
value that it may keep, and `Barrier`, which keeps the second run from being merged with the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlx.ir.graph import Graph
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import Array, one_or_tuple
from rlx.ops.control.body_calls import BodyCall
from rlx.ops.control.body_transforms import Flags, as_tuple, chosen, spread, vjp_program
from rlx.ops.define.rules import batch_pointwise, put_batch_first
from rlx.ops.define.samples import FLOATS, Sample, sample, spec

__all__ = ["Barrier", "Checkpoint", "CheckpointName", "barrier", "checkpoint_name"]


@op("barrier")
class Barrier(Op):
    """The operands, unchanged. No result is known before all operands are, and no value is the same behind it: the
    compiler neither merges a barrier with another nor looks through it."""

    primitive = True
    precision_class = "data_movement"
    mergeable = False

    def infer(self, *operands: Shape) -> tuple[Shape, ...]:
        if not operands:
            raise self.fail("needs at least one operand")
        return operands

    def eval(self, *operands: Array) -> Any:
        return one_or_tuple(operands)

    def jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], y: Any) -> Any:
        return one_or_tuple(_behind_barrier(tangents))

    def vjp(self, ct: Any, y: Any, *operands: Tensor) -> Sequence[Tensor | None]:
        return _behind_barrier(as_tuple(ct))

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        return self(*(put_batch_first(x, b, size) for x, b in zip(operands, batched)))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls(), spec(3, 2))
        yield sample(cls(), spec("B", 2), spec(values=3, dtype="i32"), spec(2, dtype="bool"), B=3)
        yield sample(cls(), spec(0), spec(2), dtypes=("c64",))


def _behind_barrier(values: Sequence[Tensor | None]) -> list[Tensor | None]:
    known = [v is not None for v in values]
    return spread(barrier(*chosen(values, known)), known) if any(known) else list(values)


def barrier(*operands: Any) -> tuple[Any, ...]:
    """All operands behind one `Barrier`."""
    return as_tuple(Barrier()(*operands))


@op("checkpoint_name")
class CheckpointName(Op):
    """y = x, known to the policies of `rlx.checkpoint` by `label`. Any dtype."""

    is_elementwise = True
    precision_class = "elementwise"
    linear_in = (0,)

    label: str

    def infer(self, x: Shape) -> Shape:
        return x

    def eval(self, x: Array) -> Array:
        return x

    def decompose(self, x: Any) -> Any:
        return x

    def vjp(self, ct: Any, y: Any, x: Any) -> Any:
        return (ct,)

    batch = batch_pointwise

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield sample(cls("hidden"), spec(3, 4), dtypes=(*FLOATS, "i32", "bool", "c64"))
        yield sample(cls("hidden"), spec("B", 0), B=2)


def checkpoint_name(x: Any, name: str) -> Any:
    """x, which `rlx.checkpoint_policies.save_only_these_names(name)` and its like keep for reverse mode."""
    return CheckpointName(name)(x)


@op("checkpoint")
class Checkpoint(BodyCall):
    """The outputs of `body`; in reverse mode its values are computed again instead of kept, except for the last `saved`
    outputs, which are there for this.

    From a Python function: `rlx.checkpoint`.
    """

    saved: int = 0

    def vjp_wrt(self, wrt: Flags, ct: Any, y: Any, operands: Sequence[Tensor]) -> Sequence[Tensor | None]:
        cotangents, outputs = as_tuple(ct), as_tuple(y)
        given = tuple(c is not None for c in cotangents)
        program = vjp_program(self.body, wrt, given, self.saved)
        # Behind the barrier, operands are only known when the cotangents are: the second run cannot come early.
        arguments = [*operands, *outputs[len(outputs) - self.saved :], *chosen(cotangents, given)]
        behind = spread(barrier(*chosen(arguments, program.used)), program.used) if any(program.used) else arguments
        return program(behind, ())

    def with_body(self, body: Graph) -> BodyCall:
        return Checkpoint(body)
