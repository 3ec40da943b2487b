"""Evaluate what depends on constants only, by the definition of the ops themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rlx.errors import RlxError
from rlx.ir.dead_code import remove_dead_nodes
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant, Project
from rlx.ir.passes import Pass
from rlx.ir.rebuild import Replacement, map_bodies, rebuild
from rlx.ir.tensor import Tensor
from rlx.ir.tensor_data import TensorData

# A folded value may be this large, or as large as what it was computed from: an expanded scalar stays an expansion.
MAX_BYTES = 1 << 16


class ConstantFolding(Pass):
    """Replace pure nodes whose operands are all constants by their value; params and inputs never fold."""

    name = "constant_folding"

    def run(self, graph: Graph) -> Graph:
        changed = False

        def visit(node: Node, operands: list[Any]) -> Replacement:
            nonlocal changed
            constants = [_constant(x) for x in operands]
            if (
                node.inputs
                and not node.op.effect
                and all(c is not None for c in constants)
                and _is_small(node, constants)
            ):
                values = _evaluate(node, [c.array for c in constants if c is not None])
                if values is not None:
                    changed = True
                    results = [operands[0].graph.constant(TensorData(np.asarray(v))) for v in values]
                    return results[0] if len(results) == 1 else results
            new = map_bodies(node.op, self.run)
            if new is node.op:
                return None
            changed = True
            replacement: Replacement = new(*operands)
            return replacement

        folded = rebuild(graph, visit, self.name).graph
        return remove_dead_nodes(folded).graph if changed else graph


def _constant(x: Tensor) -> TensorData | None:
    op = x.node.op
    return op.value if isinstance(op, Constant) else None


def _is_small(node: Node, operands: Iterable[TensorData | None]) -> bool:
    if isinstance(node.op, Project) or not all(s.is_static for s in node.shapes) or node.op.dynamic_symbols():
        return False
    size = sum(s.size_bytes() or 0 for s in node.shapes)
    return size <= max(MAX_BYTES, sum(c.array.nbytes for c in operands if c is not None))


def _evaluate(node: Node, operands: list[np.ndarray[Any, Any]]) -> list[Any] | None:
    """The results of a node, or None when it is one that must fail at run time (a singular matrix, say)."""
    try:
        result = node.op.eval(*operands)
    except RlxError:
        return None
    return list(result) if isinstance(result, tuple) else [result]
