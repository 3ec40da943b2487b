"""Pass lists: their order for every target and option."""

from dataclasses import replace

import pytest
from fusion_programs import program

import rlx
from rlx import env, ops
from rlx.fusion import (
    FusionLimits,
    FusionOptions,
    FusionTarget,
    backward_cleanup_passes,
    fusion_passes,
    fusion_passes_for_supported,
    supported_for_target,
    supports_op,
)
from rlx.ir.op import OP_CLASSES
from rlx.ir.rewrite.passes import run_passes
from rlx.ir.text.pretty import kind_counts


def names(passes):
    return [p.name for p in passes]


CPU = [
    "LowerControlFlow",
    "lower_dot_general",
    "fuse_attention_block",
    "fuse_matmul_bias_act",
    "fuse_residual_ln",
    "fuse_residual_rms_norm",
    "fuse_rms_norm_reshape",
    "fuse_swiglu_dual_matmul",
    "fuse_shared_input_matmul",
    "fuse_swiglu",
    "mark_elementwise_regions",
    "unfuse_elementwise_regions",
    "dead_code_elimination",
]
FK = ["mark_batch_slice_regions", "mark_transform_regions", "fuse_region_prologue", "fuse_batch_preprocess"]


def test_the_list_of_the_cpu():
    assert len(CPU) == 13
    assert names(fusion_passes(FusionTarget.Cpu)) == CPU
    assert names(fusion_passes(FusionTarget.Cpu, FusionOptions())) == CPU
    assert names(fusion_passes(FusionTarget.Cpu, FusionOptions.for_cpu())) == CPU


def test_the_list_of_cuda_keeps_regions():
    assert names(fusion_passes(FusionTarget.Cuda)) == [*CPU[:-2], *FK, "dead_code_elimination"]


def test_lists_follow_the_claims():
    tpu = names(fusion_passes(FusionTarget.Tpu))
    assert not {"fuse_attention_block", "fuse_residual_rms_norm", "fuse_swiglu"} & set(tpu)
    assert {"fuse_matmul_bias_act", "fuse_residual_ln", "fuse_shared_input_matmul"} <= set(tpu)
    assert "fuse_attention_block" not in names(fusion_passes(FusionTarget.Metal))
    bare = names(fusion_passes_for_supported({"Reshape"}))
    assert bare == [*CPU[:2], "fuse_rms_norm_reshape", *CPU[-3:]]
    everything = names(fusion_passes_for_supported(()))
    assert everything == [*CPU[:-2], *FK, "dead_code_elimination"]


def test_claims():
    assert supports_op((), "MatMul") and supports_op({"MatMul"}, "MatMul") and not supports_op({"Conv"}, "MatMul")
    for target in FusionTarget:
        assert supported_for_target(target) <= set(OP_CLASSES)
    assert {"FusedSwiGLU", "FusedAttentionBlock"} <= supported_for_target(FusionTarget.Cuda)
    assert "FusedTransformerLayer" in supported_for_target(FusionTarget.Wgpu)


def test_skipping_fusion_leaves_two_passes():
    with rlx.knobs(metal_no_fusion=True):
        assert names(fusion_passes(FusionTarget.Metal)) == ["LowerControlFlow", "lower_dot_general"]
        assert names(fusion_passes(FusionTarget.Metal, FusionOptions.from_metal_env())) == CPU[:2]
        assert len(fusion_passes(FusionTarget.Cuda)) > 2
    assert len(fusion_passes(FusionTarget.Metal)) > 2


def test_regions_on_metal():
    assert "unfuse_elementwise_regions" not in names(fusion_passes(FusionTarget.Metal))
    with rlx.knobs(metal_unfuse_regions=True):
        assert names(fusion_passes(FusionTarget.Metal))[-2:] == CPU[-2:]
        with rlx.knobs(keep_elementwise_regions=True):
            assert "unfuse_elementwise_regions" not in names(fusion_passes(FusionTarget.Metal))


