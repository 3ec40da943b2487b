"""`CustomDerivative`: a program whose derivatives are made by a `DerivativeRule`, when somebody asks for them.

A rule written in Python may call the function that it belongs to (the derivative of exp is exp), so its programs cannot
be attributes, as those of `CustomFn` are: they would never end. A rule is an object that makes a `CustomFn` on demand.
In text it is a name that only the process that made it understands; the value of the program does not depend on it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from rlx.errors import AutodiffError, UnregisteredOp
from rlx.ir.graph import Graph
from rlx.ir.op import attribute_type, op
from rlx.ir.rewrite.inline import check_operands, inline_graph
from rlx.ir.shape import Shape, Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import Array, BodyOp, build_body, input_types, one_or_tuple, output_types, run_body
from rlx.ops.control.body_transforms import Flags, batch_body, build_step, types, with_batch_axis
from rlx.ops.control.custom_functions import CustomFn
from rlx.ops.define.rules import current_mapped_axis, mapped_axis
from rlx.ops.define.samples import Sample, sample, spec

__all__ = ["CustomDerivative", "DerivativeRule"]

_known: WeakValueDictionary[str, DerivativeRule] = WeakValueDictionary()
_numbers = itertools.count()


@attribute_type
class DerivativeRule:
    """Makes the programs that differentiate one function; subclasses say how."""

    def __init__(self, function: str) -> None:
        self.key = f"{re.sub(r'[^A-Za-z0-9_]', '_', function)}.{next(_numbers)}"
        _known[self.key] = self

    @staticmethod
    def of(value: DerivativeRule | str) -> DerivativeRule:
        if isinstance(value, DerivativeRule):
            return value
        return _known.get(value) or _ForgottenRule(value)

    def expand(self, body: Graph) -> CustomFn:
        """The function with its derivative programs."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.key

    __repr__ = __str__


class _ForgottenRule(DerivativeRule):
    """A rule that another process made."""

    def __init__(self, key: str) -> None:
        self.key = key
        _known[key] = self

    def expand(self, body: Graph) -> CustomFn:
        raise UnregisteredOp(
            self.key, f"the derivative of @{body.name} is a Python function of the process that wrote the program"
        )


class _BatchedRule(DerivativeRule):
    """The rule of a function that is applied along a leading axis."""

    def __init__(self, original: CustomDerivative, size: Size, batched: Flags) -> None:
        super().__init__(f"{original.rule}_batched")
        self.original, self.size, self.batched, self.axis_name = original, size, batched, current_mapped_axis()

    def expand(self, body: Graph) -> CustomFn:
        with mapped_axis(self.axis_name):
            return self.original.rule.expand(self.original.body).over_batch(self.size, self.batched)


@op("custom_derivative")
class CustomDerivative(BodyOp):
    """The outputs of `body`, differentiated by `rule`.

    The last `num_captures` operands are values that the function reads without having them as arguments: its rule
    knows nothing of them, so the derivative with respect to them is an error.
    """

    body: Graph
    rule: DerivativeRule
    num_captures: int = 0

    def num_inputs(self) -> int:
        return len(self.body.inputs)

    def infer(self, *operands: Shape) -> tuple[Shape, ...]:
        check_operands(self.body, operands, self.name)
        return output_types(self.body)

    def eval(self, *operands: Array) -> Any:
        return one_or_tuple(run_body(self.body, operands))

    def decompose(self, *operands: Tensor) -> Any:
        return one_or_tuple(inline_graph(self.body, operands))

    def form_for(self, rule: str, active: Flags) -> Callable[..., Any] | None:
        if rule == "batch":
            return None
        if any(active[len(active) - self.num_captures :]):
            raise AutodiffError(
                f"@{self.body.name} has a derivative of its own (custom_jvp, custom_vjp), but reads a value from "
                "outside that is being differentiated; make it an argument of the function"
            )
        return self.rule.expand(self.body)

    def batch(self, size: Size, operands: Sequence[Tensor], batched: Sequence[bool]) -> Any:
        def over_batch(x: list[Tensor]) -> list[Tensor]:
            return with_batch_axis(*batch_body(self.body, size, x, batched), size)

        body = build_step(self.body.name, over_batch, ("x", types(operands)))
        return CustomDerivative(body, _BatchedRule(self, size, tuple(batched)), self.num_captures)(*operands)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for dtype in ("f32", "f64"):
            x = Shape((3,), dtype)
            square = build_body("square", lambda a: a * a, a=x)
            yield sample(cls(square, _SAMPLE_RULE), spec(3), dtypes=(dtype,))


class _PowerRule(DerivativeRule):
    """2 x as the derivative of x * x; for samples."""

    def expand(self, body: Graph) -> CustomFn:
        (x,) = input_types(body)
        vjp = build_body("square_vjp", lambda a, y, d: d * (a + a), a=x, primal_output=x, d_output=x)
        return CustomFn(body, vjp, build_body("square_jvp", lambda a, t: (a + a) * t, a=x, tangent_0=x))


_SAMPLE_RULE = _PowerRule("square")
