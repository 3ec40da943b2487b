"""Decompositions at the edges: zeros of both signs, denormals, infinities and NaN come out as the definition says."""

import numpy as np
import pytest

from rlx import ops
from rlx.ir.graph import Graph
from rlx.ir.interpret import interpret
from rlx.ir.rewrite.rebuild import decompose_all
from rlx.ops.pointwise.arithmetic import BinaryOp
from rlx.ops.pointwise.bits import BitUnaryOp, PredicateKind
from rlx.ops.pointwise.unary import ActivationKind

EDGES = [0.0, -0.0, 0.3, -0.3, 1.0, -1.0, 1.7, -5.5, 42.0, -42.0, np.inf, -np.inf, np.nan]


def edges(dtype):
    """The edges that every float type has, and those of this one."""
    info = np.finfo(dtype)
    own = [info.smallest_subnormal, info.tiny, info.max, -info.max, info.eps, 1 - info.eps, 1 + info.eps]
    return np.concatenate([np.array(EDGES, dtype), np.array(own, dtype)])


def compare_with_decomposition(op, *arrays, rtol, atol=0.0):
    graph = Graph("edges")
    inputs = [graph.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    graph.set_outputs([graph.append_node(op, inputs)])
    primitive = decompose_all(graph)
    assert all(n.op.is_primitive for n in primitive.nodes)
    (expected,), (result,) = interpret(graph, list(arrays)), interpret(primitive, list(arrays))
    assert result.dtype == expected.dtype
    if result.dtype.kind != "f":
        np.testing.assert_array_equal(result, expected)
        return
    tiny = 4 * float(np.finfo(result.dtype).tiny)
    np.testing.assert_allclose(result.astype("f8"), expected.astype("f8"), rtol=rtol, atol=max(atol, tiny))
    zeros = (expected == 0) & (result == 0)
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(expected[zeros]))


# Functions whose last binade overflows one step early.
LIMITED = {
    "cosh": lambda x: np.abs(x) < 80,
    "sinh": lambda x: np.abs(x) < 80,
}
DECOMPOSED = [k for k in ActivationKind if not ops.Activation(k).is_primitive]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", DECOMPOSED)
def test_unary(kind, dtype):
    x = edges(dtype)
    if kind in LIMITED:
        x = x[LIMITED[kind](x) | ~np.isfinite(x)]
    eps = float(np.finfo(dtype).eps)
    # Log-gamma is a difference of numbers near 15, so it loses that much where it crosses zero.
    atol = 64 * eps if kind is ActivationKind.Lgamma else 0.0
    compare_with_decomposition(ops.Activation(kind), x, rtol=200 * eps, atol=atol)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", [k for k in BinaryOp if not ops.Binary(k).is_primitive])
def test_binary(kind, dtype):
    if kind is BinaryOp.ShiftRightLogical:
        a, b = np.meshgrid(np.array([0, 1, -1, 127, -128], "i1"), np.array([0, 1, 7, 8, -1, 127], "i1"))
    else:
        a, b = np.meshgrid(edges(dtype), edges(dtype))
    compare_with_decomposition(ops.Binary(kind), a, b, rtol=16 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", PredicateKind)
def test_predicates(kind, dtype):
    compare_with_decomposition(ops.Predicate(kind), edges(dtype), rtol=0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("kind", BitUnaryOp)
def test_bits(kind, dtype):
    info = np.iinfo(dtype)
    powers = [2**i for i in range(info.bits - 1)]
    x = np.array([info.min, info.max, 0, info.max - 1, *powers, *(p - 1 for p in powers)], dtype)
    compare_with_decomposition(ops.BitUnary(kind), x, rtol=0)


def test_integer_floor_division():
    a, b = np.meshgrid(np.arange(-128, 128, 5).astype("i1"), np.arange(-128, 128, 3).astype("i1"))
    compare_with_decomposition(ops.Binary("floordiv"), a, b, rtol=0)
    u, v = np.meshgrid(np.arange(0, 256, 5).astype("u1"), np.arange(0, 256, 3).astype("u1"))
    compare_with_decomposition(ops.Binary("floordiv"), u, v, rtol=0)
