"""How each kind of op reaches a device: natively, by a common body, rewritten, or not at all."""

from __future__ import annotations

import enum
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from rlx.compile.claims.fusion.fusion_options import supports_op
from rlx.compile.claims.legalize import (
    Offender,
    legalize_for_backend,
    nodes_within,
    rewrite_for_backend_with_config,
)
from rlx.compile.claims.logical_kernel import (
    KernelDispatchConfig,
    KernelDispatchPolicy,
    registered_logical_kernels,
    should_lower_to_common,
)
from rlx.ir.graph import Graph
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.lir import LirModule
from rlx.ir.op import kind_of
from rlx.knobs import knobs


class DispatchPath(enum.StrEnum):
    """What runs a kind of op."""

    Native = "native"
    CommonIr = "common-ir"
    Rewritten = "rewritten"
    Unsupported = "unsupported"
    Host = "host"

    @property
    def label(self) -> str:
        return self.value


class KindDispatchSummary(NamedTuple):
    """One kind: how many nodes of it there were, what runs them, and the name of its logical kernel."""

    kind: str
    node_count: int
    path: DispatchPath
    logical_name: str | None = None


class KernelDispatchReport(NamedTuple):
    """Every kind of a program, sorted by name, and whether a backend can compile it."""

    backend_name: str
    policy: KernelDispatchPolicy
    supported_claim_count: int
    summaries: tuple[KindDispatchSummary, ...]
    common_lowered_kinds: tuple[str, ...]
    still_unsupported: tuple[Offender, ...]
    compile_ready: bool

    def __str__(self) -> str:
        return format_dispatch_report(self)


def analyze_dispatch(
    graph: Graph, backend: str, supported: Collection[str], config: KernelDispatchConfig | None = None
) -> KernelDispatchReport:
    """The report without rewriting anything: a kind that is not claimed counts as rewritten when it has another form,
    whatever that leads to."""
    config = KernelDispatchConfig.from_env() if config is None else config
    has_form = _kinds_with_another_form(graph)
    paths = {}
    for kind in _count_kinds(graph):
        if should_lower_to_common(kind, supported, config):
            paths[kind] = DispatchPath.CommonIr
        elif supports_op(supported, kind):
            paths[kind] = DispatchPath.Native
        else:
            paths[kind] = DispatchPath.Rewritten if kind in has_form else DispatchPath.Unsupported
    offenders = legalize_for_backend(graph, supported).offenders
    unsupported = tuple(o for o in offenders if paths[o.kind] is DispatchPath.Unsupported)
    return _report(graph, backend, supported, config, paths, unsupported)


def prepare_graph_for_backend_with_report(
    graph: Graph, backend: str, supported: Collection[str], config: KernelDispatchConfig | None = None
) -> tuple[Graph, KernelDispatchReport]:
    """The graph rewritten for a backend, and what became of each kind it had."""
    config = KernelDispatchConfig.from_env() if config is None else config
    rewritten = rewrite_for_backend_with_config(graph, supported, config)
    offenders = legalize_for_backend(rewritten, supported).offenders
    illegal, after = {o.kind for o in offenders}, _count_kinds(rewritten)
    paths = {}
    for kind in _count_kinds(graph):
        if should_lower_to_common(kind, supported, config):
            paths[kind] = DispatchPath.CommonIr
        elif kind in illegal:
            paths[kind] = DispatchPath.Unsupported
        else:
            paths[kind] = DispatchPath.Native if kind in after else DispatchPath.Rewritten
    return rewritten, _report(graph, backend, supported, config, paths, offenders)


def dispatch_of_kernels(
    graph: Graph, lir: LirModule, target: str, config: KernelDispatchConfig
) -> KernelDispatchReport:
    """What became of each kind of a program whose kernels a generator has made: a kind that is in a kernel is native,
    one that is in none was rewritten."""
    compiled = lir.as_graph()
    native, hosted = set[str](), set[str]()
    for kernel in lir.kernels:
        found = hosted if kernel.kind == KernelKind.Call else native
        found.update(kind_of(part.op) for i in kernel.nodes for part in nodes_within(compiled.nodes[i]))
    paths = {}
    for kind in _count_kinds(graph):
        is_there = kind in native or kind in hosted
        paths[kind] = DispatchPath.Rewritten if not is_there else DispatchPath.Native
        if kind in hosted:
            paths[kind] = DispatchPath.Host
    return _report(graph, target, (), config, paths, ())


def _count_kinds(graph: Graph) -> Counter[str]:
    """How many nodes of each kind there are, bodies included."""
    parts = (part.op for node in graph.nodes for part in nodes_within(node))
    return Counter(kind_of(op) for op in parts if not op.is_structural)


def _kinds_with_another_form(graph: Graph) -> set[str]:
    parts = (part.op for node in graph.nodes for part in nodes_within(node))
    return {kind_of(op) for op in parts if not op.is_primitive or op.has_straight_form}


def _report(
    graph: Graph,
    backend: str,
    supported: Collection[str],
    config: KernelDispatchConfig,
    paths: Mapping[str, DispatchPath],
    unsupported: tuple[Offender, ...],
) -> KernelDispatchReport:
    counts = _count_kinds(graph)
    names = {entry.kind: entry.name for entry in registered_logical_kernels()}
    summaries = tuple(KindDispatchSummary(kind, counts[kind], paths[kind], names.get(kind)) for kind in sorted(counts))
    common = tuple(s.kind for s in summaries if s.path is DispatchPath.CommonIr)
    return KernelDispatchReport(
        backend, config.policy, len(supported), summaries, common, unsupported, compile_ready=not unsupported
    )


def format_dispatch_report(report: KernelDispatchReport) -> str:
    """The report as text, one group per path."""
    lines = [
        f"kernel dispatch: {report.backend_name}, policy {report.policy}, {report.supported_claim_count} kinds claimed"
    ]
    if not report.supported_claim_count:
        lines.append("note: the claim is empty, which means that the backend runs every kind")
    if report.common_lowered_kinds:
        lines.append(f"lowered to common-ir: {', '.join(report.common_lowered_kinds)}")
    for path in DispatchPath:
        group = [s for s in report.summaries if s.path is path]
        if group:
            lines.append(f"{path.label}:")
            lines += [_line(s) for s in group]
    if report.still_unsupported:
        lines.append("compile-ready: no, because of")
        lines += [f"  {o.node}: {o.kind}" for o in report.still_unsupported]
    else:
        lines.append("compile-ready: yes")
    return "\n".join(lines) + "\n"


def _line(summary: KindDispatchSummary) -> str:
    nodes = "1 node" if summary.node_count == 1 else f"{summary.node_count} nodes"
    logical = f" logical={summary.logical_name}" if summary.logical_name else ""
    return f"  - {summary.kind} ×{nodes}{logical}"


def maybe_log_dispatch_report(report: KernelDispatchReport) -> None:
    """Print the report to standard error when the knobs `dispatch_report` or `verbose` ask for it."""
    if knobs.dispatch_report or knobs.verbose:
        print(format_dispatch_report(report), end="", file=sys.stderr)
