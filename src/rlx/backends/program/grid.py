"""How many parallel iterations a kernel has for given sizes, computed from the kernel's own loop bound.

`rlx.kernels.ir.interpret.grid_size` means the same and takes a hundred times as long; sizes change between runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rlx.kernels.ir.loop_ir import Kernel, Let, Value


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


class Grid(NamedTuple):
    """`grid(extents)`: the iterations for the values of the kernel's index parameters, in order.

    A straight program: registers hold the extents, then the literals, then the result of each step `(op, a, b)` on two
    registers; the register `result` has the answer. Without a `result` there is one iteration. The kernel is `asked`
    itself if its bound is no such program.
    """

    literals: tuple[int, ...] = ()
    steps: tuple[tuple[str, int, int], ...] = ()
    result: int | None = None
    asked: Callable[[Sequence[int]], int] | None = None

    @staticmethod
    def of(kernel: Kernel) -> Grid:
        from rlx.kernels.ir.loop_ir import Const, Let, Value

        loop = kernel.parallel_loop
        if loop is None:
            return Grid()
        lets = {s.result: s for s in kernel.body.statements if isinstance(s, Let)}
        needed = _needed(loop.stop, lets)
        registers = {p: i for i, p in enumerate(q for q in kernel.params if isinstance(q, Value))}
        if not all(v in registers or isinstance(v, Const) or _is_plain(lets[v]) for v in needed):
            return Grid(asked=_asking(kernel))
        literals = [v for v in needed if isinstance(v, Const)]
        registers.update({v: len(registers) + i for i, v in enumerate(literals)})
        steps = []
        for value in needed:
            if value not in registers:
                a, b = (registers[v] for v in lets[value].args)
                registers[value] = len(registers)
                steps.append((lets[value].op, a, b))
        return Grid(tuple(int(v.literal) for v in literals), tuple(steps), registers[loop.stop])

    def __call__(self, extents: Sequence[int]) -> int:
        if self.asked is not None:
            return self.asked(extents)
        if self.result is None:
            return 1
        registers = [*extents, *self.literals]
        for op, a, b in self.steps:
            registers.append(_OPS[op](registers[a], registers[b]))
        return max(0, registers[self.result])


def _is_plain(let: Let) -> bool:
    from rlx.kernels.ir.loop_ir import INDEX

    return let.op in _OPS and let.result.type == INDEX


def _asking(kernel: Kernel) -> Callable[[Sequence[int]], int]:
    # Here, because no program that is read from disk has such a kernel: a start from there loads no interpreter.
    from rlx.kernels.ir.interpret import grid_size
    from rlx.kernels.ir.loop_ir import Value

    names = [p.name for p in kernel.params if isinstance(p, Value)]
    return lambda extents: grid_size(kernel, dict(zip(names, extents, strict=True)))


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
