"""Ops that run a program once, and differ in what the compiler may do with it: `KeepPrecision`, and `Checkpoint` in
`rlx.ops.control.recomputation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlx.ir.graph import Graph
from rlx.ir.op import Op, op
from rlx.ir.rewrite.inline import check_operands, inline_graph
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import Array, TransformableBodyOp, build_body, one_or_tuple, output_types, run_body
from rlx.ops.control.body_transforms import (
    Flags,
    as_tuple,
    batch_body,
    build_step,
    chosen,
    pushed_program,
    spread,
    types,
    vjp_program,
    with_batch_axis,
)
from rlx.ops.define.samples import Sample, sample, spec

__all__ = ["KeepPrecision"]


class BodyCall(TransformableBodyOp):
    """The outputs of `body`. Its derivative along a direction and its batched form are ops of the same kind."""

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
        body, moved = pushed_program(self.body, types(primals), known)
        results = as_tuple(self.with_body(body)(*primals, *chosen(tangents, known)))
        return one_or_tuple(results[: len(moved)]), one_or_tuple(spread(results[len(moved) :], moved))

    def with_body(self, body: Graph) -> BodyCall:
        """A call of a program with other outputs."""
        return type(self)(body)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        def over_batch(x: list[Tensor]) -> list[Tensor]:
            return with_batch_axis(*batch_body(self.body, size, x, batched), size)

        return self.replace(body=build_step(self.body.name, over_batch, ("x", types(operands))))(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        from rlx.ops.pointwise.unary import sin

        for dtype in ("f16", "bf16", "f32", "f64", "c64"):
            x = Shape((3,), dtype)
            body = build_body("body", lambda a, b: (sin(a) * b, a + a), a=x, b=x)
            yield sample(cls(body), spec(3), spec(3), dtypes=(dtype,))
        counted = build_body("counted", lambda a, n: (a * a, n + 1), a=Shape(("B", 2), "f64"), n=Shape((), "i32"))
        yield sample(cls(counted), spec("B", 2), spec(values=3, dtype="i32"), dtypes=("f64",), B=3)


@op("keep_precision")
class KeepPrecision(BodyCall):
    """The outputs of `body`, computed in the types in which it is written: precision policies leave it as it is, and
    so they do its derivatives. For programs that hold ids or coordinates in floats.

    From a Python function: `rlx.keep_precision`.
    """

    def vjp_wrt(self, wrt: Flags, ct: Any, y: Any, operands: Sequence[Tensor]) -> Sequence[Tensor | None]:
        cotangents = as_tuple(ct)
        given = tuple(c is not None for c in cotangents)
        program = vjp_program(self.body, wrt, given)
        if not any(program.found):
            return [None] * len(operands)
        arguments = chosen([*operands, *chosen(cotangents, given)], program.used)
        return spread(as_tuple(KeepPrecision(program.graph)(*arguments)), program.found)


def kept_decomposition(decomposed: Op) -> Callable[..., Any]:
    """The decomposition of an op inside `KeepPrecision`, as a function of the op's operands."""
    decompose = decomposed.decompose
    assert decompose is not None

    def call(*operands: Tensor) -> Any:
        body = build_step(decomposed.mnemonic, lambda x: [decompose(*x)], ("x", types(operands)))
        return KeepPrecision(body)(*operands)

    return call
