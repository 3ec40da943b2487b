"""Devices by name, and what is available on this machine."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from rlx.backends.api import backend_for, registered_devices
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.ir.op import Op

if TYPE_CHECKING:
    from rlx.compile.report import CompileReport


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


def full_name(device: str | Device) -> str:
    """What a device is on this machine: for a CPU its vector instructions and the threads that programs use."""
    parsed = Device.parse(device)
    if parsed is not Device.Cpu:
        return parsed.value
    from rlx.backends.cpu.threads import thread_count
    from rlx.kernels.targets import host

    return f"cpu ({host().name}, {thread_count(None)} threads)"


def supports(device: str | Device, op: Op | type[Op]) -> bool:
    """Whether programs for a device may have an op: because it runs it, or because of what the op decomposes into."""
    kind = op if isinstance(op, type) else type(op)
    if not is_available(device):
        return False
    return kind.__name__ in backend_for(Device.parse(device).value).supported_ops() or not kind.primitive


def first_unsupported_op(device: str | Device, graph: Graph) -> tuple[int, Op] | None:
    """The first node whose op a device cannot run, with its number; None if it can run the graph."""
    for node in graph.nodes:
        if not node.is_leaf and not supports(device, node.op):
            return int(node.id), node.op
    return None


def supports_graph(device: str | Device, graph: Graph) -> bool:
    return is_available(device) and first_unsupported_op(device, graph) is None


def dispatch_report_for_device(device: str | Device, graph: Graph) -> CompileReport:
    """Which kernels a graph becomes on a device and which of its ops are called on the host; no code is made."""
    from rlx.compile.compiler import CompilePipeline

    name = Device.parse(device).value
    return CompilePipeline.new(name).compile(graph).report(name)
