"""Which kernels of a program have parameters to choose, and which set each was made with."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlx.compile.memory.lir_liveness import steps_of
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.lir import LirModule
from rlx.kernels.from_lir import table_for
from rlx.kernels.ir.loop_ir import Kernel
from rlx.kernels.machines import Machine, host
from rlx.kernels.reuse import KernelMaker
from rlx.kernels.schedules import ScheduleTable
from rlx.kernels.tuning import Parameters, chosen, key_of


class Site(NamedTuple):
    """A kernel whose schedule offers several sets, `used` being the one that it was made with."""

    key: str
    schedule: str
    signature: str
    sets: tuple[Parameters, ...]
    used: Parameters


def shown(parameters: Parameters) -> str:
    return ", ".join(f"{name}={value}" for name, value in parameters._asdict().items())


class _Noting(ScheduleTable):
    """A table that remembers of which spec each kernel was made."""

    def __init__(self, table: ScheduleTable) -> None:
        super().__init__({})
        self._table = table
        # The kernels too: as long as they live, no other has their address.
        self.noted: dict[int, tuple[Kernel, Site | None]] = {}

    def make(self, name: str, machine: Machine, spec: Any) -> Kernel:
        kernel = self._table.make(name, machine, spec)
        schedule = next(iter(self._table.candidates(machine, spec)))
        site = None
        if schedule.sets is not None:
            sets = tuple(schedule.sets(machine, spec))
            used = chosen(machine, schedule.name, spec.signature, sets)
            site = Site(key_of(machine, schedule.name, spec.signature), schedule.name, spec.signature, sets, used)
        self.noted[id(kernel)] = kernel, site
        return kernel


def sites(lir: LirModule, machine: Machine | None = None, table: ScheduleTable | None = None) -> dict[int, Site]:
    """The kernels of a program with several sets, by their number in its report."""
    machine = machine or host()
    noting = _Noting(table or table_for(machine))
    maker = KernelMaker(lir.as_graph(), machine, noting)
    found = {}
    for number, kernel in enumerate(steps_of(lir)):
        kind = KernelKind.of(kernel.kind)
        if not kind.is_native or kind is KernelKind.Loop:
            continue
        _, site = noting.noted.get(id(maker.make(kernel).kernel), (None, None))
        if site is not None and len(site.sets) > 1:
            found[number] = site
    return found
