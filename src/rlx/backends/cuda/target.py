"""NVIDIA GPUs: the kernels of the generator through PTX and the driver. No toolkit is needed, neither to compile nor to
run."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.memory_space import MemorySpace
from rlx.backends.own_kernels import named_machine, own_generator
from rlx.compile.target import GENERATED, Absence, Absent, DeviceInfo, Found, Selection, Target


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.cuda.backend import CudaBackend

    return CudaBackend(chosen.index)


def _open(index: int) -> MemorySpace:
    from rlx.backends.cuda.arrays import CudaSpace
    from rlx.backends.cuda.device import open_gpu

    return CudaSpace.of(open_gpu(index))


def _probe() -> Found | Absent:
    from rlx.backends.cuda.device import gpu_infos
    from rlx.backends.cuda.driver import Missing, probe

    found = probe()
    if isinstance(found, Missing):
        remedy = "look at nvidia-smi; a container needs its GPUs passed in"
        return Absent(Absence.NoDevice, found.reason.removeprefix("cuda: "), remedy)
    return Found(tuple(DeviceInfo(i.index, i.name, i.arch, i.memory_bytes) for i in gpu_infos()))


TARGET = Target(
    name="cuda",
    about="NVIDIA GPUs",
    aliases=("nvidia",),
    probe=_probe,
    machine=named_machine("sm_90a"),
    generator=own_generator,
    backend=_backend,
    open=_open,
    claims=GENERATED,
    extra="cuda",
)
