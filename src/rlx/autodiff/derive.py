"""Which ops have which rule, and how a missing rule is derived: by decomposing the op until every part has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

from rlx.errors import InternalError
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import NoRule, Op
from rlx.ir.rewrite.rebuild import Rebuilt, Replacement, rebuild, unchanged

Rule = Literal["jvp", "vjp", "batch"]
# An equivalent of an op: a function of its operands.
Form = Callable[..., Any]


def has_rule(op: Op, rule: Rule) -> bool:
    """The op's class states the rule (or that there is none): nothing has to be derived."""
    if isinstance(op, Input | Param | Constant | Project):
        return True
    if getattr(type(op), rule) is not None:
        return True
    return rule == "jvp" and bool(op.linear_in or op.multilinear_in)


def no_rule(op: Op, rule: Rule) -> NoRule | None:
    """The stated reason for having no rule: that of the class, or of this op alone (`op.refusal(rule)`)."""
    stated = getattr(type(op), rule)
    if isinstance(stated, NoRule):
        return stated
    own = getattr(op, "refusal", None)
    refused: NoRule | None = own(rule) if own is not None else None
    return refused


def form_for(op: Op, rule: Rule, active: Sequence[bool]) -> Form | None:
    """What has to replace the op before the rule can be applied to it, or None when it is ready.

    An op may choose by its own `form_for(rule, active)`: a scan that has to save its carries for reverse mode, say.
    `active` tells which operands are differentiated or batched. All other ops decompose when they lack the rule.
    """
    own = getattr(op, "form_for", None)
    if own is not None:
        chosen: Form | None = own(rule, tuple(active))
        return chosen
    if has_rule(op, rule):
        return None
    if op.decompose is None:
        raise InternalError(f"op {op.mnemonic} has neither a {rule} rule nor a decomposition")
    return op.decompose


def expand_for(graph: Graph, rule: Rule, relevant: Callable[[Graph], Collection[NodeId]]) -> Rebuilt:
    """Replace relevant nodes until the rule can be applied to all of them; ids map from the given graph."""
    result = unchanged(graph)
    while True:
        active = relevant(result.graph)
        forms: dict[NodeId, Form] = {}
        for node in result.graph.nodes:
            if node.id in active and (form := form_for(node.op, rule, [i in active for i in node.inputs])) is not None:
                forms[node.id] = form
        if not forms:
            return result
        result = result.then(rebuild(result.graph, _replace_by(forms), f"derive_{rule}"))


def _replace_by(forms: dict[NodeId, Form]) -> Callable[[Node, list[Any]], Replacement]:
    def visit(node: Node, operands: list[Any]) -> Replacement:
        form = forms.get(node.id)
        return None if form is None else form(*operands)

    return visit


def leaves_in(graph: Graph, original: Graph, ids: Collection[NodeId]) -> list[NodeId]:
    """Leaves of `original` in a rewrite of it; leaves keep their names."""
    keys = [op.key for op in (original.nodes[i].op for i in ids) if isinstance(op, Input | Param)]
    return [graph.leaf(key).id for key in keys]


def leading_to(graph: Graph, targets: Collection[NodeId], dependent: Collection[NodeId]) -> set[NodeId]:
    """Of the nodes `dependent` those that reach one of `targets` through nodes of the same kind: a value that is only
    read behind `stop_gradient`, or as an integer, is not asked for a derivative."""
    found = {i for i in targets if i in dependent}
    for node in reversed(graph.nodes):
        if node.id in found:
            found.update(i for i in node.inputs if i in dependent)
    return found
