"""Programs handed to XLA: TPUs, and many devices at once."""

from __future__ import annotations

from rlx.compile.target import Absence, Absent, Target

TARGET = Target(
    name="xla",
    about="programs handed to XLA",
    aliases=("tpu",),
    probe=lambda: Absent(
        Absence.NotInstalled,
        "programs are not handed to XLA yet",
        "compile for the device cpu meanwhile",
    ),
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
