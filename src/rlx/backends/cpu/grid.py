"""How many parallel iterations a kernel has for given sizes, computed from the kernel's own loop bound.

`rlx.kernels.interpret.grid_size` means the same and takes a hundred times as long; sizes change between runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from rlx.kernels.interpret import grid_size
from rlx.kernels.loop_ir import INDEX, Const, Kernel, Let, Value


def _divide(a: int, b: int) -> int:
    """Toward zero, as kernels divide."""
    return a // b if (a < 0) == (b < 0) else -(-a // b)


_OPS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divide,
    "rem": lambda a, b: a - b * _divide(a, b),
    "min": min,
    "max": max,
}


class Grid:
    """`grid(extents)`: the iterations for the values of the kernel's index parameters, in order."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._names = [p.name for p in kernel.params if isinstance(p, Value)]
        # One register per parameter, then one per literal or step.
        self._registers = {p: i for i, p in enumerate(q for q in kernel.params if isinstance(q, Value))}
        self._literals: list[int] = []
        self._steps: list[tuple[Callable[[int, int], int], int, int]] = []
        self._result: int | None = None
        loop = kernel.parallel_loop
        self._is_single = loop is None
        if loop is not None:
            lets = {s.result: s for s in kernel.body.statements if isinstance(s, Let)}
            needed = _needed(loop.stop, lets)
            if all(v in self._registers or isinstance(v, Const) or _is_plain(lets[v]) for v in needed):
                self._compile(needed, lets)
                self._result = self._registers[loop.stop]

    def _compile(self, needed: Sequence[Value], lets: dict[Value, Let]) -> None:
        for value in needed:
            if isinstance(value, Const):
                self._registers[value] = len(self._registers)
                self._literals.append(int(value.literal))
        for value in needed:
            if value not in self._registers:
                a, b = (self._registers[v] for v in lets[value].args)
                self._registers[value] = len(self._registers)
                self._steps.append((_OPS[lets[value].op], a, b))

    def __call__(self, extents: Sequence[int]) -> int:
        if self._is_single:
            return 1
        if self._result is None:
            return grid_size(self._kernel, dict(zip(self._names, extents, strict=True)))
        registers = [*extents, *self._literals]
        for op, a, b in self._steps:
            registers.append(op(registers[a], registers[b]))
        return max(0, registers[self._result])


def _is_plain(let: Let) -> bool:
    return let.op in _OPS and let.result.type == INDEX


def _needed(value: Value, lets: dict[Value, Let]) -> list[Value]:
    """What `value` is computed from, operands before results, each once."""
    order: dict[Value, None] = {}

    def visit(v: Value) -> None:
        if v in order:
            return
        for operand in lets[v].args if v in lets else ():
            visit(operand)
        order[v] = None

    visit(value)
    return list(order)
