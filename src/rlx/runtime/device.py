"""Devices by name, and what is available on this machine. What there is to know of a device its `Target` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.api import backend_for
from rlx.compile.target import Absent, require, select
from rlx.errors import BackendError, UnknownDevice
from rlx.ir.graph import Graph
from rlx.ir.op import Op
from rlx.ir.words import Words

if TYPE_CHECKING:
    from rlx.compile.report.report import CompileReport


class Device(Words):
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
        if text in list(Device):
            return Device(text)
        target = select(text).target
        for word in (target.variants.get(text, ""), target.name, *target.aliases):
            if word in list(Device):
                return Device(word)
        raise UnknownDevice(f"{name!r} is a target that the enum Device has no name for; pass its name as text")

    def as_arg(self) -> str:
        return self.value


def is_available(device: str | Device) -> bool:
    """Whether programs can run on a device here and now."""
    chosen = select(str(device))
    try:
        require(chosen)
    except BackendError:
        return False
    return chosen.target.backend is not None and backend_for(chosen.name).is_available()


def default_device() -> str:
    """Where functions run when nobody says: the knob `backend`, else the CPU, else the reference."""
    from rlx.knobs import knobs

    if knobs.backend:
        return select(knobs.backend).name
    return Device.Cpu.value if is_available(Device.Cpu) else Device.Reference.value


def available_devices() -> list[Device]:
    """The devices that programs can run on here."""
    return [d for d in Device if is_available(d)]


def full_name(device: str | Device) -> str:
    """What a device is on this machine: for a CPU its vector instructions and the threads that programs use."""
    chosen = select(str(device))
    found = chosen.target.probe()
    if isinstance(found, Absent):
        return chosen.name
    here = next((d for d in found.devices if d.index == chosen.index), found.devices[0])
    return f"{chosen.name} ({', '.join(part for part in (here.name, here.detail) if part)})"


def supports(device: str | Device, op: Op | type[Op]) -> bool:
    """Whether programs for a device may have an op: because it runs it, or because of what the op decomposes into."""
    kind = op if isinstance(op, type) else type(op)
    if not is_available(device):
        return False
    return kind.__name__ in backend_for(str(device)).supported_ops() or not kind.primitive


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

    name = select(str(device)).target.name
    return CompilePipeline.new(name).compile(graph).report(name)
