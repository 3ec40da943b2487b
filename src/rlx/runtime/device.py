"""Devices by name, and what is available on this machine."""

from __future__ import annotations

import enum

from rlx.backends.api import backend_for, registered_devices
from rlx.errors import BackendError


class Device(enum.StrEnum):
    """Where programs run. `Device.parse` also accepts the usual other names."""

    Cpu = "cpu"
    Metal = "metal"
    Mlx = "mlx"
    Ane = "ane"
    Cuda = "cuda"
    Rocm = "rocm"
    Tpu = "tpu"
    Gpu = "gpu"
    Vulkan = "vulkan"
    OpenGl = "opengl"
    DirectX = "directx"
    WebGpu = "webgpu"
    Reference = "reference"

    @staticmethod
    def all() -> list[Device]:
        return list(Device)

    @staticmethod
    def parse(name: str | Device) -> Device:
        """A device from its name or an alias: `nvidia`, `hip`, `wgpu`, ..."""
        text = str(name).lower()
        try:
            return Device(_ALIASES.get(text, text))
        except ValueError:
            known = ", ".join(d.value for d in Device)
            raise BackendError(f"{name!r} is not a device; known names: {known}") from None

    def as_arg(self) -> str:
        return self.value


_ALIASES = {
    "mtl": "metal",
    "neural-engine": "ane",
    "nvidia": "cuda",
    "hip": "rocm",
    "amd": "rocm",
    "wgpu": "gpu",
    "vk": "vulkan",
    "gl": "opengl",
    "dx12": "directx",
    "d3d12": "directx",
    "ref": "reference",
}


def is_available(device: str | Device) -> bool:
    """Whether a backend for the device is registered and finds its hardware."""
    name = Device.parse(device).value
    return name in registered_devices() and backend_for(name).is_available()


def default_device() -> str:
    """Where functions run when nobody says: the knob `backend`, else the CPU, else the reference."""
    from rlx.knobs import knobs

    if knobs.backend:
        return Device.parse(knobs.backend).value
    return Device.Cpu.value if is_available(Device.Cpu) else Device.Reference.value


def available_devices() -> list[Device]:
    return [d for d in Device if is_available(d)]
