"""One step of an integer program: what enters, what leaves, and its meaning in three forms.

`run` is NumPy, `build` makes ops of a graph, `simulate` computes the same in floats without rounding the result, which
the program does. `run` and `build` agree bit for bit; steps with `units` also let floats be rounded as they round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlx.ops.pointwise.arithmetic import clamp
from rlx.quantized.values import Array, QuantizedError, Value, limits


@dataclass(frozen=True, eq=False)
class Step(ABC):
    """`inputs` are numbers of values: 0 is the input of the program, n the result of its n-th step."""

    inputs: tuple[int, ...]
    out: Value

    @property
    def name(self) -> str:
        return self.out.name

    @property
    def macs(self) -> int:
        """How many products of codes are summed."""
        return 0

    def fail(self, message: str) -> QuantizedError:
        return QuantizedError(f"{self.name} ({type(self).__name__}): {message}")

    def take(self, operands: Sequence[Value], count: int) -> Sequence[Value]:
        if len(operands) != count:
            raise self.fail(f"takes {count} values, got {len(operands)}")
        return operands

    def check(self, operands: Sequence[Value]) -> None:
        """Raise if the step does not fit its operands."""
        if not all(isinstance(i, int) for i in self.inputs):
            raise self.fail(f"inputs are numbers of values, got {self.inputs}")

    def require_clamp(self, low: int, high: int) -> None:
        lowest, highest = limits(self.out.dtype)
        if not lowest <= low <= high <= highest:
            raise self.fail(f"codes are clamped to [{low}, {high}], which is not inside [{lowest}, {highest}]")

    def clamped(self, codes: Any, low: int, high: int) -> Any:
        """Tensors; nothing where the type does it already."""
        return codes if (low, high) == limits(self.out.dtype) else clamp(codes, low, high)

    def units(self, operands: Sequence[Value]) -> Array | None:
        """What 1 in the sums of the step stands for, as a float per channel; None if it has no sums of that kind."""
        return None

    def finish(self, sums: Any) -> Any:
        """Codes of i32 sums, bias and all; tensors."""
        raise self.fail("has no sums")

    @abstractmethod
    def run(self, operands: Sequence[Value], codes: Sequence[Array]) -> Array: ...

    @abstractmethod
    def build(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any: ...

    @abstractmethod
    def simulate(self, operands: Sequence[Value], tensors: Sequence[Any]) -> Any: ...
