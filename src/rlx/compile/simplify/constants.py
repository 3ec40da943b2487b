"""Evaluate what depends on constants only, by the definition of the ops themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx.errors import RlxError
from rlx.ir.graph import Graph, Node
from rlx.ir.leaves import Constant
from rlx.ir.op import Op
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ir.rewrite.equal_nodes import is_pure
from rlx.ir.rewrite.passes import Pass
from rlx.ir.rewrite.rebuild import Replacement, rebuild, rebuild_bodies
from rlx.ir.tensor import Tensor
from rlx.ir.tensor_data import TensorData
from rlx.ops.parallel.collectives import Collective

# Operands larger than this are left for the program that prepares weights: compiling must stay fast.
MAX_OPERAND_BYTES = 1 << 20
# A result may be this large, or as large as what it is computed from: an expanded scalar stays an expansion.
MAX_RESULT_BYTES = 1 << 16


class ConstantFolding(Pass):
    """Replace nodes whose operands are all constants by their value, bodies included; params and inputs never fold.

    Left alone are ops that are not pure, ops that hold programs (a loop need not end), and what is too large. A node
    that fails, a factorisation of a singular matrix say, is left to fail when the program runs.
    """

    name = "constant_folding"

    def run(self, graph: Graph) -> Graph:
        graph = rebuild_bodies(graph, self.run, self.name).graph
        if not any(_is_foldable(graph, node) for node in graph.nodes):
            return graph
        folds = 0

        def visit(node: Node, operands: list[Tensor]) -> Replacement:
            nonlocal folds
            values = _folded(node, operands)
            if values is None:
                return None
            folds += 1
            results = [operands[0].graph.constant(TensorData(np.asarray(v))) for v in values]
            return results[0] if len(results) == 1 else results

        rebuilt = rebuild(graph, visit, self.name).graph
        return remove_dead_nodes(rebuilt).graph if folds else graph


def _is_foldable(graph: Graph, node: Node) -> bool:
    """Whether a node may fold before anything else has."""
    return bool(node.inputs) and all(isinstance(graph.nodes[i].op, Constant) for i in node.inputs)


def _folded(node: Node, operands: Sequence[Tensor]) -> list[Any] | None:
    """The results of a node, or None when it must not or cannot be evaluated now."""
    constants = [x.node.op.value for x in operands if isinstance(x.node.op, Constant)]
    if not constants or len(constants) < len(operands) or not _may_fold(node.op) or not _is_small(node, constants):
        return None
    try:
        result = node.op.eval(*(c.array for c in constants))
    except RlxError:
        return None
    return list(result) if isinstance(result, tuple) else [result]


def _may_fold(op: Op) -> bool:
    # What a collective gives depends on who asks, even when all have the same operand.
    return is_pure(op) and not op.bodies and not isinstance(op, Collective)


def _is_small(node: Node, operands: Sequence[TensorData]) -> bool:
    if not all(s.is_static for s in node.shapes) or node.op.dynamic_symbols():
        return False
    read = sum(c.array.nbytes for c in operands)
    made = sum(s.size_bytes() or 0 for s in node.shapes)
    return read <= MAX_OPERAND_BYTES and made <= max(MAX_RESULT_BYTES, read)
