"""What targets whose kernels rlx writes have in common; the code behind it is imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.compile.generators import Generator
    from rlx.kernels.machines import Machine


def own_generator(machine: Machine) -> Generator:
    """What makes the kernels of a machine."""
    from rlx.kernels.from_lir import generator

    return generator(machine)


def named_machine(default: str) -> Callable[[str | None], Machine]:
    """A target's machine by name, or the one that its programs are for when none is named."""

    def machine(name: str | None) -> Machine:
        from rlx.kernels.machines import machine_named

        return machine_named(default if name is None else name)

    return machine
