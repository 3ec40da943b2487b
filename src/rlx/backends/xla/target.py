"""Programs handed to XLA, which divides the host into as many devices as it is told to."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.memory_space import MemorySpace
from rlx.compile.target import Absence, Absent, DeviceInfo, Found, Selection, Target


def _probe() -> Found | Absent:
    from rlx.backends.xla.adapter import Unusable, device_count, installed

    found = installed()
    if isinstance(found, Unusable):
        return Absent(Absence.NotInstalled, found.reason, found.remedy)
    return Found(tuple(DeviceInfo(i, "XLA on the host", f"jaxlib {found.version}") for i in range(device_count())))


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.xla import XlaBackend

    return XlaBackend(chosen.index)


def _open(index: int) -> MemorySpace:
    from rlx.backends.xla.arrays import open_space

    return open_space(index)


TARGET = Target(
    name="xla",
    about="programs handed to XLA",
    probe=_probe,
    backend=_backend,
    open=_open,
    claims=frozenset(
        {
            "MatMul",
            "ElementwiseRegion",
            "FusedMatMulBiasAct",
            "FusedResidualLN",
        }
    ),
    extra="xla",
)
