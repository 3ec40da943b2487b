"""Any device with an OpenCL driver: the kernels of the generator as OpenCL C."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.own_kernels import own_generator
from rlx.backends.text_gpu.space import text_gpu_space
from rlx.compile.target import GENERATED, Absent, Found, Selection, Target
from rlx.kernels.machines import Machine


def _machine(name: str | None) -> Machine:
    from rlx.kernels.machines import OPENCL, machine_named

    if name is not None:
        return machine_named(name)
    from rlx.backends.opencl.device import machine_of
    from rlx.backends.opencl.devices import listed

    return machine_of(listed()[0]) if listed() else OPENCL


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.opencl.executable import OpenClBackend

    return OpenClBackend(chosen.index)


def _probe() -> Found | Absent:
    from rlx.backends.opencl.devices import probe

    return probe()


TARGET = Target(
    name="opencl",
    about="GPUs and processors, through OpenCL",
    aliases=("cl", "pocl"),
    probe=_probe,
    machine=_machine,
    generator=own_generator,
    backend=_backend,
    open=text_gpu_space("opencl"),
    claims=GENERATED | {"FusedTransformerLayer"},
)
