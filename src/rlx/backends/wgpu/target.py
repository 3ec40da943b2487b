"""Any GPU through WebGPU: WGSL shaders."""

from __future__ import annotations

from rlx.compile.target import Absence, Absent, Target

TARGET = Target(
    name="wgpu",
    about="any GPU, through WebGPU",
    aliases=("gpu",),
    variants={
        "vulkan": "vulkan",
        "vk": "vulkan",
        "directx": "directx",
        "dx12": "directx",
        "d3d12": "directx",
        "opengl": "opengl",
        "gl": "opengl",
        "webgpu": "webgpu",
    },
    probe=lambda: Absent(
        Absence.NotInstalled,
        "programs do not run through WebGPU yet",
        "compile for the device cpu meanwhile",
    ),
    claims=frozenset(
        {
            "MatMul",
            "ElementwiseRegion",
            "FusedMatMulBiasAct",
            "FusedResidualLN",
            "FusedResidualRmsNorm",
            "FusedSwiGLU",
            "FusedAttentionBlock",
            "FusedTransformerLayer",
        }
    ),
    extra="wgpu",
)
