"""This machine's CPU: kernels from our own generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.own_kernels import own_generator
from rlx.compile.target import GENERATED, DeviceInfo, Found, Selection, Target

if TYPE_CHECKING:
    from rlx.backends.api import Backend
    from rlx.backends.export import Exporter
    from rlx.kernels.machines import Machine


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.cpu import CpuBackend

    return CpuBackend()


def _exporter() -> Exporter:
    from rlx.backends.cpu.exporter import CpuExporter

    return CpuExporter()


def _machine(name: str | None) -> Machine:
    from rlx.kernels.machines import host, machine_named

    return host() if name is None else machine_named(name)


def _probe() -> Found:
    from rlx.backends.cpu.threads import thread_count

    return Found((DeviceInfo(0, _machine(None).name, f"{thread_count(None)} threads"),))


TARGET = Target(
    name="cpu",
    about="this machine's CPU, by generated kernels on all cores",
    aliases=("host",),
    probe=_probe,
    machine=_machine,
    generator=own_generator,
    backend=_backend,
    exporter=_exporter,
    claims=GENERATED,
    region_limits=None,
)
