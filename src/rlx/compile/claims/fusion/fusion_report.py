"""What fused, what did not, and why: a product feature, not a log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from rlx.compile.claims.fusion.miss_reasons import MissReason
from rlx.compile.claims.fusion.patterns import is_activation, is_binary
from rlx.compile.claims.fusion.rule_pass import FusionPass
from rlx.compile.claims.fusion.unfuse_elementwise_regions import expand_region
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.provenance import SourceLocation, node_label
from rlx.ir.rewrite.passes import Pass, run_passes
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ir.rewrite.rules import NearMiss
from rlx.ir.shape import Size
from rlx.ir.text.pretty import human_bytes, kind_counts
from rlx.knobs import knobs
from rlx.ops.fused.regions import ElementwiseRegion
from rlx.ops.pointwise.arithmetic import BinaryOp
from rlx.ops.pointwise.unary import ActivationKind


def _default_passes() -> tuple[FusionPass, ...]:
    """What a report looks for when it is not told which passes ran."""
    from rlx.compile.claims.fusion import names

    return (
        names.FuseAttentionBlock(),
        names.FuseMatMulBiasAct(),
        names.FuseResidualLN(),
        names.FuseResidualRmsNorm(),
        names.FuseRmsNormReshape(),
        names.FuseSwiGLUDualMatmul(),
        names.FuseSharedInputMatMul(),
        names.FuseSwiGLU(),
    )


class MissedFusion(NamedTuple):
    """A pattern that is still in the program, and why."""

    pattern: str
    node: NodeId
    reason: MissReason
    # The numbers and names behind the reason.
    detail: str
    # The label of the node, and the body that holds it if one does.
    context: str
    source: SourceLocation | None
    # Estimate of the traffic that fusing would save: the value in between is written and read once less.
    bytes_lost: Size

    @property
    def hint(self) -> str:
        return self.reason.hint

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        detail = f": {self.detail}" if self.detail else ""
        return f'{self.pattern} at {self.node} "{self.context}"{where}: {self.reason}{detail}'


@dataclass(frozen=True)
class FusionReport:
    """Counts of nodes before and after fusion, of fused ops and their parts after it, and what was missed."""

    nodes_before: int = 0
    nodes_after: int = 0
    matmul_before: int = 0
    matmul_after: int = 0
    attention: int = 0
    rope: int = 0
    narrow: int = 0
    silu: int = 0
    mul: int = 0
    fused_matmul_bias_act: int = 0
    fused_swiglu: int = 0
    fused_residual_ln: int = 0
    fused_residual_rms_norm: int = 0
    fused_attention_block: int = 0
    fused_transformer_layer: int = 0
    elementwise_region: int = 0
    missed: tuple[MissedFusion, ...] = ()

    @staticmethod
    def analyze(before: Graph, after: Graph, passes: Sequence[Pass] | None = None) -> FusionReport:
        """What happened between two graphs. Only patterns that one of `passes` looks for count as missed."""
        kinds = kind_counts(after)
        return FusionReport(
            nodes_before=len(before),
            nodes_after=len(after),
            matmul_before=kind_counts(before).get("MatMul", 0),
            matmul_after=kinds.get("MatMul", 0),
            attention=kinds.get("Attention", 0),
            rope=kinds.get("Rope", 0),
            narrow=kinds.get("Narrow", 0),
            silu=sum(is_activation(n, ActivationKind.Silu) for n in after.nodes),
            mul=sum(is_binary(n, BinaryOp.Mul) for n in after.nodes),
            fused_matmul_bias_act=kinds.get("FusedMatMulBiasAct", 0),
            fused_swiglu=kinds.get("FusedSwiGLU", 0),
            fused_residual_ln=kinds.get("FusedResidualLN", 0),
            fused_residual_rms_norm=kinds.get("FusedResidualRmsNorm", 0),
            fused_attention_block=kinds.get("FusedAttentionBlock", 0),
            fused_transformer_layer=kinds.get("FusedTransformerLayer", 0),
            elementwise_region=kinds.get("ElementwiseRegion", 0),
            missed=tuple(find_missed(after, _default_passes() if passes is None else passes)),
        )

    @staticmethod
    def scan(graph: Graph, passes: Sequence[Pass] | None = None) -> FusionReport:
        """What is in one graph, and what could still be fused in it."""
        return FusionReport.analyze(graph, graph, passes)

    def with_kernels(self, counts: Mapping[str, int]) -> FusionReport:
        """The report of a program whose kernels have joined so many of the parts of these fused ops (class names)."""
        known = {"FusedMatMulBiasAct": "fused_matmul_bias_act", "FusedSwiGLU": "fused_swiglu"}
        known |= {"FusedResidualLN": "fused_residual_ln", "FusedResidualRmsNorm": "fused_residual_rms_norm"}
        return replace(self, **{known[kind]: getattr(self, known[kind]) + n for kind, n in counts.items()})

    @property
    def is_clean(self) -> bool:
        """Whether everything that should fuse did; fusions that would not pay do not count."""
        return all(miss.reason.is_choice for miss in self.missed)

    def missed_count(self, pattern: str) -> int:
        return sum(miss.pattern == pattern for miss in self.missed)

    def missed_matmul_bias_act(self) -> int:
        return self.missed_count("matmul_bias_act")

    def missed_swiglu(self) -> int:
        return self.missed_count("swiglu")

    def missed_shared_matmul(self) -> int:
        return self.missed_count("shared_input_matmul")

    @property
    def counts(self) -> dict[str, int]:
        """All counts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "missed"}

    def summary_line(self) -> str:
        return (
            f"nodes={self.nodes_before}→{self.nodes_after} matmul={self.matmul_before}→{self.matmul_after} "
            f"fused_mm_act={self.fused_matmul_bias_act} fused_swiglu={self.fused_swiglu} "
            f"elementwise_region={self.elementwise_region} missed_mm_act={self.missed_matmul_bias_act()} "
            f"missed_swiglu={self.missed_swiglu()} missed_shared_mm={self.missed_shared_matmul()}"
        )

    def __str__(self) -> str:
        shown = [f"{k}={v}" for k, v in self.counts.items() if v and not k.endswith(("_before", "_after"))]
        lines = ["fusion report", f"  {self.summary_line()}", f"  after: {', '.join(shown) or 'nothing fused'}"]
        lines.append(f"  missed: {len(self.missed) or 'nothing'}")
        for miss in self.missed:
            lines += [f"    {miss}", f"      {human_bytes(miss.bytes_lost)} of traffic; {miss.hint}"]
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        """The report as JSON, for tools."""
        return json.dumps({**self.counts, "missed": [_as_json(miss) for miss in self.missed]}, indent=1)


