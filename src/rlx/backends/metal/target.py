"""Apple GPUs: Metal shaders."""

from __future__ import annotations

from rlx.compile.target import Absence, Absent, Target

TARGET = Target(
    name="metal",
    about="Apple GPUs, through Metal",
    aliases=("mtl",),
    probe=lambda: Absent(
        Absence.NotInstalled,
        "programs do not run through Metal yet",
        "compile for the device cpu meanwhile",
    ),
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
    extra="metal",
)
