"""Which nodes of a float graph become steps of an integer program, and which are part of another one's step."""

from __future__ import annotations

import math

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Node, NodeId
from rlx.ir.leaves import Project
from rlx.ops.attn.attention import Attention
from rlx.ops.attn.operands import AttentionLayout, MaskKind
from rlx.ops.control.scans import Scan
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.norms import LayerNorm
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp, Clamp, Compare, Where
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.reduction.reductions import ReduceOp
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.shape.movement import Concat, Pad, Reshape, Transpose
from rlx.quantized.float_cells import Cell, cell_of
from rlx.quantized.float_graphs import Epilogue, FloatGraph, Rounding
from rlx.quantized.recurrent_steps import GATE_SCALE
from rlx.quantized.values import Array, limits


class Plan:
    """Which nodes become steps, and what follows each; nodes that a step before them takes in are `absorbed`."""

    def __init__(self, source: FloatGraph) -> None:
        self.source = source
        self.epilogues: dict[NodeId, Epilogue] = {}
        self.biases: dict[NodeId, tuple[NodeId, ...]] = {}
        self.absorbed: set[NodeId] = set()
        # Zeros around an image that the convolution after it takes as its padding.
        self.pads: dict[NodeId, Node] = {}
        # Sum of windows -> the division that makes it a mean.
        self.means: dict[NodeId, NodeId] = {}
        # Attention -> the values, with heads side by side, that it reads; those of which only 8 bits are read.
        self.heads: dict[NodeId, tuple[NodeId, NodeId, NodeId]] = {}
        self.narrow: set[NodeId] = set()
        # Functions of one number written as several nodes: the last one -> the value that all of them are made of.
        self.functions: dict[NodeId, NodeId] = {}
        # Loops over the rows of a sequence, and the sums of gates that each reads.
        self.cells: dict[NodeId, Cell] = {}
        self.gates: dict[NodeId, NodeId] = {}
        self._planned: set[NodeId] = set()
        for node in source.graph.nodes:
            if node.id in source.dynamic and node.id not in self.absorbed | self._planned:
                self._plan(node)

    def _plan(self, node: Node) -> None:
        source, op = self.source, node.op
        if node.id == source.input.id:
            self._finish(node, node)
        elif self._take_function(node):
            pass
        elif isinstance(op, MatMul | Conv):
            self._finish(node, self._with_bias(node))
        elif isinstance(op, Pad):
            reader = source.only_reader(node)
            if reader is None or not isinstance(reader.op, Conv) or source.scalar(node.inputs[1]) != 0:
                raise source.fail(node, "only zeros around the image of a convolution can be padded")
            self.pads[reader.id] = node
        elif isinstance(op, LayerNorm | Concat) or self._is_pair(node) or self.constant_term(node) is not None:
            self._finish(node, node)
        elif isinstance(op, Attention):
            self._attention(node)
        elif isinstance(op, Scan):
            self._loop(node)
        elif isinstance(op, ReduceWindow) and op.kind is ReduceOp.Sum:
            self._take_division(node)
        elif isinstance(op, Activation) and op.kind is not ActivationKind.Relu:
            self._finish(node, node)

    def _is_pair(self, node: Node) -> bool:
        """A sum or a product of two values."""
        op, dynamic = node.op, self.source.dynamic
        is_known = isinstance(op, Binary) and op.kind in (BinaryOp.Add, BinaryOp.Mul)
        return is_known and all(i in dynamic for i in node.inputs)

    def _finish(self, node: Node, end: Node) -> None:
        found = self.source.epilogue(end)
        self.epilogues[node.id] = found
        self.absorbed.update(found.absorbed)

    def _with_bias(self, product: Node) -> Node:
        """The node that adds a constant to the product, or the product."""
        reader = self.source.only_reader(product)
        if reader is None or not isinstance(reader.op, Binary) or reader.op.kind not in (BinaryOp.Add, BinaryOp.Sub):
            return product
        if reader.op.kind is BinaryOp.Sub and reader.inputs[0] != product.id:
            return product
        others = [i for i in reader.inputs if i != product.id]
        if len(others) != 1 or not self.source.is_constant(others[0]) or not self._is_bias(product, others[0]):
            return product
        self.biases[product.id] = (others[0], reader.id)
        self.absorbed.add(reader.id)
        return reader

    def _is_bias(self, product: Node, constant: NodeId) -> bool:
        """Whether a constant has one number per output channel, or one for all."""
        dims = self.source.graph.shape(constant).dims
        from_end = product.shape.rank - 1 if isinstance(product.op, Conv) else 1
        return all(d == 1 for n, d in enumerate(reversed(dims), 1) if n != from_end)

    def _take_function(self, first: Node) -> bool:
        """A function of one number that is written as several nodes, as a leaky relu is: a table, made of all of them.

        Nodes with steps of their own keep these.
        """
        source = self.source
        roots = {i for i in first.inputs if i in source.dynamic}
        if len(roots) != 1 or not self._is_function(first):
            return False
        root = roots.pop()
        inside: set[NodeId] = set()
        for node in source.graph.nodes[first.id :]:
            values = {i for i in node.inputs if i in source.dynamic}
            if values and values <= inside | {root} and node.id not in self.absorbed and self._is_function(node):
                inside.add(node.id)
        nodes = [source.graph.nodes[i] for i in sorted(inside)]
        if first.id not in inside or all(self._has_step(node) for node in nodes):
            return False
        ends = [n for n in nodes if n.id in source.graph.outputs or set(source.uses[n.id]) - inside]
        if not all(n.shape.dtype.is_float for n in ends):
            return False
        self.absorbed |= inside - {n.id for n in ends}
        for end in ends:
            self.functions[end.id] = root
            self._finish(end, end)
        self._planned |= inside
        return True

    def _is_function(self, node: Node) -> bool:
        """Whether each element depends on the same element of one value, and on numbers."""
        numbers = [i for i in node.inputs if i not in self.source.dynamic]
        is_pointwise = isinstance(node.op, Activation | Binary | Compare | Where | Clamp)
        return is_pointwise and all(self.source.scalar(i) is not None for i in numbers)

    def _has_step(self, node: Node) -> bool:
        values = [i for i in node.inputs if i in self.source.dynamic]
        return (
            isinstance(node.op, Activation)
            or self._is_pair(node)
            or self.constant_term(node) is not None
            or self.source.bounds_of(node, values[0]) is not None
        )

    def _take_division(self, node: Node) -> None:
        """A mean is a sum of windows divided by their size."""
        assert isinstance(node.op, ReduceWindow)
        reader, count = self.source.only_reader(node), math.prod(node.op.window)
        if reader is not None and isinstance(reader.op, Binary) and reader.inputs[0] == node.id:
            divisor = self.source.scalar(reader.inputs[1])
            if (reader.op.kind is BinaryOp.Div and divisor == count) or (
                reader.op.kind is BinaryOp.Mul and divisor is not None and np.float32(divisor) == np.float32(1 / count)
            ):
                self.absorbed.add(reader.id)
                self.means[node.id] = reader.id
                return
        raise self.source.fail(node, f"a sum of windows must be divided by {count}, their size, to be a mean")

    def constant_term(self, node: Node) -> Array | None:
        """What a node adds to the value that is its first operand, or its second, if it is constant."""
        constants = [i for i in node.inputs if i not in self.source.dynamic]
        if not isinstance(node.op, Binary) or len(constants) != 1:
            return None
        if node.op.kind is BinaryOp.Add:
            return self.source.constant(constants[0])
        if node.op.kind is BinaryOp.Sub and node.inputs[1] == constants[0]:
            return -self.source.constant(constants[0])
        return None

    def _attention(self, node: Node) -> None:
        """Heads come from a reshape [N, T, C] -> [N, T, heads, D] of each operand, and go back by another."""
        source, op = self.source, node.op
        assert isinstance(op, Attention)
        plain = op.mask_kind in (MaskKind.NoMask, MaskKind.Causal) and op.softcap is None and len(node.inputs) == 3
        if not plain or op.layout is not AttentionLayout.Bshd:
            raise source.fail(node, "only heads [N, T, heads, D], all visible or causal, have an integer form")
        operands = [source.graph.nodes[i] for i in node.inputs]
        back = source.only_reader(node)
        if back is None or not all(isinstance(r.op, Reshape) for r in (*operands, back)):
            raise source.fail(node, "heads must be made of [N, T, C] by a reshape, and joined again by one")
        for reshape in operands:
            if source.graph.shape(reshape.inputs[0]).rank != 3 or source.only_reader(reshape) is None:
                raise source.fail(reshape, "heads must be made of [N, T, C], and read by the attention alone")
        q, k, v = (r.inputs[0] for r in operands)
        self.heads[node.id] = (q, k, v)
        self.narrow.update((q, k))
        self.absorbed.update([*(r.id for r in operands), back.id])
        self._finish(node, back)

    def _loop(self, node: Node) -> None:
        """A GRU or an LSTM: rows in front, [T, N, gates], and states that are turned back, or the last one."""
        source = self.source
        cell = cell_of(source, node)
        turned = source.graph.nodes[node.inputs[-1]]
        if not isinstance(turned.op, Transpose) or tuple(turned.op.perm) != (1, 0, 2):
            raise source.fail(node, "its rows must be those of [N, T, gates], with the axis of time moved to the front")
        self.absorbed.add(turned.id)
        gates = turned.inputs[0]
        made_by = [e for e in self.epilogues.values() if e.end.id == gates]
        if not made_by or made_by[0].rounding is not None or source.uses[gates] != [turned.id]:
            raise source.fail(node, "the gates' sums must be a product of the input that nobody else reads or rounds")
        made_by[0].rounding = Rounding(GATE_SCALE, 0, *limits(DType.I16))
        read = {i for i in source.uses[node.id] if source.uses[i] or i in source.graph.outputs}
        used = [source.graph.nodes[i] for i in sorted(read)]
        if len(used) != 1 or not isinstance(used[0].op, Project):
            raise source.fail(node, "either all states or the last one must be read, not both")
        self.absorbed.update(source.uses[node.id])
        self.cells[node.id], self.gates[node.id] = cell, gates
        if used[0].op.index == 0:
            self._finish(node, used[0])
            return
        back = source.only_reader(used[0])
        if used[0].op.index != cell.carries or back is None or not isinstance(back.op, Transpose):
            raise source.fail(node, "its states must be turned back to [N, T, size]")
        self.absorbed.add(back.id)
        self._finish(node, back)
