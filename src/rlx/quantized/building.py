"""The steps of an integer program from the nodes of a float graph: images, products, pooling, tables."""

from __future__ import annotations

import numpy as np

from rlx.ir.dtype import DType
from rlx.ir.graph import Node, NodeId
from rlx.ops.attn.attention import Attention as FloatAttention
from rlx.ops.control.scans import Scan
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.norms import LayerNorm as FloatLayerNorm
from rlx.ops.nn.pooling import Pool
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import Activation
from rlx.ops.quant.quantized import Dequantize
from rlx.ops.reduction.reductions import ArgReduce, ArgReduceOp, Reduce, ReduceOp
from rlx.ops.reduction.reductions import Softmax as FloatSoftmax
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.shape.movement import Concat as FloatConcat
from rlx.ops.shape.movement import Pad, Reshape, Slice
from rlx.quantized.building_sequences import SequenceBuilding
from rlx.quantized.building_state import Held, code_of, is_ordered, like
from rlx.quantized.float_graphs import Epilogue, Rounding
from rlx.quantized.plain_steps import Add, Argmax, Clamp, MaxPool, MeanPool, Mul, Rescale
from rlx.quantized.products import Conv2d, Dense, Pads
from rlx.quantized.program import Program
from rlx.quantized.steps import Step
from rlx.quantized.table_steps import POINTS, SHARE_SCALE, SHARE_ZERO, Interpolate, Lookup, Softmax
from rlx.quantized.values import Array, Multipliers, QuantizedError, Value, Weights, limits


