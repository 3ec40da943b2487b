"""Branches and loops with a condition: `If`, `Switch`, `While`.

Their programs are attributes (see `rlx.ops.control.bodies`); every value that a body reads is an operand. `rlx.cond`,
`rlx.switch` and `rlx.while_loop` build these ops from Python functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from rlx.ir.graph import Graph
from rlx.ir.op import NoRule, Op, op
from rlx.ir.rewrite.inline import check_operands, same_type
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control import branch_rules
from rlx.ops.control.bodies import (
    Array,
    BodyOp,
    TransformableBodyOp,
    build_body,
    one_or_tuple,
    output_types,
    run_body,
    types_text,
)
from rlx.ops.define.samples import Sample, sample, spec

__all__ = ["If", "Switch", "While", "if_", "switch", "while_", "while_multi"]


def _is_one_element(shape: Shape) -> bool:
    return shape.element_count == 1


def _infer_branches(op: Op, branches: dict[str, Graph], captures: Sequence[Shape]) -> tuple[Shape, ...]:
    """The result types, which must be the same for every branch."""
    (first_name, first), *others = branches.items()
    types = output_types(first)
    for name, branch in branches.items():
        check_operands(branch, captures, f"{op.mnemonic} {name}")
    for name, branch in others:
        found = output_types(branch)
        if len(found) != len(types) or not all(same_type(a, b, op.mnemonic) for a, b in zip(types, found)):
            raise op.fail(
                f"all branches must return the same types, but {first_name} returns {types_text(types)} "
                f"and {name} returns {types_text(found)}"
            )
    return types


@op("if")
class If(TransformableBodyOp):
    """then_body(captures) when pred is not 0, else else_body(captures); only the chosen one runs.

    pred has one element of any dtype. Both bodies take the same captures and return the same types.
    """

    primitive = True
    precision_class = "data_movement"
    has_straight_form = True

    then_body: Graph
    else_body: Graph

    def infer(self, pred: Shape, *captures: Shape) -> tuple[Shape, ...]:
        if not _is_one_element(pred):
            raise self.fail(f"needs a predicate with one element, got {pred}; reduce it with all or any, or use where")
        return _infer_branches(self, {"then_body": self.then_body, "else_body": self.else_body}, captures)

    def eval(self, pred: Array, *captures: Array) -> Any:
        chosen = self.then_body if np.all(pred != 0) else self.else_body
        return one_or_tuple(run_body(chosen, captures))

    def value_and_jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
        return branch_rules.if_value_and_jvp(self, primals, tangents)

    def vjp_wrt(self, wrt: tuple[bool, ...], ct: Any, y: Any, operands: Sequence[Tensor]) -> list[Tensor | None]:
        return branch_rules.if_vjp_wrt(self, wrt, ct, y, operands)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        return branch_rules.if_batch(self, size, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in ("f16", "bf16", "f32", "f64", "i32", "c64"):
            double, negate = _sample_branches(Shape((3, 2), dtype))
            for pred in (0, 1):
                yield sample(cls(double, negate), spec(values=pred, dtype="bool"), spec(3, 2), dtypes=(dtype,))
        double, negate = _sample_branches(Shape(("B", 2), "f32"))
        yield sample(cls(double, negate), spec(1, values=0.5), spec("B", 2), B=3, dtypes=("f32",))
        pair = Shape((2,), "f32")
        both = build_body("both", lambda a, b: (a + b, a < b), a=pair, b=pair)
        swapped = build_body("swapped", lambda a, b: (b - a, b < a), a=pair, b=pair)
        yield sample(cls(both, swapped), spec(values=0, dtype="i32"), spec(2), spec(2), dtypes=("f32",))


def _sample_branches(x: Shape) -> tuple[Graph, Graph]:
    return build_body("double", lambda v: v + v, x=x), build_body("negate", lambda v: -v, x=x)


@op("switch")
class Switch(BodyOp):
    """branches[i](captures), where i is the integer scalar `index` clamped to the branches there are."""

    precision_class = "data_movement"

    branches: tuple[Graph, ...]

    def check(self) -> None:
        super().check()
        if not self.branches:
            raise self.fail("needs at least one branch")

    def infer(self, index: Shape, *captures: Shape) -> tuple[Shape, ...]:
        if not _is_one_element(index) or not index.dtype.is_int:
            raise self.fail(f"needs an integer index with one element, got {index}")
        return _infer_branches(self, self.bodies, captures)

    def eval(self, index: Array, *captures: Array) -> Any:
        chosen = min(max(int(index.reshape(())), 0), len(self.branches) - 1)
        return one_or_tuple(run_body(self.branches[chosen], captures))

    def decompose(self, index: Any, *captures: Any) -> Any:
        """Bisection: the lower half of the branches, if the index is below the middle, else the upper half."""
        from rlx.ir.rewrite.inline import inline_graph
        from rlx.ops.pointwise.arithmetic import lt

        if len(self.branches) == 1:
            return one_or_tuple(inline_graph(self.branches[0], captures))
        middle = len(self.branches) // 2
        inputs = {"index": index.type} | {f"x{i}": x.type for i, x in enumerate(captures)}
        lower, upper = self.branches[:middle], self.branches[middle:]
        below = build_body("below", lambda i, *xs: Switch(lower)(i, *xs), **inputs)
        above = build_body("above", lambda i, *xs: Switch(upper)(i - middle, *xs), **inputs)
        return If(below, above)(lt(index, middle), index, *captures)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        double, negate = _sample_branches(Shape((3,), "f32"))
        square = build_body("square", lambda v: v * v, x=Shape((3,), "f32"))
        for index in (-7, 0, 1, 2, 9):
            operands = (spec(values=index, dtype="i32"), spec(3))
            yield sample(cls((double, negate, square)), *operands, dtypes=("f32",))
        yield sample(cls((square,)), spec(1, values=0, dtype="i64"), spec(3), dtypes=("f32",))
        symbolic = _sample_branches(Shape(("B",), "f64"))
        yield sample(cls(symbolic), spec(values=1, dtype="u8"), spec("B"), B=3, dtypes=("f64",))


@op("while")
class While(TransformableBodyOp):
    """carries = body(carries) as long as cond(carries) holds; the results are all carries.

    Operands are the carries, then `num_bcast` values that both programs read and neither changes. cond returns one
    tensor, and holds when all its elements are not 0. With `max_iterations` the loop ends after that many rounds at
    the latest, which is what makes it possible to unroll and to differentiate it.
    """

    primitive = True
    precision_class = "data_movement"
    has_straight_form = True

    cond: Graph
    body: Graph
    max_iterations: int | None = None
    num_bcast: int = 0

    def check(self) -> None:
        super().check()
        if self.max_iterations is not None and self.max_iterations < 0:
            raise self.fail(f"max_iterations cannot be negative, got {self.max_iterations}")
        if len(self.cond.outputs) != 1:
            raise self.fail(f"cond @{self.cond.name} must return one tensor, it returns {len(self.cond.outputs)}")

    def infer(self, *operands: Shape) -> tuple[Shape, ...]:
        if not 0 <= self.num_bcast <= len(operands):
            raise self.fail(f"num_bcast={self.num_bcast} does not fit {len(operands)} operands")
        carries = operands[: len(operands) - self.num_bcast]
        check_operands(self.cond, operands, "while cond")
        check_operands(self.body, operands, "while body")
        found = output_types(self.body)
        if len(found) != len(carries) or not all(same_type(a, b, "while") for a, b in zip(carries, found)):
            raise self.fail(
                f"the body must return the types of the carries, {types_text(carries)}, it returns {types_text(found)}"
            )
        return carries

    def eval(self, *operands: Array) -> Any:
        split = len(operands) - self.num_bcast
        carries, bcasts = list(operands[:split]), operands[split:]
        rounds = 0
        while rounds != self.max_iterations and np.all(run_body(self.cond, [*carries, *bcasts])[0] != 0):
            carries = run_body(self.body, [*carries, *bcasts])
            rounds += 1
        return one_or_tuple(carries)

    def refusal(self, rule: str) -> NoRule | None:
        unbounded = rule == "vjp" and self.max_iterations is None
        return NoRule("the number of rounds has no bound") if unbounded else None

    def form_for(self, rule: str, active: tuple[bool, ...]) -> Callable[..., Any] | None:
        return branch_rules.while_reverse_form(self, active) if rule == "vjp" else None

    def value_and_jvp(self, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> tuple[Any, Any]:
        return branch_rules.while_value_and_jvp(self, primals, tangents)

    def vjp_wrt(self, wrt: tuple[bool, ...], ct: Any, y: Any, operands: Sequence[Tensor]) -> list[Tensor | None]:
        # A loop that has not become a scan has no carry that moves.
        return [None] * len(operands)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        return branch_rules.while_batch(self, size, operands, batched)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        count = Shape((), "i32")
        for dtype in ("f16", "bf16", "f32", "f64"):
            carry = Shape((2,), dtype)
            below = build_body("below", lambda i, x: i < 3, i=count, x=carry)
            step = build_body("step", lambda i, x: (i + 1, x * 0.5), i=count, x=carry)
            start = spec(values=0, dtype="i32")
            yield sample(cls(below, step), start, spec(2), dtypes=(dtype,))
            yield sample(cls(below, step, max_iterations=2), start, spec(2), dtypes=(dtype,))
        x = Shape(("B",), "f32")
        small = build_body("small", lambda x, limit: x < limit, x=x, limit=Shape((), "f32"))
        grow = build_body("grow", lambda x, limit: x + limit, x=x, limit=Shape((), "f32"))
        operands = (spec("B", low=0, high=1), spec(values=3))
        yield sample(cls(small, grow, num_bcast=1), *operands, B=3, dtypes=("f32",))
        yield sample(cls(small, grow, num_bcast=1, max_iterations=0), *operands, B=2, dtypes=("f32",))


def if_(pred: Any, then_body: Graph, else_body: Graph, captures: Sequence[Any] = ()) -> Any:
    """One of two programs applied to `captures`; see `If`. From Python functions: `rlx.cond`."""
    return If(then_body, else_body)(pred, *captures)


def switch(index: Any, branches: Sequence[Graph], captures: Sequence[Any] = ()) -> Any:
    """One of several programs applied to `captures`; see `Switch`. From Python functions: `rlx.switch`."""
    return Switch(tuple(branches))(index, *captures)


def while_multi(carries: Sequence[Any], cond: Graph, body: Graph, max_iterations: int | None = None) -> tuple[Any, ...]:
    """All carries after the loop; see `While`. From Python functions: `rlx.while_loop`."""
    results = While(cond, body, max_iterations)(*carries)
    return results if isinstance(results, tuple) else (results,)


def while_(carries: Sequence[Any], cond: Graph, body: Graph, max_iterations: int | None = None) -> Any:
    """Carry 0 after the loop; see `while_multi` for the others."""
    return while_multi(carries, cond, body, max_iterations)[0]
