"""Which values of a kernel are numbers of phases and nothing else: emitters may keep their parity alone, which is all
that a barrier knows."""

from __future__ import annotations

from rlx.errors import BackendError
from rlx.kernels.ir.groups import AwaitPhases
from rlx.kernels.ir.loop_ir import Const, For, Kernel, Let, Value, walk


def phase_counts(kernel: Kernel) -> set[Value]:
    """All values from which awaited numbers of phases are added up or selected, carried round loops too."""
    statements = list(walk(kernel.body))
    counts: set[Value] = set()

    def add(*values: Value) -> None:
        # Literals are shared by all who use the same number.
        counts.update(v for v in values if not isinstance(v, Const))

    size = -1
    while len(counts) > size:
        size = len(counts)
        for statement in statements:
            match statement:
                case AwaitPhases(_, count):
                    add(count)
                case Let(result, "add", args) if result in counts:
                    add(*args)
                case Let(result, "select", (_, *sides)) if result in counts:
                    add(*sides)
                case For():
                    for values in zip(statement.inits, statement.carried, statement.body.yields, statement.results):
                        if not counts.isdisjoint(values):
                            add(*values)
    for statement in statements:
        if isinstance(statement, Let) and statement.result not in counts and not counts.isdisjoint(statement.args):
            raise BackendError(f"kernel {kernel.name}: a number of phases is used for something else")
    return counts
