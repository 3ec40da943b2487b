"""Weights in panels: which are packed, that programs mean the same, and that kernels read the panels as they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.rocm import compile_to_code_object
from rlx.compile.compiler import CompilePipeline
from rlx.compile.weights.join_products import join_products
from rlx.compile.weights.pack_blocks import pack_quantized
from rlx.compile.weights.pack_floats import pack_weights, panels_below
from rlx.ir.dtype import DType
from rlx.ir.graph import Graph
from rlx.ir.leaves import Param
from rlx.kernels.cpu.matmul.blocks import panel_width
from rlx.kernels.machines import host
from rlx.ops.lowered.quantized_panels import PanelGather, QuantPanels
from rlx.quant.schemes import QuantScheme

rng = np.random.default_rng(5)


def linear(k: int, n: int, transposed: bool = False, dtype: str = "f32") -> Graph:
    g = Graph("linear")
    x, w = g.input("x", ("B", k), dtype), g.param("w", (n, k) if transposed else (k, n), dtype)
    g.set_outputs([ops.relu(x @ (ops.transpose(w, (1, 0)) if transposed else w))])
    return g


def normal(*dims: int) -> np.ndarray:
    return rng.normal(size=dims).astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [64, 96, 120, 128])
def test_a_packed_program_means_the_same(n: int, transposed: bool):
    g = linear(40, n, transposed)
    packed = pack_weights(g, lambda dtype, columns: 32)
    assert packed is not g
    given = {"x": normal(3, 40), "w": normal(n, 40) if transposed else normal(40, n)}
    compare = [rlx.Session("reference").compile(p) for p in (g, packed)]
    for c in compare:
        c.set_param("w", given["w"])
    [wanted], [found] = (c.run({"x": given["x"]}) for c in compare)
    np.testing.assert_array_equal(found, wanted)


def test_what_is_packed():
    def width(dtype: object, n: int) -> int:
        return 32

    # One panel as it is; a panel that would be mostly zeros; both keep the weight as it is.
    for n in (32, 20, 33, 40):
        assert pack_weights(g := linear(16, n), width) is g
    assert pack_weights(linear(16, 60), width) is not None
    g = Graph("inputs")
    g.set_outputs([g.input("x", (4, 16)) @ g.input("w", (16, 64))])
    assert pack_weights(g, width) is g


def test_equal_weights_are_packed_once():
    g = Graph("shared")
    w = g.param("w", (16, 64))
    g.set_outputs([g.input("x", (4, 16)) @ w, g.input("y", (8, 16)) @ w])
    packed = pack_weights(g, lambda dtype, n: 32)
    products = [n for n in packed.nodes if n.op.mnemonic == "matmul"]
    assert len({n.inputs[1] for n in products}) == 1


def test_main_reads_panels_and_no_longer_the_weight():
    result = CompilePipeline.new("cpu").compile(linear(48, 192, transposed=True))
    assert [k.kind for k in result.lir.kernels if k.kind != "view"] == ["matmul"]
    graph = result.lir.as_graph()
    assert [n.op.key for n in graph.params if isinstance(n.op, Param)] == ["prepared.0"]
    (product,) = (n for n in graph.nodes if n.op.mnemonic == "matmul")
    covered = set(result.lir.kernels[-1].nodes)
    panels = panels_below(graph, product.inputs[1], covered)
    assert panels is not None and graph.shape(panels.node).dims == (192 // panels.width, 48, panels.width)


@pytest.mark.parametrize("width", [4, 8, 16, 32, 64])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_matrices_side_by_side_are_no_panels_of_another_width(dtype: str, width: int):
    """Rows times several matrices at once, as experts have them: their views look like those of panels."""
    x, e = (normal(*dims).astype(rlx.DType.of(dtype).numpy) for dims in ((3, 7, 16), (4, 16, width)))
    got = rlx.jit(lambda x, e: rlx.numpy.einsum("btd,edf->btef", x, e))(x, e)
    wanted = np.einsum("btd,edf->btef", x.astype(np.float64), e.astype(np.float64))
    unit = {"bf16": 2.0**-7, "f32": 2.0**-20}[dtype]
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), wanted, rtol=unit, atol=unit * np.abs(wanted).max())


def test_gpus_have_no_panels():
    g = Graph("side_by_side")
    e = g.input("e", (4, 16, 32))
    g.set_outputs([g.input("x", (24, 16)) @ ops.reshape(ops.transpose(e, (1, 0, 2)), (16, 128))])
    assert "matmul" in compile_to_code_object(g, arch="gfx1100").decode("latin1")


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i8", "i32"])
def test_every_dtype_from_panels(dtype: str):
    k, n = 30, 200
    kind = rlx.DType.of(dtype).numpy
    g = linear(k, n, dtype=dtype)
    x, w = ((rng.normal(size=dims) * 3).astype(kind) for dims in ((7, k), (k, n)))
    results = []
    for device in ("cpu", "reference"):
        c = rlx.Session(device).compile(g)
        c.set_param("w", w)
        results.append(np.asarray(c.run({"x": x})[0]).astype(np.float64))
    unit = {"f64": 2.0**-50, "f32": 2.0**-20, "bf16": 2.0**-7, "f16": 2.0**-9}.get(dtype, 0.0)
    np.testing.assert_allclose(*results, rtol=unit, atol=unit * np.abs(results[1]).max())


def test_quantised_weights_have_one_layout_for_products_and_lookups():
    scheme = QuantScheme.GgufQ4_1
    k, n = 64, 96
    count = scheme.packed_bytes(k, n)
    g = Graph("tied")
    x, ids, w = g.input("x", ("B", k)), g.input("ids", ("S",), "i32"), g.param("w", (count,), "u8")
    y: Any = ops.dequant_matmul(x, w, scheme=scheme, n=n)
    g.set_outputs([ops.silu(y) * 2.0, ops.dequant_gather(w, ids, scheme=scheme, k=k)])
    packed = pack_quantized(g)
    assert sum(isinstance(node.op, QuantPanels) for node in packed.nodes) == 1
    result = CompilePipeline.new("cpu").compile(g)
    assert sorted(kernel.kind for kernel in result.lir.kernels) == ["lookup", "matmul"]
    assert [n.op.key for n in result.lir.as_graph().params if isinstance(n.op, Param)] == ["prepared.0"]
    stored = (rng.integers(0, 256, count) & 0xBB).astype(np.uint8)
    values = normal(5, k), np.array([3, -1, 95, 0], np.int32)
    found = []
    for device in ("cpu", "reference"):
        c = rlx.Session(device).compile(g)
        c.set_param("w", stored)
        found.append([np.asarray(r) for r in c.run({"x": values[0], "ids": values[1]})])
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-5 * np.abs(found[1][0]).max())
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_a_weight_that_changes_at_run_time_stays_as_it_is():
    scheme = QuantScheme.GgufQ8_0
    g = Graph("input")
    w = g.input("w", (scheme.packed_bytes(32, 4),), "u8")
    g.set_outputs([ops.dequant_matmul(g.input("x", (2, 32)), w, scheme=scheme, n=4)])
    assert pack_quantized(g) is g


def agree(g: Graph, params: dict[str, np.ndarray], *inputs: dict[str, np.ndarray], rtol: float = 1e-5) -> None:
    """The CPU gives what the definitions give, within a part of the largest value."""
    compiled = [rlx.Session(device).compile(g) for device in ("cpu", "reference")]
    for c in compiled:
        for name, value in params.items():
            c.set_param(name, value)
    for given in inputs:
        for found, wanted in zip(*(c.run(given) for c in compiled)):
            scale = float(np.abs(wanted).max())
            np.testing.assert_allclose(found, wanted, rtol=0, atol=rtol * scale)


def kinds(g: Graph) -> list[str]:
    return [k.kind for k in CompilePipeline.new("cpu").compile(g).lir.kernels if k.kind != "view"]


WIDTH = panel_width(host(), DType.F32)


@pytest.mark.parametrize(("k", "n"), [(128, 4 * WIDTH), (40, WIDTH), (33, WIDTH // 2 + 2), (33, WIDTH * 3 // 2)])
def test_a_gate_and_what_it_gates_are_one_kernel(k: int, n: int):
    g = Graph("swiglu")
    x, gate, up = g.input("x", ("B", k)), g.param("gate", (k, n)), g.param("up", (k, n))
    g.set_outputs([ops.silu(x @ gate) * (x @ up)])
    # The second half of three panels does not begin with one; a panel and a few columns are not packed.
    assert len(kinds(g)) == (2 if 2 * n == 3 * WIDTH else 1)
    params = {"gate": normal(k, n) * 0.1, "up": normal(k, n) * 0.1}
    agree(g, params, *({"x": normal(m, k)} for m in (1, 5, 49)))


def quantised(scheme: QuantScheme, k: int, n: int) -> np.ndarray:
    return (rng.integers(0, 256, scheme.packed_bytes(k, n)) & 0xBB).astype(np.uint8)


def test_quantised_products_of_one_value_are_joined():
    """q, k and v of one type are one product; the gate's two parts meet in its epilogue; another type stays apart."""
    four, eight, k, n = QuantScheme.GgufQ4_1, QuantScheme.GgufQ8_0, 64, 48
    g = Graph("joined")
    x = g.input("x", ("B", "S", k))
    params = {}

    def product(name: str, scheme: QuantScheme, columns: int) -> Any:
        params[name] = quantised(scheme, k, columns)
        return ops.dequant_matmul(x, g.param(name, params[name].shape, "u8"), scheme=scheme, n=columns)

    q, key, value = product("q", four, n), product("k", four, 16), product("v", eight, 16)
    g.set_outputs([ops.tanh(q), ops.tanh(key), value])
    joined = join_products(g)
    assert sum(node.op.mnemonic == "dequant_matmul" for node in joined.nodes) == 2
    agree(g, params, *({"x": normal(b, s, k) * 0.01} for b, s in ((1, 1), (2, 9))))

    g, params = Graph("gated"), {}
    x = g.input("x", ("B", k))
    g.set_outputs([ops.silu(product("gate", four, n)) * product("up", four, n)])
    assert kinds(g) == ["matmul"]
    agree(g, params, *({"x": normal(m, k) * 0.01} for m in (1, 4, 30)))


