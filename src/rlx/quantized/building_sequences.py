"""The steps of sequences from the nodes of a float graph: layer norm, attention, GRU and LSTM, concat, constants."""

from __future__ import annotations

import numpy as np

from rlx.ir.graph import Node
from rlx.ops.attn.attention import Attention as FloatAttention
from rlx.ops.attn.operands import MaskKind
from rlx.ops.define.rounding import half_away_array
from rlx.ops.nn.norms import LayerNorm as FloatLayerNorm
from rlx.ops.shape.movement import Concat as FloatConcat
from rlx.ops.shape.movement import Slice
from rlx.quantized.building_state import BuildingState, like
from rlx.quantized.plain_steps import Add, AddConstant, Concat, Rows
from rlx.quantized.recurrent_steps import STATE_SCALE, Gru, Lstm
from rlx.quantized.sequence_steps import Attention, LayerNorm
from rlx.quantized.values import Array, Multipliers, Value, Weights, limits


class SequenceBuilding(BuildingState):
    def layer_norm(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, FloatLayerNorm)
        held, x = self.operand(node)
        rank = node.shape.rank
        if rank not in (2, 3) or op.axis % rank != rank - 1 or not all(map(self.source.is_constant, node.inputs[1:])):
            raise self.source.fail(
                node, "it is taken over the columns of rows [N, K] or [N, T, K], with constant factors"
            )
        end = self.plan.epilogues[node.id]
        out, low, high = self.encoding(self.new_name("layer_norm"), end, x.dims)
        gamma, beta = (self.source.constant(i).astype(np.float64) for i in node.inputs[1:])
        step = LayerNorm.of((held.index,), x, out, gamma, beta, op.eps, low, high, self.fraction_bits)
        self.add(step, node.id, end.end.id)

    def attention(self, node: Node) -> None:
        op, end = node.op, self.plan.epilogues[node.id]
        assert isinstance(op, FloatAttention)
        held = [self.held[i] for i in self.plan.heads[node.id]]
        q, k, v = (self.values[h.index] for h in held)
        out, low, high = self.encoding(self.new_name("attention"), end, q.dims)
        step = Attention(
            tuple(h.index for h in held),
            out,
            op.num_heads,
            op.kv_heads,
            op.mask_kind is MaskKind.Causal,
            Attention.exponentials(),
            Attention.multipliers_for(q, k, v, out, op.scale, self.fraction_bits),
            low,
            high,
        )
        self.add(step, node.id, end.end.id)

    def loop(self, node: Node) -> None:
        """A GRU or an LSTM; the weights of the state are rounded as those of any product."""
        cell, end = self.plan.cells[node.id], self.plan.epilogues[node.id]
        held = self.held[self.plan.gates[node.id]]
        weights = Weights.of(np.ascontiguousarray(cell.weights.T), self.bits)
        made = Gru if cell.carries == 1 else Lstm
        size = len(cell.weights)
        length = self.values[held.index].dims[0]
        dims = (size,) if end.end.shape.rank == 2 else (length, 1, size)
        out, low, high = self.encoding(self.new_name("gru" if made is Gru else "lstm"), end, dims)
        bias = half_away_array(cell.bias.astype(np.float64) / (weights.scales.astype(np.float64) * STATE_SCALE))
        if np.any(np.abs(bias) >= 2**31):
            raise self.source.fail(node, f"the bias of {out.name} is {np.abs(bias).max():.3g} steps and leaves i32")
        step = made(
            (held.index,),
            out,
            weights,
            bias.astype(np.int32),
            made.multipliers_for(weights, self.fraction_bits),
            made.functions(),
            Multipliers.of(np.float32(STATE_SCALE / out.scale), self.fraction_bits),
            low,
            high,
            length,
            cell.reverse,
        )
        self.add(step, node.id, end.end.id)

    def concat(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, FloatConcat)
        rank = node.shape.rank
        if op.axis % rank != (1 if rank == 4 else rank - 1):
            raise self.source.fail(
                node, "values are put side by side along their channels, the last axis but in images"
            )
        operands = [self.operand(node, i) for i in range(len(node.inputs))]
        if any(h.flattened is not None for h, _ in operands):
            raise self.source.fail(node, "flattened images lie in another order; flatten them after")
        end = self.plan.epilogues[node.id]
        out, low, high = self.encoding(self.new_name("concat"), end, self.result_dims(node))
        if (low, high) != limits(out.dtype) and (end.low, end.high) != (-np.inf, np.inf):
            raise self.source.fail(end.end, "limits after a concat have no step; put them before it")
        factors = [np.float32(v.scale) / np.float32(out.scale) for _, v in operands]
        inputs = tuple(h.index for h, _ in operands)
        self.add(Concat(inputs, out, Multipliers.of(factors, self.fraction_bits)), node.id, end.end.id)

    def add_constant(self, node: Node, term: Array) -> None:
        position = next(p for p, i in enumerate(node.inputs) if i in self.source.dynamic)
        held, x = self.operand(node, position)
        dims = self.sizes(node)
        if held.flattened is not None or dims != self.sizes(self.source.graph.nodes[node.inputs[position]]):
            raise self.source.fail(
                node, "a constant must have the sizes of the value that it is added to, or fewer axes"
            )
        if term.ndim > len(dims) and term.shape[0] != 1:
            raise self.source.fail(node, f"a constant must be the same for all examples, got {term.shape}")
        whole = np.broadcast_to(term.reshape(term.shape[-len(dims) :]) if term.ndim > len(dims) else term, dims)
        whole = whole.transpose(1, 2, 0) if len(dims) == 3 else whole
        end = self.plan.epilogues[node.id]
        out, low, high = self.encoding(self.new_name("add"), end, x.dims)
        largest = limits(self.activations)[1]
        scale = float(np.float32(max(np.abs(whole).max() / largest, 1e-12)))
        constant = Value("constant", x.dims, scale, 0, self.activations)
        step = AddConstant(
            (held.index,),
            out,
            constant.encode(whole.reshape(x.dims)),
            scale,
            Add.multipliers_for(x, constant, out, self.fraction_bits),
            low,
            high,
        )
        self.add(step, node.id, end.end.id)

    def rows(self, node: Node) -> None:
        """Some rows of a sequence, one after the other."""
        op = node.op
        assert isinstance(op, Slice)
        held, x = self.operand(node)
        before = self.source.graph.shape(node.inputs[0]).dims
        starts, limits_, strides = op.starts, op.limits, op.strides
        outside = [i for i in (0, 2) if len(before) == 3 and (starts[i], limits_[i]) != (0, before[i])]
        if len(before) != 3 or outside or set(strides) != {1} or not isinstance(starts[1], int):
            raise self.source.fail(node, "only rows of a sequence [N, T, C] that follow each other can be taken out")
        out = like(x, self.new_name("rows"), self.result_dims(node))
        self.add(Rows((held.index,), out, int(starts[1])), node.id)
