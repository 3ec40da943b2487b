"""What kernels are called in reports: by what the user wrote, not by the primitives that became of it.

    matmul + transpose + reshape + add + gelu      ->    linear + gelu
    mul + reduce_sum + div + add + rsqrt + ...     ->    rms_norm
    narrow + reshape + gather + mul + sub + ...    ->    rope + cache write

Also which of the named fusions (`FusedSwiGLU`, ...) a kernel amounts to. Targets that claim such ops get them by rules;
our own kernels join the same ops without asking for their name, so they are counted where they meet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.kernel_kind import KernelKind
from rlx.ir.lir import LirKernel, LirModule
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import Activation

# Names of one kernel that are written out; the number of the others follows.
MOST_NAMES = 4


def written_name(node: Node) -> str:
    """What a node is called: what it was made from when somebody wrote it, or its own op."""
    return (node.origin.written if node.origin is not None else None) or node.op.mnemonic


def kernel_title(graph: Graph, kernel: LirKernel) -> str:
    """What a kernel computes, in the words of the program as it was written."""
    names = kernel_names(graph, kernel)
    shown = names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
    return " + ".join(shown)


def kernel_names(graph: Graph, kernel: LirKernel) -> list[str]:
    """The names of what a kernel computes, each once, in the order of the program. What only moves elements says little
    about a kernel that does more."""
    nodes = [graph.nodes[i] for i in sorted(kernel.nodes)]
    names = list(dict.fromkeys(written_name(n) for n in nodes if not n.op.only_moves))
    names = names or list(dict.fromkeys(map(written_name, nodes)))
    if {"silu", "mul"} <= set(names) and _gate(graph, kernel) is not None:
        names = ["swiglu" if name == "silu" else name for name in names if name != "mul"]
    return names


def kernel_scope(graph: Graph, kernel: LirKernel) -> str:
    """The part of a model that a kernel belongs to: that of what it stores, as far as all agree; all, if none agree."""
    scopes = [s for i in kernel.outputs or kernel.nodes if (s := scope_of(graph.nodes[i]))]
    return _common(scopes) or ", ".join(dict.fromkeys(scopes))


def scope_of(node: Node) -> str:
    """The part of a model that a node belongs to; empty if nobody has said so."""
    return (node.origin.scope if node.origin is not None else None) or ""


def _common(scopes: list[str]) -> str:
    if not scopes:
        return ""
    first, *others = (s.split(" / ") for s in scopes)
    length = len(first)
    for other in others:
        length = next((i for i, (a, b) in enumerate(zip(first[:length], other)) if a != b), min(length, len(other)))
    return " / ".join(first[:length])


def without_numbers(scope: str) -> str:
    """A scope with its numbers left out: the same for all layers of a model."""
    return re.sub(r"\d+", "*", scope)


# Named fusions.


def named_fusions(lir: LirModule) -> Counter[str]:
    """How many kernels amount to which named fusion, by the name of the fused op."""
    graph = lir.as_graph()
    return Counter(name for kernel in lir.kernels for name in fusions_of(graph, kernel))


def fusions_of(graph: Graph, kernel: LirKernel) -> list[str]:
    """The fused ops that a kernel amounts to."""
    if len(kernel.nodes) < 2:
        return []
    found = []
    nodes = [graph.nodes[i] for i in kernel.nodes]
    gate = _gate(graph, kernel)
    if gate is not None:
        found.append("FusedSwiGLU")
    if kernel.kind == KernelKind.MatMul and (_adds_bias(graph, kernel) or _activates(nodes, gate)):
        found.append("FusedMatMulBiasAct")
    if _has_residual(graph, kernel):
        written = {written_name(n) for n in nodes}
        found += [fused for norm, fused in _NORMS.items() if norm in written]
    return found


_NORMS = {"layer_norm": "FusedResidualLN", "rms_norm": "FusedResidualRmsNorm"}


def _gate(graph: Graph, kernel: LirKernel) -> NodeId | None:
    """The silu of a kernel that is multiplied by another value there, if there is one."""
    inside = set(kernel.nodes)
    for node in (graph.nodes[i] for i in kernel.nodes):
        if isinstance(node.op, Binary) and node.op.kind is BinaryOp.Mul:
            for operand in node.inputs:
                source = graph.nodes[operand]
                if operand in inside and isinstance(source.op, Activation) and source.op.mnemonic == "silu":
                    return operand
    return None


def _activates(nodes: Iterable[Node], gate: NodeId | None) -> bool:
    """Whether what a product gives goes through an activation other than that of a gate."""
    return any(isinstance(n.op, Activation) and n.id != gate for n in nodes)


def _adds_bias(graph: Graph, kernel: LirKernel) -> bool:
    """Whether a vector is added to each row."""
    sums = (n for n in (graph.nodes[i] for i in kernel.nodes) if _is_sum(n))
    return any(graph.shape(i).rank == 1 for node in sums for i in node.inputs)


def _is_sum(node: Node) -> bool:
    return isinstance(node.op, Binary) and node.op.kind is BinaryOp.Add


def _has_residual(graph: Graph, kernel: LirKernel) -> bool:
    """Whether a sum of two values of one shape is formed before anything is reduced, as in front of a norm."""
    for node in (graph.nodes[i] for i in sorted(kernel.nodes)):
        if written_name(node) in _NORMS:
            return False
        if _is_sum(node):
            a, b = (graph.shape(i) for i in node.inputs)
            if a == b and a.rank > 1:
                return True
    return False