def _as_json(miss: MissedFusion) -> dict[str, Any]:
    source = None if miss.source is None else {"file": miss.source.file, "line": miss.source.line}
    plain = {"node": int(miss.node), "reason": str(miss.reason), "source": source, "hint": miss.hint}
    bytes_lost = miss.bytes_lost if isinstance(miss.bytes_lost, int) else str(miss.bytes_lost)
    return {**miss._asdict(), **plain, "bytes_lost": bytes_lost}


def run_fusion_passes(graph: Graph, passes: Sequence[Pass]) -> tuple[Graph, FusionReport]:
    """The graph after `passes`, and the report on them; the knob `fusion_report` prints it."""
    after = run_passes(graph, passes)
    report = FusionReport.analyze(graph, after, passes)
    if knobs.fusion_report:
        print(report, file=sys.stderr, end="")
    return after, report


def inspect_fusion(report: FusionReport) -> str:
    """The report as text."""
    return str(report)


def find_missed(graph: Graph, passes: Sequence[Pass]) -> Iterator[MissedFusion]:
    """What the fusion passes among `passes` miss in `graph`, each pattern and place once, bodies included.

    Regions are looked into: an addition that became part of one is still an addition that was not fused.
    """
    opened, home = _open_regions(graph)
    seen: set[tuple[str, NodeId, str]] = set()
    for step in passes:
        if not isinstance(step, FusionPass):
            continue
        for miss in step.missed(opened):
            found = _missed_fusion(step.pattern, opened, miss)._replace(node=home[miss.node])
            if (found.pattern, found.node, found.context) not in seen:
                seen.add((found.pattern, found.node, found.context))
                yield found
    for node in graph.nodes:
        for body in node.op.bodies.values():
            for inner in find_missed(body, passes):
                yield inner._replace(node=node.id, context=f"{inner.context} in @{body.name}")


def _missed_fusion(pattern: str, graph: Graph, miss: NearMiss) -> MissedFusion:
    node = graph.nodes[miss.node]
    context = node_label(graph, miss.node)
    return MissedFusion(
        pattern, miss.node, MissReason(miss.reason), miss.detail, context, miss.source, 2 * node.shape.byte_size
    )


def _open_regions(graph: Graph) -> tuple[Graph, dict[NodeId, NodeId]]:
    """The graph with element-wise regions taken apart, and for each of its nodes the node of `graph` it comes from."""
    home: dict[NodeId, NodeId] = {}
    if not any(isinstance(n.op, ElementwiseRegion) for n in graph.nodes):
        return graph, {n.id: n.id for n in graph.nodes}

    def visit(node: Node, operands: list[Any]) -> Replacement:
        if not isinstance(node.op, ElementwiseRegion):
            return None
        new = operands[0].graph
        start = len(new)
        result: Replacement = expand_region(node.op, *operands)
        home.update({NodeId(i): node.id for i in range(start, len(new))})
        return result

    rebuilt = rebuild(graph, visit, "inspect_fusion")
    home.update({new: old for old, new in rebuilt.ids.items()})
    return rebuilt.graph, home
