"""Reverse mode: pull cotangents back through a graph, op by op, from the outputs to the chosen leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rlx.autodiff.derive import expand_for, leading_to, leaves_in, no_rule
from rlx.autodiff.replay import Replay, Value
from rlx.errors import InternalError, NoVjpRule
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.leaves import Project
from rlx.ir.op import Op
from rlx.ir.rewrite.inline import inline_graph
from rlx.ir.shape import Size
from rlx.ir.tensor import Tensor
from rlx.ops.control.bodies import one_or_tuple
from rlx.ops.control.body_transforms import depends_on, tangent_type
from rlx.ops.control.custom_functions import CustomFn
from rlx.ops.define.rules import add_tangents, as_type, zeros_of
from rlx.ops.shape.movement import Narrow, concat


class _Forward(Replay):
    """Forward values; a function that saves residuals leaves the ops of its program behind, for second derivatives.

    What is computed for nodes whose values are `known` already is read by nothing."""

    def __init__(self, graph: Graph, leaves: Mapping[NodeId, Tensor], known: Mapping[NodeId, Tensor]) -> None:
        super().__init__(graph, leaves)
        self.known = known

    def step(self, node: Node) -> Value:
        value = self._computed(node)
        if node.id in self.known:
            self.values[node.id] = value = self.known[node.id]
        return value

    def _computed(self, node: Node) -> Value:
        if not (isinstance(node.op, CustomFn) and node.op.is_saving):
            return super().step(node)
        with self.into.originating(node.origin):
            value = one_or_tuple(inline_graph(node.op.fwd_body, self.operands(node)))
        self.values[node.id] = value
        return value


class Pullback:
    """The forward values of a graph in the program being built, ready to take cotangents of its outputs."""

    def __init__(
        self,
        graph: Graph,
        leaves: Mapping[NodeId, Tensor],
        wrt: Sequence[NodeId],
        known: Mapping[NodeId, Tensor] | None = None,
    ) -> None:
        def relevant(g: Graph) -> set[NodeId]:
            return leading_to(g, g.outputs, depends_on(g, leaves_in(g, graph, wrt)))

        prepared = expand_for(graph, "vjp", relevant)
        self.graph = prepared.graph
        self.wrt = [prepared.id(i) for i in wrt]
        self.active = relevant(self.graph) | set(self.wrt)
        values = {prepared.id(i): t for i, t in (known or {}).items()}
        self.replay = _Forward(self.graph, {prepared.id(i): t for i, t in leaves.items()}, values)
        self.replay.run()

    @property
    def outputs(self) -> list[Tensor]:
        return self.replay.outputs()

    def pull(self, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Cotangents of the chosen leaves for cotangents of the outputs; None is zero."""
        # Of a node with several results, one cotangent per result.
        collected: dict[NodeId, list[Tensor | None]] = {}
        # Of a node of which parts are read, those of the parts: they are joined when all are there.
        parts: dict[NodeId, list[_Part]] = {}
        for output, ct in zip(self.graph.outputs, cotangents, strict=True):
            if ct is not None and output in self.active:
                self._add(collected, output, 0, ct)
        for node in reversed(self.graph.nodes):
            if node.id in parts:
                with self.replay.into.originating(node.origin):
                    for ct in _joined(parts.pop(node.id)):
                        self._add(collected, node.id, 0, ct)
            received = collected.get(node.id)
            if received is None or node.is_leaf or node.id not in self.active:
                continue
            if isinstance(node.op, Project):
                self._add(collected, node.inputs[0], node.op.index, received[0])
                continue
            if isinstance(node.op, Narrow) and received[0] is not None:
                (operand,) = self.replay.operands(node)
                parts.setdefault(node.inputs[0], []).append(_Part(node.op, received[0], operand))
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


class _Part(NamedTuple):
    """A part of a value that was read, and its cotangent."""

    op: Narrow
    ct: Tensor
    operand: Any

    @property
    def axis(self) -> int:
        return self.op.axis % len(self.operand.shape)


def _joined(parts: Sequence[_Part]) -> list[Tensor]:
    """The cotangents of a value of which parts were read: one where they lie side by side, else one for each, which
    is 0 elsewhere. Queries, keys and values that were one product become one again."""
    axes = {part.axis for part in parts}
    places = sorted(parts, key=lambda part: part.op.start) if all(_is_fixed(p) for p in parts) else []
    ends = [part.op.start + part.op.len for part in places]
    if len(parts) < 2 or len(axes) > 1 or not places or any(p.op.start < end for p, end in zip(places[1:], ends)):
        return [part.op.vjp(part.ct, part.ct, part.operand) for part in parts]
    (axis,), operand = axes, parts[0].operand
    pieces: list[Tensor] = []
    at: Size = 0
    for start, stop, ct in [*((p.op.start, end, p.ct) for p, end in zip(places, ends)), (operand.shape[axis], 0, None)]:
        if start != at:
            pieces.append(zeros_of(parts[0].ct.type.with_dim(axis, start - at), operand))
        if ct is not None:
            pieces.append(ct)
        at = stop
    return [concat(pieces, axis)]


def _is_fixed(part: _Part) -> bool:
    return isinstance(part.op.start, int) and isinstance(part.op.len, int)


def pull_back(
    graph: Graph,
    leaves: Mapping[NodeId, Tensor],
    wrt: Sequence[NodeId],
    cotangents: Sequence[Tensor | None],
    known: Mapping[NodeId, Tensor] | None = None,
) -> list[Tensor | None]:
    """Cotangents of the leaves `wrt` for cotangents of the outputs; values of nodes that are `known` are not computed
    again."""
    return Pullback(graph, leaves, wrt, known).pull(cotangents)


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