class Building(SequenceBuilding):
    def program(self, name: str) -> Program:
        source = self.source
        dims = self.sizes(source.input)
        axes = {3: (1, 2, 0), 2: (0, 1, 2), 1: (0,)}[len(dims)]
        end = self.plan.epilogues[source.input.id]
        value, low, high = self.encoding("input", end, self.result_dims(source.input))
        if (low, high) != limits(value.dtype) and end.low > -np.inf:
            raise source.fail(end.end, "limits on the input itself have no step; leave them out")
        self.values.append(value)
        self.held[source.input.id] = self.held[end.end.id] = Held(0)
        for node in source.graph.nodes:
            if node.id in source.dynamic and node.id not in self.held and node.id not in self.plan.absorbed:
                self._convert(node)
        if not self.steps:
            raise QuantizedError("quantize: the graph computes nothing that has an integer form")
        last = source.graph.nodes[source.graph.outputs[0]]
        if not is_ordered(self.held[last.id].flattened):
            raise source.fail(
                last, "a flattened image cannot be the result, since it lies in another order; flatten it after"
            )
        return Program(name, value, axes, tuple(self.steps))

    def _convert(self, node: Node) -> None:
        op = node.op
        if node.id in self.plan.functions:
            self._lookup(node, self.plan.functions[node.id])
        elif isinstance(op, MatMul):
            self._dense(node)
        elif isinstance(op, Conv):
            self._conv(node)
        elif isinstance(op, Pad) and node.id in {p.id for p in self.plan.pads.values()}:
            self.held[node.id] = self.held[node.inputs[0]]
        elif isinstance(op, Activation) and node.id in self.plan.epilogues:
            self._lookup(node, node.inputs[0])
        elif isinstance(op, FloatLayerNorm):
            self.layer_norm(node)
        elif isinstance(op, FloatAttention):
            self.attention(node)
        elif isinstance(op, Scan):
            self.loop(node)
        elif isinstance(op, FloatConcat):
            self.concat(node)
        elif isinstance(op, Slice):
            self.rows(node)
        elif isinstance(op, Binary) and (term := self.plan.constant_term(node)) is not None:
            self.add_constant(node, term)
        elif node.id in self.plan.epilogues:
            self._pair(node)
        elif isinstance(op, FloatSoftmax):
            self._softmax(node)
        elif isinstance(op, ReduceWindow | Pool):
            self._pool(node)
        elif isinstance(op, Reduce) and op.kind in (ReduceOp.Mean, ReduceOp.Max):
            self._global_pool(node)
        elif isinstance(op, Reshape):
            self._reshape(node)
        elif isinstance(op, ArgReduce) and op.kind is ArgReduceOp.ArgMax:
            self._argmax(node)
        elif (bounds := self.source.bounds_of(node, node.inputs[0])) is not None:
            self._clamp(node, *bounds)
        elif (rounding := self.source.rounding_of(node)) is not None:
            self._rescale(node, rounding)
        elif isinstance(op, Dequantize):
            self._dequantize(node)
        else:
            raise self.source.fail(
                node,
                "there is no integer step for it; known: matmul, conv, pooling, add, sub, mul, concat, factors of "
                "channels (batch norm), relu, limits, functions of one number (sigmoid, ...), softmax, layer norm, "
                "attention, GRU, LSTM, flatten, argmax",
            )

    def _dense(self, node: Node) -> None:
        if not self.source.is_constant(node.inputs[1]) or self.source.graph.shape(node.inputs[1]).rank != 2:
            raise self.source.fail(node, "a matrix of weights [K, N] must be its second operand")
        held, x = self.operand(node)
        if node.shape.rank not in (2, 3):
            raise self.source.fail(node, f"takes rows [N, K] or sequences [N, T, K], got {node.shape}")
        weights = self.source.weights(node.inputs[1], 1, self.bits)
        if node.shape.rank == 3:
            # Every row by itself: a convolution with one tap.
            weights = Weights(weights.codes[:, None, None], weights.scales, weights.bits)
            fields = self.product_fields(node, "dense", weights, x, self.result_dims(node))
            self.add(Conv2d((held.index,), **fields), node.id, self.plan.epilogues[node.id].end.id)
            return
        if held.flattened is not None:
            # Rows in the order [C, H, W] of the graph become [H, W, C], as the image lies in the program.
            codes = weights.codes.reshape(-1, *held.flattened).transpose(0, 2, 3, 1)
            weights = Weights(np.ascontiguousarray(codes.reshape(len(codes), -1)), weights.scales, weights.bits)
        fields = self.product_fields(node, "dense", weights, x, self.result_dims(node))
        self.add(Dense((held.index,), **fields), node.id, self.plan.epilogues[node.id].end.id)

    def _conv(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, Conv)
        if not self.source.is_constant(node.inputs[1]) or len(op.kernel_size) != 2:
            raise self.source.fail(node, "needs constant weights and images with two spatial axes")
        held, x = self.operand(node)
        weights = self.source.weights(node.inputs[1], 0, self.bits)
        codes = np.ascontiguousarray(weights.codes.transpose(0, 2, 3, 1))
        fields = self.product_fields(
            node, "conv", Weights(codes, weights.scales, weights.bits), x, self.result_dims(node)
        )
        step = Conv2d(
            (held.index,),
            **fields,
            stride=(op.stride[0], op.stride[1]),
            padding=self._padding(node, op),
            dilation=(op.dilation[0], op.dilation[1]),
            groups=op.groups,
        )
        self.add(step, node.id, self.plan.epilogues[node.id].end.id)

    def _padding(self, node: Node, op: Conv) -> Pads:
        around = [(p, p) for p in op.padding]
        pad = self.plan.pads.get(node.id)
        if pad is not None:
            assert isinstance(pad.op, Pad)
            low, high = pad.op.low, pad.op.high
            amounts = [*low, *high, *pad.op.interior]
            if (
                any(low[:2])
                or any(high[:2])
                or any(pad.op.interior)
                or not all(isinstance(v, int) and v >= 0 for v in amounts)
            ):
                raise self.source.fail(pad, "only rows and columns around an image can be padded")
            around = [(int(a) + int(low[i + 2]), int(b) + int(high[i + 2])) for i, (a, b) in enumerate(around)]
        return around[0], around[1]

    def _pair(self, node: Node) -> None:
        """The sum or the product of two values."""
        (a_held, a), (b_held, b) = self.operand(node, 0), self.operand(node, 1)
        dims = self.result_dims(node)
        if a.dims != b.dims or a_held.flattened != b_held.flattened:
            raise self.source.fail(node, f"both operands must have one size, got {a.dims} and {b.dims}")
        if a_held.flattened is not None:
            dims = a.dims
        end = self.plan.epilogues[node.id]
        assert isinstance(node.op, Binary)
        is_sum = node.op.kind is BinaryOp.Add
        out, low, high = self.encoding(self.new_name("add" if is_sum else "mul"), end, dims)
        inputs = (a_held.index, b_held.index)
        if is_sum:
            step: Step = Add(inputs, out, Add.multipliers_for(a, b, out, self.fraction_bits), low, high)
        else:
            factor = np.float32(a.scale) * np.float32(b.scale) / np.float32(out.scale)
            step = Mul(inputs, out, Multipliers.of(factor, self.fraction_bits), low, high)
        self.add(step, node.id, end.end.id, flattened=a_held.flattened)

    def _pool(self, node: Node) -> None:
        op = node.op
        held, x = self.operand(node)
        if isinstance(op, Pool):
            kernel, stride, low, high = op.kernel_size, op.stride, op.padding, op.padding
        else:
            assert isinstance(op, ReduceWindow)
            sizes = (op.window, op.stride, op.dilation)
            if (
                any(s[i] != 1 for s in sizes for i in (0, 1))
                or any(op.low[:2])
                or any(op.high[:2])
                or set(op.dilation) != {1}
            ):
                raise self.source.fail(node, "windows must lie over rows and columns alone, without gaps")
            kernel, stride, low, high = op.window[2:], op.stride[2:], op.low[2:], op.high[2:]
        if len(kernel) != 2:
            raise self.source.fail(node, "needs images with two spatial axes")
        padding = ((low[0], high[0]), (low[1], high[1]))
        is_mean = op.kind in (ReduceOp.Mean, ReduceOp.Sum)
        if op.kind not in (ReduceOp.Mean, ReduceOp.Max) and node.id not in self.plan.means:
            raise self.source.fail(node, "pooling takes the largest element or the mean")
        made = MeanPool if is_mean else MaxPool
        out = like(x, self.new_name("mean_pool" if is_mean else "max_pool"), self.result_dims(node))
        step = made((held.index,), out, (kernel[0], kernel[1]), (stride[0], stride[1]), padding)
        self.add(step, node.id, self.plan.means.get(node.id, node.id))

    def _global_pool(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, Reduce)
        held, x = self.operand(node)
        rank = self.source.graph.shape(node.inputs[0]).rank
        places = {4: [2, 3], 3: [1]}.get(rank)
        if sorted(a % rank for a in op.axes) != places:
            raise self.source.fail(
                node, "it is taken over the rows and columns of images together, or over all of a sequence"
            )
        height, width, channels = x.dims
        is_mean = op.kind is ReduceOp.Mean
        out = like(x, self.new_name("mean_pool" if is_mean else "max_pool"), (1, 1, channels))
        step = (MeanPool if is_mean else MaxPool)((held.index,), out, (height, width), (height, width))
        self.add(step, node.id, flattened=None if op.keep_dim else (channels, 1, 1))

    def _reshape(self, node: Node) -> None:
        held, x = self.operand(node)
        dims = self.sizes(node)
        before = self.source.graph.shape(node.inputs[0])
        if node.shape.dims[0] != before.dims[0] or dims != (x.size,):
            raise self.source.fail(node, f"only a flattened image, [N, {x.size}], can be made of {before}")
        flattened = held.flattened
        if before.rank == 4 and flattened is None:
            flattened = (x.dims[2], x.dims[0], x.dims[1])
        self.held[node.id] = Held(held.index, flattened)

    def _argmax(self, node: Node) -> None:
        assert isinstance(node.op, ArgReduce)
        held, _ = self.operand(node)
        if (
            self.source.graph.shape(node.inputs[0]).rank != 2
            or node.op.axis % 2 != 1
            or node.shape.rank != 1
            or not is_ordered(held.flattened)
        ):
            raise self.source.fail(node, "it is taken over the columns of rows [N, K]")
        self.add(Argmax((held.index,), Value(self.new_name("argmax"), (), dtype=DType.I32)), node.id)

    def _lookup(self, node: Node, of: NodeId) -> None:
        """A function of one number, for every code there is; 0 where it has no value, as log of negative numbers."""
        held = self.held_of(node, of)
        x = self.values[held.index]
        end = self.plan.epilogues[node.id]
        kind = node.op.mnemonic if isinstance(node.op, Activation) else "table"
        out, low, high = self.encoding(self.new_name(kind), end, x.dims)
        is_narrow = x.dtype is DType.I8
        if not is_narrow and out.dtype is not DType.I16:
            raise self.source.fail(node, f"a function of i16 codes gives i16 codes, but {out.name} has {out.dtype}")
        # All codes there are; or every 256th, and the one behind the last.
        codes = np.arange(-128, 128) if is_narrow else np.arange(POINTS) * 256 - 2**15
        with np.errstate(all="ignore"):
            floats = self._function(node, of, x.decode(codes))
        table = np.clip(out.encode(np.nan_to_num(floats, nan=0.0)), low, high).astype(out.dtype.numpy)
        step = (Lookup if is_narrow else Interpolate)((held.index,), out, table)
        self.add(step, node.id, end.end.id, flattened=held.flattened)

    def _function(self, node: Node, of: NodeId, values: Array) -> Array:
        """What a node is for values of the one that it is a function of."""
        graph, known = self.source.graph, {of: values}

        def value(node_id: NodeId) -> Array:
            if node_id not in known:
                number = self.source.scalar(node_id)
                found = graph.nodes[node_id]
                operands = [value(i) for i in found.inputs] if number is None else []
                known[node_id] = np.asarray(np.float32(number) if number is not None else found.op.eval(*operands))
            return known[node_id]

        return value(node.id)

    def _softmax(self, node: Node) -> None:
        held, x = self.operand(node)
        assert isinstance(node.op, FloatSoftmax)
        rank = node.shape.rank
        if rank not in (2, 3) or node.op.axis % rank != rank - 1:
            raise self.source.fail(node, "it is taken over the columns of rows [N, K] or [N, T, K]")
        if x.dtype is not DType.I8:
            # Its table has an entry for each difference of two codes.
            narrow = Value(self.new_name("rescale"), x.dims, float(np.float32(x.scale * 256)))
            factor = Multipliers.of(np.float32(x.scale) / np.float32(narrow.scale), self.fraction_bits)
            self.add(Rescale((held.index,), narrow, factor, *limits(narrow.dtype)))
            held, x = Held(len(self.steps), held.flattened), narrow
        out = Value(self.new_name("softmax"), x.dims, SHARE_SCALE, SHARE_ZERO)
        self.add(Softmax((held.index,), out, Softmax.table_for(x)), node.id, flattened=held.flattened)

    def _clamp(self, node: Node, low: float, high: float) -> None:
        held, x = self.operand(node)
        out = like(x, self.new_name("clamp"), x.dims)
        step = Clamp((held.index,), out, code_of(x, low), code_of(x, high))
        self.add(step, node.id, flattened=held.flattened)

    def _rescale(self, node: Node, rounding: Rounding) -> None:
        """A rounding that no step before it took: of a pooled value, say. Nothing to do where the codes have it."""
        held, x = self.operand(node)
        if rounding.scale is None:
            raise self.source.fail(
                node, "its step comes from each batch; round right after a product, or use a fixed step"
            )
        end = Epilogue(node, rounding=rounding)
        out, low, high = self.encoding(self.new_name("rescale"), end, x.dims)
        if (out.scale, out.zero_point, out.dtype) == (x.scale, x.zero_point, x.dtype):
            self.held[node.id] = held
            return
        factor = np.float32(x.scale) / np.float32(out.scale)
        self.add(
            Rescale((held.index,), out, Multipliers.of(factor, self.fraction_bits), low, high),
            node.id,
            flattened=held.flattened,
        )

    def _dequantize(self, node: Node) -> None:
        """Floats of codes are the same value, with the scale that it has."""
        held, x = self.operand(node)
        assert isinstance(node.op, Dequantize)
        if (tuple(map(np.float32, node.op.scales)), node.op.zero_points) != ((np.float32(x.scale),), (x.zero_point,)):
            raise self.source.fail(
                node, f"it must have the scale {x.scale} and the zero point {x.zero_point} of {x.name}"
            )
        self.held[node.id] = held
