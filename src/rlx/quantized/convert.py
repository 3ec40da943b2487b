"""Float graph → integer program: `quantize`.

    graph = rlx.jit(network.apply).trace(params, rlx.Spec(("N", 1, 28, 28))).graph
    program = quantize(graph, weights_by_name, batches)

Products take the bias and the limits (relu) after them. Images are [N, C, H, W] in the graph and [H, W, C] in the
program, and the weights of a dense layer after a flattened image are reordered for it. The graph may be one of plain
floats, whose scales come from the batches, or one that was trained with fake quantisation, which has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx.compile.ptq.calibrate import calibrate
from rlx.compile.ptq.observers import LEVELS, Observer
from rlx.ir.dtype import DType, DTypeLike
from rlx.ir.graph import Graph, Node, NodeId
from rlx.ops.define.rounding import half_away_array
from rlx.ops.linalg.contraction import MatMul
from rlx.ops.nn.convolution import Conv
from rlx.ops.nn.pooling import Pool
from rlx.ops.pointwise.arithmetic import Binary, BinaryOp
from rlx.ops.pointwise.unary import Activation, ActivationKind
from rlx.ops.quant.quantized import Dequantize
from rlx.ops.reduction.reductions import ArgReduce, ArgReduceOp, Reduce, ReduceOp
from rlx.ops.reduction.reductions import Softmax as FloatSoftmax
from rlx.ops.reduction.window_reductions import ReduceWindow
from rlx.ops.shape.movement import Pad, Reshape
from rlx.quantized.float_graphs import Epilogue, FloatGraph, Rounding
from rlx.quantized.packing import largest_code
from rlx.quantized.plain_steps import Add, Argmax, Clamp, MaxPool, MeanPool, Mul, Rescale
from rlx.quantized.products import Conv2d, Dense, Pads
from rlx.quantized.program import Program
from rlx.quantized.steps import Step
from rlx.quantized.table_steps import SHARE_SCALE, SHARE_ZERO, Lookup, Softmax
from rlx.quantized.values import ACTIVATIONS, Array, Multipliers, QuantizedError, Value, Weights, limits

_SMALLEST_SCALE = 1e-12


def quantize(
    graph: Graph,
    params: Mapping[str, Any],
    batches: Iterable[Mapping[str, Any]] = (),
    *,
    bits: int = 8,
    activations: DTypeLike = DType.I8,
    method: str | Callable[[], Observer] = "max_abs",
    fraction_bits: int = 31,
    name: str | None = None,
) -> Program:
    """The integer program of a float graph.

    `params` has the values of all leaves but one by name; `batches` are typical values of that one, {name: array}, for
    the scales that the graph does not have itself. `bits` (8, 4, 2) is for weights without rounding of their own,
    `activations` for values without; `method` is how thresholds are found, as for `Calibrator`.
    """
    largest_code(bits)
    dtype = DType.of(activations)
    if dtype not in ACTIVATIONS:
        raise QuantizedError(f"quantize: activations are i8 or i16, got {dtype}")
    if fraction_bits not in (15, 31):
        raise QuantizedError(f"quantize: multipliers have 31 or 15 bits, got {fraction_bits}")
    source = FloatGraph(graph, params)
    plan = _Plan(source)
    thresholds = _thresholds(source, plan, list(batches), method)
    built = _Building(source, plan, thresholds, bits, dtype, fraction_bits)
    return built.program(name or graph.name)


def _thresholds(
    source: FloatGraph, plan: _Plan, batches: list[Mapping[str, Any]], method: str | Callable[[], Observer]
) -> dict[NodeId, float]:
    taps = [e.end.id for e in plan.epilogues.values() if e.rounding is None or e.rounding.scale is None]
    if not taps:
        return {}
    if not batches:
        node = source.graph.nodes[taps[0]]
        raise source.fail(node, "its scale must come from a calibration; give batches of typical inputs")
    record = calibrate(source.graph, batches, taps, source.params, method)
    return {tap: entry.scales[0] * LEVELS for tap, entry in record.items()}


class _Plan:
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
        for node in source.graph.nodes:
            if node.id in source.dynamic and node.id not in self.absorbed:
                self._plan(node)

    def _plan(self, node: Node) -> None:
        source, op = self.source, node.op
        if node.id == source.input.id:
            self._finish(node, node)
        elif isinstance(op, MatMul | Conv):
            self._finish(node, self._with_bias(node))
        elif isinstance(op, Pad):
            reader = source.only_reader(node)
            if reader is None or not isinstance(reader.op, Conv) or source.scalar(node.inputs[1]) != 0:
                raise source.fail(node, "only zeros around the image of a convolution can be padded")
            self.pads[reader.id] = node
        elif isinstance(op, Binary) and op.kind in (BinaryOp.Add, BinaryOp.Mul) and self._is_dynamic_pair(node):
            self._finish(node, node)
        elif isinstance(op, ReduceWindow) and op.kind is ReduceOp.Sum:
            self._take_division(node)
        elif isinstance(op, Activation) and op.kind is not ActivationKind.Relu:
            self._finish(node, node)

    def _is_dynamic_pair(self, node: Node) -> bool:
        return all(i in self.source.dynamic for i in node.inputs)

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
        if len(others) != 1 or not self.source.is_constant(others[0]):
            return product
        self.biases[product.id] = (others[0], reader.id)
        self.absorbed.add(reader.id)
        return reader

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


@dataclass(frozen=True)
class _Held:
    """A value of the program, and the [C, H, W] that its graph's value was flattened from, if it was."""

    index: int
    flattened: tuple[int, int, int] | None = None


