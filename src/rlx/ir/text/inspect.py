"""Text exporters of every stage: what a person looks at while a program goes from HIR to LIR."""

from __future__ import annotations

from collections import Counter

from rlx.errors import RlxError
from rlx.ir.graph import Graph
from rlx.ir.leaves import Constant, Input, Param
from rlx.ir.lir import LirBufferPlan, LirModule
from rlx.ir.module import HirModule, MirModule
from rlx.ir.op import Op, kind_of
from rlx.ir.phase import Phase
from rlx.ir.provenance import node_label
from rlx.ir.text.pretty import (
    describe_op,
    histogram_text,
    human_bytes,
    ids_text,
    kind_counts,
    node_lines,
    pretty_print,
    pretty_stats,
    return_line,
)


def require_kind(what: str, value: object, *kinds: type) -> None:
    """Refuse what is of no accepted kind, by the name of the function that was called."""
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise RlxError(f"{what}: it shows a {wanted}, got {_article(type(value).__name__)}")


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOUH' else 'a'} {name}"


def inspect_graph(graph: Graph) -> str:
    """Header, histogram of op kinds, every node, outputs."""
    require_kind("inspect_graph", graph, Graph)
    return pretty_print(graph)


def inspect_graph_diff(before: Graph, after: Graph) -> str:
    """How a pass changed a graph: node counts, and the difference of the histograms of op kinds."""
    require_kind("inspect_graph_diff", before, Graph)
    require_kind("inspect_graph_diff", after, Graph)
    change = len(after.nodes) - len(before.nodes)
    counts = Counter(kind_counts(after))
    counts.subtract(kind_counts(before))
    changed = sorted(((kind, n) for kind, n in counts.items() if n), key=lambda item: (item[1], item[0]))
    delta = ", ".join(f"{kind}{n:+d}" for kind, n in changed) or "none"
    return f"diff: {len(before.nodes)} → {len(after.nodes)} nodes ({change:+d})\nop delta: {delta}\n"


# HIR


def inspect_hir(hir: HirModule) -> str:
    """The module with its policy; blocks are shown by what they are made of."""
    require_kind("inspect_hir", hir, HirModule)
    return "\n".join([inspect_hir_stats(hir), *node_lines(hir, _describe_block), return_line(hir)]) + "\n"


def inspect_hir_stats(hir: HirModule) -> str:
    """Name, counts, policy and the histogram of blocks; everything that is no block counts as Mir."""
    require_kind("inspect_hir_stats", hir, HirModule)
    header = f"hir @{hir.name} ({len(hir.nodes)} nodes, {len(hir.outputs)} outputs, fusion={hir.fusion_policy.name})"
    counts = Counter(block_kind(n.op) for n in hir.nodes if not isinstance(n.op, Input | Param | Constant))
    return f"{header}\n  block ops: {histogram_text(counts)}"


def block_kind(op: Op) -> str:
    """The name of a block in the seed's `HirOp`; `Mir` for ordinary ops."""
    return kind_of(op).removeprefix("Hir") if op.is_block else "Mir"


def _describe_block(op: Op) -> tuple[str, str]:
    return (str(getattr(op, "summary", op.mnemonic)), "") if op.is_block else describe_op(op)


# MIR


def inspect_mir(mir: MirModule | Graph) -> str:
    """The nodes of a program, a line each."""
    graph = _graph(mir, "inspect_mir")
    return f"mir @{graph.name} {{\n{inspect_graph(graph)}}}\n"


def inspect_mir_stats(mir: MirModule | Graph) -> str:
    """Name, counts, bytes of all values and the histogram of op kinds of a program."""
    return pretty_stats(_graph(mir, "inspect_mir_stats"))


def inspect_mir_diff(before: MirModule | Graph, after: MirModule | Graph) -> str:
    """How a pass changed a program; see `inspect_graph_diff`."""
    return inspect_graph_diff(_graph(before, "inspect_mir_diff"), _graph(after, "inspect_mir_diff"))


def inspect_mir_with_diff(before: MirModule | Graph, after: MirModule | Graph) -> str:
    """The new module, headed by what changed."""
    return inspect_mir_diff(before, after) + inspect_mir(after)


def _graph(module: MirModule | Graph, what: str) -> Graph:
    require_kind(what, module, MirModule, Graph)
    return module if isinstance(module, Graph) else module.as_graph()


# LIR


def inspect_lir(lir: LirModule) -> str:
    """Fingerprint, buffer plan, boundary and graph."""
    require_kind("inspect_lir", lir, LirModule)
    return "".join(
        [
            f"lir @{lir.name} {{\nfingerprint: {lir.fingerprint()}\n",
            inspect_buffer_plan(lir.buffers, lir.as_graph()),
            "--- mir ---\n",
            inspect_graph(lir.as_graph()),
            "}\n",
        ]
    )


def inspect_buffer_plan(plan: LirBufferPlan, graph: Graph | None = None) -> str:
    """Arena, schedule, one row per buffer and view, phases and boundary; `graph` adds the labels of nodes."""
    require_kind("inspect_buffer_plan", plan, LirBufferPlan)
    saved, total = human_bytes(plan.bytes_saved), human_bytes(plan.total_unshared_bytes)
    lines = [
        f"arena: {plan.arena_size} bytes (saved {saved} vs {total} naive, align={plan.alignment})",
        f"schedule: {len(plan.schedule)} nodes, {len(plan.view_aliases)} views",
    ]
    if plan.dynamic_symbols:
        lines.append(f"dynamic: {', '.join(plan.dynamic_symbols)}")
    lines += _buffer_table(plan, graph)
    lines += [f"{phase.name}: {ids_text(plan.nodes_in_phase(phase))}" for phase in Phase]
    lines.append(f"inputs: {_named(plan.io.inputs)}")
    lines.append(f"params: {_named(plan.io.params)}")
    lines.append(f"outputs: {ids_text(plan.io.outputs)}")
    return "\n".join(lines) + "\n"


def _named(entries: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name} {node}" for name, node in entries) or "none"


def _buffer_table(plan: LirBufferPlan, graph: Graph | None) -> list[str]:
    order = {node: i for i, node in enumerate(plan.schedule)}
    rows = [("offset", "size", "node", "sched", "phase", "")]
    for node in sorted({*plan.assignments, *plan.view_aliases}):
        slot, view, phase = plan.slot(node), plan.view_aliases.get(node), plan.phase_of(node)
        address = plan.address(node)
        label = node_label(graph, node) if graph is not None else ""
        shown = str(node) if label in ("", str(node)) else f"{node} {label}"
        rows.append(
            (
                "-" if address is None else str(address),
                "-" if slot is None else str(slot.size),
                shown,
                str(order.get(node, "-")),
                "-" if phase is None else phase.name,
                "" if view is None else f"view→{view.root}+{view.byte_offset}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
