"""Reverse mode: pull cotangents back through a graph, op by op, from the outputs to the chosen leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.autodiff.derive import expand_for, leads_to, leaves_in, no_rule
from rlx.autodiff.replay import Replay, Value
from rlx.errors import InternalError, NoVjpRule
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Project
from rlx.ir.op import Op
from rlx.ir.tensor import Tensor
from rlx.ops.control.body_transforms import depends_on, tangent_type
from rlx.ops.define.rules import add_tangents, as_type


class Pullback:
    """The forward values of a graph in the program being built, ready to take cotangents of its outputs."""

    def __init__(self, graph: Graph, leaves: Mapping[NodeId, Tensor], wrt: Sequence[NodeId]) -> None:
        def relevant(g: Graph) -> set[NodeId]:
            return depends_on(g, leaves_in(g, graph, wrt)) & leads_to(g, g.outputs)

        prepared = expand_for(graph, "vjp", relevant)
        self.graph = prepared.graph
        self.wrt = [prepared.id(i) for i in wrt]
        self.active = relevant(self.graph) | set(self.wrt)
        self.replay = Replay(self.graph, {prepared.id(i): t for i, t in leaves.items()})
        self.replay.run()

    @property
    def outputs(self) -> list[Tensor]:
        return self.replay.outputs()

    def pull(self, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Cotangents of the chosen leaves for cotangents of the outputs; None is zero."""
        # Of a node with several results, one cotangent per result.
        collected: dict[NodeId, list[Tensor | None]] = {}
        for output, ct in zip(self.graph.outputs, cotangents, strict=True):
            if ct is not None and output in self.active:
                self._add(collected, output, 0, ct)
        for node in reversed(self.graph.nodes):
            received = collected.get(node.id)
            if received is None or node.is_leaf or node.id not in self.active:
                continue
            if isinstance(node.op, Project):
                self._add(collected, node.inputs[0], node.op.index, received[0])
                continue
            self._pull_node(node, received, collected)
        return [collected[i][0] if i in collected else None for i in self.wrt]

    def _pull_node(
        self, node: Node, received: list[Tensor | None], collected: dict[NodeId, list[Tensor | None]]
    ) -> None:
        operands = self.replay.operands(node)
        value = self.replay.values[node.id]
        ct: Any = tuple(received) if isinstance(value, tuple) else received[0]
        with self.replay.into.originating(node.origin):
            results = apply_vjp(node.op, [i in self.active for i in node.inputs], ct, value, operands)
            for i, operand_ct in zip(node.inputs, results, strict=True):
                if operand_ct is not None and i in self.active:
                    self._add(collected, i, 0, operand_ct)

    def _add(
        self, collected: dict[NodeId, list[Tensor | None]], node_id: NodeId, index: int, ct: Tensor | None
    ) -> None:
        if ct is None:
            return
        shapes = self.graph.nodes[node_id].shapes
        wanted = tangent_type(shapes[index])
        typed = as_type(ct, wanted)
        if typed is None:
            producer = self.graph.nodes[node_id].op.mnemonic
            raise InternalError(f"a cotangent of {producer} has type {ct.type}, for its value it should be {wanted}")
        slots = collected.setdefault(node_id, [None] * len(shapes))
        previous = slots[index]
        slots[index] = typed if previous is None else add_tangents(previous, typed)


def pull_back(
    graph: Graph, leaves: Mapping[NodeId, Tensor], wrt: Sequence[NodeId], cotangents: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Cotangents of the leaves `wrt` for cotangents of the outputs."""
    return Pullback(graph, leaves, wrt).pull(cotangents)


def apply_vjp(op: Op, wrt: Sequence[bool], ct: Any, value: Value, operands: Sequence[Any]) -> Sequence[Tensor | None]:
    """The cotangents of the operands of one op by its rule; only those in `wrt` are wanted."""
    selective = getattr(op, "vjp_wrt", None)
    if selective is not None:
        # Loops and branches leave out what nobody wants, which for them is whole programs.
        wanted: Sequence[Tensor | None] = selective(tuple(wrt), ct, value, operands)
        return wanted
    refused = no_rule(op, "vjp")
    if refused is not None:
        raise NoVjpRule(op.mnemonic, refused.reason)
    rule = type(op).vjp
    if not callable(rule):
        raise InternalError(f"{op.mnemonic} reached reverse mode without a vjp rule")
    results = rule(op, ct, value, *operands)
    return results if isinstance(results, tuple | list) else (results,)
