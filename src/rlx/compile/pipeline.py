"""The order of everything between a program and its kernels. Each step says why it stands where it does.

Two ways lead from MIR to LIR. Targets with our own generator get ops grouped into kernels: `optimize_for_generator`,
then `plan_kernels`. Targets that bring their own kernels get the fused ops they claim: `optimize_for_claims`, then
`plan_ops`. `rlx.compile.compiler` puts options, reports and results around these steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from rlx.compile.claims.dispatch import (
    KernelDispatchReport,
    maybe_log_dispatch_report,
    prepare_graph_for_backend_with_report,
)
from rlx.compile.claims.fusion.control_flow import LowerControlFlow
from rlx.compile.claims.fusion.fusion_limits import FusionLimits
from rlx.compile.claims.fusion.fusion_pipeline import supports_op
from rlx.compile.claims.fusion.fusion_report import FusionReport
from rlx.compile.claims.fusion.unfuse_elementwise_regions import clip_elementwise_regions
from rlx.compile.claims.legalize import LegalizeError
from rlx.compile.claims.logical_kernel import KernelDispatchConfig
from rlx.compile.fuse.barriers import UnfusedEdge
from rlx.compile.fuse.group import group
from rlx.compile.generators import Generator
from rlx.compile.lower.lower import kernel_forms
from rlx.compile.memory.in_place import store_in_place, with_copies
from rlx.compile.memory.liveness import is_pure_view
from rlx.compile.memory.plan import ALIGNMENT, plan_buffers
from rlx.compile.precision.apply import AutoMixedPrecision
from rlx.compile.precision.policy import PrecisionPolicy
from rlx.compile.simplify.algebra import AlgebraicSimplify
from rlx.compile.simplify.common_values import CommonSubexpressionElimination
from rlx.compile.simplify.constants import ConstantFolding
from rlx.compile.stages import Stages
from rlx.compile.weights.join_products import join_products
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Project
from rlx.ir.lir import LirKernel, LirModule
from rlx.ir.rewrite.dead_code import DeadCodeElimination
from rlx.ir.rewrite.passes import Pass, PassRecord, run_passes
from rlx.ir.rewrite.rebuild import decompose_all
from rlx.ir.verify import debug_assert_valid
from rlx.ops.control.body_calls import KeepPrecision
from rlx.ops.fused.blocks import FusedAttentionBlock, FusedTransformerLayer
from rlx.ops.fused.layers import FusedMatMulBiasAct, FusedResidualLN, FusedResidualRmsNorm, FusedSwiGLU

FUSED_OPS = (
    FusedMatMulBiasAct,
    FusedResidualLN,
    FusedResidualRmsNorm,
    FusedSwiGLU,
    FusedAttentionBlock,
    FusedTransformerLayer,
)

Records = list[PassRecord]


def lower_to_lir(program: Any, generator: Generator) -> LirModule:
    """HIR or MIR to LIR, for a target with our own generator."""
    stages = Stages(program_graph(program))
    # Blocks first: everything after this sees tensor ops only.
    graph = stages.run("mir", lower_blocks, program)
    # Fewer and simpler ops make larger kernels.
    graph = stages.run("optimized.mir", optimize_for_generator, graph)
    # Cut before planning: only what crosses a kernel boundary needs memory.
    return stages.run("lir", lambda: plan_kernels(graph, generator).lir)


def lower_blocks(program: Any) -> Graph:
    """The MIR graph of a program at any stage."""
    if hasattr(program, "lower_to_mir"):
        program = program.lower_to_mir()
    graph: Graph = program.into_graph() if hasattr(program, "into_graph") else program
    return graph


def program_graph(program: Any) -> Any:
    """The graph of a program at its own stage: HIR stays HIR."""
    content = getattr(program, "content", program)
    return content if isinstance(content, Graph) else content.as_graph()


def preprocess(graph: Graph, claims: Collection[str], records: Records | None = None) -> Graph:
    """Straight code for targets that run neither branches nor loops, before anything looks for patterns in it."""
    kept = [kind for kind in ("If", "While") if supports_op(claims, kind)]
    return run_passes(graph, [LowerControlFlow(kept), DeadCodeElimination()], records)


# In this order: rules leave constant expressions behind, folding makes equal nodes, merging leaves dead ones.
SIMPLIFY: tuple[Pass, ...] = (
    AlgebraicSimplify(),
    ConstantFolding(),
    CommonSubexpressionElimination(),
    DeadCodeElimination(),
)
# Each round works on what the one before it has made; programs of people come to rest after two or three.
MAX_ROUNDS = 8


_skipped: ContextVar[frozenset[str]] = ContextVar("rlx_skipped_passes", default=frozenset())


@contextmanager
def without_passes(names: Collection[str]) -> Iterator[None]:
    """Inside, in this thread or task, `simplify` leaves out the passes of these names."""
    token = _skipped.set(frozenset(names))
    try:
        yield
    finally:
        _skipped.reset(token)


def simplify(graph: Graph, records: Records | None = None) -> Graph:
    """Simplify, fold, merge and clean up until nothing changes."""
    passes = [p for p in SIMPLIFY if p.name not in _skipped.get()]
    for _ in range(MAX_ROUNDS):
        before, graph = graph, run_passes(graph, passes, records)
        if graph is before:
            break
    return graph


def convert(graph: Graph, precision: PrecisionPolicy, records: Records | None = None) -> Graph:
    """The graph with its floats in the precision that a policy asks for."""
    before = graph
    if precision != PrecisionPolicy.AlwaysF32:
        graph = run_passes(graph, [AutoMixedPrecision(precision)], records)
    # Types are settled, so what had to keep them may mix with the rest.
    graph = decompose_all(graph, keep=lambda node: not isinstance(node.op, KeepPrecision))
    # Casts of neighbours meet and cancel, and casts of weights become part of `prepare`.
    return graph if graph is before else simplify(graph, records)


def optimize_for_generator(
    graph: Graph,
    precision: PrecisionPolicy = PrecisionPolicy.AlwaysF32,
    records: Records | None = None,
    has_prepare: bool = False,
) -> Graph:
    """MIR for a target with our own generator: primitive enough to group, and nothing computed twice.

    With `has_prepare` what follows from weights alone will not be computed in every run.
    """
    # Fused ops are taken apart, so that one mechanism, the grouping, decides what runs together.
    graph = decompose_all(graph, keep=lambda node: not isinstance(node.op, FUSED_OPS))
    # What is dead, equal or constant would make values look shared and keep kernels apart.
    graph = simplify(graph, records)
    # After simplification, which is exact only where types are as the user wrote them.
    graph = convert(graph, precision, records)
    # Products read their common operand once. Weights have their final types now and can be joined once for all runs.
    return simplify(join_products(graph), records) if has_prepare else graph


def optimize_for_claims(
    graph: Graph,
    passes: Sequence[Pass],
    limits: FusionLimits,
    precision: PrecisionPolicy = PrecisionPolicy.AlwaysF32,
    records: Records | None = None,
) -> tuple[Graph, FusionReport]:
    """MIR in the fused ops that a target claims, and what fusion did."""
    before = graph
    # Patterns are written for canonical forms.
    graph = simplify(graph, records)
    graph = run_passes(graph, passes, records)
    # Passes join without looking at the sum; kernels of devices have room for so much.
    graph = clip_elementwise_regions(graph, limits)
    # Precision after fusion: a fused op casts at its border only.
    graph = convert(graph, precision, records)
    # Fusion makes constants and equal nodes, too: joined weights, expanded biases.
    graph = simplify(graph, records)
    return graph, FusionReport.analyze(before, graph, passes)


def legalize(
    graph: Graph, backend: str, supported: Collection[str], config: KernelDispatchConfig
) -> tuple[Graph, KernelDispatchReport]:
    """The graph in the ops that a backend claims, and how each kind got there.

    After fusion, which uses some of what this would take apart.
    """
    legal, report = prepare_graph_for_backend_with_report(graph, backend, supported, config)
    maybe_log_dispatch_report(report)
    if not report.compile_ready:
        raise LegalizeError(backend, report.still_unsupported)
    return simplify(legal), report


class Planned(NamedTuple):
    """LIR, and why its kernels are not fewer."""

    lir: LirModule
    barriers: tuple[UnfusedEdge, ...] = ()


def plan_kernels(graph: Graph, generator: Generator, alignment: int = ALIGNMENT) -> Planned:
    """LIR for a target with our own generator: ops grouped into kernels, and a place for what they store."""
    # Last, because rules and precision policies know the ops of users: norms, losses, softmax.
    graph = with_copies(kernel_forms(graph, generator), generator)
    kernels, barriers = group(graph, generator)
    # Which copies are needed depends on the order of kernels, so on how they were formed.
    kernels, stored_over = store_in_place(graph, kernels, generator)
    return Planned(_planned(graph, kernels, alignment, stored_over), tuple(barriers))


def plan_ops(graph: Graph, alignment: int = ALIGNMENT) -> Planned:
    """LIR for a target with kernels of its own: one kernel per op, none for views."""
    nodes = [n for n in graph.nodes if not n.is_leaf and not isinstance(n.op, Constant)]
    return Planned(_planned(graph, [_op_kernel(graph, n) for n in nodes], alignment))


def _op_kernel(graph: Graph, node: Node) -> LirKernel:
    is_view = isinstance(node.op, Project) or (len(node.shapes) == 1 and node.inputs and is_pure_view(graph, node))
    return LirKernel.of("view" if is_view else "op", [node.id], dict.fromkeys(node.inputs), [node.id])


def _planned(
    graph: Graph, kernels: Sequence[LirKernel], alignment: int, stored_over: Mapping[NodeId, NodeId] | None = None
) -> LirModule:
    plan = plan_buffers(graph, kernels, alignment, stored_over)
    debug_assert_valid(graph, "plan")
    # A copy: when no pass had anything to do, this is still the caller's own graph.
    return LirModule(graph.copy().freeze(), plan, kernels)