@pytest.mark.parametrize(
    ("knob", "missing"),
    [
        ("disable_matmul_bias_fusion", {"fuse_matmul_bias_act"}),
        ("disable_residual_ln_fusion", {"fuse_residual_ln", "fuse_residual_rms_norm"}),
        ("no_weight_concat_fusion", {"fuse_swiglu_dual_matmul", "fuse_shared_input_matmul"}),
        ("no_shared_input_matmul", {"fuse_shared_input_matmul"}),
        ("no_fk_fusion", set(FK)),
        ("no_native_fk_regions", set(FK)),
    ],
)
def test_ablation(knob, missing):
    usual = names(fusion_passes(FusionTarget.Cuda))
    with rlx.knobs(**{knob: True}):
        assert set(usual) - set(names(fusion_passes(FusionTarget.Cuda))) == missing


def test_switches_that_are_on_unless_told():
    for knob, name in (("fuse_region_prologue", FK[2]), ("fuse_batch_preprocess", FK[3])):
        with rlx.knobs(**{knob: False}):
            assert name not in names(fusion_passes(FusionTarget.Cuda))
    with rlx.knobs(decompose_fusion_regions=True):
        assert names(fusion_passes(FusionTarget.Cuda))[-2] == "decompose_fusion_regions"
    with rlx.knobs(native_fk_regions=False):
        assert not set(FK) & set(names(fusion_passes(FusionTarget.Wgpu)))


def test_layers_need_flag_and_claims():
    assert "fuse_transformer_layer" not in names(fusion_passes(FusionTarget.Wgpu))
    env.set("ENABLE_FUSE_TRANSFORMER_LAYER", "1")
    try:
        wgpu = names(fusion_passes(FusionTarget.Wgpu))
        assert wgpu.index("fuse_transformer_layer") == wgpu.index("fuse_rms_norm_reshape") + 1
        assert "fuse_transformer_layer" not in names(fusion_passes(FusionTarget.Cpu))
    finally:
        env.clear_overrides()


def test_options_of_targets():
    assert FusionOptions.for_target(FusionTarget.Cpu) == FusionOptions.for_cpu()
    assert FusionOptions.for_cpu().fusion_limits == FusionLimits.UNBOUNDED
    assert FusionOptions.for_wgpu() == FusionOptions(fusion_limits=FusionLimits.GPU_NATIVE)
    assert FusionOptions.for_metal() == FusionOptions.for_wgpu()
    limits = FusionLimits(3, 2)
    (mark,) = [p for p in fusion_passes(FusionTarget.Cuda, FusionOptions(fusion_limits=limits)) if p.name == CPU[10]]
    assert mark.limits == limits
    assert replace(FusionOptions(), skip_fusion=True).merge_env().skip_fusion


def test_devices_have_targets():
    wanted = {"cpu": "cpu", "metal": "metal", "mlx": "mlx", "cuda": "cuda", "rocm": "rocm", "tpu": "tpu"}
    # OpenGL is one of the interfaces through which wgpu reaches a GPU.
    wanted |= dict.fromkeys(("gpu", "vulkan", "webgpu", "opengl"), "wgpu") | dict.fromkeys(("ane", "anything"), "cpu")
    assert {device: FusionTarget.for_device(device).value for device in wanted} == wanted


def test_native_branches_are_not_lowered():
    def build(g):
        x, p = g.input("x", (3,)), g.input("p", (), "bool")
        return rlx.cond(p, lambda v: v + 1.0, lambda v: v * 2.0, x)

    graph = program("branch", build)
    assert "If" in kind_counts(run_passes(graph, fusion_passes(FusionTarget.Cpu)))
    assert "If" not in kind_counts(run_passes(graph, fusion_passes(FusionTarget.Tpu)))


def test_specific_patterns_come_before_regions():
    def build(g):
        x, w, b = g.input("x", (2, 4)), g.param("w", (4, 8)), g.param("b", (8,))
        return ops.tanh(ops.exp(ops.gelu(ops.matmul(x, w) + b)))

    kinds = kind_counts(run_passes(program("order", build), fusion_passes(FusionTarget.Cuda)))
    assert (kinds["FusedMatMulBiasAct"], kinds["ElementwiseRegion"]) == (1, 1)


def test_cleaning_up_gradients():
    assert names(backward_cleanup_passes()) == ["dead_code_elimination", "lower_dot_general"]
