"""WebAssembly: programs for browsers."""

from __future__ import annotations

from rlx.compile.generators import Generator
from rlx.compile.target import Absence, Absent, Target
from rlx.kernels.machines import Machine


def _machine(name: str | None) -> Machine:
    from rlx.kernels.machines import machine_named

    return machine_named("wasm32" if name is None else name)


def _generator(machine: Machine) -> Generator:
    from rlx.kernels.from_lir import generator

    return generator(machine)


TARGET = Target(
    name="wasm",
    about="WebAssembly, for browsers",
    aliases=("webassembly",),
    probe=lambda: Absent(
        Absence.NotInstalled,
        "programs do not run as WebAssembly yet: their code can be made and looked at",
        "compile for the device cpu meanwhile",
    ),
    machine=_machine,
    generator=_generator,
    extra="web",
)
