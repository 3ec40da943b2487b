"""GRU and LSTM cells inside of loops of float graphs: found by their shapes, believed when their numbers agree.

The body of a loop may be written in many ways. What multiplies the state is read from it, and then the body runs on
random numbers beside the formula of `rlx.nn.gru` or `rlx.nn.lstm` with these weights: equal results are the proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.ir.graph import Graph, Node, NodeId
from rlx.ir.interpret import interpret
from rlx.ir.leaves import Input
from rlx.ir.rewrite.dead_code import remove_dead_nodes
from rlx.ops.control.scans import Scan
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.quantized.float_graphs import FloatGraph
from rlx.quantized.values import Array

_GATES = {1: 3, 2: 4}


@dataclass(frozen=True)
class Cell:
    """Weights [size, gates·size] and bias of the state; one carry is a GRU, two are an LSTM."""

    weights: Array
    bias: Array
    carries: int
    reverse: bool


def cell_of(source: FloatGraph, node: Node) -> Cell:
    """The cell that a loop runs; an error that says what is not like a GRU or an LSTM."""
    op = node.op
    assert isinstance(op, Scan)
    unlike = "only the loops of a GRU or an LSTM have an integer form"
    carries, shared, _ = op.split(node.inputs)
    if op.num_carry not in _GATES or op.num_xs != 1 or op.save_trajectory or len(op.body.outputs) != op.num_carry + 1:
        raise source.fail(node, f"{unlike}: one or two carries, one row at a time, one result")
    for i in (*carries, *shared):
        if not source.is_constant(i) or (i in carries and np.any(source.constant(i))):
            raise source.fail(node, f"{unlike}: its weights must be constant, and its states begin with zeros")
    body = _Body(op.body, op.num_carry, [source.constant(i) for i in shared])
    weights = body.weights()
    if weights is None:
        raise source.fail(node, f"{unlike}: the state must be multiplied by one matrix")
    for bias in body.biases(weights.shape[1]):
        cell = Cell(weights, bias, op.num_carry, op.reverse)
        if body.agrees(cell):
            return cell
    raise source.fail(node, f"{unlike}, with the formula of rlx.nn.gru or rlx.nn.lstm")


class _Body:
    """The graph of one step, the shared operands with their values."""

    def __init__(self, graph: Graph, carries: int, shared: list[Array]) -> None:
        self.graph, self.carries = graph, carries
        leaves = [n for n in graph.nodes if isinstance(n.op, Input)]
        self.moving = leaves[:carries] + leaves[carries + len(shared) :]
        self.shared = {n.op.key: v for n, v in zip(leaves[carries:], shared) if isinstance(n.op, Input)}
        self.dynamic: set[NodeId] = {n.id for n in self.moving}
        for node in graph.nodes:
            if any(i in self.dynamic for i in node.inputs):
                self.dynamic.add(node.id)

    def _run(self, outputs: list[NodeId], values: list[Array]) -> list[Array]:
        part = self.graph.copy()
        part.aliases = {}
        part.set_outputs(outputs)
        named: dict[str, Any] = dict(self.shared)
        named |= {n.op.key: v for n, v in zip(self.moving, values) if isinstance(n.op, Input)}
        return list(interpret(remove_dead_nodes(part).graph, named))

    def _numbers(self, count: int = 5) -> list[Array]:
        rng = np.random.default_rng(0)
        return [
            rng.uniform(-0.9, 0.9, (count, *map(int, n.shape.dims[1:]))).astype(n.shape.dtype.numpy)
            for n in self.moving
        ]

    def weights(self) -> Array | None:
        """The matrix that the state is multiplied by."""
        state = self.moving[0].id
        products = [n for n in self.graph.nodes if isinstance(n.op, MatMul) and n.inputs[0] == state]
        if len(products) != 1 or products[0].inputs[1] in self.dynamic:
            return None
        [weights] = self._run([products[0].inputs[1]], self._numbers())
        return weights if weights.ndim == 2 else None

    def biases(self, size: int) -> list[Array]:
        """What may be added to the product: any constant that something is added to, or nothing."""
        found = [np.zeros(size, np.float32)]
        for node in self.graph.nodes:
            constants = [i for i in node.inputs if i not in self.dynamic]
            if isinstance(node.op, Binary) and node.op.kind is BinaryOp.Add and len(constants) == 1:
                [value] = self._run(constants, self._numbers())
                found += [value.reshape(-1)] if value.size == size else []
        return found

    def agrees(self, cell: Cell) -> bool:
        numbers = self._numbers()
        size, width = cell.weights.shape
        if width != _GATES[cell.carries] * size or (numbers[0].shape[-1], numbers[-1].shape[-1]) != (size, width):
            return False
        wanted = _states(cell, *numbers)
        got = self._run(list(self.graph.outputs), numbers)
        return all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(got, [*wanted, wanted[0]]))


def _states(cell: Cell, *numbers: Array) -> list[Array]:
    h, row = numbers[0], numbers[-1]
    seen = h @ cell.weights + cell.bias
    if cell.carries == 1:
        (r, z, n), (hr, hz, hn) = (np.split(x, 3, axis=-1) for x in (row, seen))
        z = _sigmoid(z + hz)
        return [(1 - z) * np.tanh(n + _sigmoid(r + hr) * hn) + z * h]
    i, f, g, o = np.split(row + seen, 4, axis=-1)
    c = _sigmoid(f) * numbers[1] + _sigmoid(i) * np.tanh(g)
    return [_sigmoid(o) * np.tanh(c), c]


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))
