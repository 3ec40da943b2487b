"""Any GPU through WebGPU: the kernels of the generator as WGSL."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.own_kernels import named_machine, own_generator
from rlx.backends.text_gpu.space import text_gpu_space
from rlx.compile.target import GENERATED, Absent, Found, Selection, Target


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.wgpu.executable import WgpuBackend

    return WgpuBackend(chosen.index, chosen.variant)


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
    machine=named_machine("wgsl"),
    generator=own_generator,
    backend=_backend,
    open=text_gpu_space("wgpu"),
    claims=GENERATED | {"FusedTransformerLayer"},
    extra="wgpu",
)
