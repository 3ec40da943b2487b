"""Activations of 8 bits as a compile option: which products change, what they give, and what the report says."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.api import CompileOptions
from rlx.bench.agreement import compare_logits
from rlx.compile.compiler import CompilePipeline
from rlx.errors import RlxError, ShapeError
from rlx.ops.lowered.int8_products import Int8BlockMatMul, Int8Blocks, Int8MatMul, Int8Panels, highest_code
from rlx.quant.decode import FORMATS
from rlx.quant.schemes import QuantScheme

rng = np.random.default_rng(23)


def normal(*dims: int) -> np.ndarray:
    return rng.standard_normal(dims).astype(np.float32)


def compiled(graph: rlx.Graph, params: dict[str, np.ndarray], activations: str = "int8"):
    program = rlx.Session("cpu", CompileOptions(activations=activations)).compile(graph)
    program.set_params(params)
    return program


def mlp(k: int = 64, n: int = 96):
    """A gated block: two products share x, a third reads what they give; the last adds x again."""
    graph = rlx.Graph("mlp")
    x = graph.input("x", ("B", "S", k), "f32")
    gate, up, down = (
        graph.param(name, dims, "f32") for name, dims in zip(("gate", "up", "down"), ((k, n), (k, n), (n, k)))
    )
    bias = graph.param("bias", (k,), "f32")
    graph.set_outputs([ops.add(ops.add(ops.matmul(ops.mul(ops.silu(x @ gate), x @ up), down), bias), x)])
    params = {"gate": normal(k, n), "up": normal(k, n), "down": normal(n, k), "bias": normal(k)}
    return graph, params


def as_int8(x: np.ndarray, levels: int = 127) -> np.ndarray:
    """Rows rounded to so many levels on either side of 0."""
    scale = np.abs(x).max(-1, keepdims=True) / levels
    return np.rint(x / np.where(scale > 0, scale, 1)) * scale


def int8_product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return as_int8(x.astype(np.float64)) @ as_int8(w.T.astype(np.float64)).T


def test_a_product_is_that_of_the_rounded_operands():
    graph = rlx.Graph("product")
    x, w = graph.input("x", ("M", 132), "f32"), graph.param("w", (132, 70), "f32")
    graph.set_outputs([x @ w])
    weight = normal(132, 70)
    program = compiled(graph, {"w": weight})
    for m in (0, 1, 5, 50):
        a = normal(m, 132)
        found = np.asarray(program.run({"x": a})[0])
        wanted = int8_product(a, weight)
        # A quotient next to a half may round either way: one level of one element.
        step = np.abs(a).max(-1, initial=0.0)[:, None] / 127 * np.abs(weight).max()
        assert found.shape == (m, 70) and (np.abs(found - wanted) <= 1.01 * step + 1e-4).all()
        assert not m or np.mean(np.abs(found - wanted) <= 1e-4 * np.abs(wanted).max()) > 0.9


def test_gates_residuals_and_symbolic_sizes():
    graph, params = mlp()
    exact, program = compiled(graph, params, "f32"), compiled(graph, params)
    for batch, length in ((1, 1), (2, 9), (3, 31)):
        x = normal(batch, length, 64)
        wanted, found = (np.asarray(p.run({"x": x})[0]) for p in (exact, program))
        error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
        assert 0 < error < 0.03, "8 bits keep about 2 digits"


def test_every_number_of_threads_gives_the_same_bits():
    graph, params = mlp(128, 256)
    program = compiled(graph, params)
    x = normal(4, 40, 128)
    with rlx.threads(1):
        alone = np.array(program.run({"x": x})[0])
    for count in (2, 3):
        with rlx.threads(count):
            np.testing.assert_array_equal(np.asarray(program.run({"x": x})[0]), alone)


def test_kernels_are_native_and_codes_are_made_once():
    graph, _ = mlp()
    result = CompilePipeline(activations="int8").compile(graph)
    program = result.lir.as_graph()
    assert "call" not in {k.kind for k in result.lir.kernels}
    products = [n for n in program.nodes if isinstance(n.op, Int8MatMul)]
    assert len(products) == 2 and products[0].op.n == 192, "gate and up are one product"
    assert result.prepare is not None
    laid_out = [n for n in result.prepare.as_graph().nodes if isinstance(n.op, Int8Panels)]
    assert len(laid_out) == 2
    # Weights themselves are not read any more.
    assert {str(n.name) for n in program.params} & {"gate", "up", "down"} == set()


def test_rows_of_zeros_and_of_what_is_no_number():
    graph = rlx.Graph("edge")
    x, w = graph.input("x", ("M", 32), "f32"), graph.param("w", (32, 16), "f32")
    graph.set_outputs([x @ w])
    a = normal(4, 32)
    a[1] = 0
    a[2, 5] = math.nan
    found = np.asarray(compiled(graph, {"w": normal(32, 16)}).run({"x": a})[0])
    assert np.isfinite(found[[0, 3]]).all() and (found[1] == 0).all() and np.isnan(found[2]).all()


def test_what_is_left_alone_and_why():
    graph = rlx.Graph("mixed")
    x = graph.input("x", ("M", 66), "f32")
    y = graph.input("y", ("M", 64), "f32")
    odd, narrow, wide = (
        graph.param(n, d, "f32") for n, d in (("odd", (66, 32)), ("narrow", (64, 4)), ("wide", (64, 32)))
    )
    graph.set_outputs([x @ odd, y @ narrow, y @ wide, ops.matmul(ops.transpose(y, (1, 0)), y)])
    program = compiled(graph, {"odd": normal(66, 32), "narrow": normal(64, 4), "wide": normal(64, 32)})
    report = program.report
    assert "activations as int8 in 1 of 3 products with stored weights" in report
    assert "matmul by odd f32[M,66] -> f32[M,32]" in report and "66 is not a multiple of 4" in report
    assert "fewer than 16 columns" in report
    found = {c["product"].split()[2]: c["reason"] for c in json.loads(report.json())["int8"]}
    assert found["wide"] == "" and found["odd"] and found["narrow"]
    a, b = normal(5, 66), normal(5, 64)
    results = program.run({"x": a, "y": b})
    assert np.asarray(results[0]).shape == (5, 32)


def stored_floats(dtype: str, k: int = 160, n: int = 48) -> tuple[rlx.Graph, np.ndarray]:
    """A product with a weight as files of that type have it, [n, k]."""
    graph = rlx.Graph("floats")
    x, w = graph.input("x", ("M", k), "f32"), graph.param("w", (n, k), dtype)
    graph.set_outputs([x @ ops.transpose(ops.cast(w, "f32"), (1, 0))])
    narrow = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    return graph, normal(n, k).astype(narrow)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("kind", ["int16", "auto"])
def test_16_bits_of_activations_and_of_stored_floats(dtype: str, kind: str):
    """What is stored as f32 stays so."""
    graph, weight = stored_floats(dtype)
    program, exact = (compiled(graph, {"w": weight}, k) for k in (kind, "f32"))
    has_codes = dtype != "f32"
    if kind == "int16" and not has_codes:
        assert "left alone, its weight is f32; store it as f16, bf16 or a GGUF type" in program.report
    assert ("activations as int16 in 1 of 1" in program.report) == has_codes
    for m in (1, 2, 9, 50):
        x = normal(m, 160)
        wanted = x.astype(np.float64) @ weight.astype(np.float64).T
        found, floats = (np.asarray(p.run({"x": x})[0]) for p in (program, exact))
        error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
        assert error < 6e-5 if has_codes else (found == floats).all()


def test_stored_floats_are_turned_into_codes_once():
    graph, weight = stored_floats("bf16", 2048, 512)
    result = CompilePipeline(activations="auto").compile(graph)
    assert [k.kind for k in result.lir.kernels if k.kind != "view"] == ["quantize", "matmul"]
    assert result.prepare is not None
    # Out of the weight as it is stored: a copy as f32 would be twice as large.
    assert {n.shape.dtype.value for n in result.prepare.as_graph().nodes} == {"bf16", "i16"}
    program = compiled(graph, {"w": weight}, "auto")
    x = normal(70, 2048)
    with rlx.threads(1):
        alone = np.array(program.run({"x": x})[0])
    for count in (2, 3):
        with rlx.threads(count):
            np.testing.assert_array_equal(np.asarray(program.run({"x": x})[0]), alone)
    np.testing.assert_array_equal(np.asarray(program.run({"x": x[:5]})[0]), alone[:5])


def test_stored_floats_that_are_no_numbers_reach_their_rows_and_columns():
    graph, weight = stored_floats("f16")
    weight[3, 40], weight[7, 100] = math.nan, math.inf
    x = normal(4, 160)
    x[1], x[2, 5], x[3, 150] = 0, math.inf, math.nan
    found = np.asarray(compiled(graph, {"w": weight}, "auto").run({"x": x})[0])
    of_numbers = np.delete(found, [3, 7], axis=1)
    assert np.isfinite(of_numbers[0]).all() and (of_numbers[1] == 0).all()
    assert np.isnan(found[2:]).all() and np.isnan(found[:, [3, 7]]).all()


def test_sizes_that_are_no_blocks_keep_floats():
    graph, weight = stored_floats("bf16", 100)
    program = compiled(graph, {"w": weight}, "auto")
    assert "left alone, its inner size 100 is not a multiple of 32" in program.report


def test_answers_do_not_change_unless_asked():
    graph, params = mlp()
    x = normal(1, 7, 64)
    plain = rlx.Session("cpu").compile(graph)
    plain.set_params(params)
    np.testing.assert_array_equal(plain.run({"x": x})[0], compiled(graph, params, "f32").run({"x": x})[0])
    assert "int8" not in plain.report


@pytest.mark.parametrize(
    "make", [lambda: CompileOptions(activations="int4"), lambda: CompilePipeline(activations="u8")]
)
def test_other_kinds_are_refused(make):
    with pytest.raises(RlxError, match="activations is one of f32, int8, int16"):
        make()


def test_options_by_name():
    assert CompileOptions().with_activations("int8").activations == "int8"
    assert CompileOptions().key() != CompileOptions(activations="int8").key()


# GGUF weights.


def dequantised(name: str, scheme: QuantScheme, k: int, n: int):
    """A graph with one product of that type, its packed weight and the matrix that it means."""
    block = FORMATS[name]
    stored = rng.integers(0, 256, (n * k // block.elements, block.bytes)).astype(np.uint8) & 0xBB
    graph = rlx.Graph("gguf")
    x, w = graph.input("x", ("M", k), "f32"), graph.param("w", (stored.size,), "u8")
    graph.set_outputs([ops.dequant_matmul(x, w, scheme=scheme, n=n)])
    return graph, stored.reshape(-1), block.decode(stored).reshape(n, k).astype(np.float64)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("Q4_1", QuantScheme.GgufQ4_1),
        ("Q5_0", QuantScheme.GgufQ5_0),
        ("Q8_0", QuantScheme.GgufQ8_0),
        ("Q4_K", QuantScheme.GgufQ4K),
        ("Q6_K", QuantScheme.GgufQ6K),
        ("IQ4_NL", QuantScheme.GgufIQ4NL),
    ],
)
def test_blocks_meet_activations_in_blocks(name: str, scheme: QuantScheme):
    k, n = 512, 48
    graph, stored, weights = dequantised(name, scheme, k, n)
    program = compiled(graph, {"w": stored})
    levels = highest_code(scheme.panel_format, 1)
    assert 112 <= levels <= 127
    for m in (1, 13):
        x = normal(m, k)
        wanted = as_int8(x.astype(np.float64).reshape(m, -1, 32), levels).reshape(m, k) @ weights.T
        found = np.asarray(program.run({"x": x})[0])
        # Up to a code here and there that rounds the other way.
        step = np.abs(x).max() / levels * np.abs(weights).max()
        assert (np.abs(found - wanted) <= 2 * step).all()
        assert np.median(np.abs(found - wanted)) <= 1e-4 * np.abs(wanted).max()
    kinds = [k.kind for k in CompilePipeline(activations="int8").compile(graph).lir.kernels if k.kind != "view"]
    assert kinds == ["quantize", "matmul"]


def test_experts_meet_activations_in_blocks():
    k, n, experts, m = 256, 48, 3, 13
    block = FORMATS["Q4_K"]
    stored = rng.integers(0, 256, (experts, n * k // block.elements, block.bytes)).astype(np.uint8) & 0xBB
    graph = rlx.Graph("experts")
    x, ids = graph.input("x", ("M", k), "f32"), graph.input("ids", ("M",), "i32")
    w = graph.param("w", stored.shape, "u8")
    graph.set_outputs([ops.dequant_grouped_matmul(x, w, ids, scheme=QuantScheme.GgufQ4K, n=n)])
    weights = block.decode(stored.reshape(-1, block.bytes)).reshape(experts, n, k).astype(np.float64)
    given, chosen = normal(m, k), rng.integers(0, experts, m).astype(np.int32)
    wanted = np.stack([weights[e] @ row for row, e in zip(given.astype(np.float64), chosen)])
    for kind, digits in (("auto", 2), ("int8", 1), ("f32", 0)):
        program = compiled(graph, {"w": stored}, kind)
        found = np.asarray(program.run({"x": given, "ids": chosen})[0])
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        assert error < 2.0 ** -(6 if digits == 1 else 13) and (error > 2.0**-12) == (digits == 1)
        assert ("activations as int" in program.report) == (digits > 0)


def test_types_of_other_codes_keep_their_activations():
    graph, stored, weights = dequantised("NVFP4", QuantScheme.GgufNVFP4, 256, 32)
    program = compiled(graph, {"w": stored})
    x = normal(3, 256)
    np.testing.assert_allclose(program.run({"x": x})[0], x @ weights.T, rtol=0, atol=1e-4 * np.abs(x @ weights.T).max())
    assert "codes of gguf_nvfp4 are not parts of bytes" in program.report


def test_blocks_of_zeros_and_of_what_is_no_number():
    x = normal(2, 96)
    x[0, :32], x[1, 40] = 0, math.inf
    blocks = Int8Blocks(QuantScheme.GgufQ8_0)
    rows = blocks.eval(x)
    assert rows.shape == (2, 120) and (rows[0, :40] == 0).all()
    panels = np.zeros((1, QuantScheme.GgufQ8_0.panel_format.panel_bytes(96)), np.uint8)
    graph = rlx.Graph("blocks")
    a, p = graph.input("a", (2, 96), "f32"), graph.input("p", panels.shape, "u8")
    coded = graph.append_node(blocks, [a])
    graph.set_outputs([coded, graph.append_node(Int8BlockMatMul(QuantScheme.GgufQ8_0, 5), [coded, p])])
    found, y = (np.asarray(r) for r in rlx.Session("cpu").compile(graph).run({"a": x, "p": panels}))
    np.testing.assert_array_equal(found, rows)
    assert (y[0] == 0).all() and np.isnan(y[1]).all()


# How far models are apart.


def test_divergence_of_known_distributions():
    p = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]))
    q = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]]))
    found = compare_logits(p + 3, q - 1)
    # 0.5·log 2 - 0.25·log 2 in the first row, nothing in the second.
    assert found.positions == 2 and found.top1 == 0.5
    assert math.isclose(found.max_kl, 0.25 * math.log(2)) and math.isclose(found.mean_kl, 0.125 * math.log(2))
    assert "2 positions: KL 0.0866" in str(found) and "top-1 50.00%" in str(found)
    with pytest.raises(ShapeError, match="two arrays"):
        compare_logits(p, q[:, :2])
