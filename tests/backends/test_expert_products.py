"""Products with the experts of a stack of GGUF weights: routes, every type, any rows and ids, epilogues, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from op_kernel_checks import Program

import rlx
from guarded_memory import guarded, on_guard_page
from rlx import ops
from rlx.backends.native.elf import undefined_symbols
from rlx.compile.compiler import CompilePipeline
from rlx.errors import OpError
from rlx.kernels.emit.llvm_codegen import compile_object
from rlx.kernels.ir.interpret import interpret
from rlx.kernels.ir.loop_ir import walk
from rlx.kernels.machines import MACHINES, NEON, RISCV, WGSL, runs_here
from rlx.ops.lowered.expert_products import ExpertMatMul, ExpertRoute, Int8ExpertMatMul, RoutedMatMul
from rlx.ops.lowered.int8_products import Int8Blocks
from rlx.ops.lowered.quantized_panels import QuantPanels
from rlx.quant.decode import FORMATS
from rlx.quant.fields import PANEL_FORMATS
from rlx.quant.schemes import QuantScheme

rng = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order():
    global rng
    rng = np.random.default_rng(11)


def stored(name: str, experts: int, n: int, k: int) -> np.ndarray:
    """Random blocks; the mask keeps halves, wherever they lie, finite and moderate."""
    block = FORMATS[name]
    return rng.integers(0, 256, (experts, n, k // block.elements * block.bytes)).astype(np.uint8) & 0xBB


def decoded(name: str, weights: np.ndarray, k: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        blocks = np.ascontiguousarray(weights).reshape(-1, FORMATS[name].bytes)
        return FORMATS[name].decode(blocks).reshape(*weights.shape[:2], k).astype(np.float64)


def close(found: np.ndarray, x: np.ndarray, weights: np.ndarray, ids: np.ndarray) -> None:
    """Roundings of a sum in any order add up like a random walk, as parts of the sum of absolute values; minimums,
    which are added apart, are about as large as the largest weight."""
    assert np.isfinite(found).all()
    for y, row, w in zip(found, x.astype(np.float64), weights[ids]):
        unit = 2.0**-24 * (2 + np.sqrt(len(row)))
        reach = np.abs(row) @ (np.abs(w) + np.abs(w).max(axis=1, keepdims=True)).T
        assert (np.abs(y - row @ w.T) <= unit * reach).all()


def product(name: str, experts: int, n: int, k: int, dtype: str = "f32") -> Program:
    """x, panels, ids -> y."""
    scheme = QuantScheme.of_ggml(name)
    made = ExpertMatMul(scheme, experts, n)
    panels = made.panels(k, n, experts).static_dims
    return Program(
        lambda x, w, ids: made(x, w, ExpertRoute(experts)(ids)),
        (("M", k), dtype),
        (panels, "u8"),
        (("M",), "i32"),
        kinds=["route", "matmul"],
    )


def panels_of(name: str, weights: np.ndarray, k: int) -> np.ndarray:
    experts, n, _ = weights.shape
    with np.errstate(all="ignore"):
        return QuantPanels(QuantScheme.of_ggml(name), k, n, experts).eval(weights)


@pytest.mark.parametrize("name", PANEL_FORMATS)
def test_every_type_and_any_number_of_rows(name):
    experts, n, k = 3, 35, 256
    weights = stored(name, experts, n, k)
    run, panels, wanted = product(name, experts, n, k), panels_of(name, weights, k), decoded(name, weights, k)
    for m in (0, 1, 5, 70):
        x, ids = rng.normal(size=(m, k)).astype(np.float32), rng.integers(0, experts, m).astype(np.int32)
        (found,) = run(x, panels, ids)
        close(found, x, wanted, ids)


IDS = {
    "one expert for all": [4] * 111,
    "each its own": [5, 0, 3, 1, 4, 2],
    "in turns": [0, 5] * 50,
    "some never": [2, 2, 2, 0, 2, 2, 0],
    "whole blocks": [1] * 48 + [3] * 48 + [5] * 49,
    "counted from the end": [-1, -6, 0, 5],
}


@pytest.mark.parametrize("case", IDS)
@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
def test_ids_in_any_order(name, case):
    experts, n, k = 6, 70, 512
    weights = stored(name, experts, n, k)
    # Scales that are no numbers, in experts that nobody asks for.
    weights[[e for e in range(experts) if e not in np.array(IDS[case]) % experts]] = 0xFF
    ids = np.array(IDS[case], np.int32)
    x = rng.normal(size=(len(ids), k)).astype(np.float32)
    (found,) = product(name, experts, n, k)(x, panels_of(name, weights, k), ids)
    close(found, x, decoded(name, weights, k), ids)


@pytest.mark.parametrize(("name", "digits"), [("Q4_K", 2), ("Q4_0", 1), ("Q6_K", 2)])
def test_rows_as_codes(name, digits):
    """Blocks of one row, of few and of many, and columns that are no whole panel; one row's result does not depend on
    how many others its expert has."""
    experts, n, k = 6, 70, 768
    scheme, weights = QuantScheme.of_ggml(name), stored(name, 6, 70, 768)
    made = Int8ExpertMatMul(scheme, experts, n, digits)
    panels = panels_of(name, weights, k)
    run = Program(
        lambda x, w, ids: made(Int8Blocks(scheme, digits)(x), w, ExpertRoute(experts)(ids)),
        (("M", k), "f32"),
        (panels.shape, "u8"),
        (("M",), "i32"),
    )
    x = rng.normal(size=(111, k)).astype(np.float32)
    codes = Int8Blocks(scheme, digits).eval(x)
    everything = [made.one.eval(codes, slab) for slab in panels.reshape(experts, -1, panels.shape[1])]
    known = {}
    for ids in IDS.values():
        ids = np.array(ids, np.int32)[:111]
        (found,) = run(x[: len(ids)], panels, ids)
        wanted = np.stack([everything[e % experts][i] for i, e in enumerate(ids)])
        largest = np.abs(decoded(name, weights, k)).max(axis=2)[ids % experts]
        reach = np.abs(x[: len(ids)]).sum(1, keepdims=True) * largest
        assert (np.abs(found - wanted) <= 2.0**-22 * reach).all()
        for i, e in enumerate(ids % experts):
            np.testing.assert_array_equal(known.setdefault((i, e), found[i]), found[i])


def test_more_experts_than_rows_and_a_long_weight():
    experts, n, k = 40, 33, 32 * 300
    weights = stored("Q4_1", experts, n, k)
    run, panels = product("Q4_1", experts, n, k), panels_of("Q4_1", weights, k)
    for ids in ([39, 0, 17], [39] * 9 + [1] * 8):
        x = rng.normal(size=(len(ids), k)).astype(np.float32)
        (found,) = run(x, panels, np.array(ids, np.int32))
        close(found, x, decoded("Q4_1", weights, k), np.array(ids))


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
def test_the_interpreter_and_other_targets_agree(name):
    experts, n, k = 3, 17, 256 if name == "Q6_K" else 64
    weights = stored(name, experts, n, k)
    run, panels = product(name, experts, n, k), panels_of(name, weights, k)
    for m in (3, 10):
        x, ids = rng.normal(size=(m, k)).astype(np.float32), np.array([2, 0, 2, 2, 2, 2, 2, 2, 2, 1][:m], np.int32)
        wanted = decoded(name, weights, k)
        close(run.interpreted(x, panels, ids)[0], x, wanted, ids)
        for target in filter(runs_here, MACHINES.values()):
            close(run.ran_on(target, x, panels, ids)[0], x, wanted, ids)
    for target in (NEON, RISCV):
        for made in run.kernels(target):
            assert undefined_symbols(compile_object(made.kernel, target)) == set()


def test_a_residual_that_is_also_multiplied_is_not_stored_over():
    experts, k = 3, 64
    weights = stored("Q4_0", experts, k, k)
    scheme = QuantScheme.of_ggml("Q4_0")

    def block(x, w, ids):
        y = ops.mul(x, 2.0)
        return ops.add(y, ops.dequant_grouped_matmul(y, w, ids, scheme=scheme, n=k))

    run = Program(block, (("M", k), "f32"), (weights.shape, "u8"), (("M",), "i32"))
    x, ids = rng.normal(size=(120, k)).astype(np.float32), rng.integers(0, experts, 120).astype(np.int32)
    w = decoded("Q4_0", weights, k)
    # 2x + 2x·W = 2x·(1 + W).
    close(run(x, weights, ids)[0], 2 * x, w + np.eye(k), ids)


@pytest.mark.parametrize("dtype", ["f64", "bf16"])
def test_other_floats(dtype):
    experts, n, k = 3, 19, 64
    weights = stored("Q5_0", experts, n, k)
    ids = np.array([1, 1, 2, 0, 1, 1, 1, 1, 1], np.int32)
    x = rng.normal(size=(len(ids), k)).astype(rlx.DType.of(dtype).numpy)
    (found,) = product("Q5_0", experts, n, k, dtype)(x, panels_of("Q5_0", weights, k), ids)
    wanted = np.einsum("mk,mnk->mn", x.astype(np.float64), decoded("Q5_0", weights, k)[ids])
    tolerance = {"f64": 1e-13, "bf16": 2.0**-8}[dtype]
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def test_a_route_lists_rows_by_expert():
    run = Program(ExpertRoute(5), (("M",), "i64"), kinds=["route"])
    for ids in ([], [3], [4, 4, 0, -1, 2, 2, -5], [2] * 20, list(rng.integers(-5, 5, 300))):
        given = np.array(ids, np.int64)
        wanted = ExpertRoute(5).eval(given)
        assert [r.tolist() for r in run(given)] == [wanted.tolist()]
        rows = wanted[10:]
        assert sorted(rows) == list(range(len(ids)))
        assert (np.diff(given[rows] % 5) >= 0).all()
    run.check_everywhere(np.array([4, 1, 1, 0, 4], np.int64))


def mixture(x, gate, up, down, ids, chances, scheme, ffn, hidden):
    """The experts of a model: chance · down(silu(gate(x)) · up(x))."""
    inner = ops.mul(
        ops.silu(ops.dequant_grouped_matmul(x, gate, ids, scheme=scheme, n=ffn)),
        ops.dequant_grouped_matmul(x, up, ids, scheme=scheme, n=ffn),
    )
    y = ops.dequant_grouped_matmul(inner, down, ids, scheme=scheme, n=hidden)
    return ops.mul(y, ops.expand_dims(chances, -1))


def compiled_mixture(params: dict[str, np.ndarray], hidden: int, ffn: int, kind: str = "param"):
    g = rlx.Graph("mixture")
    x, ids, chances = g.input("x", ("M", hidden), "f32"), g.input("ids", ("M",), "i32"), g.input("c", ("M",), "f32")
    weights = [getattr(g, kind)(name, value.shape, "u8") for name, value in params.items()]
    g.set_outputs([mixture(x, *weights, ids, chances, QuantScheme.of_ggml("Q4_0"), ffn, hidden)])
    compiled = rlx.Session("cpu").compile(g)
    for name, value in params.items() if kind == "param" else ():
        compiled.set_param(name, value)
    return compiled, CompilePipeline.new("cpu").compile(g).lir


@pytest.mark.parametrize("kind", ["param", "input"])
def test_a_mixture_reads_panels_and_never_stores_weights_as_floats(kind):
    experts, hidden, ffn = 4, 64, 96
    sizes = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
    params = {name: stored("Q4_0", experts, n, k) for name, (n, k) in sizes.items()}
    compiled, lir = compiled_mixture(params, hidden, ffn, kind)
    layouts = 0 if kind == "param" else 3
    # One route for all three products; what follows them is part of their kernels.
    assert sorted(k.kind for k in lir.kernels if k.kind != "view") == ["layout"] * layouts + ["matmul"] * 3 + ["route"]
    floats = [n.shape for n in lir.as_graph().nodes if n.shape.dtype.is_float and n.shape.is_static]
    assert all(shape.element_count < hidden * ffn for shape in floats)
    w = {name: decoded("Q4_0", value, k) for (name, value), (_, k) in zip(params.items(), sizes.values())}
    for m in (2, 90):
        x, ids = rng.normal(size=(m, hidden)).astype(np.float32), rng.integers(0, experts, m).astype(np.int32)
        chances = rng.uniform(size=m).astype(np.float32)
        given = {"x": x, "ids": ids, "c": chances} | (params if kind == "input" else {})
        (found,) = compiled.run(given)
        gate, up = (np.einsum("mk,mnk->mn", x.astype(np.float64), w[name][ids]) for name in ("gate", "up"))
        with np.errstate(over="ignore"):
            inner = gate / (1 + np.exp(-gate)) * up
        wanted = np.einsum("mk,mnk->mn", inner, w["down"][ids]) * chances[:, None]
        reach = np.einsum("mk,mnk->mn", np.abs(gate * up), np.abs(w["down"][ids])) * chances[:, None]
        assert (np.abs(found - wanted) <= 2e-6 * reach).all()


def test_ids_from_outside_are_checked_and_computed_ones_clipped():
    experts, n, k = 3, 16, 32
    weights = stored("Q8_0", experts, n, k)

    def compiled(shift):
        g = rlx.Graph("ids")
        x, ids, w = g.input("x", ("M", k), "f32"), g.input("ids", ("M",), "i32"), g.param("w", weights.shape, "u8")
        chosen = ops.add(ids, shift) if shift else ids
        g.set_outputs([ops.dequant_grouped_matmul(x, w, chosen, scheme="gguf_q8_0", n=n)])
        result = rlx.Session("cpu").compile(g)
        result.set_param("w", weights)
        return result

    x = rng.normal(size=(4, k)).astype(np.float32)
    for bad in (3, -4, 2**31 - 1, -(2**31)):
        with pytest.raises(OpError, match=f"ids holds {bad}, but the indexed axis has size 3: valid ids are -3..2"):
            compiled(0).run({"x": x, "ids": np.array([0, 1, bad, 2], np.int32)})
    (found,) = compiled(1000).run({"x": x, "ids": np.array([0, -2000, -1002, -999], np.int32)})
    close(np.asarray(found), x, decoded("Q8_0", weights, k), np.array([2, 0, 1, 1]))


def test_float_ids_are_cut_off():
    weights = stored("Q8_0", 3, 16, 32)
    scheme = QuantScheme.of_ggml("Q8_0")
    run = Program(
        lambda x, w, ids: ops.dequant_grouped_matmul(x, w, ids, scheme=scheme, n=16),
        ((4, 32), "f32"),
        (weights.shape, "u8"),
        ((4,), "f32"),
    )
    x = rng.normal(size=(4, 32)).astype(np.float32)
    (found,) = run(x, weights, np.array([1.9, 0, -3, 2], np.float32))
    close(found, x, decoded("Q8_0", weights, 32), np.array([1, 0, 0, 2]))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("turned", [False, True])
def test_experts_that_are_floats(dtype, turned):
    """Matrices [E, K, N], or [E, N, K] read by their strides as models store them."""
    for experts, k, n in ((5, 33, 3), (3, 700, 130), (2, 16, 1), (4, 9, 0)):

        def multiply(x, w, ids):
            return ops.relu(ops.grouped_matmul(x, ops.transpose(w, (0, 2, 1)) if turned else w, ids))

        stack = (experts, n, k) if turned else (experts, k, n)
        run = Program(multiply, (("M", k), dtype), (stack, dtype), (("M",), "i32"))
        assert run.kinds == (["route", "matmul"] if n else run.kinds)
        w = rng.normal(size=stack).astype(rlx.DType.of(dtype).numpy)
        for m in (0, 1, 7, 120):
            x, ids = rng.normal(size=(m, k)).astype(w.dtype), rng.integers(0, experts, m).astype(np.int32)
            exact = w.astype(np.float64).swapaxes(1, 2) if turned else w.astype(np.float64)
            wanted = np.maximum(np.einsum("mk,mkn->mn", x.astype(np.float64), exact[ids]), 0)
            reach = np.einsum("mk,mkn->mn", np.abs(x.astype(np.float64)), np.abs(exact[ids]))
            # Roundings of a sum in any order add up like a random walk.
            bound = {"f32": 2.0**-24 * (2 + k**0.5), "f64": 2.0**-53 * (2 + k**0.5), "bf16": 2.0**-8}[dtype]
            assert (np.abs(run(x, w, ids)[0].astype(np.float64) - wanted) <= bound * reach).all()


@pytest.mark.parametrize("dtype, wide", [("bf16", "f32"), ("f16", "f32"), ("f32", "f64")])
@pytest.mark.parametrize("turned", [False, True])
def test_experts_are_widened_as_they_are_read(dtype, wide, turned):
    """The matrices of all experts are never stored in the wider type: a run needs few of them."""
    experts, k, n = 5, 33, 70
    stack = (experts, n, k) if turned else (experts, k, n)
    g = rlx.Graph("experts")
    x, ids = g.input("x", ("M", k), wide), g.input("ids", ("M",), "i32")
    wider = ops.cast(g.param("w", stack, dtype), rlx.DType.of(wide))
    g.set_outputs([ops.grouped_matmul(x, ops.transpose(wider, (0, 2, 1)) if turned else wider, ids)])
    compiled, lir = rlx.Session("cpu").compile(g), CompilePipeline.new("cpu").compile(g).lir
    assert [kernel.kind for kernel in lir.kernels if kernel.kind != "view"] == ["route", "matmul"]
    w = rng.normal(size=stack).astype(rlx.DType.of(dtype).numpy)
    compiled.set_param("w", w)
    exact = w.astype(np.float64).swapaxes(1, 2) if turned else w.astype(np.float64)
    for m in (0, 1, 7, 120):
        rows = rng.normal(size=(m, k)).astype(rlx.DType.of(wide).numpy)
        chosen = rng.integers(0, experts, m)
        (found,) = compiled.run({"x": rows, "ids": chosen.astype(np.int32)})
        wanted = np.einsum("mk,mkn->mn", rows.astype(np.float64), exact[chosen])
        reach = np.einsum("mk,mkn->mn", np.abs(rows.astype(np.float64)), np.abs(exact[chosen]))
        unit = {"f32": 2.0**-24, "f64": 2.0**-53}[wide]
        assert (np.abs(found - wanted) <= unit * (2 + k**0.5) * reach).all()


@pytest.mark.parametrize("is_quantized", [True, False], ids=["q8_0", "f32"])
def test_a_false_route_touches_nothing_but_its_rows(is_quantized):
    """Numbers of experts and rows are clipped and ends ascend, in kernels as in the definition; a row that the route
    does not name is left as it was."""
    experts, m, n, k = 3, 40, 37, 64
    op = ExpertMatMul(QuantScheme.of_ggml("Q8_0"), experts, n) if is_quantized else RoutedMatMul()
    if is_quantized:
        w = panels_of("Q8_0", stored("Q8_0", experts, n, k), k)
    else:
        w = rng.normal(size=(experts, k, n)).astype("f4")
    graph = rlx.Graph("f")
    x, weights = graph.input("x", (m, k)), graph.input("w", w.shape, "u8" if is_quantized else "f32")
    graph.set_outputs([op(x, weights, graph.input("route", (m + 2 * experts,), "i32"))])
    compiled = rlx.Session("cpu").compile(graph)
    x = rng.normal(size=(m, k)).astype("f4")
    for edges in ((-(2**31), 2**31 - 1), (-1, m), (0, 0), (-5, 2 * m)):
        route = rng.integers(*edges, m + 2 * experts, endpoint=True).astype(np.int32)
        route[2 * experts :] = np.where(rng.random(m) < 0.5, rng.permutation(m), route[2 * experts :])
        with guarded(0xFF) as memory:
            [y] = compiled.run(x=on_guard_page(x), w=on_guard_page(w), route=on_guard_page(route))
            assert memory.broken_redzones() == 0
            y = np.array(y)
        rows, times = np.unique(np.clip(route[2 * experts :], 0, m - 1), return_counts=True)
        wanted = op.eval(x, w, route)
        once = [r for r in rows[times == 1] if wanted[r].any()]
        np.testing.assert_allclose(y[once], wanted[once], rtol=1e-4, atol=1e-3)


def test_gpus_that_compile_text_walk_columns_of_experts():
    """A thread per column; the CPU's kernel has many forms, at which a driver's compiler works for half a minute."""
    experts, n, k = 3, 5, 32
    weights = stored("Q4_1", experts, n, k)
    run, panels, wanted = product("Q4_1", experts, n, k), panels_of("Q4_1", weights, k), decoded("Q4_1", weights, k)
    for ids in ([2, 0, 2, 2, 2, 2, 2, 1], [1]):
        x = rng.normal(size=(len(ids), k)).astype(np.float32)
        (found,) = run.results([x, panels, np.array(ids, np.int32)], WGSL, interpret)
        close(found, x, wanted, np.array(ids))
    for name in ("Q4_1", "Q6_K"):
        _, made = product(name, experts, 17, 256).kernels(WGSL)
        assert made.kernel.thread_count == 64 and sum(1 for _ in walk(made.kernel.body)) < 1500
