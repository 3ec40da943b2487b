"""Claims, rewriting towards them, dispatch policies, and the report that explains both."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from pass_checks import mnemonics, same_bits

from random_graphs import BINDING, graphs, inputs_for
from rlx import ops
from rlx.compile.claims.dispatch import (
    DispatchPath,
    KindDispatchSummary,
    analyze_dispatch,
    format_dispatch_report,
    maybe_log_dispatch_report,
    prepare_graph_for_backend_with_report,
)
from rlx.compile.claims.legalize import (
    LegalizeError,
    LegalizeResult,
    Offender,
    format_legalize_error,
    legalize_for_backend,
    legalize_or_rewrite_for_backend,
    legalize_or_rewrite_for_backend_with_config,
    legalize_or_rewrite_for_backend_with_dispatch,
    lower_logical_kernels,
    rewrite_for_backend,
    rewrite_for_backend_with_config,
    rewrite_for_backend_with_dispatch,
)
from rlx.compile.claims.logical_kernel import KernelDispatchConfig, KernelDispatchPolicy
from rlx.errors import BackendError
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.op import OP_CLASSES, kind_of
from rlx.ir.shape import Shape
from rlx.ir.tensor import building
from rlx.ir.verify import verify_all
from rlx.knobs import knobs
from rlx.ops.control.bodies import build_body

PRIMITIVES = frozenset(kind for kind, cls in OP_CLASSES.items() if cls.primitive)
# Families decide by kind what is primitive, so they are claimed as a whole.
FAMILIES = frozenset({"Activation", "Binary", "Reduce", "BitUnary", "Predicate", "ReduceWindow", "RandomBits"})
CLAIM = PRIMITIVES | FAMILIES
Prefer, Common, Native = KernelDispatchPolicy


def graph_of(build, *types):
    graph = Graph("test")
    with building(graph):
        results = build(*(graph.input(f"x{i}", t) for i, t in enumerate(types)))
        graph.set_outputs(results if isinstance(results, tuple) else [results])
    return graph


def values_for(graph):
    rng = np.random.default_rng(1)
    return [rng.normal(size=n.shape.dims).astype(n.shape.dtype.numpy) for n in graph.inputs]


def fused_linear():
    x, w, b = Shape((2, 3), "f32"), Shape((3, 4), "f32"), Shape((4,), "f32")
    return graph_of(lambda x, w, b: ops.FusedMatMulBiasAct("gelu")(x, w, b), x, w, b)


def group_norm():
    x, c = Shape((2, 4, 3, 3), "f32"), Shape((4,), "f32")
    return graph_of(lambda x, g, b: ops.group_norm(x, g, b, 2), x, c, c)


def test_an_empty_claim_accepts_everything():
    graph = fused_linear()
    assert legalize_for_backend(graph, ()) == LegalizeResult()
    assert legalize_for_backend(graph, ()).is_ok
    assert rewrite_for_backend(graph, ()) is graph


def test_all_offenders_are_listed_and_leaves_need_no_claim():
    graph = graph_of(lambda x: (ops.softmax(x, -1), ops.TopKWithValues(2)(x)[0]), Shape((2, 3), "f32"))
    result = legalize_for_backend(graph, {"MatMul"})
    assert not result
    assert [o.kind for o in result.offenders] == ["Softmax", "TopKWithValues"]
    assert legalize_for_backend(graph, {"Softmax", "TopKWithValues"})


def test_ops_inside_bodies_are_checked():
    body = build_body("body", lambda v: ops.softmax(v, -1), v=Shape((3,), "f32"))
    graph = graph_of(lambda p, x: ops.If(body, body)(p, x), Shape((), "bool"), Shape((3,), "f32"))
    assert legalize_for_backend(graph, {"If"}).offenders == (Offender(graph.nodes[2].id, "Softmax"),)


def test_the_error_names_backend_nodes_and_next_step():
    list(ops.Custom.samples())  # registers sample.scale
    graph = graph_of(lambda x: ops.Custom("sample.scale", np.float32(2).tobytes())(ops.exp(x)), Shape((3,), "f32"))
    result = legalize_for_backend(graph, {"MatMul"})
    text = format_legalize_error("tiny", result)
    assert text.splitlines() == [
        "tiny cannot run 2 nodes of this program:",
        "  %1: Activation",
        "  %2: Custom",
        "a custom op runs where its OpExtension has a kernel: see rlx.OpExtension and rlx.register_op",
        "use another device (Session('reference') runs every op), or build the program from other ops",
    ]
    assert format_legalize_error("tiny", result.offenders) == text
    many = [Offender(graph.nodes[1].id, "MatMul")] * 30
    assert "  ... and 10 more" in format_legalize_error("tiny", many)
    assert "Custom" not in format_legalize_error("tiny", many[:1])
    assert format_legalize_error("tiny", many[:1]).startswith("tiny cannot run 1 node of")


def test_a_fused_op_is_rewritten_for_a_primitive_claim():
    graph = fused_linear()
    rewritten = rewrite_for_backend(graph, CLAIM)
    assert legalize_for_backend(rewritten, CLAIM)
    assert verify_all(rewritten) == []
    assert "matmul" in mnemonics(rewritten)
    leaves = values_for(graph)
    np.testing.assert_allclose(interpret(rewritten, leaves)[0], interpret(graph, leaves)[0], rtol=1e-5, atol=1e-6)
    assert rewrite_for_backend(rewritten, CLAIM) is rewritten


def test_only_the_offending_kinds_are_expanded():
    x, w, b, c = Shape((2, 3), "f32"), Shape((3, 4), "f32"), Shape((4,), "f32"), Shape((4,), "f32")

    def build(x, w, b, c):
        y = ops.FusedMatMulBiasAct("gelu")(x, w, b)
        return ops.softmax(ops.FusedResidualLN()(y, y, b, c), -1)

    graph = graph_of(build, x, w, b, c)
    kinds = {kind_of(n.op) for n in rewrite_for_backend(graph, CLAIM | {"FusedResidualLN", "Softmax"}).nodes}
    assert {"FusedResidualLN", "Softmax"} <= kinds
    assert "FusedMatMulBiasAct" not in kinds


def decomposable_samples():
    for name, cls in OP_CLASSES.items():
        if cls.is_structural or cls.is_block or name in CLAIM:
            continue
        for index, sample in enumerate(cls.samples()):
            if not sample.binding:
                yield pytest.param(sample, id=f"{name}-{index}")
                break


@pytest.mark.parametrize("sample", list(decomposable_samples()))
def test_every_op_reaches_the_primitives(sample):
    dtype = sample.dtypes[0]
    graph = Graph("sample")
    inputs = [graph.input(f"x{i}", shape) for i, shape in enumerate(sample.shapes(dtype))]
    result = graph.append_node(sample.op, inputs)
    graph.set_outputs(result if isinstance(result, tuple) else [result])
    rewritten = legalize_or_rewrite_for_backend(graph, CLAIM)
    assert verify_all(rewritten) == []
    assert [rewritten.shape(o) for o in rewritten.outputs] == [graph.shape(o) for o in graph.outputs]
    assert kind_of(sample.op) not in {kind_of(n.op) for n in rewritten.nodes}


def test_branches_and_loops_are_lowered_where_they_are_not_claimed():
    positive = build_body("positive", lambda v: ops.gelu(v), v=Shape((3,), "f32"))
    negative = build_body("negative", lambda v: -v, v=Shape((3,), "f32"))
    small = build_body("small", lambda v: ops.reduce_sum(v) < 100.0, v=Shape((3,), "f32"))
    double = build_body("double", lambda v: v + v, v=Shape((3,), "f32"))

    def build(p, x):
        return ops.While(small, double, max_iterations=4)(ops.Switch((positive, negative, double))(p, x))

    graph = graph_of(build, Shape((), "i32"), Shape((3,), "f32"))
    claim = CLAIM - {"If", "While"}
    straight = legalize_or_rewrite_for_backend(graph, claim)
    assert not any(n.op.bodies for n in straight.nodes)
    for choice in (0, 1, 2):
        leaves = [np.int32(choice), np.array([1, 2, 3], "f4")]
        np.testing.assert_allclose(interpret(straight, leaves)[0], interpret(graph, leaves)[0], rtol=1e-6)
    assert legalize_or_rewrite_for_backend(graph, CLAIM | {"Switch"}) is graph


def test_an_unbounded_loop_is_an_offender():
    small = build_body("small", lambda v: ops.reduce_sum(v) < 100.0, v=Shape((3,), "f32"))
    double = build_body("double", lambda v: v + v, v=Shape((3,), "f32"))
    graph = graph_of(lambda x: ops.While(small, double)(x), Shape((3,), "f32"))
    with pytest.raises(LegalizeError, match="tiny cannot run 1 node of this program:\n  %1: While") as error:
        legalize_or_rewrite_for_backend(graph, CLAIM - {"While"}, "tiny")
    assert error.value.offenders == (Offender(graph.nodes[1].id, "While"),)
    assert isinstance(error.value, BackendError)


@pytest.mark.parametrize(
    ("claim", "config", "is_lowered"),
    [
        (CLAIM, Prefer, True),
        (CLAIM | {"GroupNorm"}, Prefer, False),
        (CLAIM | {"GroupNorm"}, Common, True),
        ((), Prefer, False),
        ((), Common, True),
        (CLAIM, Native, False),
        (CLAIM | {"GroupNorm"}, KernelDispatchConfig().with_common(["GroupNorm"]), True),
        (CLAIM, KernelDispatchConfig(Native).with_common(["GroupNorm"]), True),
        (CLAIM, KernelDispatchConfig(Common).with_native(["GroupNorm"]), False),
    ],
)
def test_logical_kernels_follow_the_policy(claim, config, is_lowered):
    graph = group_norm()
    rewritten = rewrite_for_backend_with_config(graph, claim, KernelDispatchConfig.of(config))
    assert ("group_norm" not in mnemonics(rewritten)) == is_lowered
    leaves = values_for(graph)
    np.testing.assert_allclose(interpret(rewritten, leaves)[0], interpret(graph, leaves)[0], rtol=1e-5, atol=1e-6)
    if isinstance(config, KernelDispatchPolicy):
        assert rewrite_for_backend_with_dispatch(graph, claim, config) == rewritten
        # A kind that has no body in the registry is not a logical kernel.
        assert ("group_norm" not in mnemonics(lower_logical_kernels(graph, claim, config))) == is_lowered


def test_forcing_native_fails_where_nothing_is_native():
    graph = group_norm()
    with pytest.raises(LegalizeError, match="GroupNorm"):
        legalize_or_rewrite_for_backend_with_dispatch(graph, CLAIM, Native)
    with pytest.raises(LegalizeError, match="GroupNorm"):
        legalize_or_rewrite_for_backend_with_config(graph, CLAIM, KernelDispatchConfig().with_native(["GroupNorm"]))
    assert legalize_or_rewrite_for_backend_with_dispatch(graph, CLAIM | {"GroupNorm"}, Native) is graph


@settings(max_examples=40)
@given(graphs())
def test_random_graphs_become_legal(graph):
    rewritten = legalize_or_rewrite_for_backend(graph, CLAIM)
    assert verify_all(rewritten) == []
    assert rewrite_for_backend(rewritten, CLAIM) is rewritten
    leaves = inputs_for(graph)
    for a, b in zip(interpret(graph, leaves, BINDING), interpret(rewritten, leaves, BINDING), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if not any(n.op.mnemonic in ("softmax", "cumsum", "reduce_mean") for n in graph.nodes):
            assert same_bits(a, b)


# The report


def mixed_graph():
    x, w, b, c = Shape((2, 4, 3, 3), "f32"), Shape((4,), "f32"), Shape((3, 3), "f32"), Shape((3,), "f32")

    def build(x, w, b, c):
        normed = ops.group_norm(x, w, w, 2)
        linear = ops.FusedMatMulBiasAct(None)(normed, b, c)
        return ops.exp(ops.exp(linear)), ops.TopKWithValues(2)(linear)[0]

    return graph_of(build, x, w, b, c)


def paths(report):
    return {s.kind: s.path for s in report.summaries}


def test_the_report_classifies_every_kind():
    claim = CLAIM - {"Sort"} | {"TopKWithValues"}
    graph, report = prepare_graph_for_backend_with_report(mixed_graph(), "tiny", claim, KernelDispatchConfig())
    assert legalize_for_backend(graph, claim)
    assert paths(report) == {
        "Activation": DispatchPath.Native,
        "FusedMatMulBiasAct": DispatchPath.Rewritten,
        "GroupNorm": DispatchPath.CommonIr,
        "TopKWithValues": DispatchPath.Native,
    }
    assert report.summaries[0] == KindDispatchSummary("Activation", 2, DispatchPath.Native)
    assert report.summaries[2].logical_name == "group_norm"
    assert report.common_lowered_kinds == ("GroupNorm",)
    assert report.supported_claim_count == len(claim)
    assert (report.compile_ready, report.still_unsupported) == (True, ())


def test_what_no_rewriting_helps_is_unsupported():
    claim = CLAIM - {"Activation"}
    graph, report = prepare_graph_for_backend_with_report(mixed_graph(), "tiny", claim, KernelDispatchConfig())
    assert paths(report)["Activation"] is DispatchPath.Unsupported
    assert not report.compile_ready
    assert {o.kind for o in report.still_unsupported} == {"Activation"}
    assert [graph.node(o.node).op.mnemonic for o in report.still_unsupported][-1] == "exp"


def test_the_text_of_the_report():
    _, report = prepare_graph_for_backend_with_report(
        mixed_graph(), "tiny", CLAIM | {"TopKWithValues"}, KernelDispatchConfig()
    )
    assert format_dispatch_report(report).splitlines() == [
        f"kernel dispatch: tiny, policy prefer_native, {len(CLAIM) + 1} kinds claimed",
        "lowered to common-ir: GroupNorm",
        "native:",
        "  - Activation ×2 nodes",
        "  - TopKWithValues ×1 node",
        "common-ir:",
        "  - GroupNorm ×1 node logical=group_norm",
        "rewritten:",
        "  - FusedMatMulBiasAct ×1 node",
        "compile-ready: yes",
    ]
    assert str(report) == format_dispatch_report(report)
    assert [p.label for p in DispatchPath] == ["native", "common-ir", "rewritten", "unsupported", "host"]


def test_the_text_says_what_is_missing_and_what_an_empty_claim_means():
    _, report = prepare_graph_for_backend_with_report(mixed_graph(), "any", (), KernelDispatchConfig())
    text = format_dispatch_report(report)
    assert "note: the claim is empty, which means that the backend runs every kind\n" in text
    assert set(paths(report).values()) == {DispatchPath.Native}
    graph = graph_of(ops.exp, Shape((3,), "f32"))
    _, report = prepare_graph_for_backend_with_report(graph, "tiny", {"MatMul"}, KernelDispatchConfig())
    assert format_dispatch_report(report).endswith("compile-ready: no, because of\n  %1: Activation\n")


def test_analysis_rewrites_nothing():
    graph = mixed_graph()
    before = str(graph)
    report = analyze_dispatch(graph, "tiny", CLAIM | {"TopKWithValues"}, KernelDispatchConfig())
    assert str(graph) == before
    _, prepared = prepare_graph_for_backend_with_report(
        graph, "tiny", CLAIM | {"TopKWithValues"}, KernelDispatchConfig()
    )
    assert report == prepared
    report = analyze_dispatch(graph, "tiny", CLAIM - {"Activation"}, KernelDispatchConfig())
    assert paths(report)["Activation"] is DispatchPath.Unsupported
    assert not report.compile_ready


def test_the_policy_comes_from_the_knob():
    with knobs(kernel_dispatch="common"):
        report = analyze_dispatch(mixed_graph(), "tiny", ())
    assert report.policy is Common
    assert paths(report)["GroupNorm"] is DispatchPath.CommonIr


@pytest.mark.parametrize(
    ("settings_", "prints"), [({}, False), ({"dispatch_report": True}, True), ({"verbose": 1}, True)]
)
def test_the_report_is_printed_when_asked_for(settings_, prints, capsys):
    report = analyze_dispatch(mixed_graph(), "tiny", ())
    with knobs(dispatch_report=False, verbose=0), knobs(**settings_):
        maybe_log_dispatch_report(report)
    assert capsys.readouterr().err == (format_dispatch_report(report) if prints else "")
