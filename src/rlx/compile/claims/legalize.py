"""Check a program against the kinds of ops that a backend claims, and rewrite it towards them.

A kind that is not claimed is decomposed, and what it decomposes into, until everything is claimed or primitive; no
other kind is touched. An empty claim means that the backend runs everything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from rlx.compile.claims.fusion.control_flow import LowerControlFlow
from rlx.compile.claims.logical_kernel import (
    KernelDispatchConfig,
    KernelDispatchPolicy,
    registered_logical_kernels,
    should_lower_to_common,
)
from rlx.errors import BackendError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.op import kind_of
from rlx.ir.rewrite.rebuild import all_bodies, decompose_all

MAX_LINES = 20


class Offender(NamedTuple):
    """A node of a kind that the backend does not claim; for ops inside a body, the node that holds it."""

    node: NodeId
    kind: str


class LegalizeResult(NamedTuple):
    """All offenders; true when there are none."""

    offenders: tuple[Offender, ...] = ()

    @property
    def is_ok(self) -> bool:
        return not self.offenders

    def __bool__(self) -> bool:
        return self.is_ok


class LegalizeError(BackendError):
    """A program that a backend cannot run, even rewritten; `offenders` says which nodes, `reasons` why, by kind."""

    def __init__(self, backend: str, offenders: Sequence[Offender], reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(format_legalize_error(backend, offenders, reasons))
        self.offenders, self.reasons = tuple(offenders), dict(reasons or {})


def legalize_for_backend(graph: Graph, supported: Collection[str]) -> LegalizeResult:
    """The nodes, and ops inside them, whose kind is not claimed. Leaves and projections need no kernel."""
    if not supported:
        return LegalizeResult()
    offenders: dict[Offender, None] = {}
    for node in graph.nodes:
        for part in nodes_within(node):
            if not part.op.is_structural and kind_of(part.op) not in supported:
                offenders[Offender(node.id, kind_of(part.op))] = None
    return LegalizeResult(tuple(offenders))


def nodes_within(node: Node) -> list[Node]:
    """A node, and all nodes of the programs it holds."""
    return [node, *(n for body in node.op.bodies.values() for g in (body, *all_bodies(body)) for n in g.nodes)]


def format_legalize_error(
    backend: str, errors: LegalizeResult | Sequence[Offender], reasons: Mapping[str, str] | None = None
) -> str:
    """What `backend` cannot run, node by node, with the reasons that it has for kinds, and what to do about it."""
    offenders = errors.offenders if isinstance(errors, LegalizeResult) else tuple(errors)
    nodes = "1 node" if len(offenders) == 1 else f"{len(offenders)} nodes"
    lines = [f"{backend} cannot run {nodes} of this program:"]
    known = reasons or {}
    lines += [f"  {o.node}: {o.kind}{f': {known[o.kind]}' if o.kind in known else ''}" for o in offenders[:MAX_LINES]]
    if len(offenders) > MAX_LINES:
        lines.append(f"  ... and {len(offenders) - MAX_LINES} more")
    if any(o.kind == "Custom" for o in offenders):
        lines.append("a custom op runs where its OpExtension has a kernel: see rlx.OpExtension and rlx.register_op")
    lines.append("use another device (Session('reference') runs every op), or build the program from other ops")
    return "\n".join(lines)


def lower_logical_kernels(
    graph: Graph, supported: Collection[str], config: KernelDispatchConfig | KernelDispatchPolicy | None = None
) -> Graph:
    """Logical kernels as their common body of primitive ops, where the dispatch policy says so; bodies included."""
    return decompose_all(graph, keep=lambda node: not should_lower_to_common(kind_of(node.op), supported, config))


def rewrite_for_backend(graph: Graph, supported: Collection[str]) -> Graph:
    """The graph with kinds that are not claimed decomposed; the same graph when all are claimed."""
    return rewrite_for_backend_with_config(graph, supported, KernelDispatchConfig())


def rewrite_for_backend_with_dispatch(graph: Graph, supported: Collection[str], policy: KernelDispatchPolicy) -> Graph:
    """`rewrite_for_backend` under a dispatch policy."""
    return rewrite_for_backend_with_config(graph, supported, KernelDispatchConfig.of(policy))


def rewrite_for_backend_with_config(graph: Graph, supported: Collection[str], config: KernelDispatchConfig) -> Graph:
    """`rewrite_for_backend` under a dispatch policy with exceptions per kind.

    Branches and loops that are not claimed are inlined and unrolled. Kinds that the configuration forces to be native
    stay, claimed or not.
    """
    graph = lower_logical_kernels(graph, supported, config)
    if not supported:
        return graph
    kept = {*supported, *_forced_native(config)}
    control_flow = LowerControlFlow(keep=kept)
    while True:
        lowered = control_flow.run(decompose_all(graph, keep=lambda node: kind_of(node.op) in kept))
        if lowered is graph:
            return graph
        graph = lowered


def _forced_native(config: KernelDispatchConfig) -> set[str]:
    if config.policy is not KernelDispatchPolicy.ForceNative:
        return set(config.force_native_kinds)
    logical = {entry.kind for entry in registered_logical_kernels()}
    return set(config.force_native_kinds) | (logical - config.force_common_kinds)


def legalize_or_rewrite_for_backend(graph: Graph, supported: Collection[str], backend: str = "the backend") -> Graph:
    """The graph rewritten until the backend can run it; a LegalizeError with all offenders when there is no way."""
    return legalize_or_rewrite_for_backend_with_config(graph, supported, KernelDispatchConfig(), backend)


def legalize_or_rewrite_for_backend_with_dispatch(
    graph: Graph, supported: Collection[str], policy: KernelDispatchPolicy, backend: str = "the backend"
) -> Graph:
    """`legalize_or_rewrite_for_backend` under a dispatch policy."""
    return legalize_or_rewrite_for_backend_with_config(graph, supported, KernelDispatchConfig.of(policy), backend)


def legalize_or_rewrite_for_backend_with_config(
    graph: Graph, supported: Collection[str], config: KernelDispatchConfig, backend: str = "the backend"
) -> Graph:
    """`legalize_or_rewrite_for_backend` under a dispatch policy with exceptions per kind."""
    rewritten = rewrite_for_backend_with_config(graph, supported, config)
    result = legalize_for_backend(rewritten, supported)
    if not result.is_ok:
        raise LegalizeError(backend, result.offenders)
    return rewritten
