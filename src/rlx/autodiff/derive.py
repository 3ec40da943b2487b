"""Which ops have which rule, and how a missing rule is derived: by decomposing the op until every part has it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import NoRule, Op
from rlx.ir.rebuild import Rebuilt, Replacement, rebuild

Rule = Literal["jvp", "vjp", "batch"]


def has_rule(op: Op, rule: Rule) -> bool:
    """The op's class states the rule (or that there is none): nothing has to be derived."""
    if isinstance(op, Input | Param | Constant | Project):
        return True
    if getattr(type(op), rule) is not None:
        return True
    return rule == "jvp" and bool(op.linear_in or op.multilinear_in)


def no_rule(op: Op, rule: Rule) -> NoRule | None:
    """The stated reason for having no rule, if that is what the class says."""
    stated = getattr(type(op), rule)
    return stated if isinstance(stated, NoRule) else None


def expand_for(graph: Graph, rule: Rule, relevant: Callable[[Graph], Collection[NodeId]] | None = None) -> Rebuilt:
    """Decompose every (relevant) node without the rule, until all have it; ids map from the given graph."""
    ids = {n.id: n.id for n in graph.nodes}
    while True:
        chosen = relevant(graph) if relevant is not None else None
        todo = {n.id for n in graph.nodes if not has_rule(n.op, rule) and (chosen is None or n.id in chosen)}
        if not todo:
            return Rebuilt(graph, ids)
        step = rebuild(graph, _decompose_those(todo), f"derive_{rule}")
        ids = {old: step.ids[mid] for old, mid in ids.items() if mid in step.ids}
        graph = step.graph


def _decompose_those(todo: set[NodeId]) -> Callable[[Node, list[Any]], Replacement]:
    def visit(node: Node, operands: list[Any]) -> Replacement:
        if node.id not in todo:
            return None
        if node.op.decompose is None:
            raise TypeError(f"op {node.op.mnemonic} has neither the rule nor a decomposition")
        return node.op.decompose(*operands)

    return visit


def depends_on(graph: Graph, sources: Collection[NodeId]) -> set[NodeId]:
    """The nodes whose value is computed from one of `sources` through inexact (float or complex) values."""
    found: set[NodeId] = set()
    for node in graph.nodes:
        reached = node.id in sources or any(i in found for i in node.inputs)
        if reached and any(s.dtype.is_inexact for s in node.shapes):
            found.add(node.id)
    return found


def leads_to(graph: Graph, targets: Collection[NodeId]) -> set[NodeId]:
    """The nodes that one of `targets` is computed from, and the targets."""
    found = set(targets)
    for node in reversed(graph.nodes):
        if node.id in found:
            found.update(node.inputs)
    return found
