"""Is a graph well formed? `verify` looks at the structure, `verify_shapes` at the types, `verify_all` at both.

All findings are returned at once; `check` and `debug_assert_valid` raise them.
"""

from __future__ import annotations

from typing import NamedTuple

from rlx.errors import RlxError, VerificationError
from rlx.ir.dims import collect_constraints
from rlx.ir.graph import Graph, Node, NodeId, compatible
from rlx.ir.leaves import Constant, Input, Param, Project
from rlx.ir.op import Op
from rlx.ir.shape import Shape


class VerifyError(NamedTuple):
    """One finding: the node (None for the graph itself) and what is wrong with it."""

    node: NodeId | None
    message: str

    def __str__(self) -> str:
        return self.message if self.node is None else f"{self.node}: {self.message}"


def verify(graph: Graph) -> list[VerifyError]:
    """Structure: ids, order, operand counts, outputs, leaf names, constants, bodies."""
    found: list[VerifyError] = []
    names: set[str] = set()
    for position, node in enumerate(graph.nodes):
        found += [VerifyError(node.id, m) for m in _node_findings(graph, position, node)]
        if isinstance(node.op, Input | Param):
            if node.op.key in names:
                found.append(VerifyError(node.id, f"the name {node.op.key!r} is used by two inputs or params"))
            names.add(node.op.key)
        for field, body in node.op.bodies.items():
            found += [VerifyError(node.id, f"in {field}: {finding}") for finding in verify(body)]
    for output in graph.outputs:
        if not 0 <= output < len(graph.nodes):
            found.append(VerifyError(None, f"output {output} does not exist"))
        elif len(graph.nodes[output].shapes) != 1:
            found.append(VerifyError(None, f"output {output} has several results; name one through project"))
    for number, key in graph.aliases.items():
        if not 0 <= number < len(graph.outputs) or key not in names:
            found.append(VerifyError(None, f"alias of output {number} to {key!r}: no such output or input"))
    return found


def _node_findings(graph: Graph, position: int, node: Node) -> list[str]:
    messages: list[str] = []
    if node.id != position:
        messages.append(f"stands at position {position}")
    for i in node.inputs:
        if not 0 <= i < len(graph.nodes):
            messages.append(f"operand {i} does not exist")
        elif i >= node.id:
            messages.append(f"operand {i} is not defined before it is used (not a DAG)")
        elif len(graph.nodes[i].shapes) != 1 and not isinstance(node.op, Project):
            messages.append(f"operand {i} has several results; it can only be read by project")
    fewest, most = node.op.arity()
    if isinstance(node.op, Project):
        fewest = most = 1
    if not (fewest <= len(node.inputs) and (most is None or len(node.inputs) <= most)):
        messages.append(f"{node.op.mnemonic} has {len(node.inputs)} operands, which is not what it takes")
    if isinstance(node.op, Constant) and node.op.value.array.nbytes != node.op.value.shape.size_bytes():
        messages.append(f"the constant has {node.op.value.array.nbytes} bytes, its type {node.op.value.shape} does not")
    return messages


def verify_shapes(graph: Graph) -> list[VerifyError]:
    """Types: what inference gives for every node against what the node declares."""
    found: list[VerifyError] = []
    known: dict[tuple[object, ...], str | None] = {}  # layers repeat: most nodes are like one before them
    for node in graph.nodes:
        if any(not 0 <= i < len(graph.nodes) for i in node.inputs):
            continue
        alike = (node.op, node.shapes, *(graph.nodes[i].shapes for i in node.inputs))
        if alike not in known:
            known[alike] = _shape_finding(graph, node)
        message = known[alike]
        if message:
            found.append(VerifyError(node.id, message))
        for field, body in node.op.bodies.items():
            found += [VerifyError(node.id, f"in {field}: {finding}") for finding in verify_shapes(body)]
    return found


def _shape_finding(graph: Graph, node: Node) -> str | None:
    operands = [s for i in node.inputs for s in graph.nodes[i].shapes]
    try:
        with collect_constraints([]):
            inferred = infer_output_shapes(node.op, operands)
    except (RlxError, TypeError) as error:
        return str(error)
    if len(inferred) != len(node.shapes):
        return f"{node.op.mnemonic} infers {len(inferred)} results, the node has {len(node.shapes)}"
    for a, b in zip(inferred, node.shapes):
        if not compatible(a, b, node.op.mnemonic):
            return f"{node.op.mnemonic} infers {a}, the node declares {b}"
    return None


def infer_output_shapes(op: Op, operands: list[Shape]) -> tuple[Shape, ...]:
    result = op.infer(*operands)
    return result if isinstance(result, tuple) else (result,)


def infer_output_shape(graph: Graph, node: Node) -> Shape | None:
    """The type that inference gives for a node of `graph`; None for leaves, whose type is given."""
    if node.is_leaf:
        return None
    (shape,) = infer_output_shapes(node.op, [s for i in node.inputs for s in graph.nodes[i].shapes])
    return shape


def verify_all(graph: Graph) -> list[VerifyError]:
    """Structure first; types only when the structure is sound."""
    return verify(graph) or verify_shapes(graph)


def check(graph: Graph, stage: str = "") -> None:
    """Raise VerificationError with all findings, if there are any."""
    findings = verify_all(graph)
    if findings:
        where = f" after {stage}" if stage else ""
        lines = "\n".join(f"  {f}" for f in findings[:20])
        raise VerificationError(f"graph @{graph.name} is not valid{where}:\n{lines}")


def debug_assert_valid(graph: Graph, stage: str) -> None:
    """`check`, unless Python runs with -O."""
    if __debug__:
        check(graph, stage)
