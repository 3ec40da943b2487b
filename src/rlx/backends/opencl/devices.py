"""The devices of all OpenCL platforms, GPUs first, and which one is meant by a number."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from rlx.backends.opencl import driver as cl
from rlx.compile.target import Absence, Absent, DeviceInfo, Found
from rlx.errors import NoDevice

_ORDER = ("GPU", "accelerator", "CPU", "custom")


class Listed(NamedTuple):
    """A device with what a backend must know of it; `handle` is the driver's."""

    handle: int
    name: str
    platform: str
    kind: str
    memory_bytes: int
    largest_buffer: int
    shared_bytes: int
    most_threads: int
    has_f64: bool
    rounds_division: bool

    def __str__(self) -> str:
        return f"{self.name} through {self.platform}"


@cache
def listed() -> tuple[Listed, ...]:
    """All that there are."""
    found = cl.driver()
    if found is None:
        return ()
    devices = []
    for platform in found.platforms():
        name = found.text("clGetPlatformInfo", platform, cl.PLATFORM_NAME)
        devices += [_listed(found, handle, name) for handle in found.devices(platform)]
    return tuple(sorted(devices, key=lambda d: _ORDER.index(d.kind)))


def _listed(found: cl.Driver, handle: int, platform: str) -> Listed:
    kind = found.number(handle, cl.DEVICE_TYPE)
    return Listed(
        handle,
        found.text("clGetDeviceInfo", handle, cl.DEVICE_NAME),
        platform,
        next((name for bit, name in cl.KINDS.items() if kind & bit), "custom"),
        memory_bytes=found.number(handle, cl.DEVICE_MEMORY),
        largest_buffer=found.number(handle, cl.DEVICE_LARGEST),
        shared_bytes=found.number(handle, cl.DEVICE_LOCAL),
        most_threads=found.number(handle, cl.DEVICE_THREADS),
        has_f64="cl_khr_fp64" in found.text("clGetDeviceInfo", handle, cl.DEVICE_EXTENSIONS).split(),
        rounds_division=bool(found.number(handle, cl.DEVICE_SINGLES) & cl.ROUNDED_DIVISION),
    )


def choose(index: int) -> Listed:
    """The device with a number."""
    cl.required()
    every = listed()
    if index < len(every):
        return every[index]
    names = ", ".join(f"{number}: {d}" for number, d in enumerate(every)) or "no device at all"
    raise NoDevice(
        f"opencl:{index}: no device of OpenCL has this number; this machine has {names}. To have one, {cl.REMEDY}"
    )


def probe() -> Found | Absent:
    if cl.driver() is None:
        return Absent(Absence.NotInstalled, "this machine has no OpenCL loader (libOpenCL)", cl.REMEDY)
    infos = tuple(
        DeviceInfo(i, d.name, f"{d.platform}, {d.kind}{'' if d.has_f64 else ', no f64'}", d.memory_bytes)
        for i, d in enumerate(listed())
    )
    if not infos:
        return Absent(Absence.NoDevice, "OpenCL finds no platform with a device", cl.REMEDY)
    return Found(infos)
