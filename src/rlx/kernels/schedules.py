"""How a kernel is computed, apart from what: makers in order of preference, a table for each kind of machine.

A spec (`rlx.kernels.specs`) says what a kernel computes. A schedule writes the loops of a spec for a machine:

    TABLE = ScheduleTable({MapSpec: [Schedule("map", map_loops)], ProductSpec: [Schedule("panels", .., fits=..), ..]})
    kernel = TABLE.make("matmul", machine, spec)

Results do not depend on the choice beyond what a sum may be reordered. Ops with kernels of their own are `OpSite`s.

A schedule may have parameters: it offers a few sets of them, the usual one first, and `rlx tune` measures which is best
for a kernel on a machine (`rlx.kernels.tuning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlx.errors import InternalError
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine
from rlx.kernels.tuning import Parameters, chosen


class Schedule(NamedTuple):
    """One way to compute a kind of spec: `make(name, machine, spec)` where `fits(machine, spec)`.

    With `sets(machine, spec)`, the sets of parameters that are worth trying, `make` takes one of them besides. Specs of
    such schedules have a `signature`: the same text for kernels that should get the same set.
    """

    name: str
    make: Callable[..., Kernel]
    fits: Callable[[Machine, Any], bool] = lambda machine, spec: True
    sets: Callable[[Machine, Any], Sequence[Parameters]] | None = None


class ScheduleTable:
    """Schedules by the class of the spec, the first that fits is taken."""

    def __init__(self, schedules: Mapping[type, Sequence[Schedule]]) -> None:
        self._schedules = {kind: tuple(found) for kind, found in schedules.items()}

    def over(self, schedules: Mapping[type, Sequence[Schedule]]) -> ScheduleTable:
        """A table that tries these first."""
        kinds = {*self._schedules, *schedules}
        return ScheduleTable({k: (*schedules.get(k, ()), *self._schedules.get(k, ())) for k in kinds})

    def candidates(self, machine: Machine, spec: Any) -> list[Schedule]:
        """All schedules that fit, in order of preference."""
        return [s for s in self._schedules.get(type(spec), ()) if s.fits(machine, spec)]

    def make(self, name: str, machine: Machine, spec: Any) -> Kernel:
        """The loops of a spec, by the schedule that is preferred."""
        for schedule in self._schedules.get(type(spec), ()):
            if schedule.fits(machine, spec):
                if schedule.sets is None:
                    return schedule.make(name, machine, spec)
                sets = schedule.sets(machine, spec)
                return schedule.make(name, machine, spec, chosen(machine, schedule.name, spec.signature, sets))
        raise InternalError(f"no schedule for a {type(spec).__name__} on {machine.name}")
