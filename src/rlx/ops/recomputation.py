"""Trading time for memory: `Checkpoint`, a program that is run again in reverse mode, and `Barrier`, which keeps the
second run from being merged with the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rlx.ir.graph import Graph
from rlx.ir.inline import check_operands, inline_graph
from rlx.ir.op import Op, op
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.bodies import Array, TransformableBodyOp, build_body, one_or_tuple, output_types, run_body
from rlx.ops.body_transforms import (
    Flags,
    as_tuple,
    batch_body,
    build_step,
    chosen,
    push_body,
    spread,
    types,
    vjp_program,
    with_batch_axis,
)
from rlx.ops.rules import put_batch_first
from rlx.ops.samples import Sample, sample, spec

__all__ = ["Barrier", "Checkpoint", "barrier"]


@op("barrier")
class Barrier(Op):
    """The operands, unchanged. No result is known before all operands are, and no value is the same behind it: the
    compiler neither merges a barrier with another nor looks through it."""

    primitive = True
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


@op("checkpoint")
class Checkpoint(TransformableBodyOp):
    """The outputs of `body`; in reverse mode its values are computed again instead of kept.

    From a Python function: `rlx.checkpoint`.
    """

    body: Graph

    def num_inputs(self) -> int:
        return len(self.body.inputs)

    def infer(self, *operands: Shape) -> tuple[Shape, ...]:
        check_operands(self.body, operands, self.name)
        return output_types(self.body)

    def eval(self, *operands: Array) -> Any:
        return one_or_tuple(run_body(self.body, operands))

    def decompose(self, *operands: Tensor) -> Any:
        return one_or_tuple(inline_graph(self.body, operands))

    def value_and_jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
        known = [t is not None for t in tangents]
        moved: list[bool] = []

        def both(x: list[Tensor], dx: list[Tensor]) -> list[Tensor]:
            outputs, pushed = push_body(self.body, x, spread(dx, known))
            moved.extend(t is not None for t in pushed)
            return [*outputs, *(t for t in pushed if t is not None)]

        directions = chosen(tangents, known)
        body = build_step(f"{self.body.name}_jvp", both, ("x", types(primals)), ("d_x", types(directions)))
        results = as_tuple(Checkpoint(body)(*primals, *directions))
        return one_or_tuple(results[: len(moved)]), one_or_tuple(spread(results[len(moved) :], moved))

    def vjp_wrt(self, wrt: Flags, ct: Any, y: Any, operands: Sequence[Tensor]) -> Sequence[Tensor | None]:
        cotangents = as_tuple(ct)
        given = tuple(c is not None for c in cotangents)
        program = vjp_program(self.body, wrt, given)
        # Behind the barrier, operands are only known when the cotangents are: the second run cannot come early.
        arguments = [*operands, *chosen(cotangents, given)]
        behind = spread(barrier(*chosen(arguments, program.used)), program.used) if any(program.used) else arguments
        return program(behind[: len(operands)], behind[len(operands) :])

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        def over_batch(x: list[Tensor]) -> list[Tensor]:
            return with_batch_axis(*batch_body(self.body, size, x, batched), size)

        return Checkpoint(build_step(self.body.name, over_batch, ("x", types(operands))))(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        from rlx.ops.unary import sin

        for dtype in ("f16", "bf16", "f32", "f64", "c64"):
            x = Shape((3,), dtype)
            body = build_body("body", lambda a, b: (sin(a) * b, a + a), a=x, b=x)
            yield sample(cls(body), spec(3), spec(3), dtypes=(dtype,))
        counted = build_body("counted", lambda a, n: (a * a, n + 1), a=Shape(("B", 2), "f64"), n=Shape((), "i32"))
        yield sample(cls(counted), spec("B", 2), spec(values=3, dtype="i32"), dtypes=("f64",), B=3)
