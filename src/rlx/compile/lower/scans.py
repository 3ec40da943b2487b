"""Checks of what a scan computes, done once behind it, so that its steps need no host.

    scan: x = dense_solve(a, x)    ->    scan: x, y = steps of the solve, whether it found something
                                         require_factors(ys)

A scan has its number of steps, so that it comes to its end with whatever a failure leaves behind. A while loop might
not, and keeps its checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlx.compile.lower.factorizations import CAN_FAIL
from rlx.compile.lower.pair_factors import PAIRS_CAN_FAIL
from rlx.ir.graph import Graph, Node
from rlx.ir.op import Op
from rlx.ir.rewrite.rebuild import Replacement, rebuild
from rlx.ops.control.scans import Scan
from rlx.ops.lowered.factor_steps import RequireFactors

Form = Callable[..., Any]


def checked_behind(op: Op, *operands: Any) -> Form | None:
    """The form of a scan around something that can fail; None for others, and where the body has effects of its own:
    an error has its place among them."""
    assert isinstance(op, Scan)
    if op.effect or not _can_fail(op.body):
        return None

    def build(*operands: Any) -> Any:
        body, checks = _without_checks(_with_checks(op.body))
        results = op.replace(body=body)(*operands)
        count = len(op.body.outputs)
        for check, found in zip(checks, results[count:], strict=True):
            check(found)
        return results[:count] if count > 1 else results[0]

    return build


def _can_fail(body: Graph) -> bool:
    return any(_form(n, [body.tensor(i) for i in n.inputs]) is not None for n in body.nodes)


def _form(node: Node, operands: list[Any]) -> Form | None:
    if isinstance(node.op, Scan):
        return checked_behind(node.op, *operands)
    is_pair = type(node.op) in PAIRS_CAN_FAIL and any(x.dtype.is_complex for x in operands)
    form = (PAIRS_CAN_FAIL if is_pair else CAN_FAIL).get(type(node.op))
    return None if form is None else form(node.op, *operands)


def _with_checks(body: Graph) -> Graph:
    """The body with everything that can fail as steps and checks."""

    def visit(node: Node, operands: list[Any]) -> Replacement:
        form = _form(node, operands)
        replacement: Replacement = None if form is None else form(*operands)
        return replacement

    while _can_fail(body):
        body = rebuild(body, visit, "scan_checks").graph
    return body


def _without_checks(body: Graph) -> tuple[Graph, list[Op]]:
    """The body that returns what it would have checked behind all else, and the checks."""
    checks = [n for n in body.nodes if isinstance(n.op, RequireFactors)]
    rebuilt = rebuild(body, lambda node, operands: operands[0] if isinstance(node.op, RequireFactors) else None)
    graph = rebuilt.graph
    graph.outputs = [*graph.outputs, *(rebuilt.id(n.inputs[0]) for n in checks)]
    return graph.freeze(), [n.op for n in checks]