class _Building:
    def __init__(
        self,
        source: FloatGraph,
        plan: _Plan,
        thresholds: Mapping[NodeId, float],
        bits: int,
        activations: DType,
        fraction_bits: int,
    ) -> None:
        self.source, self.plan, self.thresholds = source, plan, thresholds
        self.bits, self.activations, self.fraction_bits = bits, activations, fraction_bits
        self.steps: list[Step] = []
        self.values: list[Value] = []
        self.held: dict[NodeId, _Held] = {}

    def program(self, name: str) -> Program:
        source = self.source
        dims = self._sizes(source.input)
        axes = (1, 2, 0) if len(dims) == 3 else tuple(range(len(dims)))
        end = self.plan.epilogues[source.input.id]
        value, low, high = self._encoding("input", end, tuple(dims[a] for a in axes))
        if (low, high) != limits(value.dtype) and end.low > -np.inf:
            raise source.fail(end.end, "limits on the input itself have no step; leave them out")
        self.values.append(value)
        self.held[source.input.id] = self.held[end.end.id] = _Held(0)
        for node in source.graph.nodes:
            if node.id in source.dynamic and node.id not in self.held and node.id not in self.plan.absorbed:
                self._convert(node)
        if not self.steps:
            raise QuantizedError("quantize: the graph computes nothing that has an integer form")
        last = source.graph.nodes[source.graph.outputs[0]]
        if not _is_ordered(self.held[last.id].flattened):
            raise source.fail(
                last, "a flattened image cannot be the result, since it lies in another order; flatten it after"
            )
        return Program(name, value, axes, tuple(self.steps))

    def _convert(self, node: Node) -> None:
        op = node.op
        if isinstance(op, MatMul):
            self._dense(node)
        elif isinstance(op, Conv):
            self._conv(node)
        elif isinstance(op, Pad) and node.id in {p.id for p in self.plan.pads.values()}:
            self.held[node.id] = self.held[node.inputs[0]]
        elif isinstance(op, Activation) and node.id in self.plan.epilogues:
            self._lookup(node)
        elif node.id in self.plan.epilogues:
            self._pair(node)
        elif isinstance(op, FloatSoftmax):
            self._softmax(node)
        elif isinstance(op, ReduceWindow | Pool):
            self._pool(node)
        elif isinstance(op, Reduce) and op.kind is ReduceOp.Mean:
            self._global_mean(node)
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
                "there is no integer step for it; known: matmul, conv, pooling, add, mul, relu, limits, functions of "
                "one number (sigmoid, tanh, ...), softmax of rows, flatten, argmax",
            )

    def _sizes(self, node: Node) -> tuple[int, ...]:
        """The dims of one example."""
        dims = node.shape.dims[1:]
        if node.shape.rank < 2 or not all(isinstance(d, int) for d in dims):
            raise self.source.fail(node, "needs a batch axis in front and fixed sizes after it")
        if len(dims) not in (1, 3):
            raise self.source.fail(node, f"values are rows [N, K] or images [N, C, H, W], got {node.shape}")
        return tuple(int(d) for d in dims if isinstance(d, int))

    def _result_dims(self, node: Node) -> tuple[int, ...]:
        dims = self._sizes(node)
        return (dims[1], dims[2], dims[0]) if len(dims) == 3 else dims

    def _encoding(self, name: str, end: Epilogue, dims: tuple[int, ...]) -> tuple[Value, int, int]:
        """The value after an epilogue, and the codes that it is limited to."""
        rounding, dtype = end.rounding, self.activations
        if rounding is None:
            rounding = Rounding(None, 0, *limits(dtype))
        else:
            dtype = DType.I8 if rounding.low >= -128 and rounding.high <= 127 else DType.I16
        scale = rounding.scale
        if scale is None:
            scale = max(self.thresholds[end.end.id] / rounding.high, _SMALLEST_SCALE)
        value = Value(name, dims, float(np.float32(scale)), rounding.zero_point, dtype)
        low, high = (_code(value, v) for v in (end.low, end.high))
        return value, max(low, rounding.low), min(high, rounding.high)

    def _name(self, kind: str) -> str:
        return f"{kind}{sum(s.name.rstrip('0123456789') == kind for s in self.steps) + 1}"

    def _add(self, step: Step, *nodes: NodeId, flattened: tuple[int, int, int] | None = None) -> None:
        self.steps.append(step)
        self.values.append(step.out)
        for node_id in nodes:
            self.held[node_id] = _Held(len(self.steps), flattened)

    def _operand(self, node: Node, position: int = 0) -> tuple[_Held, Value]:
        node_id = node.inputs[position]
        if node_id not in self.held:
            other = self.source.graph.nodes[node_id]
            raise self.source.fail(node, f"operand {position} ({other.op.mnemonic}) is no value of the program")
        held = self.held[node_id]
        return held, self.values[held.index]

    def _product_fields(
        self, node: Node, kind: str, weights: Weights, x: Value, dims: tuple[int, ...]
    ) -> dict[str, Any]:
        end = self.plan.epilogues[node.id]
        out, low, high = self._encoding(self._name(kind), end, dims)
        units = np.float64(np.float32(x.scale)) * weights.scales.astype(np.float64)
        bias = half_away_array(self._bias(node, len(weights.codes)).astype(np.float64) / units)
        if np.any(np.abs(bias) >= 2**31):
            raise self.source.fail(
                node, f"the bias of {out.name} is {np.abs(bias).max():.3g} steps and does not fit i32"
            )
        # In f32 and from left to right, as the multipliers of other tools are.
        factors = np.float32(x.scale) * weights.scales / np.float32(out.scale)
        return {
            "out": out,
            "weights": weights,
            "bias": bias.astype(np.int32),
            "multipliers": Multipliers.of(factors, self.fraction_bits),
            "low": low,
            "high": high,
        }

    def _bias(self, node: Node, channels: int) -> Array:
        if node.id not in self.plan.biases:
            return np.zeros(channels, np.float32)
        constant, reader = self.plan.biases[node.id]
        value = self.source.constant(constant)
        axis = 1 if isinstance(node.op, Conv) else node.shape.rank - 1
        dims = (*(1,) * (node.shape.rank - value.ndim), *value.shape)
        if value.ndim > node.shape.rank or any(d != 1 for i, d in enumerate(dims) if i != axis):
            raise self.source.fail(node, f"its bias must have one number per output channel, got {value.shape}")
        vector = np.broadcast_to(value.reshape(dims).reshape(-1), (channels,))
        op = self.source.graph.nodes[reader].op
        return -vector if isinstance(op, Binary) and op.kind is BinaryOp.Sub else vector

    def _dense(self, node: Node) -> None:
        if not self.source.is_constant(node.inputs[1]) or self.source.graph.shape(node.inputs[1]).rank != 2:
            raise self.source.fail(node, "a matrix of weights [K, N] must be its second operand")
        held, x = self._operand(node)
        if node.shape.rank != 2:
            raise self.source.fail(node, f"takes rows [N, K], got {node.shape}")
        weights = self.source.weights(node.inputs[1], 1, self.bits)
        if held.flattened is not None:
            # Rows in the order [C, H, W] of the graph become [H, W, C], as the image lies in the program.
            codes = weights.codes.reshape(-1, *held.flattened).transpose(0, 2, 3, 1)
            weights = Weights(np.ascontiguousarray(codes.reshape(len(codes), -1)), weights.scales, weights.bits)
        fields = self._product_fields(node, "dense", weights, x, self._result_dims(node))
        self._add(Dense((held.index,), **fields), node.id, self.plan.epilogues[node.id].end.id)

    def _conv(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, Conv)
        if not self.source.is_constant(node.inputs[1]) or len(op.kernel_size) != 2:
            raise self.source.fail(node, "needs constant weights and images with two spatial axes")
        held, x = self._operand(node)
        weights = self.source.weights(node.inputs[1], 0, self.bits)
        codes = np.ascontiguousarray(weights.codes.transpose(0, 2, 3, 1))
        fields = self._product_fields(
            node, "conv", Weights(codes, weights.scales, weights.bits), x, self._result_dims(node)
        )
        step = Conv2d(
            (held.index,),
            **fields,
            stride=(op.stride[0], op.stride[1]),
            padding=self._padding(node, op),
            dilation=(op.dilation[0], op.dilation[1]),
            groups=op.groups,
        )
        self._add(step, node.id, self.plan.epilogues[node.id].end.id)

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
        (a_held, a), (b_held, b) = self._operand(node, 0), self._operand(node, 1)
        dims = self._result_dims(node)
        if a.dims != b.dims or a_held.flattened != b_held.flattened:
            raise self.source.fail(node, f"both operands must have one size, got {a.dims} and {b.dims}")
        if a_held.flattened is not None:
            dims = a.dims
        end = self.plan.epilogues[node.id]
        assert isinstance(node.op, Binary)
        is_sum = node.op.kind is BinaryOp.Add
        out, low, high = self._encoding(self._name("add" if is_sum else "mul"), end, dims)
        inputs = (a_held.index, b_held.index)
        if is_sum:
            step: Step = Add(inputs, out, Add.multipliers_for(a, b, out, self.fraction_bits), low, high)
        else:
            factor = np.float32(a.scale) * np.float32(b.scale) / np.float32(out.scale)
            step = Mul(inputs, out, Multipliers.of(factor, self.fraction_bits), low, high)
        self._add(step, node.id, end.end.id, flattened=a_held.flattened)

    def _pool(self, node: Node) -> None:
        op = node.op
        held, x = self._operand(node)
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
        out = _like(x, self._name("mean_pool" if is_mean else "max_pool"), self._result_dims(node))
        step = made((held.index,), out, (kernel[0], kernel[1]), (stride[0], stride[1]), padding)
        self._add(step, node.id, self.plan.means.get(node.id, node.id))

    def _global_mean(self, node: Node) -> None:
        op = node.op
        assert isinstance(op, Reduce)
        held, x = self._operand(node)
        if len(x.dims) != 3 or held.flattened is not None or sorted(a % 4 for a in op.axes) != [2, 3]:
            raise self.source.fail(node, "a mean is taken over the rows and columns of images")
        height, width, channels = x.dims
        out = _like(x, self._name("mean_pool"), (1, 1, channels))
        step = MeanPool((held.index,), out, (height, width), (height, width))
        self._add(step, node.id, flattened=None if op.keep_dim else (channels, 1, 1))

    def _reshape(self, node: Node) -> None:
        held, x = self._operand(node)
        dims = self._sizes(node)
        before = self.source.graph.shape(node.inputs[0])
        if node.shape.dims[0] != before.dims[0] or dims != (x.size,):
            raise self.source.fail(node, f"only a flattened image, [N, {x.size}], can be made of {before}")
        flattened = held.flattened
        if len(x.dims) == 3 and flattened is None:
            flattened = (x.dims[2], x.dims[0], x.dims[1])
        self.held[node.id] = _Held(held.index, flattened)

    def _argmax(self, node: Node) -> None:
        assert isinstance(node.op, ArgReduce)
        held, x = self._operand(node)
        if (
            node.op.axis % 2 != 1
            or node.shape.rank != 1
            or (len(x.dims) == 3 and held.flattened is None)
            or not _is_ordered(held.flattened)
        ):
            raise self.source.fail(node, "it is taken over the columns of rows [N, K]")
        self._add(Argmax((held.index,), Value(self._name("argmax"), (), dtype=DType.I32)), node.id)

    def _lookup(self, node: Node) -> None:
        """A function of one number, for every code there is; 0 where it has no value, as log of negative numbers."""
        held, x = self._operand(node)
        if x.dtype is not DType.I8:
            raise self.source.fail(node, f"functions are tables of i8 codes, and {x.name} has {x.dtype}")
        end = self.plan.epilogues[node.id]
        out, low, high = self._encoding(self._name(node.op.mnemonic), end, x.dims)
        with np.errstate(all="ignore"):
            floats = node.op.eval(x.decode(np.arange(-128, 128)))
        table = np.clip(out.encode(np.nan_to_num(floats, nan=0.0)), low, high).astype(out.dtype.numpy)
        self._add(Lookup((held.index,), out, table), node.id, end.end.id, flattened=held.flattened)

    def _softmax(self, node: Node) -> None:
        held, x = self._operand(node)
        assert isinstance(node.op, FloatSoftmax)
        if node.shape.rank != 2 or node.op.axis % 2 != 1 or x.dtype is not DType.I8:
            raise self.source.fail(node, "it is taken over the columns of rows [N, K], with i8 codes")
        out = Value(self._name("softmax"), x.dims, SHARE_SCALE, SHARE_ZERO)
        self._add(Softmax((held.index,), out, Softmax.table_for(x)), node.id, flattened=held.flattened)

    def _clamp(self, node: Node, low: float, high: float) -> None:
        held, x = self._operand(node)
        out = _like(x, self._name("clamp"), x.dims)
        step = Clamp((held.index,), out, _code(x, low), _code(x, high))
        self._add(step, node.id, flattened=held.flattened)

    def _rescale(self, node: Node, rounding: Rounding) -> None:
        """A rounding that no step before it took: of a pooled value, say. Nothing to do where the codes have it."""
        held, x = self._operand(node)
        if rounding.scale is None:
            raise self.source.fail(
                node, "its step comes from each batch; round right after a product, or use a fixed step"
            )
        end = Epilogue(node, rounding=rounding)
        out, low, high = self._encoding(self._name("rescale"), end, x.dims)
        if (out.scale, out.zero_point, out.dtype) == (x.scale, x.zero_point, x.dtype):
            self.held[node.id] = held
            return
        factor = np.float32(x.scale) / np.float32(out.scale)
        self._add(
            Rescale((held.index,), out, Multipliers.of(factor, self.fraction_bits), low, high),
            node.id,
            flattened=held.flattened,
        )

    def _dequantize(self, node: Node) -> None:
        """Floats of codes are the same value, with the scale that it has."""
        held, x = self._operand(node)
        assert isinstance(node.op, Dequantize)
        if (tuple(map(np.float32, node.op.scales)), node.op.zero_points) != ((np.float32(x.scale),), (x.zero_point,)):
            raise self.source.fail(
                node, f"it must have the scale {x.scale} and the zero point {x.zero_point} of {x.name}"
            )
        self.held[node.id] = held


def _is_ordered(flattened: tuple[int, int, int] | None) -> bool:
    """Whether [C, H, W] and [H, W, C] are the same in memory."""
    return flattened is None or flattened[0] == 1 or flattened[1] * flattened[2] == 1


def _like(x: Value, name: str, dims: tuple[int, ...]) -> Value:
    return Value(name, dims, x.scale, x.zero_point, x.dtype)


def _code(value: Value, x: float) -> int:
    """The code of a limit, which may be infinite."""
    low, high = limits(value.dtype)
    if not np.isfinite(x):
        return low if x < 0 else high
    return int(value.encode(np.array([x], np.float32))[0])
