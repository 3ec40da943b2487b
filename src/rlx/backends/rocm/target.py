"""AMD GPUs: the kernels of the generator as code objects, and HIP. No toolkit is needed, neither to compile nor to
run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.own_kernels import named_machine, own_generator
from rlx.compile.target import GENERATED, Absence, Absent, DeviceInfo, Found, Selection, Target

if TYPE_CHECKING:
    from rlx.backends.api import Backend
    from rlx.backends.export import Exporter
    from rlx.backends.memory_space import MemorySpace

# What has been done with it so far, for everybody who asks.
STATE = "code is assembled and inspected for five chips, and has never been executed on an AMD GPU"


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.rocm.backend import RocmBackend

    return RocmBackend(chosen.index)


def _open(index: int) -> MemorySpace:
    from rlx.backends.cuda.arrays import CudaSpace
    from rlx.backends.rocm.device import open_amd_gpu

    return CudaSpace.of(open_amd_gpu(index))


def _exporter() -> Exporter:
    from rlx.backends.rocm.exporter import RocmExporter

    return RocmExporter()


def _probe() -> Found | Absent:
    from rlx.backends.cuda.driver import Missing
    from rlx.backends.rocm.blas import library
    from rlx.backends.rocm.device import amd_infos
    from rlx.backends.rocm.hip import probe

    found = probe()
    if isinstance(found, Missing):
        reason = f"{found.reason.removeprefix('rocm: ')}; {STATE}"
        return Absent(Absence.NoDevice, reason, "look at rocminfo; a container needs /dev/kfd and /dev/dri")
    blas = library()
    said = f"{STATE}; plain products would be those of {blas[0]}" if blas else STATE
    # Programs would run, and nobody has seen that they do.
    return Found(tuple(DeviceInfo(i.index, i.name, f"{i.arch}; {said}", i.memory_bytes) for i in amd_infos()))


TARGET = Target(
    name="rocm",
    about="AMD GPUs",
    aliases=("hip", "amd"),
    probe=_probe,
    machine=named_machine("gfx942"),
    generator=own_generator,
    backend=_backend,
    open=_open,
    exporter=_exporter,
    claims=GENERATED,
    extra="rocm",
)
