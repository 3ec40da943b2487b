"""Apple silicon and others, through MLX."""

from __future__ import annotations

from rlx.backends.api import Backend
from rlx.backends.memory_space import MemorySpace
from rlx.compile.target import Absence, Absent, DeviceInfo, Found, Selection, Target


def _probe() -> Found | Absent:
    from rlx.backends.mlx.device import Unusable, installed

    found = installed()
    if isinstance(found, Unusable):
        return Absent(Absence.NotInstalled, found.reason, found.remedy)
    return Found((DeviceInfo(0, "MLX", f"mlx {found.version}"),))


def _backend(chosen: Selection) -> Backend:
    from rlx.backends.mlx import MlxBackend

    return MlxBackend()


def _open(index: int) -> MemorySpace:
    from rlx.backends.mlx.arrays import open_space

    return open_space()


TARGET = Target(
    name="mlx",
    about="programs handed to MLX",
    probe=_probe,
    backend=_backend,
    open=_open,
    claims=frozenset(
        {
            "MatMul",
            "ElementwiseRegion",
            "FusedMatMulBiasAct",
            "FusedResidualLN",
            "FusedResidualRmsNorm",
            "If",
            "While",
            "DotGeneral",
            "FusedSwiGLU",
        }
    ),
    extra="mlx",
)
