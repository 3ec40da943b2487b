"""Google's TPUs, through their plugin for XLA; the programs are those of the device `xla`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlx.backends.api import Backend
from rlx.backends.memory_space import MemorySpace
from rlx.compile.target import Absence, Absent, DeviceInfo, Found, Selection, Target

if TYPE_CHECKING:
    from rlx.backends.export import Exporter


def _probe() -> Found | Absent:
    from rlx.backends.tpu.plugin import chips, missing

    lacking, found = missing(), chips()
    if lacking is not None:
        return Absent(Absence.NotInstalled, lacking.reason, lacking.remedy)
    if not found:
        return Absent(
            Absence.NoDevice,
            "this machine has no TPU",
            "compile for one with rlx export tpu, or run the same programs on the device xla",
        )
    return Found(tuple(DeviceInfo(i, name) for i, name in enumerate(found)))


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.tpu import TpuBackend

    return TpuBackend(chosen.index)


def _open(index: int) -> MemorySpace:
    from rlx.backends.tpu.plugin import open_space

    return open_space(index)


def _exporter() -> Exporter:
    from rlx.backends.tpu.exporter import TpuExporter

    return TpuExporter()


TARGET = Target(
    name="tpu",
    about="Google's TPUs, through XLA",
    probe=_probe,
    backend=_backend,
    open=_open,
    exporter=_exporter,
    claims=frozenset(
        {
            "MatMul",
            "ElementwiseRegion",
            "FusedMatMulBiasAct",
            "FusedResidualLN",
        }
    ),
    extra="tpu",
)
