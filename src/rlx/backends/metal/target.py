"""Apple GPUs: the kernels of the generator as Metal shaders."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.memory_space import MemorySpace
from rlx.backends.own_kernels import own_generator
from rlx.compile.target import GENERATED, Absent, Found, Selection, Target
from rlx.kernels.machines import Machine


def _machine(name: str | None) -> Machine:
    from rlx.kernels.machines import machine_named

    return machine_named("metal" if name is None else name)


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.metal.executable import MetalBackend

    return MetalBackend(chosen.index)


def _open(index: int) -> MemorySpace:
    from rlx.backends.metal.device import open_gpu
    from rlx.backends.text_gpu.arrays import GpuSpace

    return GpuSpace.of(open_gpu(index))


def _probe() -> Found | Absent:
    from rlx.backends.metal.devices import probe

    return probe()


TARGET = Target(
    name="metal",
    about="Apple GPUs, through Metal; never tried on one",
    aliases=("mtl",),
    probe=_probe,
    machine=_machine,
    generator=own_generator,
    backend=_backend,
    open=_open,
    claims=GENERATED - {"FusedAttentionBlock"},
    extra="metal",
)
