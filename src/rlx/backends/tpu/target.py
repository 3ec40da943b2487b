"""Google's TPUs. What is missing is the way to their plugin for XLA; the programs are those of the device `xla`."""

from __future__ import annotations

from rlx.compile.target import Absence, Absent, Target

TARGET = Target(
    name="tpu",
    about="Google's TPUs, through XLA",
    probe=lambda: Absent(
        Absence.NotInstalled,
        "programs are not handed to the TPU plugin of XLA yet",
        "the device xla runs the same programs on the host",
    ),
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
