"""Models of one quantised layer as LiteRT files, made of steps of integer programs, and what LiteRT makes of codes.

The files are written with LiteRT's own schema; its reference kernels (`BUILTIN_REF`) compute the results.
"""

import math

import flatbuffers
import numpy as np
import pytest

from rlx.quantized import Add, Conv2d, Dense, MaxPool, MeanPool, Mul, Multipliers

schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="needs ai-edge-litert (make test-peers)")
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: E402

KINDS = {np.dtype("i1"): "INT8", np.dtype("i4"): "INT32"}


def multipliers(factors):
    """m0 and shift as LiteRT makes them of doubles: a fraction from 1/2 to 1 in 31 bits, and its exponent."""
    found = []
    for factor in np.atleast_1d(factors):
        fraction, exponent = math.frexp(float(factor))
        m0 = math.floor(fraction * 2**31 + 0.5)
        found.append((2**30, -exponent - 1) if m0 == 2**31 else (m0, -exponent))
    m0, shift = zip(*found)
    return Multipliers(np.int32(m0), np.int32(shift))


def product_multipliers(x, weights, out):
    return multipliers(np.float64(np.float32(x.scale)) * weights.scales / np.float64(np.float32(out.scale)))


def add_multipliers(a, b, out):
    scales = [float(np.float32(v.scale)) for v in (a, b, out)]
    twice = 2.0 * max(scales[:2])
    return multipliers([scales[0] / twice, scales[1] / twice, twice / (2**20 * scales[2])])


def mul_multipliers(a, b, out):
    return multipliers(float(np.float32(a.scale)) * float(np.float32(b.scale)) / float(np.float32(out.scale)))


class _Model:
    """Tensors, buffers and one operator of a model under construction."""

    def __init__(self):
        self.tensors, self.buffers = [], [schema.BufferT()]

    def add(self, name, shape, dtype, scales=(), zero_points=(), axis=0, data=None):
        tensor = schema.TensorT()
        tensor.name, tensor.shape = name, list(shape)
        tensor.type = getattr(schema.TensorType, KINDS[np.dtype(dtype)])
        if len(scales):
            tensor.quantization = schema.QuantizationParametersT()
            tensor.quantization.scale = np.float32(scales)
            tensor.quantization.zeroPoint = np.int64(zero_points)
            tensor.quantization.quantizedDimension = axis
        tensor.buffer = 0
        if data is not None:
            tensor.buffer = len(self.buffers)
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data, dtype).tobytes(), np.uint8)
            self.buffers.append(buffer)
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def value(self, v, batch, dims=None):
        return self.add(v.name, (batch, *(dims or v.dims)), v.dtype.numpy, [v.scale], [v.zero_point])

    def file(self, op, version, options, inputs, out, given):
        code = schema.OperatorCodeT()
        code.builtinCode, code.version = getattr(schema.BuiltinOperator, op), version
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        operator = schema.OperatorT()
        operator.opcodeIndex, operator.inputs, operator.outputs = 0, list(inputs), [out]
        if options is not None:
            operator.builtinOptions = options
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__[:-1])
        graph = schema.SubGraphT()
        graph.tensors, graph.inputs, graph.outputs, graph.operators = self.tensors, list(given), [out], [operator]
        model = schema.ModelT()
        model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [graph], self.buffers
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def activation(step):
    """The clamp of a step: none, or one at zero."""
    info = np.iinfo(step.out.dtype.numpy)
    kinds = schema.ActivationFunctionType
    assert step.high == info.max and step.low in (info.min, step.out.zero_point)
    return kinds.NONE if step.low == info.min else kinds.RELU


def model_of(step, operands, batch):
    """One step as a model; values with a batch, images [N, H, W, C]."""
    m = _Model()
    match step:
        case Dense() | Conv2d():
            return _product(m, step, operands[0], batch)
        case MaxPool() | MeanPool():
            x, out = m.value(operands[0], batch), m.value(step.out, batch)
            options = schema.Pool2DOptionsT()
            options.padding, options.fusedActivationFunction = schema.Padding.VALID, 0
            options.strideH, options.strideW = step.stride
            options.filterHeight, options.filterWidth = step.kernel
            op = "MAX_POOL_2D" if isinstance(step, MaxPool) else "AVERAGE_POOL_2D"
            return m.file(op, 2, options, [x], out, [x])
        case Add() | Mul():
            inputs, out = [m.value(v, batch) for v in operands], m.value(step.out, batch)
            options = schema.AddOptionsT() if isinstance(step, Add) else schema.MulOptionsT()
            options.fusedActivationFunction = activation(step)
            return m.file("ADD" if isinstance(step, Add) else "MUL", 2, options, inputs, out, inputs)
    raise TypeError(type(step))


def _product(m, step, x, batch):
    codes, scales = step.weights.codes, step.weights.scales
    depthwise = isinstance(step, Conv2d) and step.is_depthwise
    shape, axis = codes, 0
    if depthwise:
        # LiteRT has the channels of depthwise weights last.
        shape, axis = np.moveaxis(codes, 0, 2).reshape(1, *step.kernel, -1), 3
    given = m.value(x, batch)
    w = m.add("w", shape.shape, np.int8, scales, np.zeros(len(scales), "i8"), axis, shape)
    units = np.float32(np.float64(np.float32(x.scale)) * scales)
    bias = m.add("b", (step.channels,), np.int32, units, np.zeros(len(scales)), 0, step.bias)
    out = m.value(step.out, batch)
    if isinstance(step, Dense):
        options, op = schema.FullyConnectedOptionsT(), "FULLY_CONNECTED"
        version = 12
    else:
        options, op = schema.Conv2DOptionsT(), "CONV_2D"
        if depthwise:
            options, op = schema.DepthwiseConv2DOptionsT(), "DEPTHWISE_CONV_2D"
            options.depthMultiplier = 1
        options.padding = schema.Padding.SAME if any(map(any, step.padding)) else schema.Padding.VALID
        (options.strideH, options.strideW), version = step.stride, 3
        options.dilationHFactor, options.dilationWFactor = step.dilation
    options.fusedActivationFunction = activation(step)
    return m.file(op, version, options, [given, w, bias], out, [given])


def run(model, *codes):
    """What the reference kernels give."""
    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), codes):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
