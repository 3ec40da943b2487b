"""Apple silicon and others, through MLX."""

from __future__ import annotations

from rlx.compile.target import Absence, Absent, Target

TARGET = Target(
    name="mlx",
    about="programs handed to MLX",
    probe=lambda: Absent(
        Absence.NotInstalled,
        "programs are not handed to MLX yet",
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
    extra="mlx",
)
