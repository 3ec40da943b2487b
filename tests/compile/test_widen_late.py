"""Weights in f16 and bf16: they are moved, packed and looked up as they are stored, and widened where they are read."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.compile.compiler import CompilePipeline, CompileResult
from rlx.compile.weights.sink_casts import widen_late
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.leaves import Param
from rlx.ops.define.operands import convert

rng = np.random.default_rng(83)
Arrays = dict[str, np.ndarray]
HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def wide(x: Any) -> Any:
    return convert(x, DType.F32)


def normal(*dims: int, dtype: str = "f32") -> np.ndarray:
    return rng.normal(size=dims).astype(HALVES.get(dtype, np.float32))


def names_of(graph: Graph) -> list[str]:
    return [f"{n.shape.dtype} {n.op.mnemonic}" for n in graph.nodes if not n.is_leaf]


def test_moves_and_lookups_come_before_the_conversion():
    g = Graph("moves")
    a, b, ids = g.param("a", (6, 4), "bf16"), g.param("b", (3, 4), "bf16"), g.input("ids", ("S",), "i32")
    joined = ops.concat([ops.transpose(wide(a), (1, 0)), ops.transpose(wide(b), (1, 0))], 1)
    g.set_outputs([ops.reshape(joined, (2, 18)), ops.gather(wide(a), ids)])
    late = widen_late(g)
    moved = [name for name in names_of(late) if name != "f32 cast"]
    assert moved == ["bf16 transpose", "bf16 transpose", "bf16 concat", "bf16 reshape", "bf16 gather"]
    values: Arrays = {"a": normal(6, 4, dtype="bf16"), "b": normal(3, 4, dtype="bf16")}
    given = {"ids": np.array([5, 0, -1], np.int32)}
    for found, wanted in zip(*(run("reference", p, values, given) for p in (late, g))):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("case", ["an input", "two types", "rounded", "integers", "bytes"])
def test_what_is_left_alone(case: str):
    g = Graph("left")
    if case == "an input":
        moved = ops.transpose(wide(g.input("x", (6, 4), "bf16")), (1, 0))
    elif case == "two types":
        moved = ops.concat([wide(g.param("a", (2, 3), "bf16")), wide(g.param("b", (2, 3), "f16"))], 0)
    elif case == "rounded":
        moved = ops.transpose(convert(g.param("w", (6, 4), "f32"), DType.BF16), (1, 0))
    elif case == "integers":
        moved = ops.transpose(wide(g.param("w", (6, 4), "i8")), (1, 0))
    else:
        moved = ops.transpose(wide(g.param("w", (6, 4), "f8e4m3")), (1, 0))
    g.set_outputs([moved])
    assert names_of(widen_late(g)) == names_of(g)


def run(device: str, graph: Graph, params: Arrays, given: Arrays) -> list[np.ndarray]:
    compiled = rlx.Session(device).compile(graph)
    for name, value in params.items():
        compiled.set_param(name, value)
    return [np.array(r) for r in compiled.run(given)]


def stored_types(result: CompileResult) -> list[str]:
    return [str(n.shape.dtype) for n in result.lir.as_graph().params if isinstance(n.op, Param)]


def linear(dtype: str, k: int, n: int, transposed: bool) -> Graph:
    g = Graph("linear")
    x, w = g.input("x", ("B", k)), g.param("w", (n, k) if transposed else (k, n), dtype)
    g.set_outputs([ops.relu(x @ (ops.transpose(wide(w), (1, 0)) if transposed else wide(w)))])
    return g


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize(("k", "n"), [(40, 192), (33, 520), (900, 128)])
@pytest.mark.parametrize("dtype", HALVES)
def test_products_read_panels_of_the_stored_type(dtype: str, k: int, n: int, transposed: bool):
    """Widening is exact: the bits are those of the same weights stored as f32."""
    g = linear(dtype, k, n, transposed)
    result = CompilePipeline.new("cpu").compile(g)
    assert [kernel.kind for kernel in result.lir.kernels if kernel.kind != "view"] == ["matmul"]
    assert stored_types(result) == [dtype]
    w = normal(n, k, dtype=dtype) if transposed else normal(k, n, dtype=dtype)
    for m in (1, 3, 6, 49):
        given = {"x": normal(m, k)}
        (found,) = run("cpu", g, {"w": w}, given)
        (same,) = run("cpu", linear("f32", k, n, transposed), {"w": w.astype(np.float32)}, given)
        np.testing.assert_array_equal(found, same)
        matrix = (w.T if transposed else w).astype(np.float64)
        exact = np.maximum(given["x"].astype(np.float64) @ matrix, 0)
        bound = 2.0**-24 * (2 + np.sqrt(k)) * (np.abs(given["x"]) @ np.abs(matrix))
        assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_any_number_of_threads_gives_the_same_bits(dtype: str):
    g = linear(dtype, 384, 512, True)
    params, given = {"w": normal(512, 384, dtype=dtype)}, {"x": normal(130, 384)}
    results = []
    for count in (1, 2, 3):
        with rlx.threads(count):
            results += run("cpu", g, params, given)
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


def test_a_gate_and_what_it_gates_are_one_kernel():
    k, n = 64, 128
    g = Graph("swiglu")
    x, gate, up = g.input("x", ("B", k)), g.param("gate", (n, k), "bf16"), g.param("up", (n, k), "bf16")
    products = [x @ ops.transpose(wide(w), (1, 0)) for w in (gate, up)]
    g.set_outputs([ops.silu(products[0]) * products[1]])
    result = CompilePipeline.new("cpu").compile(g)
    assert [kernel.kind for kernel in result.lir.kernels if kernel.kind != "view"] == ["matmul"]
    params = {name: normal(n, k, dtype="bf16") for name in ("gate", "up")}
    given = {"x": normal(7, k) * np.float32(0.1)}
    (found,) = run("cpu", g, params, given)
    a, b = (given["x"].astype(np.float64) @ w.T.astype(np.float64) for w in params.values())
    np.testing.assert_allclose(found, a / (1 + np.exp(-a)) * b, rtol=1e-4, atol=1e-5)


def test_a_table_is_looked_up_as_it_is_stored():
    g = Graph("tied")
    ids, x, table = g.input("ids", ("S",), "i32"), g.input("x", ("B", 48)), g.param("table", (320, 48), "f16")
    rows = wide(table)
    g.set_outputs([ops.gather(rows, ids) * 2.0, x @ ops.transpose(rows, (1, 0))])
    result = CompilePipeline.new("cpu").compile(g)
    assert sorted(k.kind for k in result.lir.kernels if k.kind != "view") == ["map", "matmul"]
    assert stored_types(result) == ["f16", "f16"]
    params = {"table": normal(320, 48, dtype="f16")}
    given = {"ids": np.array([319, 0, -2], np.int32), "x": normal(5, 48)}
    found, scores = run("cpu", g, params, given)
    np.testing.assert_array_equal(found, params["table"][[319, 0, -2]].astype(np.float32) * 2)
    np.testing.assert_allclose(scores, given["x"] @ params["table"].T.astype(np.float32), rtol=1e-4, atol=1e-4)


def test_a_weight_that_others_read_too():
    """The widened weight is also an operand of a sum, of a product on the left, and a result."""
    g = Graph("shared")
    x, w = g.input("x", (5, 64)), g.param("w", (64, 192), "bf16")
    b = wide(w)
    g.set_outputs([x @ b, ops.reduce_sum(b + 1.0, axes=(0,)), b @ g.input("y", (192, 3)), b])
    params, given = {"w": normal(64, 192, dtype="bf16")}, {"x": normal(5, 64), "y": normal(192, 3)}
    for found, wanted in zip(run("cpu", g, params, given), run("reference", g, params, given)):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
