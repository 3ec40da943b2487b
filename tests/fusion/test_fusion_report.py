"""The report: counts, misses with their reasons, text and JSON."""

import json

import pytest
from fusion_programs import bert_block, llama_block, program, swiglu_ffn

import rlx
from rlx import ops
from rlx.fusion import (
    FuseMatMulBiasAct,
    FusionReport,
    FusionTarget,
    MarkElementwiseRegions,
    MissReason,
    fusion_passes,
    inspect_fusion,
    run_fusion_passes,
)
from rlx.ir.dims import Dim
from rlx.ir.rewrite.passes import run_passes


def product_read_twice():
    def build(g):
        x, w, b = g.input("x", ("B", 4)), g.param("w", (4, 8)), g.param("b", (8,))
        y = ops.matmul(x, w).named("proj")
        return [ops.tanh((y + b).named("shifted")), ops.reduce_sum(y, (1,))]

    return program("twice", build)


def test_counts_on_both_sides():
    graph = swiglu_ffn()
    after, report = run_fusion_passes(graph, fusion_passes(FusionTarget.Cuda))
    assert (report.nodes_before, report.nodes_after) == (9, len(after)) == (9, 8)
    assert (report.matmul_before, report.matmul_after, report.fused_swiglu) == (3, 2, 1)
    assert (report.silu, report.mul, report.narrow) == (0, 0, 0)
    assert report.missed == () and report.is_clean
    assert report.summary_line() == (
        "nodes=9→8 matmul=3→2 fused_mm_act=0 fused_swiglu=1 elementwise_region=0 "
        "missed_mm_act=0 missed_swiglu=0 missed_shared_mm=0"
    )


def test_scanning_one_graph():
    report = FusionReport.scan(swiglu_ffn())
    assert (report.nodes_before, report.nodes_after, report.silu, report.mul) == (9, 9, 1, 1)
    assert report.missed_swiglu() == report.missed_shared_matmul() == 1 and report.missed_matmul_bias_act() == 0
    assert {m.reason for m in report.missed} == {MissReason.NotFused} and not report.is_clean


def test_a_miss_says_where_and_why():
    graph = product_read_twice()
    (miss,) = FusionReport.scan(graph).missed
    assert (miss.pattern, miss.reason, miss.context) == ("matmul_bias_act", MissReason.MultiConsumer, "shifted")
    assert graph.node(miss.node).op.mnemonic == "add"
    assert miss.detail == 'matmul "proj" has 2 readers'
    assert miss.source.file == __file__
    assert miss.bytes_lost == 2 * 4 * 8 * Dim.symbol("B")
    assert miss.hint == MissReason.MultiConsumer.hint


def test_regions_are_looked_into():
    """An addition that became part of a region is still one that was not fused; the miss points at the region."""

    def build(g):
        x, w, b = ops.tanh(ops.exp(ops.neg(g.input("x", (2, 4))))), g.param("w", (4, 8)), g.param("b", (8,))
        y = ops.matmul(x, w)
        return [ops.tanh(y + b), ops.reduce_sum(y, (1,))]

    marked = MarkElementwiseRegions().run(program("regions", build))
    (miss,) = FusionReport.scan(marked).missed
    assert marked.node(miss.node).inputs[1] == marked.leaf("b").id
    assert marked.node(miss.node).op.mnemonic == "elementwise_region" and miss.reason is MissReason.MultiConsumer


def test_only_patterns_of_the_passes_that_ran():
    graph = swiglu_ffn()
    assert FusionReport.analyze(graph, graph, [FuseMatMulBiasAct()]).missed == ()
    assert {m.pattern for m in FusionReport.analyze(graph, graph).missed} == {"swiglu", "shared_input_matmul"}


def test_misses_in_bodies_point_at_the_op():
    def build(g):
        x, w, b = g.input("x", (2, 4)), g.input("w", (4, 8)), g.input("b", (8,))
        return rlx.cond(ops.reduce_sum(x) > 0.0, lambda x, w, b: x @ w - b, lambda x, w, b: x @ w, x, w, b)

    graph = program("branch", build)
    (miss,) = FusionReport.scan(graph).missed
    assert graph.node(miss.node).op.mnemonic == "if" and " in @" in miss.context
    assert miss.reason is MissReason.NonAddBiasConsumer


@pytest.mark.parametrize("build", [bert_block, llama_block, lambda: bert_block("B", "S")])
def test_ordinary_models_are_clean(build):
    """Products without a bias, residual sums and long sequences are nothing to complain about."""
    for target in (FusionTarget.Cpu, FusionTarget.Cuda):
        _, report = run_fusion_passes(build(), fusion_passes(target))
        assert report.is_clean, str(report)


def test_fused_linear_is_clean():
    def build(m):
        return m.linear_fused(m.input("x", (2, 4)), m.param("w", (4, 8)), m.param("b", (8,)), "gelu")

    graph = rlx.Graph.define("linear", build).into_mir().into_graph()
    _, report = run_fusion_passes(graph, fusion_passes(FusionTarget.Cpu))
    assert report.is_clean and report.missed == () and report.fused_matmul_bias_act == 1


def test_text():
    report = FusionReport.scan(product_read_twice())
    text = inspect_fusion(report)
    assert text == str(report)
    lines = text.splitlines()
    assert lines[0] == "fusion report" and lines[1].strip() == report.summary_line()
    assert lines[3] == "  missed: 1"
    assert lines[4].startswith('    matmul_bias_act at %4 "shifted" (') and "multi_consumer" in lines[4]
    assert lines[5].strip() == f"64*B B of traffic; {MissReason.MultiConsumer.hint}"
    assert "missed: nothing" in str(FusionReport())


def test_json():
    report = FusionReport.scan(product_read_twice())
    data = json.loads(report.json())
    assert {k: v for k, v in data.items() if k != "missed"} == report.counts
    (miss,) = data["missed"]
    assert (miss["pattern"], miss["reason"], miss["node"]) == ("matmul_bias_act", "multi_consumer", 4)
    assert miss["bytes_lost"] == "64*B" and miss["source"]["line"] > 0 and miss["hint"]


def test_reasons_are_a_closed_list_with_hints():
    assert all(reason.hint for reason in MissReason)
    assert [r for r in MissReason if r.is_choice] == [MissReason.NotProfitable]
    seed = "MultiConsumer NonAddBiasConsumer BiasRankTooHigh UnsupportedEpilogueActivation SharedMatmulCount NotFused"
    for name in (*seed.split(), "SwigluGateBeforeUp", "SwigluNotSharedInput"):
        assert hasattr(MissReason, name)


def test_the_knob_prints(capsys):
    graph = swiglu_ffn()
    run_fusion_passes(graph, fusion_passes(FusionTarget.Cpu))
    assert capsys.readouterr().err == ""
    with rlx.knobs(fusion_report=True):
        _, report = run_fusion_passes(graph, fusion_passes(FusionTarget.Cpu))
    assert capsys.readouterr().err == str(report)


def test_reports_are_the_same_every_time():
    first, second = (FusionReport.scan(run_passes(llama_block(), fusion_passes(FusionTarget.Cpu))) for _ in range(2))
    assert first.json() == second.json()
