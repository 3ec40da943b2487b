"""The generator of all targets whose kernels rlx writes; the code behind it is imported when it is first asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.compile.generators import Generator
    from rlx.kernels.machines import Machine


def own_generator(machine: Machine) -> Generator:
    """What makes the kernels of a machine."""
    from rlx.kernels.from_lir import generator

    return generator(machine)