@pytest.mark.parametrize("columns, starts", [(96, (0,)), (96, (0, 128)), (130, (64,)), (192, (64, 256)), (48, (0, 96))])
@pytest.mark.parametrize("n", [144, 512])
def test_parts_of_columns_are_read_from_panels_of_all(n, columns, starts):
    """Panels are as wide as all columns want them; fewer columns may want others."""
    starts = [start for start in starts if start + columns <= n] or [0]
    columns = min(columns, n)
    g = Graph("parts")
    y = g.input("x", ("B", 64)) @ g.param("w", (64, n))
    parts = [ops.narrow(y, 1, start, columns) for start in starts]
    g.set_outputs([ops.relu(parts[0]) * parts[-1]])
    agree(g, {"w": normal(64, n)}, {"x": normal(7, 64)}, {"x": normal(64, 64)})


PANEL_SCHEMES = [s for s in vars(QuantScheme).values() if isinstance(s, QuantScheme) and s.panel_format is not None]


@pytest.mark.parametrize("scheme", PANEL_SCHEMES, ids=str)
def test_looked_up_rows_are_those_of_the_file(scheme):
    """Every format, bit for bit: vectors of a row's codes come out of words that lie 16 rows apart."""
    n, k = 21, 512
    op = PanelGather(scheme, k, n)
    g = Graph("rows")
    panels, ids = g.input("panels", op.panels(k, n).static_dims, "u8"), g.input("ids", (24,), "i32")
    g.set_outputs([op(panels, ids)])
    stored = (rng.integers(0, 256, op.panels(k, n).static_dims) & 0xBB).astype(np.uint8)
    numbers = rng.integers(-n, n, 24).astype(np.int32)
    (found,) = rlx.Session("cpu").compile(g).run({"panels": stored, "ids": numbers})
    np.testing.assert_array_equal(found, op.eval(stored, numbers))
