"""AMD GPUs: the kernels of the GPU makers through AMDGPU code."""

from __future__ import annotations

from rlx.compile.generators import Generator
from rlx.compile.target import Absence, Absent, Target
from rlx.kernels.machines import Machine


def _machine(name: str | None) -> Machine:
    from rlx.kernels.machines import machine_named

    return machine_named("gfx942" if name is None else name)


def _generator(machine: Machine) -> Generator:
    from rlx.kernels.from_lir import generator

    return generator(machine)


TARGET = Target(
    name="rocm",
    about="AMD GPUs",
    aliases=("hip", "amd"),
    probe=lambda: Absent(
        Absence.NotInstalled,
        "programs do not run on AMD GPUs yet: their code can be made and looked at",
        "compile for the device cpu meanwhile",
    ),
    machine=_machine,
    generator=_generator,
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
            "FusedAttentionBlock",
        }
    ),
    extra="rocm",
)
