"""Products on a GPU against f64, for `gpu_suite.py`: floats, stored codes, and rows of long weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from gpu_suite import check_assembled, distance


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def run_product(dtype: str, b_turned: str, epilogue: str, m: str, n: str, k: str, arch: str = "") -> float:
    """A product against f64, with what is done to it: every element of C is looked at. `arch` is an older chip whose
    code this one runs."""
    import rlx.numpy as rnp  # noqa: F401
    from rlx import nn
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.backends.cuda.device import open_gpu
    from rlx.backends.cuda.executable import CudaExecutable
    from rlx.compile.compiler import CompilePipeline
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    rows, columns, depth = int(m), int(n), int(k)
    turned = b_turned == "turned"
    rng = np.random.default_rng(rows * columns + depth)
    numpy = DType.of(dtype).numpy
    draw = lambda *s: rng.standard_normal(s).astype("f4").astype(numpy)  # noqa: E731
    a, b = draw(rows, depth), draw(columns, depth) if turned else draw(depth, columns)
    bias, residual = draw(columns), draw(rows, columns)
    graph = Graph("product")
    given = {"a": a, "b": b}
    # "across": A lies along its rows, as in the gradient of a weight.
    across = b_turned == "across"
    x, w = graph.input("a", (depth, "M") if across else ("M", depth), dtype), graph.input("b", b.shape, dtype)
    given["a"] = np.ascontiguousarray(a.T) if across else a
    wide = [v.astype("f8") for v in (a, b.T if turned else b, bias, residual)]
    want = wide[0] @ wide[1]
    with building(graph):
        y = (x.T if across else x) @ (w.T if turned else w)
        if epilogue == "gelu":
            y = nn.gelu(y + graph.input("bias", bias.shape, dtype), approximate=True)
            given["bias"], want = bias, _gelu(want + wide[2])
        if epilogue == "residual":
            y = y + graph.input("residual", ("M", columns), dtype)
            given["residual"], want = residual, want + wide[3]
    graph.set_outputs([y])
    if arch:
        executable = CudaExecutable.of(
            replace(CompilePipeline.new("cuda"), machine=arch).compile(graph), open_gpu(0), arch
        )
        assert "mma tiles" in str(executable.report), str(executable.report)
    else:
        executable = CudaBackend().compile(graph, None)
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(6))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    error = distance(got, want)
    # Each element, too: a wrong tile must not hide behind a large matrix.
    scale = np.abs(want).max()
    assert float(np.abs(got.astype("f8") - want).max()) <= 0.02 * scale, "an element is wrong"
    bound = {"f32": 1e-5, "f16": 1.5e-3, "bf16": 8e-3}[dtype]
    assert error <= bound, f"off by {error:.2g}"
    return error


PRODUCTS = [
    (dtype, turned, epilogue, *size)
    for dtype in ("bf16", "f16", "f32")
    for turned in ("plain", "turned")
    for epilogue in ("none", "gelu", "residual")
    for size in ((1, 264, 136), (5, 264, 136), (9, 264, 136), (130, 264, 72), (300, 257, 200), (1000, 776, 328))
] + [("bf16", "turned", "none", 2048, 2048, 1024), ("bf16", "plain", "gelu", 2048, 2048, 1024)]
# Few rows whose weights stream through shared memory.
PRODUCTS += [
    (dtype, "turned", epilogue, *size)
    for dtype in ("bf16", "f16")
    for epilogue in ("none", "gelu", "residual")
    for size in ((1, 1000, 2056), (8, 257, 1544), (3, 4099, 1024), (1, 2048, 8192))
]
PRODUCTS += [
    (dtype, "across", epilogue, *size)
    for dtype in ("bf16", "f16")
    for epilogue in ("none", "residual")
    for size in ((8, 264, 136), (264, 136, 200), (300, 257, 200), (1000, 776, 328), (768, 768, 4096))
]
PRODUCTS += [
    (dtype, turned, epilogue, *size, "sm_80")
    for dtype in ("bf16", "f16")
    for turned in ("plain", "turned")
    for epilogue in ("none", "gelu", "residual")
    for size in ((17, 264, 136), (130, 264, 72), (300, 264, 200), (1000, 776, 328), (2048, 2048, 1024))
]

# Gradients of weights.
PRODUCTS += [
    ("bf16", "across", epilogue, *size, "sm_80")
    for epilogue in ("none", "residual")
    for size in ((264, 136, 200), (1000, 776, 328), (768, 768, 4096))
]


def run_codes(name: str, dtype: str, epilogue: str, m: str, n: str, k: str) -> float:
    """A product with stored GGUF blocks against f64: every element, and twice the same bits."""
    from random_panels import random_panels

    from rlx import nn
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.backends.cuda.hopper.expanded_form import LEAST_ROWS
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building
    from rlx.ops.lowered.quantized_panels import PanelMatMul
    from rlx.quant.panels import unpack_rows
    from rlx.quant.schemes import QuantScheme

    rows, columns, depth = int(m), int(n), int(k)
    scheme = QuantScheme.of_ggml(name)
    layout = scheme.panel_format
    assert layout is not None
    rng = np.random.default_rng(rows * columns + depth)
    a = rng.standard_normal((rows, depth)).astype("f4").astype(DType.of(dtype).numpy)
    panels = random_panels(layout, columns, depth, 3)
    graph, given = Graph("codes"), {"a": a, "panels": panels}
    x, w = graph.input("a", ("M", depth), dtype), graph.input("panels", panels.shape, "u8")
    want = a.astype("f8") @ unpack_rows(layout, panels, columns, depth).astype("f8").T
    with building(graph):
        y = PanelMatMul(scheme, columns)(x, w)
        if epilogue == "residual":
            given["residual"] = rng.standard_normal((rows, columns)).astype("f4").astype(a.dtype)
            y, want = y + graph.input("residual", ("M", columns), dtype), want + given["residual"].astype("f8")
        if epilogue == "gated":
            half = columns // 2
            y = nn.silu(y[:, :half]) * y[:, half:]
            want = want[:, :half] / (1 + np.exp(-want[:, :half])) * want[:, half:]
    graph.set_outputs([y])
    executable = CudaBackend().compile(graph, None)
    assert "mma of codes" in str(executable.report), str(executable.report)
    parts = 0 if dtype != "f32" else 1 if layout.is_short else 2
    is_written = "written out" in str(executable.report) and rows >= LEAST_ROWS[parts]
    got, *again = (np.asarray(executable.run(given, {})[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    error = distance(got, want)
    worst = float(np.abs(got.astype("f8") - want).max() / np.abs(want).max())
    written = [form._functions for step in executable.programs.main.steps for form in step.code.forms[:-1]]
    assert any(map(len, written)) == is_written, "the other form ran"
    # Rows and weights of f32 that are sums of two numbers of bf16 have 16 bits, and tensor cores cut their sums.
    bound = {"f32": 1e-5 if is_written else 4e-6, "f16": 2e-3, "bf16": 1.6e-2}[dtype]
    assert error <= bound and worst <= 2 * bound, f"off by {error:.2g}, an element by {worst:.2g}"
    return error


def code_products() -> Iterator[tuple[Any, ...]]:
    """Every panel format; then rows, epilogues and types of A for some."""
    from rlx.quant.fields import PANEL_FORMATS
    from rlx.quant.schemes import QuantScheme

    for name in PANEL_FORMATS:
        yield (name, "f32", "none", 1, 72, 768)
        # 864 is no multiple of a chunk.
        yield (name, "f32", "none", 130, 72, 768)
        yield (name, "f32", "none", 5, 72, 768 if 864 % (QuantScheme.of_ggml(name).gguf_block_size or 1) else 864)
    for name in ("Q4_K", "Q8_0", "Q6_K", "Q4_0"):
        for dtype in ("f32", "bf16", "f16"):
            for rows in (1, 2, 4, 8, 9, 16, 50):
                yield (name, dtype, "residual" if rows % 2 else "none", rows, 104, 2048)
            yield (name, dtype, "gated", 3, 96, 1024)
            # Weights that are written out: few tiles that blocks share, lines that are filled up, odd columns, gates.
            yield (name, dtype, "residual", 70, 104, 4096)
            yield (name, dtype, "none", 200, 97, 1024 if name.endswith("K") else 1056)
            yield (name, dtype, "gated", 300, 288, 1024)
            yield (name, dtype, "residual", 1000, 1000, 2048)


WIDE_PRODUCTS = [(1, 1000, 2056), (2, 4099, 1024), (8, 264, 1544), (1, 2048, 8192)]


def run_wide_product(m: str, n: str, k: str) -> float:
    """f32 rows with a weight that is stored in bf16, against f64: no more is lost than by sums in f32."""
    from rlx import ops
    from rlx.backends.cuda.backend import CudaBackend
    from rlx.ir.dtype import DType
    from rlx.ir.graph import Graph
    from rlx.ir.tensor import building

    rows, columns, depth = int(m), int(n), int(k)
    rng = np.random.default_rng(rows * columns + depth)
    x = (rng.standard_normal((rows, depth)) * np.exp(3 * rng.standard_normal((rows, depth)))).astype("f4")
    w = rng.standard_normal((columns, depth)).astype(DType.BF16.numpy)
    graph = Graph("wide")
    a, b = graph.input("a", ("M", depth), "f32"), graph.param("w", w.shape, "bf16")
    with building(graph):
        graph.set_outputs([ops.matmul(a, ops.transpose(ops.cast(b, DType.F32), (1, 0)))])
    executable = CudaBackend().compile(graph, None)
    assert "mma of few rows" in str(executable.report), str(executable.report)
    params = executable.prepare({"w": w})
    got, *again = (np.asarray(executable.run({"a": x}, params)[0]) for _ in range(4))
    assert all(other.tobytes() == got.tobytes() for other in again), "runs differ"
    check_assembled(executable)
    x[0, 3] = np.inf
    assert np.isinf(np.asarray(executable.run({"a": x}, params)[0])[0]).all(), "infinity is lost"
    x[0, 3] = 0
    wanted = x.astype("f8") @ w.astype("f8").T
    found = np.asarray(executable.run({"a": x}, params)[0]).astype("f8")
    scale = np.abs(x).astype("f8") @ np.abs(w.astype("f8")).T
    worst = float((np.abs(found - wanted) / scale).max())
    # Each of eight warps adds 16 elements of K at a time to a sum of f32, which tensor cores cut instead of rounding.
    bound = max(1, depth // 128) * 2.0**-23
    assert worst <= bound, f"off by {worst:.2g} of the sum of all sizes"
    return worst
