"""Any GPU through WebGPU: the kernels of the generator as WGSL."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.memory_space import MemorySpace
from rlx.backends.own_kernels import own_generator
from rlx.compile.target import GENERATED, Absent, Found, Selection, Target
from rlx.kernels.machines import Machine


def _machine(name: str | None) -> Machine:
    from rlx.kernels.machines import machine_named

    return machine_named("wgsl" if name is None else name)


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.wgpu.executable import WgpuBackend

    return WgpuBackend(chosen.index, chosen.variant)


def _open(index: int) -> MemorySpace:
    from rlx.backends.text_gpu.arrays import GpuSpace
    from rlx.backends.wgpu.device import open_gpu

    return GpuSpace.of(open_gpu(index))


def _probe() -> Found | Absent:
    from rlx.backends.wgpu.adapters import probe

    return probe()


TARGET = Target(
    name="wgpu",
    about="any GPU, through WebGPU",
    aliases=("gpu",),
    variants={
        "vulkan": "vulkan",
        "vk": "vulkan",
        "directx": "directx",
        "dx12": "directx",
        "d3d12": "directx",
        "opengl": "opengl",
        "gl": "opengl",
        "webgpu": "webgpu",
    },
    probe=_probe,
    machine=_machine,
    generator=own_generator,
    backend=_backend,
    open=_open,
    claims=GENERATED | {"FusedTransformerLayer"},
    extra="wgpu",
)
