"""What waves do with matrices, in the interpreter of groups: `WaveMma` and the statements of `wave_fragments`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlx.kernels.ir.group_state import GroupFrame
from rlx.kernels.ir.groups import WaveMma, WaveStatement
from rlx.kernels.ir.wave_fragments import FragmentFill, FragmentLoad, FragmentMma, FragmentStore, fragments_of

if TYPE_CHECKING:
    from rlx.kernels.ir.group_interpret import GroupInterpreter


def wave_product(run: GroupInterpreter, statement: WaveMma, threads: Sequence[GroupFrame]) -> None:
    """Matrices put together from the registers of a wave, multiplied, and the sums given back."""
    unit, side = statement.unit, statement.unit.side
    if len(threads) != unit.threads:
        raise run.fault(statement, f"a wave of {len(threads)} threads; the unit has {unit.threads}")
    a, b = (np.full((side, side), np.nan, np.float32) for _ in range(2))
    for t, thread in enumerate(threads):
        first = unit.first_element(t)
        for matrix, value in ((a, statement.a), (b, statement.b)):
            matrix[t % side, first : first + unit.factor_lanes] = thread.read(value).astype(np.float32)
    product = a @ b.T
    for t, thread in enumerate(threads):
        rows = [unit.row(t, lane) for lane in range(unit.sum_lanes)]
        thread.values[statement.result] = thread.read(statement.total) + product[rows, t % side]


def by_wave(run: GroupInterpreter, statement: WaveStatement, threads: Sequence[GroupFrame]) -> None:
    """A statement on fragments, which the first thread of a wave keeps for all of them."""
    first, unit = threads[0], statement.unit
    if len(threads) != unit.threads:
        raise run.fault(statement, f"a wave of {len(threads)} threads; the unit has {unit.threads}")
    for value in statement.operands():
        if len({thread.number(value) for thread in threads}) > 1:
            raise run.fault(statement, "the threads of a wave differ in where they read or write")
    for fragment in fragments_of(statement):
        run.array(fragment, first)
    match statement:
        case FragmentFill(_, fragment, literal):
            run.given(fragment, np.full((unit.side, unit.side), literal), first)
        case FragmentLoad(_, fragment, source, transposed):
            run.check(statement, source, True, first, first.agent)
            found = run.taken(statement, source, first)
            run.given(fragment, found.T if transposed else found, first)
        case FragmentStore(_, target, fragment):
            run.check(statement, target, False, first, first.agent)
            run.given(target, run.taken(statement, fragment, first), first)
        case FragmentMma(_, total, a, b):
            before, *factors = (run.taken(statement, f, first).astype(np.float32) for f in (total, a, b))
            run.given(total, before + factors[0] @ factors[1], first)
