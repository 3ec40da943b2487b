"""The GPUs that WebGPU finds here, best first, and which one is meant by a name."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any, NamedTuple

from rlx.compile.target import Absence, Absent, DeviceInfo, Found
from rlx.errors import NoDevice, NotInstalled

# What the interfaces of the names of devices are called there; another name takes whichever is best.
INTERFACES = {"vulkan": "Vulkan", "directx": "D3D12", "opengl": "OpenGL"}
_KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")


class Adapter(NamedTuple):
    """A GPU as one interface sees it; `handle` is wgpu's."""

    name: str
    interface: str
    kind: str
    handle: Any

    def __str__(self) -> str:
        return f"{self.name} through {self.interface}"


@cache
def adapters() -> tuple[Adapter, ...]:
    """All that there are: GPUs before processors that stand in for one, and OpenGL after what is newer."""
    import wgpu

    try:
        handles = wgpu.gpu.enumerate_adapters_sync()
    except (RuntimeError, OSError):  # no library of any interface
        handles = []
    found = []
    for handle in handles:
        info = handle.info
        found.append(Adapter(info["device"], info["backend_type"], info["adapter_type"], handle))

    def rank(adapter: Adapter) -> tuple[int, bool]:
        kind = _KINDS.index(adapter.kind) if adapter.kind in _KINDS else _KINDS.index("Unknown")
        return kind, adapter.interface == "OpenGL"

    return tuple(sorted(found, key=rank))


def choose(index: int, variant: str) -> Adapter:
    """The adapter with a number among those of an interface, or among all."""
    if importlib.util.find_spec("wgpu") is None:
        raise NotInstalled("wgpu: running on GPUs through WebGPU needs the package wgpu; pip install 'rlx[wgpu]'")
    every = adapters()
    fitting = [a for a in every if variant not in INTERFACES or a.interface == INTERFACES[variant]]
    if index < len(fitting):
        return fitting[index]
    listed = ", ".join(f"{number}: {a}" for number, a in enumerate(every)) or "no adapter at all"
    wanted = f"{variant or 'wgpu'}:{index}" if index else variant or "wgpu"
    raise NoDevice(f"{wanted}: no adapter of WebGPU fits; this machine has {listed}. {REMEDY}")


REMEDY = "Install a Vulkan driver (on Debian mesa-vulkan-drivers and libvulkan1, which also run without a GPU)"


@cache
def probe() -> Found | Absent:
    if importlib.util.find_spec("wgpu") is None:
        reason = "running on GPUs through WebGPU needs the package wgpu"
        return Absent(Absence.NotInstalled, reason, "pip install 'rlx[wgpu]'")
    from rlx.backends.wgpu.features import adapter_features

    infos = tuple(
        DeviceInfo(i, a.name, ", ".join([a.interface, a.kind, *adapter_features(a.handle)]))
        for i, a in enumerate(adapters())
    )
    if not infos:
        return Absent(Absence.NoDevice, "WebGPU finds no adapter", REMEDY[0].lower() + REMEDY[1:])
    return Found(infos)
