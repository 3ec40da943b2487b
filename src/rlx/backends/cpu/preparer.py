"""`Preparer`: runs a program that makes the params of another one."""

from __future__ import annotations

from rlx.backends.cpu.runner import Runner
from rlx.backends.memory import Array, aligned_block
from rlx.backends.program.plan import Plan


class Preparer(Runner):
    """A `Runner` whose results live together: they lie in one block of memory."""

    def _store(self, plan: Plan, values: memoryview) -> list[Array]:
        stored = []
        for number, (array, address) in enumerate(aligned_block(plan.stored), self._first_stored):
            values[number] = address
            stored.append(array)
        return stored
