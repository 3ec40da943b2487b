"""The GPUs that Metal finds here, and which one is meant by a number."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from rlx.compile.target import Absence, Absent, DeviceInfo, Found
from rlx.errors import NoDevice, NotInstalled

NEEDED = (
    "running on Apple GPUs, where rlx was never tried, needs PyObjC's binding of Metal, which exists on macOS alone"
)
REMEDY = "pip install 'rlx[metal]' on a Mac; elsewhere use the device wgpu or cpu"


def metal() -> Any:
    """PyObjC's module; None if it is not installed."""
    if "Metal" not in sys.modules and importlib.util.find_spec("Metal") is None:
        return None
    import Metal

    return Metal


def gpus(module: Any) -> list[Any]:
    """The devices, the default one first."""
    first = module.MTLCreateSystemDefaultDevice()
    if first is None:
        return []
    others = [d for d in module.MTLCopyAllDevices() or () if d.registryID() != first.registryID()]
    return [first, *others]


def choose(index: int) -> tuple[Any, Any]:
    """The module, and the device with a number."""
    module = metal()
    if module is None:
        raise NotInstalled(f"metal: {NEEDED}; {REMEDY}")
    every = gpus(module)
    if index < len(every):
        return module, every[index]
    listed = ", ".join(f"{number}: {d.name()}" for number, d in enumerate(every)) or "no GPU for Metal"
    raise NoDevice(f"metal:{index}: no GPU has this number; this machine has {listed}")


def probe() -> Found | Absent:
    module = metal()
    if module is None:
        return Absent(Absence.NotInstalled, NEEDED, REMEDY)
    infos = tuple(
        DeviceInfo(i, str(d.name()), "rlx was never tried on such a GPU", int(d.recommendedMaxWorkingSetSize()))
        for i, d in enumerate(gpus(module))
    )
    if not infos:
        return Absent(Absence.NoDevice, "Metal finds no GPU", "use the device cpu")
    return Found(infos)
