"""The pipeline end to end: every target means what the program means, and results say what happened."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from programs import gpt_loss, llama, mlp_loss, random_values, two_layers

import rlx
from random_graphs import BINDING, graphs, inputs_for
from rlx.autodiff.graphs import GradWithLossOptions, grad_with_loss
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.claims.logical_kernel import KernelDispatchPolicy
from rlx.compile.compiler import CompilePipeline, CompileResult, TrainingCompileError
from rlx.compile.memory.node_plan import MemoryPlanOptions
from rlx.compile.pipeline import SIMPLIFY
from rlx.errors import AutodiffError, BackendError, LowerError, RlxError
from rlx.fusion import FusionTarget
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.module import GraphModule
from rlx.ir.text.graph_text import large_constants
from rlx.ir.text.lir_text import parse_lir
from rlx.ir.verify import verify_all

TARGETS = list(FusionTarget)


def kinds(lir):
    return {type(n.op).__name__ for n in lir.as_graph().nodes}


def assert_close(expected, got, rtol=1e-5, atol=1e-5):
    for a, b in zip(expected, got, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=rtol, atol=atol)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("policy", ["direct", "fusable"])
def test_a_llama_block_means_the_same_on_every_target(target, policy):
    module = llama().with_fusion_policy(policy)
    result = CompilePipeline.new(target).compile(module)
    graph = module.into_graph()
    for binding in ({"B": 1, "S": 4}, {"B": 3, "S": 2}):
        values = random_values(graph, binding)
        assert_close(interpret(graph, values), result.interpret(values))


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=12)
@given(graph=graphs(max_nodes=8))
def test_random_graphs_mean_the_same_on_every_target(target, graph):
    values = inputs_for(graph)
    result = CompilePipeline.new(target).compile(graph)
    assert verify_all(result.lir.as_graph()) == []
    for a, b in zip(interpret(graph, values, BINDING), result.interpret(values, BINDING), strict=True):
        assert a.dtype == b.dtype
        bound = {"float16": 1e-2, "bfloat16": 5e-2}.get(a.dtype.name, 1e-4)
        scale = max(1.0, float(np.abs(a.astype("f8")).max(initial=0.0)))
        np.testing.assert_allclose(b.astype("f8"), a.astype("f8"), rtol=bound, atol=bound * scale)


def test_the_program_handed_in_is_not_changed():
    graph = mlp_loss()
    before = str(graph)
    CompilePipeline.new().compile(graph)
    assert str(graph) == before
    assert not graph.is_frozen


def test_one_compile_serves_every_size_and_specialises():
    pipeline = CompilePipeline.new()
    result = pipeline.compile(two_layers())
    assert result.has_dynamic_dims()
    assert result.dynamic_symbols() == ("B", "S")
    small, large = (result.specialize(pipeline, {"B": 1, "S": s}) for s in (8, 128))
    assert not small.has_dynamic_dims()
    assert small.lir.as_graph().leaf("x").shape.dims == (1, 8, 64)
    assert 0 < small.lir.arena_size < large.lir.arena_size
    assert large.lir.arena_size <= result.lir.bind({"B": 1, "S": 128}).arena_size
    values = random_values(small.lir.as_graph(), {})
    assert_close(result.interpret(values), small.interpret(values))


def test_linear_layers_fuse_where_targets_claim_it():
    result = CompilePipeline.new("mlx").compile(two_layers("fusable"))
    assert result.fusion.fused_matmul_bias_act == 2
    assert result.fusion.matmul_after == 0
    own = CompilePipeline.new("cpu").compile(two_layers())
    assert "FusedMatMulBiasAct" not in kinds(own.lir)
    assert [k.kind for k in own.lir.kernels] == ["matmul", "matmul"]


def test_swiglu_is_recognised_in_primitive_form():
    def build(h):
        h.fusion_policy = rlx.FusionPolicy("fusable")
        x = h.input("x", (2, 16))
        return h.swiglu_ffn(x, h.param("up", (16, 32)), h.param("gate", (16, 32)), h.param("down", (32, 16)))

    result = CompilePipeline.new("mlx").compile(rlx.Graph.define("ffn", build))
    assert result.fusion.fused_swiglu >= 1
    # The joined weight is made once, not at every run.
    assert [n.op.mnemonic for n in result.prepare.as_graph().nodes if not n.is_leaf] == ["concat"]
    assert result.prepared == ("prepared.0",)
    assert {n.op.key for n in result.lir.as_graph().params} == {"prepared.0", "down"}


def test_weights_are_cast_once():
    result = CompilePipeline.new().with_precision("AutoMixedBf16").compile(two_layers())
    assert result.prepare is not None
    assert {n.op.key for n in result.prepare.as_graph().params} == {"w0", "b0", "w1", "b1"}
    casts = [n for n in result.lir.as_graph().nodes if n.op.mnemonic == "cast"]
    assert not any(result.lir.as_graph().nodes[n.inputs[0]].op.mnemonic == "param" for n in casts)
    values = random_values(two_layers().into_graph(), {"B": 1, "S": 3})
    exact = CompilePipeline.new().compile(two_layers()).interpret(values)
    assert_close(exact, result.interpret(values), rtol=3e-2, atol=0.2)


def test_everything_is_simplified_before_kernels_are_cut():
    g = Graph("redundant")
    x = g.input("x", (4,))
    y = rlx.exp(x) * 1.0 + rlx.exp(x) - 0.0
    rlx.sin(x)
    g.set_outputs([rlx.neg(rlx.neg(y))])
    graph = CompilePipeline.new().compile(g).lir.as_graph()
    assert [n.op.mnemonic for n in graph.nodes if not n.is_leaf] == ["exp", "add"]


def test_an_explicit_claim_is_obeyed():
    primitive = frozenset({"MatMul", "Binary", "Activation", "Compare", "Where", "Cast", "Expand", "Reshape", "Reduce"})
    pipeline = CompilePipeline.new().with_supported_ops(primitive)
    result = pipeline.compile(two_layers())
    assert kinds(result.lir) <= primitive | {"Input", "Param", "Constant"}
    assert result.dispatch.compile_ready
    assert "FusedMatMulBiasAct" in str(result.dispatch)
    values = random_values(two_layers().into_graph(), {"B": 2, "S": 2})
    assert_close(CompilePipeline.new().compile(two_layers()).interpret(values), result.interpret(values))
    g = Graph("sorted")
    g.set_outputs([rlx.sort(g.input("x", (4,)))])
    with pytest.raises(LegalizeError, match="cpu cannot run 1 node of this program"):
        pipeline.compile(g)


def test_fusion_can_be_required():
    clean = CompilePipeline.new("mlx").with_assert_fusion_clean()
    clean.compile(two_layers())
    g = Graph("shared")
    x, w, b = g.input("x", (4, 8)), g.param("w", (8, 8)), g.param("b", (8,))
    product = x @ w
    g.set_outputs([rlx.gelu(product + b), product])
    with pytest.raises(RlxError, match=r"assert_fusion_clean: 1 patterns did not fuse for mlx:\n  matmul_bias_act"):
        clean.compile(g)


def test_a_planned_program_is_returned_as_it_is():
    pipeline = CompilePipeline.new()
    lir = pipeline.compile(mlp_loss()).lir
    again = pipeline.compile_module(GraphModule.from_lir(lir))
    assert again.lir is lir
    assert again == CompileResult(lir, again.fusion)


def test_every_entry_gives_the_same():
    pipeline, module = CompilePipeline.new(), two_layers()
    from_module = pipeline.compile_module(module)
    assert pipeline.compile_hir(module.as_hir()) == from_module
    mir = pipeline.lower_hir(module.as_hir())
    assert pipeline.compile_mir(mir) == pipeline.compile_graph(mir.as_graph())
    by_hand = pipeline.plan_lir(pipeline.optimize(pipeline.preprocess_mir(mir)))
    assert by_hand == pipeline.compile_mir(mir).lir
    steps = [p.name for p in from_module.passes if not p.within and not p.part]
    assert [steps[0], steps[-1]] == ["lower_blocks", "plan_buffers"]
    assert {p.name for p in from_module.passes if p.within == "simplify"} == {p.name for p in SIMPLIFY}


def test_branches_become_straight_code_only_where_they_must():
    then, other = Graph("then"), Graph("other")
    for body, make in ((then, lambda v: v * 2.0), (other, lambda v: v - 1.0)):
        body.set_outputs([make(body.input("v", (3,)))])
    g = Graph("branch")
    p, x = g.input("p", (), "bool"), g.input("x", (3,))
    g.set_outputs([rlx.ops.If(then, other)(p, x)])
    values = {"p": np.array(True), "x": np.arange(3, dtype="f4")}
    for target, stays in (("cpu", True), ("tpu", False)):
        result = CompilePipeline.new(target).compile(g)
        assert ("If" in kinds(result.lir)) == stays
        assert_close([values["x"] * 2], result.interpret(values))


def test_options_and_builders():
    pipeline = CompilePipeline("cuda", arena_alignment=256).with_kernel_dispatch("force_common")
    assert pipeline.target is FusionTarget.Cuda
    assert pipeline.kernel_dispatch.policy is KernelDispatchPolicy.ForceCommon
    assert pipeline.compile(gpt_loss()).lir.buffers.alignment == 256
    with rlx.knobs(arena_align=128):
        assert CompilePipeline.new().arena_alignment == 128
    with pytest.raises(BackendError, match="there is no device 'abacus'"):
        CompilePipeline.new("abacus")
    node_by_node = pipeline.plan_lir_with_options(gpt_loss().to_mir(), MemoryPlanOptions(allocate_params=False))
    values = random_values(gpt_loss(), {"B": 2})
    assert_close(interpret(gpt_loss(), values), CompileResult(node_by_node, None).interpret(values))
    bound = pipeline.specialize_lir(node_by_node, {"B": 2})
    assert bound.is_fully_static()
    assert_close(interpret(gpt_loss(), values), CompileResult(bound, None).interpret(values))


@pytest.mark.parametrize("target", ["tpu", "cpu"])
def test_what_a_returned_view_names_is_stored_in_its_memory(target):
    graph = Graph("returned_view")
    graph.set_outputs([rlx.ops.reshape(rlx.ops.softmax(graph.input("x", ("B", 4))), ("B", 2, 2))])
    pipeline, values = CompilePipeline(target), {"x": np.ones((3, 4), np.float32)}
    lir = pipeline.compile(graph).lir
    for plan in (lir, pipeline.specialize_lir(lir, {"B": 3})):
        (output,) = plan.as_graph().outputs
        assert output not in plan.buffers.view_aliases
        assert_close(interpret(graph, values), CompileResult(plan, None).interpret(values))


def test_the_report_is_printed_on_request(capsys):
    with rlx.knobs(fusion_report=True):
        CompilePipeline.new().compile(two_layers())
        CompilePipeline.new("mlx").compile(two_layers("fusable"))
    shown = capsys.readouterr().err
    assert "cpu: @two_layers" in shown
    assert "product_operand" in shown
    assert "fused_mm_act=2" in shown


def test_names_of_the_seed_documents():
    for name in ("CompilePipeline", "CompileResult", "TrainingCompileResult", "TrainingCompileError"):
        assert getattr(rlx, name) is getattr(rlx.opt, name)
    for name in ("PipelineInspect", "inspect_pipeline", "inspect_compiled", "maybe_dump_pipeline"):
        assert getattr(rlx, name) is getattr(rlx.opt, name)
    assert rlx.opt.svg.render and rlx.opt.compiler.CompilePipeline and rlx.opt.inspect.inspect_pipeline


def test_lir_text_reads_back():
    result = CompilePipeline.new().compile(llama(2))
    for lir in (result.lir, result.prepare):
        assert str(parse_lir(str(lir), large_constants(lir.as_graph()))) == str(lir)


# Training


@pytest.mark.parametrize("target", ["cpu", "wgpu"])
@pytest.mark.parametrize("make", [mlp_loss, gpt_loss], ids=["mlp", "gpt"])
def test_training_gives_loss_and_gradients(make, target):
    graph = make()
    wrt = [n.op.key for n in graph.params]
    result = CompilePipeline.new(target).compile_training(graph.module(), wrt)
    values = random_values(grad_with_loss(graph, wrt), {"B": 3})
    expected = interpret(grad_with_loss(graph, wrt), values)
    assert_close(expected, result.backward.interpret(values), atol=1e-6)
    assert_close(expected[:1], result.forward.interpret(values))
    # Weights change at every step, so nothing is computed ahead of it.
    assert result.forward.prepare is None
    assert result.backward.prepare is None


def test_training_accepts_names_ids_and_tensors():
    graph = mlp_loss()
    by_name = CompilePipeline.new().compile_training(graph, ["w1", "b0"])
    by_id = CompilePipeline.new().compile_training_mir(graph.to_mir(), [graph.leaf("w1").id, graph.tensor(4)])
    assert graph.nodes[4].name == "b0"
    assert by_id.backward == by_name.backward


def test_blocks_are_differentiated_in_their_primitive_form():
    def build(h):
        x = h.input("x", ("B", 8))
        y = h.linear(x, h.param("w", (8, 4)), h.param("b", (4,)), "gelu")
        return rlx.reduce_sum(y * y)

    module = rlx.Graph.define("loss", build)
    hir_id = module.as_hir().leaf("w").id
    result = CompilePipeline.new("mlx").compile_training(module, [hir_id])
    assert result.forward.fusion.fused_matmul_bias_act == 1
    graph = grad_with_loss(module.as_hir().lower_for_autodiff().as_graph(), ["w"])
    values = random_values(graph, {"B": 2})
    assert_close(interpret(graph, values), result.backward.interpret(values))


def test_weights_of_both_programs_have_one_place():
    result = CompilePipeline.new().compile_training(gpt_loss(), ["qkv"])
    slots = sorted(result.weights.slots, key=lambda s: s.offset)
    assert [s.name for s in slots] == sorted(n.op.key for n in gpt_loss().params)
    for a, b in itertools.pairwise(slots):
        assert a.offset + a.size <= b.offset
        assert b.offset % 64 == 0
    for program in (result.forward.lir, result.backward.lir):
        assert not any(n.id in program.buffers.assignments for n in program.as_graph().params)


def test_training_says_what_is_wrong():
    pipeline = CompilePipeline.new()
    lir = pipeline.compile(mlp_loss()).lir
    with pytest.raises(TrainingCompileError.WrongStage, match=r"a planned program .* compile_training_mir"):
        pipeline.compile_training(GraphModule.from_lir(lir), ["w0"])
    graph = mlp_loss()
    graph.param("spare", (2,))
    with pytest.raises(AutodiffError, match="does not depend on 'spare'"):
        pipeline.compile_training(graph, ["spare"])
    zeros = pipeline.compile_training(graph, ["spare"], GradWithLossOptions.TRAINING).backward
    assert_close([np.zeros(2, "f4")], zeros.interpret(random_values(zeros.lir.as_graph(), {"B": 2}))[1:])
    assert issubclass(TrainingCompileError.Lower, TrainingCompileError)
    assert str(TrainingCompileError.Lower(LowerError("no bias"))).endswith("cannot be lowered: no bias")
