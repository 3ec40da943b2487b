"""Apple's Neural Engine, which runs what Core ML gives it and nothing else."""

from __future__ import annotations

from rlx.compile.target import Absence, Absent, Target

TARGET = Target(
    name="ane",
    about="Apple's Neural Engine",
    aliases=("neural-engine",),
    probe=lambda: Absent(
        Absence.NotInstalled,
        "the Neural Engine has no interface for programs: Core ML alone decides what runs on it",
        "use the device metal or mlx on such a machine, or cpu",
    ),
)
