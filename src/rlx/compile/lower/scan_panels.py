"""Weights that every step of a scan multiplies with, in panels: laid out once before it, the way kernels read them.

    scan(body: h @ w)    ->    P = panels of w;  scan(body: h @ (P read back as w))

A step multiplies few rows, for which the lines of w that lie a page apart would be waited for again and again.
"""

from __future__ import annotations

from typing import Any

from rlx.compile.generators import Generator
from rlx.compile.lower.small_loops import small_bodies
from rlx.compile.weights.pack_floats import as_panels, from_panels, panels_of
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Constant, Input
from rlx.ir.rewrite.rebuild import rebuild
from rlx.ir.shape import Shape
from rlx.ir.tensor import Tensor, building
from rlx.ops.control.scans import Scan
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.shape.movement import Transpose, transpose

# Scans of fewer steps do not repay the copy.
FEWEST_STEPS = 4
_TURNED = (1, 0)


def scan_panels(graph: Graph, generator: Generator) -> Graph:
    """The graph with weights of its scans in panels; the same if there are none."""
    if not any(isinstance(n.op, Scan) for n in graph.nodes):
        return graph

    def visit(node: Node, operands: list[Any]) -> Any:
        op = node.op
        if not isinstance(op, Scan) or (isinstance(op.length, int) and op.length < FEWEST_STEPS):
            return None
        wide = _wide_weights(op, generator)
        # What one kernel computes with all its steps has its own way with weights.
        if not wide or small_bodies(op, tuple(graph.shape(i) for i in node.inputs), generator) is not None:
            return None
        return _in_panels(op, wide, operands, generator)

    return rebuild(graph, visit, "scan_panels").graph


def _wide_weights(op: Scan, generator: Generator) -> dict[NodeId, int]:
    """The second operands of products in the body that all steps share, turned or not: the width of their panels."""
    leaves = [n.id for n in op.split(op.body.inputs)[1]]
    found: dict[NodeId, int] = {}
    for node in op.body.nodes:
        if isinstance(node.op, MatMul) and _leaf_below(op.body, node.inputs[1]) in leaves:
            assert generator.panel_width is not None
            width = panels_of(op.body, node, generator.panel_width)
            if width is not None:
                found[node.inputs[1]] = width
    return found


def _leaf_below(body: Graph, weight: NodeId) -> NodeId:
    node = body.nodes[weight]
    return node.inputs[0] if isinstance(node.op, Transpose) and node.op.perm == _TURNED else weight


def _in_panels(op: Scan, wide: dict[NodeId, int], operands: list[Any], generator: Generator) -> Any:
    """The scan with one operand more for each of the weights."""
    place = {leaf.id: number for number, leaf in enumerate(op.body.inputs)}
    panels: dict[NodeId, Tensor] = {}
    for weight, width in wide.items():
        leaf = _leaf_below(op.body, weight)
        value = operands[place[leaf]]
        panels[weight] = as_panels(value if leaf == weight else transpose(value, _TURNED), width, generator.has_pairs)
    body = _reading(op.body, op.num_carry + op.num_bcast, {w: p.type for w, p in panels.items()})
    first_x = op.num_carry + op.num_bcast
    shared = (*operands[:first_x], *panels.values(), *operands[first_x:])
    return op.replace(body=body, num_bcast=op.num_bcast + len(panels))(*shared)


def _reading(body: Graph, behind: int, panels: dict[NodeId, Shape]) -> Graph:
    """The body with panels as inputs `behind` so many others, from which products read these weights."""
    new = Graph(body.name)
    new.constraints.extend(body.constraints)
    ids: dict[NodeId, NodeId] = {}
    read: dict[NodeId, NodeId] = {}
    with building(new):
        for number, leaf in enumerate((*body.inputs, None)):
            if number == behind:
                for count, (weight, kind) in enumerate(panels.items()):
                    lies = new.input(f"panels{count}", kind.dims, kind.dtype)
                    read[weight] = from_panels(lies, body.shape(weight)).id
            if leaf is not None:
                ids[leaf.id] = new.input(str(leaf.name), leaf.shape.dims, leaf.shape.dtype).id
        for node in body.nodes:
            if isinstance(node.op, Constant):
                ids[node.id] = new.constant(node.op.value).id
            elif not isinstance(node.op, Input):
                inputs = [ids[i] for i in node.inputs]
                if isinstance(node.op, MatMul) and node.inputs[1] in read:
                    inputs[1] = read[node.inputs[1]]
                ids[node.id] = new.append(node.op, inputs, name=node.name, origin=node.origin).id
    new.outputs = [ids[o] for o in body.outputs]
    return new.freeze()
