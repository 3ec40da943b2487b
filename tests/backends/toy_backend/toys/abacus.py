"""A claiming backend: an engine that computes the ops it claims in NumPy, in the type of its operands."""

from __future__ import annotations

import operator

import numpy as np

from rlx import ops
from rlx.backends.engine import Engine, EngineBackend
from rlx.compile.target import DeviceInfo, Found, Target

BINARY = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum", "and": "logical_and"}
UNARY = {"rsqrt": lambda x: 1 / np.sqrt(x), "silu": lambda x: x / (1 + np.exp(-x))}


def update(op, x, window, *starts):
    x = x.copy()
    places = [min(max(int(s), 0), n - w) for s, n, w in zip(starts, x.shape, window.shape)]  # the window must fit
    x[tuple(slice(p, p + w) for p, w in zip(places, window.shape))] = window
    return x


TABLE = {
    ops.Binary: lambda op, a, b: getattr(np, BINARY[op.kind])(a, b),
    ops.Compare: lambda op, a, b: getattr(operator, op.kind)(a, b),
    ops.Activation: lambda op, x: (UNARY.get(op.kind) or getattr(np, op.kind))(x),
    ops.Reduce: lambda op, x: getattr(np, op.kind)(x, axis=op.axes, keepdims=op.keep_dim),
    ops.Where: lambda op, condition, a, b: np.where(condition, a, b),
    ops.MatMul: lambda op, a, b: a @ b,
    ops.Cast: lambda op, x: x,
    ops.Iota: lambda op: np.indices(op.dims)[op.axis],
    ops.Reshape: lambda op, x: x.reshape(op.new_shape),
    ops.Transpose: lambda op, x: x.transpose(op.perm),
    ops.Expand: lambda op, x: np.broadcast_to(x, op.target_shape),
    ops.Slice: lambda op, x: x[tuple(map(slice, op.starts, op.limits, op.strides))],
    ops.Reverse: lambda op, x: np.flip(x, op.axes),
    ops.Concat: lambda op, *xs: np.concatenate(xs, op.axis),
    ops.DynamicUpdateSlice: update,
    ops.Custom: lambda op, *xs: op.eval(*xs),
}


class Abacus(Engine[np.ndarray]):
    name = "abacus"
    claims = frozenset(op.__name__ for op in TABLE)

    def constant(self, array):
        return array.copy()

    def emit(self, node, operands):
        return [np.asarray(TABLE[type(node.op)](node.op, *operands), node.shape.dtype.numpy)]

    def fetch(self, value):
        return value.copy()


TARGET = Target(
    name="abacus",
    about="a toy that computes ops one by one",
    probe=lambda: Found((DeviceInfo(0, "ten wires"),)),
    backend=lambda chosen: EngineBackend(Abacus),
    claims=Abacus.claims,
)
