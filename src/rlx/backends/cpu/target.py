"""This machine's CPU: kernels from our own generator. Where there is no way to native code, programs run in NumPy,
by the definition of their ops, and a warning says so once."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING

from rlx.backends.own_kernels import own_generator
from rlx.compile.target import GENERATED, DeviceInfo, Found, Selection, Target

if TYPE_CHECKING:
    from rlx.backends.api import Backend
    from rlx.backends.export import Exporter
    from rlx.kernels.machines import Machine


@cache
def missing_native_road() -> str:
    """Why this process cannot make and run native code; nothing where it can. Asked once, and told once."""
    from importlib.util import find_spec

    from rlx.errors import BackendError
    from rlx.systems import this_system

    if find_spec("llvmlite") is None:
        reason = "llvmlite is not installed"
    else:
        try:
            _machine(None)
            system = this_system()
            page = system.new_pages(_PAGE)
            try:
                system.fill_pages(page, bytes(_PAGE))
            finally:
                system.free_pages(page, _PAGE)
            return ""
        except BackendError as error:
            reason = str(error)
    told = f"cpu: there is no native code here ({reason}); programs run in NumPy, by definition, many times as long"
    warnings.warn(told, stacklevel=2)
    return reason


_PAGE = 4096


def _backend(chosen: Selection) -> Backend:
    if missing_native_road():
        from rlx.backends.engine import EngineBackend
        from rlx.backends.reference import ReferenceEngine

        return EngineBackend(ReferenceEngine)
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

    if missing_native_road():
        return Found((DeviceInfo(0, "NumPy", missing_native_road()),))
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
