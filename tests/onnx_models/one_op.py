"""Models of a few nodes, for the tests of `rlx.onnx`."""

import numpy as np

import rlx.onnx
from rlx.formats.onnx import OnnxGraph, OnnxValue, make_node, make_tensor, type_number
from rlx.formats.onnx.writer import OPSET, onnx_bytes


def value(name, dtype, *sizes):
    return OnnxValue(name, type_number(dtype), sizes)


def graph(nodes, inputs, outputs, **constants):
    """`inputs` are values, `outputs` names; constants are arrays by name."""
    found = [value(name, "f4") for name in outputs]
    return OnnxGraph("test", nodes, {n: make_tensor(n, a) for n, a in constants.items()}, inputs, found)


def model(nodes, inputs, outputs, opsets=OPSET, **constants):
    return onnx_bytes(graph(nodes, inputs, outputs, **constants), opsets)


def of_arrays(arrays):
    return {f"x{i}": np.asarray(a) for i, a in enumerate(arrays) if a is not None}


def run_op(op, *arrays, opset=OPSET, domain="", outputs=1, known=(), device="reference", **attributes):
    """The results of one node on arrays; None leaves an input out, and those at `known` are constants of the model."""
    given = of_arrays(arrays)
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    results = [f"y{i}" for i in range(outputs)]
    constants = {n: a for n, a in given.items() if int(n[1:]) in known}
    inputs = [value(n, a.dtype, *a.shape) for n, a in given.items() if n not in constants]
    opsets = {"": opset, domain: 1} if domain else opset
    content = model([make_node(op, names, results, domain, **attributes)], inputs, results, opsets, **constants)
    loaded = rlx.onnx.load(content, device)
    found = loaded.run({n: a for n, a in given.items() if n not in constants})
    return [np.asarray(a) for a in found] if outputs > 1 else np.asarray(found[0])
